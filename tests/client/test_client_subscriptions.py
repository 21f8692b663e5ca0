# SPDX-License-Identifier: Apache-2.0
"""Subscriptions with both Python clients: all methods, and a receiver that verifies signatures."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.client.client_kinds import client_of
from tests.servers import ZqServer, wait_for
from tests.sink import CONFIG, Sink
from zq import errors
from zq.client import RedriveResult
from zq.client.webhooks import verify


@pytest.fixture(scope="module")
def delivering() -> Iterator[ZqServer]:
    with ZqServer("memory:", config=CONFIG) as server:
        yield server


@pytest.fixture(params=["queue", "topic"])
def source(request: pytest.FixtureRequest, delivering: ZqServer, kind: str, project: str) -> Iterator[Any]:
    """Yield a queue or a topic."""
    with client_of(kind, delivering.url, project) as client:
        yield getattr(client, request.param)("news")


def post(source: Any, body: object) -> None:
    (source.post if hasattr(source, "post") else source.publish)(body)


def test_a_subscription_lives_from_its_beginning_to_its_end(source: Any) -> None:
    """A subscription is created, shown, listed, changed and deleted; a second subscribe returns the first one."""
    with Sink() as sink:
        made = source.subscribe(f"{sink.url}/0", ttl=600, options={"colour": "blue"})
        assert made.secret.startswith("whsec_")
        assert made.secret not in repr(made)
        again = source.subscribe(f"{sink.url}/0")
        assert (again.id, again.secret) == (made.id, "")
        for number in range(1, 5):
            source.subscribe(f"{sink.url}/{number}")
        assert [each.subscriber for each in source.subscriptions(page=2)] == [f"{sink.url}/{n}" for n in range(5)]
        source.update_subscription(made.id, ttl=700, options={})
        shown = source.subscription(made.id)
        assert (shown.source, shown.subscriber, shown.ttl, shown.options) == ("news", f"{sink.url}/0", 700, {})
        with pytest.raises(errors.SubscriptionExists):
            source.update_subscription(made.id, subscriber=f"{sink.url}/1")
        source.unsubscribe(made.id)
        source.unsubscribe(made.id)
        with pytest.raises(errors.SubscriptionNotFound):
            source.subscription(made.id)
        with pytest.raises(errors.Invalid, match="its address is not allowed"):
            source.subscribe("http://169.254.169.254/hook")


def test_what_comes_is_signed_and_what_failed_is_redriven_or_dropped(source: Any) -> None:
    """After a rotation of the secret, deliveries also have a signature with the former secret."""
    with Sink() as sink:
        made = source.subscribe(f"{sink.url}/hook")
        source.confirm_subscription(made.id)
        assert source.subscription(made.id).confirmed
        with pytest.raises(errors.SubscriptionExists):
            source.subscribe(f"{sink.url}/hook")
        secret = source.rotate_secret(made.id)
        assert secret not in (made.secret, "")
        wait_for(lambda: not list(source.waiting_deliveries(made.id)), 60, "the question, which is answered well")
        sink.answers["/hook"] = 302  # which fails without a retry
        for body in ("first", "second", {"third": 3}):
            post(source, body)
        wait_for(lambda: len(list(source.dead_deliveries(made.id))) == 3, 60, "three dead deliveries")
        dead = {str(each.body): each for each in source.dead_deliveries(made.id, page=2)}
        assert dead.keys() == {"first", "second", "{'third': 3}"}
        assert {(each.kind, each.attempts, "302" in each.reason) for each in dead.values()} == {
            ("Notification", 1, True)
        }
        source.drop_deliveries(made.id, [dead["first"].id])
        source.drop_deliveries(made.id, [])
        before, sink.answers["/hook"] = len(sink.came("/hook")), 200
        moved = [source.redrive_deliveries(made.id, limit=1) for _ in range(2)]
        assert moved == [RedriveResult(1, 1), RedriveResult(1, 0)]
        wait_for(lambda: len(sink.came("/hook")) == before + 2, 60, "both")
        for each in sink.came("/hook")[before:]:
            one = dead[str(each.document["body"])]
            assert verify(secret, each.headers, each.body) == one.message_id
            assert verify(made.secret, each.headers, each.body) == one.message_id
        message = source.test_subscription(made.id)
        wait_for(lambda: sink.came("/hook")[-1].headers["webhook-id"] == message, 60, "the test")
        wait_for(lambda: not list(source.waiting_deliveries(made.id)), 60, "all that waits")
        source.drop_deliveries(made.id)
        assert list(source.dead_deliveries(made.id)) == []
        source.confirm_subscription(made.id, False)
        assert not source.subscription(made.id).confirmed
        with pytest.raises(errors.NotAgreed):
            source.test_subscription(made.id)
