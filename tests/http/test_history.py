# SPDX-License-Identifier: Apache-2.0
"""History and replay (extensions 5)."""

import re
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import pytest

from tests.http.api import OTHER_CLIENT, Api, query_of
from tests.tables import every_row
from zq.clock import ManualClock

JOBS = "/v2/queues/jobs"
HISTORY = f"{JOBS}/history"
REPLAY = f"{HISTORY}/replay"
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


@pytest.fixture
def kept(api: Api) -> Api:
    """Return a client whose queue ``jobs`` keeps history for ten minutes."""
    api.put(JOBS, 201, {"_history_ttl": 600, "_dead_letter_queue": "dead"})
    return api


def told(api: Api, query: str = "limit=20") -> list[tuple[Any, str | None]]:
    """Return (body, outcome) of each record on a page of history."""
    page = api.get(f"{HISTORY}?{query}", 200).json["messages"]
    return [(record["body"], record.get("outcome")) for record in page]


def finish(api: Api, *bodies: Any) -> list[str]:
    """Post and pop messages one by one; return their ids."""
    ids = []
    for body in bodies:
        ids += api.send("jobs", body)
        api.delete(f"{JOBS}/messages?pop=1", 200)
    return ids


def iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()


@pytest.mark.every_store
def test_every_way_to_finish_leaves_a_record(kept: Api) -> None:
    """Records are in the order of removal, each with its outcome."""
    ids = kept.send("jobs", *"abcdefg")
    kept.delete(f"{JOBS}/messages/{ids[1]}", 204)
    kept.delete(f"{JOBS}/messages?pop=1", 200)
    kept.delete(f"{JOBS}/messages?ids={ids[2]}", 204)
    claim, _ = kept.claim("jobs", limit=3)
    kept.post(f"{claim}/settle", 200, {"delete": [ids[4]]})
    kept.post(f"{claim}/settle", 200, {"move": [{"id": ids[3], "queue": "next"}]})
    kept.post(f"{claim}/settle", 200, {"bury": [{"id": ids[5], "reason": "bad"}]})
    deleted, popped, moved, dead = "deleted", "popped", "moved", "dead_lettered"
    assert told(kept) == [("b", deleted), ("a", popped), ("c", deleted), ("e", deleted), ("d", moved), ("f", dead)]
    assert kept.seen("jobs") == ["g"]


def test_a_claim_that_buries_leaves_a_record_and_so_does_a_redrive(kept: Api) -> None:
    """The record of a dead letter is in the queue that the message left."""
    kept.patch(JOBS, 200, [{"op": "add", "path": "/metadata/_max_claim_count", "value": 0}])
    kept.put("/v2/queues/dead", 201, {"_history_ttl": 600})
    kept.send("jobs", "a")
    kept.post(f"{JOBS}/claims", 204)
    assert told(kept) == [("a", "dead_lettered")]
    kept.post("/v2/queues/dead/redrive", 200)
    [record] = kept.get("/v2/queues/dead/history", 200).json["messages"]
    assert record["outcome"] == "moved"


def test_a_record_shows_the_message_and_when_it_finished(kept: Api, clock: ManualClock) -> None:
    """A record has the members of a message and two more."""
    [message] = kept.send("jobs", {"a": 1}, ttl=300)
    clock.advance(5)
    before = clock.now()
    kept.delete(f"{JOBS}/messages?pop=1", 200)
    clock.advance(5)
    [record] = kept.get(HISTORY, 200).json["messages"]
    assert record.keys() == {"id", "href", "ttl", "age", "body", "finished", "outcome"}
    assert (record["id"], record["href"]) == (message, f"{JOBS}/messages/{message}")
    assert (record["ttl"], record["age"], record["body"]) == (300, 10, {"a": 1})
    assert ISO.fullmatch(record["finished"])
    assert abs(datetime.fromisoformat(record["finished"]).timestamp() - before) < 0.002
    [detailed] = kept.get(f"{HISTORY}?detailed=true", 200).json["messages"]
    assert detailed.keys() - record.keys() == {"sequence", "created", "expires", "available_at", "claim_count"}


@pytest.mark.every_store
def test_history_has_pages_like_every_listing(kept: Api) -> None:
    """Contract 1.9: A client follows the links until a page is empty; links repeat the parameters."""
    finish(kept, *range(7))
    pages = kept.pages(f"{HISTORY}?limit=3&detailed=true&since=2000-01-01", "messages")
    assert [[record["body"] for record in page] for page in pages] == [[0, 1, 2], [3, 4, 5], [6], []]
    link = kept.get(f"{HISTORY}?limit=3&detailed=true&since=2000-01-01", 200).json["links"][0]
    assert link["rel"] == "next"
    assert link["href"].startswith(f"{HISTORY}?")
    assert query_of(link["href"]) == {
        "limit": "3",
        "detailed": "true",
        "since": "2000-01-01",
        "marker": query_of(link["href"])["marker"],
    }


@pytest.mark.every_store
def test_history_may_be_asked_for_a_span_of_time(kept: Api, clock: ManualClock) -> None:
    """``since`` is inclusive and ``until`` exclusive. Times may have Z, an offset, or neither, which means UTC."""
    moments = []
    for body in range(3):
        moments.append(clock.now())
        finish(kept, body)
        clock.advance(10)
    one, two = (quote(iso(moment)) for moment in moments[1:])
    assert [body for body, _ in told(kept, f"since={one}")] == [1, 2]
    assert [body for body, _ in told(kept, f"until={one}")] == [0]
    assert [body for body, _ in told(kept, f"since={one}&until={two}")] == [1]
    zulu = iso(moments[1]).replace("+00:00", "")
    assert [body for body, _ in told(kept, f"since={zulu}")] == [body for body, _ in told(kept, f"since={zulu}Z")]
    assert told(kept, f"since={two}&until={one}") == []


@pytest.mark.every_store
def test_all_messages_in_the_order_of_sequence(kept: Api) -> None:
    """With state=all, the page has each live and each removed message once."""
    ids = kept.send("jobs", *"abcd")
    kept.delete(f"{JOBS}/messages/{ids[2]}", 204)
    kept.claim("jobs", limit=1)
    assert told(kept, "state=all") == [("a", None), ("b", None), ("c", "deleted"), ("d", None)]
    first = kept.get(f"{HISTORY}?state=all", 200).json["messages"][0]
    assert first.keys() == {"id", "href", "ttl", "age", "body"}
    assert "claim_id=" in first["href"]
    pages = kept.pages(f"{HISTORY}?state=all&limit=3", "messages")
    assert [[record["body"] for record in page] for page in pages] == [["a", "b", "c"], ["d"], []]


def test_no_history_without_the_rule(api: Api) -> None:
    """A queue without ``_history_ttl`` and a missing queue have an empty history."""
    finish(api, "a")
    assert api.get(HISTORY, 200).json == {"messages": [], "links": []}
    assert api.get("/v2/queues/none/history?state=all", 200).json == {"messages": [], "links": []}
    assert api.queues() == ["jobs"]


def test_a_rule_of_this_server_holds_at_once(api: Api) -> None:
    """The server caches rules, but refreshes them after its own changes and for a new queue."""
    finish(api, "no rule")
    api.patch(JOBS, 200, [{"op": "add", "path": "/metadata/_history_ttl", "value": 60}])
    finish(api, "kept")
    api.patch(JOBS, 200, [{"op": "remove", "path": "/metadata/_history_ttl"}])
    finish(api, "not kept")
    assert told(api) == [("kept", "popped")]
    api.delete(JOBS, 204)
    api.put(JOBS, 201, {"_history_ttl": 60})
    finish(api, "kept again")
    assert told(api) == [("kept again", "popped")]


def test_history_is_the_projects_own(kept: Api) -> None:
    [message] = finish(kept, "a")
    other = kept.tenant("other")
    assert told(other) == []
    other.post(REPLAY, 404, {"ids": [message]})


def test_a_replay_posts_copies(kept: Api, clock: ManualClock) -> None:
    """The copies have new ids, the queue's default ttl and the caller as their client; the record stays."""
    kept.patch(JOBS, 200, [{"op": "add", "path": "/metadata/_default_message_ttl", "value": 200}])
    ids = finish(kept, "a", {"b": 1}, "c")
    clock.advance(3)
    other = kept.tenant(client=OTHER_CLIENT)
    assert other.post(REPLAY, 200, {"ids": [ids[1], ids[0], "nope"]}).json == {"replayed": 2}
    copies = kept.get(f"{JOBS}/messages", 200).json["messages"]
    assert [copy["body"] for copy in copies] == [{"b": 1}, "a"]
    assert not {copy["id"] for copy in copies} & set(ids)
    assert {(copy["ttl"], copy["age"]) for copy in copies} == {(200, 0)}
    assert other.seen("jobs", "") == []
    assert len(told(kept)) == 3


def test_a_replay_waits_on_a_delayed_queue(kept: Api, clock: ManualClock) -> None:
    """The copies wait like posted messages."""
    [message] = finish(kept, "a")
    kept.patch(JOBS, 200, [{"op": "add", "path": "/metadata/_default_message_delay", "value": 30}])
    kept.post(REPLAY, 200, {"ids": [message]})
    kept.post(f"{JOBS}/claims", 204)
    clock.advance(30)
    kept.claim("jobs")


@pytest.mark.every_store
def test_a_replay_of_a_span(kept: Api, clock: ManualClock) -> None:
    """The replay follows the order of removal, up to the limit."""
    finish(kept, 0)
    clock.advance(10)
    since = iso(clock.now())
    finish(kept, 1, 2, 3)
    clock.advance(10)
    until = iso(clock.now())
    finish(kept, 4)
    assert kept.post(REPLAY, 200, {"since": since, "until": until, "limit": 2}).json == {"replayed": 2}
    assert kept.post(REPLAY, 200, {"since": since, "until": until}).json == {"replayed": 3}
    assert kept.post(REPLAY, 200, {"limit": 1}).json == {"replayed": 1}
    assert kept.seen("jobs") == [1, 2, 1, 2, 3, 0]
    assert kept.post(REPLAY, 200, {"until": "2000-01-01"}).json == {"replayed": 0}


def test_a_long_replay_goes_in_order(kept: Api) -> None:
    """The replay needs more than one post."""
    for start in range(0, 220, 20):
        kept.send("jobs", *range(start, start + 20))
        kept.delete(f"{JOBS}/messages?pop=20", 200)
    assert kept.post(REPLAY, 200, {"limit": 210}).json == {"replayed": 210}
    pages = kept.pages(f"{JOBS}/messages?echo=true&limit=20", "messages")
    assert [message["body"] for page in pages for message in page] == list(range(210))


def test_a_replay_of_nothing_is_404_by_ids_and_0_by_time(kept: Api, clock: ManualClock) -> None:
    """An expired record does not exist."""
    [message] = finish(kept, "a")
    kept.post(REPLAY, 404, {"ids": ["nope"]})
    clock.advance(600)
    kept.post(REPLAY, 404, {"ids": [message]})
    assert kept.post(REPLAY, 200, {"since": "2000-01-01"}).json == {"replayed": 0}


@every_row(
    ("query", "words"),
    [
        ("limit=0", "limit must be from 1 to 1000"),
        ("limit=1001", "limit must be from 1 to 1000"),
        ("limit=x", "limit"),
        ("marker=x", "marker"),
        ("marker=-1", "marker"),
        ("marker=1.5", "marker"),
        ("since=yesterday", "since"),
        ("until=12", "until"),
        ("since=2026-13-01", "since"),
        ("since=2026-01-01T00:00:00+01:00", "%2B"),
        ("state=live", "state"),
        ("state=all&since=2026-01-01", "since"),
        ("state=all&until=2026-01-01", "until"),
        ("detailed=maybe", "detailed"),
    ],
)
def test_a_wrong_question_is_refused(door: Api, query: str, words: str) -> None:
    """The server answers 400 and names the parameter before it accesses the store."""
    assert words in door.get(f"{HISTORY}?{query}", 400).json["description"]


@pytest.mark.every_store
@pytest.mark.parametrize("query", ["marker=&limit=&since=&until=&state=", f"marker={'9' * 60}", "since=0001-01-01"])
def test_blank_and_extreme_values_are_fine(kept: Api, query: str) -> None:
    """Contract 1.5: A blank value counts as absent; a marker is any decimal number."""
    kept.get(f"{HISTORY}?{query}", 200)


@every_row(
    ("body", "words"),
    [
        ({}, "ids"),
        ({"ids": []}, "ids must contain 1 to 1000"),
        ({"ids": [f"x{n}" for n in range(1001)]}, "ids must contain 1 to 1000"),
        ({"ids": ["a", "a"]}, "ids must name each message only once"),
        ({"ids": "a"}, "ids"),
        ({"ids": [1]}, "ids"),
        ({"ids": None}, "ids"),
        ({"ids": ["a"], "limit": 5}, "ids"),
        ({"ids": ["a"], "since": "2026-01-01"}, "ids"),
        ({"limit": 0}, "limit must be from 1 to 10000"),
        ({"limit": 10001}, "limit must be from 1 to 10000"),
        ({"limit": "1"}, "limit"),
        ({"since": "yesterday"}, "since"),
        ({"since": ""}, "since"),
        ({"until": 5}, "until"),
        ([], "object"),
        (b"", "body"),
    ],
)
def test_a_wrong_replay_is_refused(door: Api, body: Any, words: str) -> None:
    """The server answers 400 and names field and limit before it accesses the store."""
    assert words in door.post(REPLAY, 400, body).json["description"]


def test_a_dry_run_of_a_replay_posts_nothing(kept: Api, clock: ManualClock) -> None:
    """The response has the number of messages that the replay would post and the ids without a record."""
    ids = finish(kept, *range(3))
    clock.advance(100)
    since = iso(clock.now())
    finish(kept, *range(3, 5))
    asked = [ids[1], "nope", ids[0]]
    for terms, count in (({"limit": 10}, 5), ({"since": since}, 2), ({"limit": 4}, 4), ({"ids": asked}, 2)):
        told = kept.post(REPLAY, 200, {**terms, "dry_run": True}).json
        lost = {"lost": ["nope"]} if "ids" in terms else {}
        assert told == {"would_replay": count, "counted": count, **lost}
    assert kept.seen("jobs") == []
    assert kept.post(REPLAY, 200, {"ids": ["nope"], "dry_run": True}).json["lost"] == ["nope"]
    assert kept.post(REPLAY, 200, {"ids": asked, "dry_run": False}).json == {"replayed": 2}
    assert kept.post(REPLAY, 200, {"since": since}).json == {"replayed": 2}


@pytest.mark.every_store
def test_a_dry_run_of_a_long_replay_goes_on(kept: Api) -> None:
    """The history is longer than a page of the store."""
    for start in range(0, 220, 20):
        finish(kept, *range(start, start + 20))
    assert kept.post(REPLAY, 200, {"until": "9999-01-01", "dry_run": True}).json["would_replay"] == 220
    assert kept.post(REPLAY, 200, {"limit": 210, "dry_run": True}).json["would_replay"] == 210


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"dry_run": True}, "ids"),
        ({"ids": ["a"], "limit": 1, "dry_run": True}, "ids"),
        ({"ids": ["a", "a"], "dry_run": True}, "ids must name each message only once"),
        ({"limit": 10001, "dry_run": True}, "limit must be from 1 to 10000"),
        ({"limit": 5, "dry_run": "yes"}, "dry_run"),
    ],
)
def test_a_wrong_dry_run_is_refused(kept: Api, body: Any, words: str) -> None:
    """A dry run has the errors of a replay."""
    assert words in kept.post(REPLAY, 400, body).json["description"]
