# SPDX-License-Identifier: Apache-2.0
"""Details of messages, which a request must ask for (extensions 7)."""

import re
from datetime import datetime
from typing import Any

import pytest

from tests.http.api import Api, query_of
from tests.tables import every_row
from zq.clock import ManualClock
from zq.model import Draft, QueueRef
from zq.model.attributes import Attributes, AttributeValue, encode_attributes
from zq.storage.api import Storage

JOBS = "/v2/queues/jobs"
URL = f"{JOBS}/messages"
DETAILS = {"sequence", "created", "expires", "available_at", "claim_count"}
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")
BASE = {"id", "href", "ttl", "age", "body"}
STORED = encode_attributes(Attributes({"n": AttributeValue("Number", "1.5")}, "once", "Root=1"))
SHOWN = {"attributes": {"n": 1.5}, "deduplication_id": "once", "aws_trace_header": "Root=1"}


def every_look(api: Api, suffix: str) -> dict[str, list[Any]]:
    """Return the messages that each kind of request shows; the claim comes second to last, the pop last."""
    [message] = [message["id"] for message in api.get(f"{URL}?echo=true", 200).json["messages"]]
    looks = {
        "list": api.get(f"{URL}?echo=true&{suffix}", 200).json["messages"],
        "ids": api.get(f"{URL}?ids={message}&{suffix}", 200).json["messages"],
        "get": [api.get(f"{URL}/{message}?{suffix}", 200).json],
    }
    made = api.post(f"{JOBS}/claims?{suffix}", 201)
    looks["claim"] = made.json["messages"]
    claim = made.headers["Location"]
    looks["claimed"] = api.get(f"{claim}?{suffix}", 200).json["messages"]
    api.delete(claim, 204)
    looks["pop"] = api.delete(f"{URL}?pop=1&{suffix}", 200).json["messages"]
    return looks


@pytest.mark.parametrize("suffix", ["", "detailed=", "detailed=false", "detailed=0", "detailed=no"])
def test_nothing_is_added_unless_asked_for(api: Api, suffix: str) -> None:
    """Clients of the base API raise on unknown members."""
    api.send("jobs", 1)
    for name, [message] in every_look(api, suffix).items():
        popped = {"id", "age", "ttl", "body", "claim_id", "claim_count"}
        assert message.keys() == (popped if name == "pop" else BASE), name


@pytest.mark.parametrize("suffix", ["detailed=true", "detailed=1", "detailed=yes"])
def test_every_request_that_shows_messages_shows_more_of_them(api: Api, suffix: str) -> None:
    """This holds for listing, reads by id and by ids, claim, read of a claim, and pop."""
    api.send("jobs", 1)
    counts = {}
    for name, [message] in every_look(api, suffix).items():
        counts[name] = message["claim_count"]
        assert message.keys() == (BASE - {"href"} | {"claim_id"} if name == "pop" else BASE) | DETAILS, name
        assert all(ISO.fullmatch(message[member]) for member in ("created", "expires", "available_at")), name
        assert isinstance(message["sequence"], int)
    assert counts == {"list": 0, "ids": 0, "get": 0, "claim": 1, "claimed": 1, "pop": 1}


def test_the_moments_are_those_of_the_message(api: Api, clock: ManualClock) -> None:
    """expires is created + ttl; available_at is the end of the delay, or of the claim if there is one."""
    api.put(JOBS, 201, {"_default_message_delay": 30, "_redelivery_delay": 5})
    [message] = api.send("jobs", 1, ttl=3600)

    def moments() -> list[float]:
        shown = api.get(f"{URL}/{message}?detailed=true", 200).json
        told = [datetime.fromisoformat(shown[name]).timestamp() for name in ("created", "expires", "available_at")]
        return [round(moment - start, 3) for moment in told]

    start = clock.now()
    assert moments() == [0, 3600, 30]
    clock.advance(40)
    api.claim("jobs", ttl=60)
    assert moments() == [0, 3600, 105]


def test_a_dead_letter_shows_where_it_came_from(api: Api) -> None:
    """origin, origin_claim_count and reason are shown only if they are set."""
    api.put(JOBS, 201, {"_dead_letter_queue": "dead", "_max_claim_count": 1})
    api.send("jobs", 1)
    api.delete(api.claim("jobs")[0], 204)
    api.post(f"{JOBS}/claims", 204)
    [plain] = api.get("/v2/queues/dead/messages?echo=true", 200).json["messages"]
    [message] = api.get("/v2/queues/dead/messages?echo=true&detailed=true", 200).json["messages"]
    assert plain.keys() == BASE
    assert message.keys() == BASE | DETAILS | {"origin", "origin_claim_count", "reason"}
    assert [message[name] for name in ("origin", "origin_claim_count", "reason")] == ["jobs", 1, "max_claim_count"]


def test_what_came_with_a_message_is_among_its_details(api: Api, storage: Storage, clock: ManualClock) -> None:
    """Every request shows the attributes as posted; a replayed copy has them too."""
    api.put(JOBS, 201, {"_history_ttl": 3600})
    draft = Draft("0" * 32, b'"text"', 3600, 0, "alice", attributes=STORED)
    storage.messages.post(QueueRef(api.project, "jobs"), [draft], clock.now())
    api.delete(f"{URL}?ids={draft.id}", 204)
    api.post(f"{JOBS}/history/replay", 200, {"limit": 1})
    for name, [message] in every_look(api, "detailed=true").items():
        assert message | SHOWN == message, name
    [record, _] = api.get(f"{JOBS}/history?detailed=true", 200).json["messages"]
    assert record["attributes"] == SHOWN["attributes"]


def test_sequences_rise_and_are_the_markers_of_a_listing(api: Api) -> None:
    """The marker is the sequence of the last message, and any number is a valid marker."""
    api.send("jobs", *range(5))
    page = api.get(f"{URL}?echo=true&limit=3&detailed=true", 200).json
    sequences = [message["sequence"] for message in page["messages"]]
    assert sequences == sorted(set(sequences))
    link = query_of(page["links"][0]["href"])
    assert (link["marker"], link["detailed"]) == (str(sequences[-1]), "true")
    between = api.get(f"{URL}?echo=true&detailed=true&marker={sequences[1]}", 200).json["messages"]
    assert [message["body"] for message in between] == [2, 3, 4]
    assert all("sequence" in message for page in api.pages(page["links"][0]["href"], "messages") for message in page)


def test_stats_show_the_sequences_of_the_ends(api: Api) -> None:
    """The sequences are shown only with ``detailed``; an empty queue has none."""
    api.put(JOBS, 201)
    assert "oldest" not in api.get(f"{JOBS}/stats?detailed=true", 200).json["messages"]
    api.send("jobs", 1, 2, 3)
    listed = [message["sequence"] for message in api.get(f"{URL}?echo=true&detailed=true", 200).json["messages"]]
    plain = api.get(f"{JOBS}/stats", 200).json["messages"]
    told = api.get(f"{JOBS}/stats?detailed=true", 200).json["messages"]
    assert plain["oldest"].keys() == {"href", "age", "created"}
    assert told["oldest"].keys() == {"href", "age", "created", "sequence"}
    assert (told["oldest"]["sequence"], told["newest"]["sequence"]) == (listed[0], listed[-1])


def test_stats_count_what_came(api: Api) -> None:
    """The count is shown only with ``detailed``; it includes removed messages."""
    api.send("jobs", 1, 2, 3)
    assert "entered" not in api.get(f"{JOBS}/stats", 200).json["messages"]
    before = api.get(f"{JOBS}/stats?detailed=true", 200).json["messages"]
    api.send("jobs", 4)
    api.call("DELETE", f"{URL}?pop=2", 200)
    after = api.get(f"{JOBS}/stats?detailed=true", 200).json["messages"]
    assert (after["entered"] - before["entered"], after["total"] - before["total"]) == (1, -1)


def test_a_checksum_stands_beside_the_details(compose: Any) -> None:
    """A message without a checksum omits the member."""
    api = compose(checksum=True)
    api.send("jobs", {"event": "x"}, None)
    some, none = api.get(f"{URL}?echo=true&detailed=true", 200).json["messages"]
    assert some.keys() - none.keys() == {"checksum"}


@every_row(
    ("method", "path"),
    [
        ("GET", URL),
        ("GET", f"{URL}?ids=a"),
        ("GET", f"{URL}/a"),
        ("DELETE", f"{URL}?pop=1"),
        ("DELETE", f"{URL}?ids=a"),
        ("POST", f"{JOBS}/claims"),
        ("GET", f"{JOBS}/claims/c"),
        ("GET", f"{JOBS}/stats"),
    ],
)
def test_a_wrong_value_is_refused(door: Api, method: str, path: str) -> None:
    """The server answers 400 before it accesses the store, so that no message is popped or claimed."""
    query = f"{path}{'&' if '?' in path else '?'}detailed=maybe"
    assert "detailed" in door.call(method, query, 400).json["description"]
