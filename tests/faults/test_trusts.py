# SPDX-License-Identifier: Apache-2.0
"""``trust+http`` subscribers with a simulated Keystone (contract 9.2, 9.9, criterion E6)."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest

from tests.keystone import SERVICE, Keystone, User
from tests.servers import Answer, ZqServer, ask, wait_for
from tests.sink import CONFIG, Sink
from zq.subscriptions.trusts import _is_below

ANN, BOB = User("ann", "a11", ("Member", "reader")), User("bob", "a11")
PATH = "/v2/queues/jobs/subscriptions"


class Place(NamedTuple):
    """A server with two receivers: ``sink`` is a service of the catalogue, ``other`` is not."""

    keystone: Keystone
    sink: Sink
    other: Sink
    server: ZqServer

    def ask(self, user: User, method: str, path: str, document: object = None) -> Answer:
        headers = {"X-Project-ID": user.project, "X-Auth-Token": self.keystone.token(user.name)}
        return ask(self.server.url, method, path, document, headers=headers)

    def subscribe(self, user: User, path: str, **options: Any) -> str:
        terms = {"subscriber": f"trust+{self.sink.url}{path}", "ttl": 600, "options": options}
        answer = self.ask(user, "POST", PATH, terms)
        assert answer.status == 201, answer
        return f"{PATH}/{answer.document['subscription_id']}"

    def agree(self, item: str) -> None:
        """Confirm as the service that got the confirmation request; the owner must not."""
        assert self.ask(ANN, "PUT", f"{item}/confirm", {"confirmed": True}).status == 403
        id = item.rpartition("/")[2]
        [asked] = wait_for(
            lambda: [
                each.document
                for each in self.sink.came("/queues/good", "SubscriptionConfirmation")
                if id in each.document["URL-Paths"]
            ],
            60,
            "a question",
        )
        self.sink.agree(self.server.url, asked)

    def post(self, body: object) -> None:
        assert self.ask(ANN, "POST", "/v2/queues/jobs/messages", {"messages": [{"body": body}]}).status == 201


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Iterator[Place]:
    options = getattr(request, "param", "trust_http = true\n")
    with Keystone(ANN, BOB) as keystone, Sink() as sink, Sink() as other:
        keystone.endpoint = f"{sink.url}/queues"
        with ZqServer("memory:", config=f"{keystone.config()}{CONFIG}{options}") as server:
            yield Place(keystone, sink, other, server)


def test_a_delivery_goes_out_in_the_name_of_whoever_subscribed(place: Place) -> None:
    """The delivery has a token of the subscriber's trust, which callers cannot see."""
    item = place.subscribe(ANN, "/queues/good", a=1)
    [trust] = place.keystone.trusts
    assert (trust["trustor_user_id"], trust["trustee_user_id"]) == ("id-of-ann", f"id-of-{SERVICE.name}")
    assert (trust["project_id"], trust["roles"]) == ("a11", [{"name": "Member"}, {"name": "reader"}])
    ends = datetime.fromisoformat(trust["expires_at"].rstrip("Z")).replace(tzinfo=UTC)
    assert abs(ends - datetime.now(UTC) - timedelta(seconds=600)) < timedelta(seconds=60)
    assert place.ask(ANN, "GET", item).document["options"] == {"a": 1, "trust_id": "***"}
    [asked] = wait_for(lambda: place.sink.came("/queues/good", "SubscriptionConfirmation"), 60, "a question")
    place.agree(item)
    place.post(1)
    [told] = wait_for(lambda: place.sink.came("/queues/good"), 60, "a delivery")
    for came in (asked, told):
        assert place.keystone.tokens[came.headers["X-Auth-Token"]]["user"]["name"] == "ann"


def test_a_trust_that_has_ended_ends_deliveries(place: Place) -> None:
    """Without a token no delivery is sent."""
    place.keystone.ended.add("ann")
    place.subscribe(ANN, "/queues/good")
    wait_for(lambda: place.keystone.refused > 1, 60, "a second try")
    assert place.sink.came("/queues/good", "SubscriptionConfirmation") == []


def test_who_changes_it_does_so_in_his_own_name(place: Place) -> None:
    """Another user of the project cannot send deliveries with the first user's authority."""
    item = place.subscribe(ANN, "/queues/good")
    assert place.ask(BOB, "PATCH", item, {"options": {"post_data": '"$zaqar_message$"'}}).status == 204
    place.agree(item)
    place.post(1)
    [told] = wait_for(lambda: place.sink.came("/queues/good"), 60, "a delivery")
    assert place.keystone.tokens[told.headers["X-Auth-Token"]]["user"]["name"] == "bob"
    assert place.ask(BOB, "PATCH", item, {"subscriber": f"{place.sink.url}/queues/plain"}).status == 204
    assert place.ask(ANN, "GET", item).document["options"] == {"post_data": '"$zaqar_message$"'}


def test_tokens_go_to_the_catalogue_alone(place: Place) -> None:
    """A caller cannot name a trust, which could be another user's."""
    for subscriber, said in (
        (f"trust+{place.other.url}/queues/x", "catalogue"),
        (f"trust+{place.sink.url}/elsewhere", "catalogue"),
        (f"trust+{place.sink.url}/queues/%2e%2e/elsewhere", "catalogue"),
    ):
        refused = place.ask(ANN, "POST", PATH, {"subscriber": subscriber})
        assert (refused.status, said in refused.document["description"]) == (400, True), subscriber
    terms = {"subscriber": f"trust+{place.sink.url}/queues/x", "options": {"trust_id": "bob"}}
    refused = place.ask(ANN, "POST", PATH, terms)
    assert (refused.status, "trust_id" in refused.document["description"]) == (400, True)
    assert place.keystone.trusts == []


@pytest.mark.parametrize("place", [""], indirect=True)
def test_tokens_are_not_sent_without_tls(place: Place) -> None:
    """An option of the operator allows it."""
    refused = place.ask(ANN, "POST", PATH, {"subscriber": f"trust+{place.sink.url}/queues/x"})
    assert (refused.status, "TLS" in refused.document["description"]) == (400, True)


def test_while_keystone_is_away_nobody_subscribes(place: Place) -> None:
    """The server answers 503, although it has cached its own token."""
    token = place.keystone.token("ann")
    headers = {"X-Project-ID": "a11", "X-Auth-Token": token}
    assert ask(place.server.url, "GET", PATH, headers=headers).status == 200
    place.keystone.down = True
    terms = {"subscriber": f"trust+{place.sink.url}/queues/x"}
    assert ask(place.server.url, "POST", PATH, terms, headers=headers).status == 503


@pytest.mark.parametrize(
    ("place_of_ours", "url", "good"),
    [
        ("https://a.test", "https://a.test/v2/x", True),
        ("https://a.test", "https://a.test:443/v2/x", True),
        ("https://a.test/v2", "https://a.test/v2", True),
        ("https://a.test/v2/", "https://a.test/v2/x?y", True),
        ("https://a.test/v2", "https://a.test/v2x", False),
        ("https://a.test/v2", "https://a.test/v2/../x", False),
        ("https://a.test/v2", "https://a.test/v2/%252e%252e/x", False),
        ("https://a.test", "http://a.test/", False),
        ("https://a.test", "https://a.test.evil.test/", False),
        ("https://a.test", "https://a.test:444/", False),
        ("", "https://a.test/", False),
    ],
)
def test_what_is_below_a_place(place_of_ours: str, url: str, good: bool) -> None:
    assert _is_below(place_of_ours, url) is good
