# SPDX-License-Identifier: Apache-2.0
"""Expectations of tempest and python-zaqarclient that no other module tests (contract 17)."""

import pytest

from tests.http.api import OTHER_CLIENT, Api
from tests.tables import every_row
from zq.clock import ManualClock

QUEUE = "/v2/queues/jobs"
MESSAGES = f"{QUEUE}/messages"
MESSAGE_KEYS = {"id", "href", "ttl", "age", "body", "claim_id", "claim_count", "checksum"}
"""Members that the client's ``Message`` accepts; it raises for any other member."""

REFUSED = [
    ("GET", f"{MESSAGES}?ids={','.join(str(number) for number in range(21))}"),
    ("GET", f"{MESSAGES}?echo=None"),
    ("GET", f"{MESSAGES}?include_claimed=None"),
    *(("GET", f"{MESSAGES}?limit={limit}") for limit in ("0", "-1", "21", "10000")),
    *(("GET", f"/v2/queues?limit={limit}") for limit in ("0", "-1", "21", "10000")),
    ("GET", "/v2/queues?detailed=None"),
    *(("POST", f"{QUEUE}/claims?limit={limit}") for limit in ("0", "-1", "200")),
    ("DELETE", f"{MESSAGES}?pop=1000000"),
    ("DELETE", f"{MESSAGES}?pop=-1"),
    ("DELETE", MESSAGES),
    ("PUT", "/v2/queues/%E6%B5%8B%E8%AF%95"),
    ("PUT", "/v2/queues/%24%40%5E%26"),
]
NOT_FOUND = [
    ("GET", f"{MESSAGES}?ids=-1,-2"),
    ("GET", f"{MESSAGES}?ids=unknown"),
    ("GET", "/v2/queues/unknown/messages?ids=a"),
    ("GET", f"{MESSAGES}/unknown"),
    ("GET", f"{QUEUE}/claims/unknown"),
]
IDEMPOTENT = [
    "/v2/queues/unknown",
    "/v2/queues/unknown/messages/a",
    "/v2/queues/unknown/messages?ids=a",
    f"{QUEUE}/claims/unknown",
]


@every_row(("method", "path"), REFUSED)
def test_what_tempest_expects_to_be_refused(zaqars: Api, method: str, path: str) -> None:
    """17: A server with Zaqar's limits answers 400."""
    zaqars.call(method, path, 400, b"{}" if method == "POST" else None)


def test_a_name_of_65_characters_is_refused_when_it_is_created(api: Api) -> None:
    """17: The server answers 400; only SQS can create such a queue."""
    api.put(f"/v2/queues/{'x' * 65}", 400)


@pytest.mark.parametrize(("method", "path"), NOT_FOUND)
def test_what_tempest_expects_not_to_be_found(api: Api, method: str, path: str) -> None:
    """17: The server answers 404."""
    api.send("jobs", 1)
    api.call(method, path, 404)


@pytest.mark.parametrize("path", IDEMPOTENT)
def test_deleting_something_unknown_is_fine(api: Api, path: str) -> None:
    """17: The server answers 204."""
    api.delete(path, 204)


def test_the_location_of_a_post_can_be_taken_apart(api: Api) -> None:
    """7.2, 17: Tests split it at the last = and at commas; tempest reuses the part from /v2 on."""
    posted = api.post(MESSAGES, 201, {"messages": [{"body": number, "ttl": 100} for number in range(5)]})
    location = posted.headers["Location"]
    ids = location.rsplit("=", 1)[1].split(",")
    assert [f"{MESSAGES}/{message}" for message in ids] == posted.json["resources"]
    assert len(api.get(location[location.index("/v2") :], 200).json["messages"]) == 5


def test_every_message_can_become_a_clients_object(api: Api) -> None:
    """7.1, 17: Messages have only members that the client's ``Message`` accepts, and all that tempest requires."""
    api.send("jobs", *range(3), ttl=100)
    claim, claimed = api.claim("jobs", limit=1)
    shown = [
        *claimed,
        *api.get(claim, 200).json["messages"],
        *api.get(f"{MESSAGES}?echo=true&include_claimed=true", 200).json["messages"],
        *api.delete(f"{MESSAGES}?pop=2", 200).json["messages"],
    ]
    for message in shown:
        assert {"id", "ttl", "age", "body"} <= message.keys() <= MESSAGE_KEYS
        assert message["ttl"] >= 1
        assert message["age"] >= 0
        assert "/messages/messages" not in message.get("href", "")


def test_a_link_survives_the_clients_formatting(api: Api) -> None:
    """1.9, 17: The client strips /, v and 2 off the href, formats it, and requests the rest."""
    api.send("jobs", *range(4))
    api.put("/v2/queues/more", 201)
    for path, key in (("/v2/queues?limit=1&detailed=true", "queues"), (f"{MESSAGES}?limit=2&echo=true", "messages")):
        [link] = api.get(path, 200).json["links"]
        assert link["rel"] == "next"
        assert api.get(f"/v2/{link['href'].lstrip('/v2').format()}", 200).json[key]


def test_a_reader_with_another_client_id_pages_through_a_queue(api: Api) -> None:
    """1.9: The client's iterator reads ten messages in pages of three."""
    api.send("jobs", *range(10))
    pages = api.tenant(client=OTHER_CLIENT).pages(f"{MESSAGES}?limit=3", "messages")
    assert [len(page) for page in pages] == [3, 3, 3, 1, 0]


def test_no_claim_survives_the_deletion_of_its_queue(api: Api) -> None:
    """17: A claim update after the deletion of the queue gets 404; the queue and its stats get 200."""
    api.send("jobs", 1)
    claim, _ = api.claim("jobs")
    api.delete(QUEUE, 204)
    api.call("PATCH", claim, 404, {"ttl": 100, "grace": 100})
    api.get(QUEUE, 200)
    api.get(f"{QUEUE}/stats", 200)


def test_echo_lists_nothing_after_a_delete(api: Api) -> None:
    """17: The client's functional test checks this listing."""
    api.send("jobs", 1, 2, 3)
    api.delete(QUEUE, 204)
    assert api.seen("jobs", "echo=true&include_claimed=true&include_delayed=true") == []


def test_claimed_messages_expire_no_earlier_than_their_claim(api: Api, clock: ManualClock) -> None:
    """17, 8.1: A worker that keeps its claim can read the messages until the claim ends."""
    api.send("jobs", 1, ttl=60)
    claim, _ = api.claim("jobs", ttl=300, grace=60)
    clock.advance(299)
    assert len(api.get(claim, 200).json["messages"]) == 1


@pytest.mark.parametrize("count", [0, -1])
def test_a_claim_count_below_one_loses_nothing(api: Api, count: int) -> None:
    """6.1 [Q]: A count of 0 moves the message at the first claim; a negative count never does (8.6).

    8.6 compares the counter with N for equality.
    """
    api.put(QUEUE, 201, {"_max_claim_count": count, "_dead_letter_queue": "dead"})
    api.send("jobs", 1)
    for _ in range(3):
        claimed = api.post(f"{QUEUE}/claims", 204 if count == 0 else 201, {})
        if claimed.status_int == 201:
            api.delete(claimed.headers["Location"], 204)
    assert (api.seen("jobs"), api.seen("dead")) == (([], [1]) if count == 0 else ([1], []))
