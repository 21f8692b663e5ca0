# SPDX-License-Identifier: Apache-2.0
"""Listings by state, starts of bodies, and lookups of a message by id in all queues."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.http.api import OTHER_CLIENT, Api
from tests.http.scoped import Scoped
from tests.tables import every_row
from zq.clock import ManualClock

QUEUE = "/v2/queues/jobs"
URL = f"{QUEUE}/messages"


def walk(api: Api, state: str, more: str = "&limit=2") -> list[Any]:
    """Return the bodies of all pages; follow the links."""
    seen, path = [], f"{URL}?state={state}{more}"
    while True:
        page = api.get(path, 200).json
        if not page["messages"]:
            assert page["links"] == []
            return seen
        seen += [message["body"] for message in page["messages"]]
        [link] = page["links"]
        assert link["rel"] == "next"
        path = link["href"]


@pytest.fixture
def furnished(api: Api, clock: ManualClock) -> Api:
    """Return a client with a queue that has messages in each state, some from other clients."""
    api.put(QUEUE, 201, {"_default_message_delay": 30})
    api.send("jobs", "c1", "c2", "c3", delay=0)
    api.claim("jobs", 3)
    clock.advance(1)
    api.send("jobs", "r1", "r2", delay=0)
    api.tenant(client=OTHER_CLIENT).send("jobs", "r3", delay=0)
    api.send("jobs", "d2", "d3", delay=60)
    api.send("jobs", "d1", delay=20)
    return api


@pytest.mark.every_store
def test_each_state_shows_its_own(furnished: Api) -> None:
    """Each listing has the messages of any client, in order, over pages."""
    assert walk(furnished, "ready") == ["r1", "r2", "r3"]
    assert walk(furnished, "delayed") == ["d1", "d2", "d3"]
    assert walk(furnished, "claimed") == ["c1", "c2", "c3"]
    assert walk(furnished, "ready", "") == ["r1", "r2", "r3"]


def test_what_is_shown_is_as_in_other_listings(furnished: Api) -> None:
    """Representations and ``detailed`` are the same; a link repeats the parameters."""
    for state in ("ready", "delayed", "claimed"):
        page = furnished.get(f"{URL}?state={state}&detailed=true&limit=1", 200).json
        [message] = page["messages"]
        ids = furnished.get(f"{URL}?ids={message['id']}&detailed=true", 200).json["messages"]
        assert [message] == ids
        assert f"state={state}&limit=1&detailed=true&marker=" in page["links"][0]["href"]
    assert message["claim_count"] == 1


def test_a_missing_queue_is_empty(api: Api) -> None:
    """The queue is not created, as in other listings."""
    for state in ("ready", "delayed", "claimed"):
        assert walk(api, state) == []
    assert api.queues() == []


@every_row(
    ("query", "told"),
    [
        ("state=dead", "state must be one of ready, delayed, claimed."),
        ("state=READY", "state must be one of ready, delayed, claimed."),
        ("state=ready&echo=true", "echo cannot be combined with state."),
        ("state=ready&include_claimed=false", "include_claimed cannot be combined with state."),
        ("state=claimed&include_delayed=true", "include_delayed cannot be combined with state."),
        ("state=ready&ids=1,2", "ids cannot be combined with state."),
        ("state=ready&wait=1", "wait cannot be combined with state."),
        ("state=ready&limit=0", "limit must be from 1 to 1000; it is 0."),
        ("state=ready&limit=1001", "limit must be from 1 to 1000; it is 1001."),
        ("state=ready&limit=x", "limit must be an integer."),
        ("state=ready&marker=17", "marker is not valid for this listing; use the marker in the link to the next page."),
        (
            "state=ready&marker=1.2.-3",
            "marker is not valid for this listing; use the marker in the link to the next page.",
        ),
        (
            "state=ready&marker=1.2.3.4",
            "marker is not valid for this listing; use the marker in the link to the next page.",
        ),
        ("state=ready&bodies=end", "bodies must be start or whole, not end."),
        ("bodies=1", "bodies must be start or whole, not 1."),
        ("ids=1&bodies=START", "bodies must be start or whole, not START."),
    ],
)
def test_bad_input_is_named(api: Api, query: str, told: str) -> None:
    """The server answers 400 and lists nothing."""
    assert api.get(f"{URL}?{query}", 400).json["description"] == told


def test_bodies_must_be_known_everywhere(api: Api) -> None:
    """This holds for history, claims and reads by id."""
    [message] = api.send("jobs", 1)
    claim, _ = api.claim("jobs")
    for path in (f"{QUEUE}/history", claim, f"{URL}/{message}", f"/v2/messages/{message}"):
        assert api.get(f"{path}?bodies=all", 400).json["description"] == "bodies must be start or whole, not all."
        api.get(f"{path}?bodies=whole", 200)


LONG = '{"text": "' + "é€😀" * 200 + '"}'


@pytest.mark.every_store
def test_listings_return_only_the_start_of_bodies(api: Api) -> None:
    """Listings and reads by id return the first 256 characters of the JSON as posted, and its number of bytes."""
    api.put(QUEUE, 201, {"_history_ttl": 600})
    raw = b'{"messages": [{"body": ' + LONG.encode() + b'}, {"body": 9007199254740993}, {"body": {"m":  1.10}}]}'
    posted = api.post(URL, 201, raw).json["resources"]
    starts = [(LONG[:256], len(LONG.encode())), ("9007199254740993", 16), ('{"m":  1.10}', 12)]

    def told(path: str) -> list[tuple[str, int]]:
        messages = api.get(path, 200).json["messages"]
        assert all("body" not in message for message in messages)
        return [(message["body_start"], message["body_bytes"]) for message in messages]

    assert told(f"{URL}?state=ready&bodies=start") == starts
    assert told(f"{URL}?echo=true&bodies=start&detailed=true") == starts
    ids = [href.rpartition("/")[2] for href in posted]
    assert told(f"{URL}?ids={','.join(ids)}&bodies=start") == starts
    one = api.get(f"{posted[0]}?bodies=start", 200).json
    assert (one["body_start"], one["body_bytes"], one["id"]) == (*starts[0], ids[0])
    claim, _ = api.claim("jobs", 3)
    assert told(f"{claim}?bodies=start") == starts
    api.delete(f"{URL}?ids={','.join(ids)}", 204)
    assert told(f"{QUEUE}/history?bodies=start&detailed=true") == starts


def test_links_repeat_what_is_wanted_of_bodies(api: Api) -> None:
    """This holds for messages and history."""
    api.put(QUEUE, 201, {"_history_ttl": 600})
    api.send("jobs", 1, 2)
    for path in (f"{URL}?echo=true", f"{URL}?state=ready", f"{QUEUE}/history?state=all"):
        [link] = api.get(f"{path}&limit=1&bodies=start", 200).json["links"]
        [message] = api.get(link["href"], 200).json["messages"]
        assert (message["body_start"], message["body_bytes"]) == ("2", 1)


def test_starts_make_a_page_of_large_bodies_small(compose: Callable[..., Api]) -> None:
    """A page has more messages than a response with whole bodies could carry."""
    api = compose(max_messages_post_size=70_000, max_answer_bytes=80_000)
    for at in range(4):
        api.send("jobs", str(at) * 60_000)
    assert len(api.get(f"{URL}?state=ready", 200).json["messages"]) == 1
    answer = api.get(f"{URL}?state=ready&bodies=start", 200)
    assert [message["body_start"][1] for message in answer.json["messages"]] == ["0", "1", "2", "3"]
    assert len(answer.body) < 3000


def test_what_is_encrypted_is_shown_in_clear(compose: Callable[..., Api]) -> None:
    """The response has the start and the number of bytes of the posted body."""
    api = compose(encryption_keys={"k": b"k" * 32})
    api.put(QUEUE, 201, {"_enable_encrypt_messages": True})
    [id] = api.send("jobs", "secret")
    [message] = api.get(f"{URL}?state=ready&bodies=start", 200).json["messages"]
    assert (message["body_start"], message["body_bytes"]) == ('"secret"', 8)
    assert api.get(f"/v2/messages/{id}", 200).json["message"]["body"] == "secret"


@pytest.mark.every_store
def test_a_message_is_found_by_its_id(api: Api, clock: ManualClock) -> None:
    """The response has queue, state and message; after a move the new queue, then the history record, then 404."""
    api.put(QUEUE, 201, {"_default_message_delay": 30, "_dead_letter_queue": "dead"})
    api.put("/v2/queues/dead", 201, {"_history_ttl": 600})
    [id] = api.send("jobs", 1, delay=10)

    def found(more: str = "") -> Any:
        return api.get(f"/v2/messages/{id}{more}", 200).json

    def where() -> tuple[str, str]:
        told = found("?detailed=true")
        if told["state"] != "finished":
            assert told["message"] == api.get(f"/v2/queues/{told['queue']}/messages/{id}?detailed=true", 200).json
        return told["queue"], told["state"]

    assert where() == ("jobs", "delayed")
    clock.advance(10)
    assert where() == ("jobs", "ready")
    claim, _ = api.claim("jobs")
    assert where() == ("jobs", "claimed")
    api.post(f"{claim}/settle", 200, {"bury": [{"id": id, "reason": "late"}]})
    assert where() == ("dead", "ready")
    assert found("?detailed=true&bodies=start")["message"]["reason"] == "late"
    api.delete(f"/v2/queues/dead/messages/{id}", 204)
    assert where() == ("dead", "finished")
    assert found()["message"]["outcome"] == "deleted"
    clock.advance(600)
    assert api.get(f"/v2/messages/{id}", 404).json["description"] == "There is no such message in the project."
    api.get("/v2/messages/none", 404)


def test_a_message_out_of_scope_is_not_found(scoped: Scoped) -> None:
    """A message of another project or of a queue outside the scopes is not found."""
    [id] = scoped.api().send("jobs", 1)
    path = f"/v2/messages/{id}"
    assert scoped.api("observe:jobs").get(path, 200).json["queue"] == "jobs"
    for other in (scoped.api("observe:others"), scoped.api("consume:jobs"), scoped.api(project="other")):
        assert other.get(path, 404).json["description"] == "There is no such message in the project."
    assert len(scoped.api("observe:jobs").get(f"{URL}?state=ready", 200).json["messages"]) == 1
    scoped.api("produce:jobs").get(f"{URL}?state=ready", 403)
