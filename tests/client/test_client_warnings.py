# SPDX-License-Identifier: Apache-2.0
"""Warnings of both clients in the log ``zq.client`` about requests that the server accepts."""

import logging
from typing import Any

import pytest

from tests.client.client_kinds import bodies, client_of
from tests.client.misbehaving import BUSY, Proxy
from tests.client.test_client_consume import SHORT, left
from zq.client import Draft, PostStopped
from zq.core.metadata import metadata_schema
from zq.errors import Invalid
from zq.model.limits import Limits
from zq.sqs.extension import EXTENSION
from zq.wire.metadata import KNOWN_KEYS, shown_defaults

JOBS = "/v2/queues/jobs"


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the client's warnings; threads of an earlier test may also write to the log."""
    return [record.getMessage() for record in caplog.records if record.name == "zq.client"]


def test_the_client_knows_the_rules_that_the_server_knows() -> None:
    """Keys of features are known, too; ``_flavor`` is checked by pools and not in the schema."""
    schema = metadata_schema(Limits(), EXTENSION.protocol_keys)["properties"]
    assert set(KNOWN_KEYS["queues"]) == {*schema, "_flavor"}
    assert set(KNOWN_KEYS["topics"]) == {*shown_defaults(Limits(), topic=True), "_enable_encrypt_messages"}


def test_unknown_rules_are_warned_of_once_and_stored(queue: Any, caplog: pytest.LogCaptureFixture) -> None:
    """The warning suggests a similar name; keys without an underscore are the user's."""
    for _ in range(2):
        queue.create({"_dead_leter_queue": "dead", "owner": "shop", "_history_ttl": 60})
        queue.update({"_mine": 1, "_max_claim_counts": 5})
    assert queue.metadata()["_dead_leter_queue"] == "dead"
    assert said(caplog) == [
        "_dead_leter_queue is not a reserved metadata key of queues; did you mean _dead_letter_queue?",
        "_mine is not a reserved metadata key of queues.",
        "_max_claim_counts is not a reserved metadata key of queues; did you mean _max_claim_count?",
    ]


def test_settings_of_queues_are_unknown_for_topics(
    kind: str, proxy: Proxy, project: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Topics have no history."""
    with client_of(kind, proxy.url, project) as client:
        client.topic("news").create({"_history_ttl": 60, "_default_message_ttl": 600})
    assert said(caplog) == ["_history_ttl is not a reserved metadata key of topics."]


DELAYED = [
    lambda queue: queue.post("x", delay=5),
    lambda queue: queue.post_batch(["x", Draft("y", delay=5)]),
    lambda queue: queue.post_many(["x"], delay=5),
    lambda queue: queue.stage("etl.1", ["x"], delay=5),
]
DELAYED_NAMES = ["one", "a batch", "many", "a stage"]


@pytest.mark.parametrize("post", DELAYED, ids=DELAYED_NAMES)
def test_a_delay_that_the_queue_ignores_is_refused(queue: Any, post: Any) -> None:
    """No message is stored until the queue has a default delay; the error names the setting."""
    for _ in range(2):
        with pytest.raises(Invalid, match=r"The queue jobs ignores delays: set its _default_message_delay above 0"):
            post(queue)
    assert queue.stats().total == 0
    queue.create({"_default_message_delay": 1})
    post(queue)


def test_a_draft_whose_delay_the_queue_ignores_ends_a_post_of_many(queue: Any) -> None:
    """The error has the messages that are stored."""
    with pytest.raises(PostStopped) as stopped:
        queue.post_many(["x"] * 1000 + [Draft("y", delay=5)])
    assert (stopped.value.stored, stopped.value.maybe_stored) == ([range(1000)], [])
    assert "ignores delays" in str(stopped.value.__cause__)


@pytest.mark.parametrize("post", DELAYED, ids=DELAYED_NAMES)
def test_a_client_that_checks_no_delays_posts_them(kind: str, proxy: Proxy, project: str, post: Any) -> None:
    """The messages are ready at once."""
    with client_of(kind, proxy.url, project, check_delays=False) as client:
        post(client.queue("jobs"))
    assert [path for method, path, _ in proxy.seen if method == "GET" and path != "/v2/limits"] in ([], [JOBS])


@pytest.mark.parametrize("post", DELAYED, ids=DELAYED_NAMES)
def test_metadata_of_a_delayed_queue_is_read_once(kind: str, proxy: Proxy, project: str, post: Any) -> None:
    """The client reads the metadata once, or never if the post reads them anyway."""
    with client_of(kind, proxy.url, project) as client:
        queue = client.queue("jobs")
        queue.create({"_default_message_delay": 1})
        for _ in range(3):
            post(queue)
        metadata = [path for method, path, _ in proxy.seen if method == "GET" and path == JOBS]
        limits = [path for _, path, _ in proxy.seen if path == "/v2/limits"]
        assert len(metadata) == (len(limits) or 1)


@pytest.mark.parametrize("post", DELAYED, ids=DELAYED_NAMES)
def test_a_queue_that_is_created_again_without_delays_is_noticed(
    kind: str, proxy: Proxy, project: str, post: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The first response that shows it is logged and the next post raises; ``post_many`` checks first."""
    with client_of(kind, proxy.url, project) as client:
        queue = client.queue("jobs")
        queue.create({"_default_message_delay": 1})
        post(queue)
        queue.delete()
        queue.create()
        if post is not DELAYED[2]:
            post(queue)
            assert said(caplog) == ["The queue jobs ignores delays: messages posted with a delay are ready at once."]
        with pytest.raises(Invalid, match="The queue jobs ignores delays"):
            post(queue)


def test_posts_without_a_delay_ask_nothing_more(kind: str, proxy: Proxy, project: str) -> None:
    """A delay of 0 needs no check, either."""
    with client_of(kind, proxy.url, project) as client:
        queue = client.queue("jobs")
        queue.post("x")
        queue.post_batch(["x", Draft("y", delay=0)], delay=0)
    assert [method for method, _, _ in proxy.seen] == ["POST", "POST"]


def test_post_succeeds_if_the_check_of_delays_fails(
    kind: str, proxy: Proxy, project: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A failed check does not fail the post."""
    with client_of(kind, proxy.url, project) as client:
        queue = client.queue("jobs")
        proxy.plan(BUSY)
        assert queue.post("x", delay=5)
        assert [method for method, _, _ in proxy.seen] == ["GET", "POST"]
        assert said(caplog) == ["The queue jobs ignores delays: messages posted with a delay are ready at once."]
        assert queue.stats().total == 1


@pytest.mark.parametrize("batch", [1, 2, 100])
def test_a_loop_ends_after_so_many_messages_and_claims_no_more(
    queue: Any, batch: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The other messages were never claimed, as their claim counts show."""
    caplog.set_level(logging.INFO, logger="zq.client")
    queue.post_batch(range(9))
    assert bodies(queue.consume(count=3, batch=batch, wait=20)) == [0, 1, 2]
    done: list[Any] = []
    worked = queue.work(lambda message: done.append(message.body), 4, count=5, batch=batch, wait=20)
    assert (worked.done, worked.failed, worked.unstarted) == (5, 0, 0)
    assert sorted(done) == [3, 4, 5, 6, 7]
    assert [(message.body, message.claim_count) for message in queue.list()] == [(8, 0)]
    assert bodies(queue.consume(count=5, batch=batch, **SHORT)) == [8]


def test_a_loop_that_is_stopped_reports_what_it_did_not_start(queue: Any) -> None:
    """The messages that were not started are ready at once."""
    queue.post_batch(range(5))
    consumer = queue.consume(batch=5, wait=20)

    def handle(message: Any) -> None:
        consumer.stop()

    worked = consumer.work(handle, 1)
    assert (worked.done, worked.unstarted) == (1, 4)
    assert left(queue) == [1, 2, 3, 4]
