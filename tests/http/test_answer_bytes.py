# SPDX-License-Identifier: Apache-2.0
"""``max_answer_bytes``: a response with many messages ends before it exceeds the limit, and links to the rest."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.http.api import Api
from zq.core import history
from zq.model import Draft, QueueRef
from zq.storage.api import Storage

Compose = Callable[..., Api]
QUEUE = "/v2/queues/jobs"
LARGE = "x" * 398
"""A body with 400 bytes of JSON."""
BODIES = [LARGE, LARGE, "small", LARGE, LARGE, LARGE]
FITTING = [BODIES[:3], BODIES[3:5], BODIES[5:]]
"""The bodies, divided as responses of at most 1,000 bytes contain them."""


@pytest.fixture
def api(compose: Compose) -> Api:
    """Return a client of project ``acme`` on a server whose responses contain at most 1,000 bytes of bodies."""
    return compose(max_answer_bytes=1000)


def bodies(messages: list[Any]) -> list[Any]:
    return [message["body"] for message in messages]


def test_a_claim_holds_fewer_messages_than_it_may(api: Api) -> None:
    """Claims return the messages in order, none twice and none omitted; messages that did not fit stay ready."""
    api.send("jobs", *BODIES)
    for share in FITTING:
        path, messages = api.claim("jobs", limit=1000)
        assert bodies(messages) == share
        assert bodies(api.get(path, 200).json["messages"]) == share
    api.post(f"{QUEUE}/claims", 204, {})


def test_a_named_claim_is_limited_too_and_repeats_its_response(api: Api) -> None:
    """A repeated claim returns the messages that it holds and no others."""
    api.send("jobs", *BODIES)
    for number, share in enumerate(FITTING):
        for status in (201, 200):
            made = api.put(f"{QUEUE}/claims/etl.{number}?limit=1000", status, {"ttl": 60})
            assert bodies(made.json["messages"]) == share


def test_a_pop_removes_no_more_than_it_returns(api: Api) -> None:
    """Messages that do not fit stay in the queue for the next pop."""
    api.send("jobs", *BODIES)
    for at, share in enumerate(FITTING):
        assert bodies(api.delete(f"{QUEUE}/messages?pop=1000", 200).json["messages"]) == share
        left = [body for rest in FITTING[at + 1 :] for body in rest]
        assert api.get(f"{QUEUE}/stats", 200).json["messages"]["free"] == len(left)


@pytest.mark.parametrize(
    ("path", "popped"),
    [
        (f"{QUEUE}/messages?limit=1000&echo=true", 0),
        (f"{QUEUE}/history?limit=1000", 6),
        (f"{QUEUE}/history?limit=1000&state=all", 2),
    ],
)
def test_who_follows_the_links_sees_all_messages(api: Api, path: str, popped: int) -> None:
    """A page that reaches the limit ends early and has a link to the next page."""
    api.put(QUEUE, 201, {"_history_ttl": 600})
    api.send("jobs", *BODIES)
    for _ in range(popped):
        api.delete(f"{QUEUE}/messages?pop=1", 200)
    assert [bodies(page) for page in api.pages(path, "messages")] == [*FITTING, []]


def test_attributes_count_towards_the_bytes_of_an_answer(api: Api) -> None:
    """Claims, pops and pages of messages and of history have fewer messages if these have attributes."""
    api.put(QUEUE, 201, {"_history_ttl": 600})
    messages = [{"body": number, "attributes": {"a": "x" * 400}} for number in range(4)]
    api.post(f"{QUEUE}/messages", 201, {"messages": messages})
    parts = [[0, 1], [2, 3], []]
    assert [bodies(page) for page in api.pages(f"{QUEUE}/messages?limit=1000&echo=true", "messages")] == parts
    claim, held = api.claim("jobs", limit=1000)
    assert bodies(held) == [0, 1]
    api.delete(claim, 204)
    assert bodies(api.delete(f"{QUEUE}/messages?pop=1000", 200).json["messages"]) == [0, 1]
    assert bodies(api.delete(f"{QUEUE}/messages?pop=1000", 200).json["messages"]) == [2, 3]
    pages = api.pages(f"{QUEUE}/history?limit=1000", "messages")
    assert [bodies(page) for page in pages] == parts


@pytest.mark.one_store
def test_a_replay_posts_few_messages_with_large_attributes_at_a_time(
    compose: Compose, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads and posts of a replay have a limit of bytes, which counts attributes."""
    monkeypatch.setattr(history, "CHUNK_BYTES", 1000)
    api = compose()
    api.put(QUEUE, 201, {"_history_ttl": 600})
    messages = [{"body": number, "attributes": {"a": "x" * 400}} for number in range(4)]
    ids = [href.split("/")[-1] for href in api.post(f"{QUEUE}/messages", 201, {"messages": messages}).json["resources"]]
    api.delete(f"{QUEUE}/messages?pop=4", 200)
    counts: list[int] = []
    post = type(storage.messages).post

    def counted(self: Any, queue: QueueRef, drafts: Sequence[Draft], *rest: Any, **more: Any) -> Any:
        counts.append(len(drafts))
        return post(self, queue, drafts, *rest, **more)

    monkeypatch.setattr(type(storage.messages), "post", counted)
    for terms in ({"ids": ids}, {"limit": 4}):
        counts.clear()
        assert api.post(f"{QUEUE}/history/replay", 200, terms).json == {"replayed": 4}
        assert counts == [2, 2]


def test_who_follows_the_links_of_a_topic_sees_all_messages(api: Api) -> None:
    """The limit applies however the messages were published."""
    for part in (BODIES[:1], BODIES[1:]):
        api.post("/v2/topics/news/messages", 201, {"messages": [{"body": body} for body in part]})
    pages = api.pages("/v2/topics/news/messages?limit=1000", "messages")
    assert [bodies(page) for page in pages] == [*FITTING, []]


def test_dead_letters_come_by_pages_that_fit(api: Api) -> None:
    """Dead letters are listed like the messages of any queue; a claim skips any number of used-up messages."""
    api.put(QUEUE, 201, {"_max_claim_count": 1, "_dead_letter_queue": "dead"})
    api.send("jobs", *BODIES)
    for claim in [api.claim("jobs", limit=1000)[0] for _ in FITTING]:
        api.delete(claim, 204)
    api.post(f"{QUEUE}/claims?limit=1000", 204, {})
    pages = api.pages("/v2/queues/dead/messages?limit=1000&echo=true", "messages")
    assert [bodies(page) for page in pages] == [*FITTING, []]


def test_a_message_larger_than_the_limit_is_returned_on_its_own(compose: Compose) -> None:
    """A response holds at least one message; otherwise the queue would be blocked."""
    api = compose(max_answer_bytes=100)
    api.send("jobs", LARGE, "small")
    assert [bodies(page) for page in api.pages(f"{QUEUE}/messages?echo=true", "messages")] == [[LARGE], ["small"], []]
    assert bodies(api.claim("jobs")[1]) == [LARGE]


def test_a_read_by_ids_is_whole(compose: Compose) -> None:
    """A read of up to twenty ids returns them all, because it has no links; so a Location names at most twenty."""
    api = compose(max_answer_bytes=100)
    posted = {"messages": [{"body": LARGE}] * 21}
    for path in (f"{QUEUE}/messages", "/v2/topics/news/messages"):
        where = api.post(path, 201, posted).headers["Location"]
        assert bodies(api.get(where, 200).json["messages"]) == [LARGE] * 20


@pytest.mark.one_store
def test_a_thousand_small_messages_come_at_once(compose: Compose) -> None:
    """A server with default settings returns ten messages unless the request gives a limit."""
    api = compose()
    api.send("jobs", *range(1000))
    assert len(api.seen("jobs", "echo=true")) == 10
    assert api.seen("jobs", "echo=true&limit=1000") == list(range(1000))
    path, messages = api.claim("jobs", limit=1000)
    assert bodies(messages) == list(range(1000))
    api.post(f"{path}/settle", 200, {"delete": [message["href"].split("/")[-1].split("?")[0] for message in messages]})
    assert api.seen("jobs", "echo=true&include_claimed=true") == []


def test_many_ids_are_replayed(compose: Compose) -> None:
    """The replay handles any number of ids. It ignores ids without a record, and answers 404 if no id has one."""
    api = compose()
    api.put(QUEUE, 201, {"_history_ttl": 600})
    ids = api.send("jobs", *range(45))
    unknown = [f"no-{number}" for number in range(50)]
    api.post(f"{QUEUE}/history/replay", 404, {"ids": unknown})
    assert len(api.delete(f"{QUEUE}/messages?pop=45", 200).json["messages"]) == 45
    assert api.post(f"{QUEUE}/history/replay", 200, {"ids": unknown + ids}).json == {"replayed": 45}
    assert api.seen("jobs", "echo=true&limit=45") == list(range(45))
