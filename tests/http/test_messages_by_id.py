# SPDX-License-Identifier: Apache-2.0
"""Reading and deleting messages by id (contract 7.4, 7.5, 7.6)."""

import pytest

from tests.http.api import OTHER_CLIENT, Api
from tests.tables import every_row
from zq.clock import ManualClock

QUEUE = "/v2/queues/jobs"
URL = f"{QUEUE}/messages"
STRANGE = [
    "nothing",
    "-1",
    "0",
    "%00",
    "%20",
    "x" * 2000,
    "00" * 16,
    "50b68a50d6f5b8c8a7c62b01",
    "%E6%B8%AC",
    "{0}",
    "..",
    "*",
]


def test_messages_are_got_by_their_ids(api: Api) -> None:
    """7.4: The server answers 200 without links, in the order of posting if the ids are in that order."""
    ids = api.send("jobs", *range(4))
    answer = api.get(f"{URL}?ids={ids[0]},{ids[2]},{ids[3]}", 200).json
    assert answer.keys() == {"messages"}
    assert [message["body"] for message in answer["messages"]] == [0, 2, 3]


@pytest.mark.parametrize(
    "form", ["ids={0},{1}", "ids={0}&ids={1}", "ids={0},{1},", "ids={0}&ids={1}&ids=", "ids={0},{0},{1}"]
)
def test_ids_may_be_repeated_or_joined_by_commas(api: Api, form: str) -> None:
    """1.5 [T]: Both forms are the same list, which may have trailing commas and duplicates."""
    ids = api.send("jobs", "a", "b", "c")
    found = api.get(f"{URL}?{form.format(*ids)}", 200).json["messages"]
    assert {message["id"] for message in found} == set(ids[:2])


def test_ids_find_own_claimed_and_delayed_messages(api: Api) -> None:
    """7.4: Reads by ids apply no filter."""
    api.put(QUEUE, 201, {"_default_message_delay": 30})
    ids = api.send("jobs", "held", "ready", delay=0) + api.send("jobs", "delayed")
    api.claim("jobs", limit=1)
    found = api.get(f"{URL}?ids={','.join(ids)}", 200).json["messages"]
    assert [message["body"] for message in found] == ["held", "ready", "delayed"]


@every_row("query", ["limit=0", "limit=x", "echo=None", "marker=zzz", "include_claimed=None", "pop=1"])
def test_other_parameters_do_not_matter_beside_ids(api: Api, query: str) -> None:
    """7.4: The server ignores them all."""
    [message] = api.send("jobs", 1)
    assert len(api.get(f"{URL}?ids={message}&{query}", 200).json["messages"]) == 1


def test_unknown_ids_are_skipped(api: Api) -> None:
    """7.4, 1.7: This includes malformed ids."""
    [message] = api.send("jobs", 1)
    found = api.get(f"{URL}?ids={','.join(['nothing', message, *STRANGE[:10]])}", 200).json["messages"]
    assert [each["id"] for each in found] == [message]


@pytest.mark.parametrize("queue", ["jobs", "missing"])
def test_ids_that_find_nothing_are_not_found(api: Api, queue: str) -> None:
    """7.4 [T]: The server answers 404, also for a missing queue."""
    api.send("jobs", 1)
    for value in STRANGE:
        assert api.get(f"/v2/queues/{queue}/messages?ids={value}", 404).json["title"] == "Not found"


def test_more_than_twenty_ids_are_refused(door: Api) -> None:
    """7.4 [T]: 21 ids including duplicates are refused, whatever the page limit, because the response has no links."""
    for ids in (["x"] * 21, [str(number) for number in range(22)]):
        assert "20" in door.get(f"{URL}?ids={','.join(ids)}", 400).json["description"]


def test_twenty_ids_are_fine(api: Api) -> None:
    """7.4 [T]: Twenty is the maximum."""
    ids = api.send("jobs", *range(20))
    assert len(api.get(f"{URL}?ids={','.join(ids)}", 200).json["messages"]) == 20


def test_blank_ids_are_absent(api: Api) -> None:
    """1.5: The request is a listing then."""
    assert api.get(f"{URL}?ids=", 200).json == {"messages": [], "links": []}


def test_one_message_is_got_by_its_id(api: Api, clock: ManualClock) -> None:
    """7.5 [T]: Any client can read the message until it expires."""
    [message] = api.send("jobs", {"a": 1}, ttl=60)
    clock.advance(59)
    assert api.tenant(client=OTHER_CLIENT).get(f"{URL}/{message}", 200).json["age"] == 59
    clock.advance(1)
    assert api.get(f"{URL}/{message}", 404).json["title"] == "Not found"
    api.get(f"{URL}?ids={message}", 404)


def test_an_unknown_message_is_not_found(api: Api) -> None:
    """7.5 [T], 1.7: This includes malformed ids, whether or not the queue exists."""
    api.put(QUEUE, 201)
    for value in STRANGE:
        api.get(f"{URL}/{value}", 404)
        api.get(f"/v2/queues/missing/messages/{value}", 404)
    assert api.queues() == ["jobs"]


def test_a_message_is_found_in_its_own_queue_only(api: Api) -> None:
    """7.5 [T, security]: An id of another queue is not found and does not delete the message."""
    [message] = api.send("jobs", 1)
    api.put("/v2/queues/other", 201)
    for base in ("/v2/queues/other", "/v2/queues/missing"):
        api.get(f"{base}/messages/{message}", 404)
        api.get(f"{base}/messages?ids={message}", 404)
        api.delete(f"{base}/messages/{message}", 204)
        api.delete(f"{base}/messages?ids={message}", 204)
    assert api.seen("jobs") == [1]


def test_deleting_what_is_not_there_is_fine(api: Api) -> None:
    """7.6 [T]: The id may be unknown, malformed, or in a missing queue, with any claim id."""
    api.put(QUEUE, 201)
    for value in STRANGE:
        api.delete(f"{URL}/{value}", 204)
        api.delete(f"{URL}/{value}?claim_id=123", 204)
        api.delete(f"/v2/queues/missing/messages/{value}?claim_id={value}", 204)
    assert api.queues() == ["jobs"]


@pytest.mark.parametrize(
    ("state", "named", "statuses"),
    [
        ("unclaimed", "", (204,)),
        ("unclaimed", "blank", (204,)),
        ("unclaimed", "another", (400,)),
        ("unclaimed", "unknown", (400,)),
        ("unclaimed", "released", (400,)),
        ("claimed", "", (403,)),
        ("claimed", "blank", (403,)),
        ("claimed", "own", (204,)),
        ("claimed", "another", (403,)),
        ("claimed", "unknown", (400, 403)),
        ("claimed", "released", (400, 403)),
        ("claimed", "lapsed", (400, 403)),
        ("lapsed", "", (204,)),
        ("lapsed", "lapsed", (400,)),
        ("lapsed", "another", (400,)),
        ("lapsed", "unknown", (400,)),
    ],
)
def test_who_may_delete_a_message(
    api: Api, clock: ManualClock, state: str, named: str, statuses: tuple[int, ...]
) -> None:
    """7.6: The contract's table applies; a refused deletion keeps the message."""
    _, message = api.send("jobs", "decoy", "message")
    claims = {"": "", "blank": "?claim_id=", "unknown": "?claim_id=123"}

    def claim(name: str, limit: int = 2, ttl: int = 600) -> str:
        path, _ = api.claim("jobs", limit, ttl=ttl)
        claims[name] = f"?claim_id={path.rsplit('/', 1)[1]}"
        return path

    api.delete(claim("released"), 204)
    if "lapsed" in (state, named):
        claim("lapsed", ttl=60)
        clock.advance(60)
    claim("another", limit=1)
    if state == "claimed":
        claim("own", limit=1)
    answer = api.delete(f"{URL}/{message}{claims[named]}", statuses[0] if len(statuses) == 1 else None)
    assert answer.status_int in statuses
    if answer.status_int == 204:
        api.get(f"{URL}/{message}", 404)
    else:
        assert answer.json["title"] == "Unable to delete"
        api.get(f"{URL}/{message}", 200)


def test_anyone_with_the_claim_id_may_delete(api: Api) -> None:
    """7.6: The client id does not matter."""
    api.send("jobs", 1)
    _, [message] = api.claim("jobs")
    other = api.tenant(client=OTHER_CLIENT)
    other.delete(message["href"].split("?")[0], 403)
    other.delete(message["href"], 204)


def test_the_option_for_bulk_deletes_does_not_touch_single_ones(compose) -> None:
    """7.6: The option is message_delete_with_claim_id."""
    api = compose(delete_with_claim_id=True)
    [message] = api.send("jobs", 1)
    api.delete(f"{URL}/{message}", 204)
