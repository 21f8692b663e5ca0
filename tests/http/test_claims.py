# SPDX-License-Identifier: Apache-2.0
"""Claiming messages (contract 8.1, 8.5)."""

from typing import Any

import pytest

from tests.http.api import Api
from tests.tables import every_row
from zq.clock import ManualClock

QUEUE = "/v2/queues/jobs"
URL = f"{QUEUE}/claims"
TERMS = {"ttl": (60, 43200), "grace": (60, 43200)}


def bodies(messages: list[Any]) -> list[Any]:
    return [message["body"] for message in messages]


@pytest.mark.every_store
def test_a_claim_hands_out_messages(api: Api) -> None:
    """8.1: The server answers 201 with the claim's path as Location, and messages whose hrefs name the claim."""
    ids = api.send("jobs", "a", "b", ttl=3600)
    answer = api.post(URL, 201, {"ttl": 300, "grace": 60})
    claim = answer.headers["Location"].removeprefix(f"{URL}/")
    assert answer.json == {
        "messages": [
            {
                "id": ids[number],
                "href": f"{QUEUE}/messages/{ids[number]}?claim_id={claim}",
                "ttl": 3600,
                "age": 0,
                "body": body,
            }
            for number, body in enumerate("ab")
        ]
    }
    assert answer.json["messages"][0]["href"].rsplit("=", 1)[1] == claim
    assert not set("/?=&,") & set(claim)


@pytest.mark.parametrize(
    "body", [None, b"", {}, {"ttl": 100}, {"grace": 100}, {"unknown": 1, "ttl": 100, "messages": [1]}]
)
def test_both_terms_are_optional(api: Api, body: Any) -> None:
    """8.1, 1.6 [T]: A request without a body equals {}, and unknown members are ignored."""
    api.send("jobs", 1)
    claim = api.post(URL, 201, body).headers["Location"]
    assert api.get(claim, 200).json["ttl"] == (body or {} if isinstance(body, dict) else {}).get("ttl", 300)


def test_the_defaults_are_those_of_the_server(compose, clock: ManualClock) -> None:
    """16: default_claim_ttl and default_claim_grace."""
    api = compose(default_claim_ttl=100, default_claim_grace=70)
    api.send("jobs", 1, ttl=60)
    claim, [message] = api.claim("jobs")
    assert (api.get(claim, 200).json["ttl"], message["ttl"]) == (100, 170)
    clock.advance(100)
    api.get(claim, 404)
    api.get(message["href"].split("?")[0], 200)
    clock.advance(70)
    api.get(message["href"].split("?")[0], 404)


@every_row("value", [0, -1, 59, 43201, 2**63 - 1, None, "60", "", 60.0, 60.5, [], {}, True])
@every_row("term", TERMS)
def test_a_term_is_60_to_43200_whole_seconds(door: Api, term: str, value: Any) -> None:
    """8.1 [T], 1.6: Otherwise the server answers 400 and names the field and its limit; null gets 400 as well.

    python-zaqarclient may send null.
    """
    refused = door.post(URL, 400, {"ttl": 100, "grace": 100, term: value}).json
    assert refused["title"] == ("Invalid API request" if type(value) is int else "Invalid request body")
    assert term in refused["description"]
    assert type(value) is not int or {"60", "43200"} & set(refused["description"].replace(".", "").split())


@pytest.mark.parametrize("term", TERMS)
def test_the_bounds_of_a_term_are_those_of_the_server(compose, term: str) -> None:
    """16: max_claim_ttl and max_claim_grace."""
    api = compose(**{f"max_claim_{term}": 100})
    api.send("jobs", 1, 2)
    other = {"ttl": 60, "grace": 60}
    api.post(f"{URL}?limit=1", 201, {**other, term: 100})
    api.post(f"{URL}?limit=1", 201, {**other, term: 60})
    assert "100" in api.post(URL, 400, {**other, term: 101}).json["description"]


@every_row(
    "body", [b"[]", b"[1]", b'"text"', b"1", b"null", b"true", b"{", b"[", b".", b"{'ttl': 100}", b"{}{}", b"\xff"]
)
def test_a_claim_of_anything_but_an_object_is_refused(door: Api, body: bytes) -> None:
    assert door.post(URL, 400, body).json["title"] == "Invalid request body"


@pytest.mark.parametrize("limit", ["0", "-1", "21", "200", "9" * 30, "abc", "%20", "1.0", "None"])
def test_a_claim_takes_one_to_twenty_messages(zaqars: Api, limit: str) -> None:
    """8.1 [T]: The limit is a query parameter; other values get 400."""
    assert "limit" in zaqars.post(f"{URL}?limit={limit}", 400, {}).json["description"]


def test_a_claim_takes_ten_by_default(compose) -> None:
    """8.1, 16: The default is fixed and the maximum is an option. A queue with fewer messages returns fewer."""
    api = compose(max_messages_per_claim_or_pop=12)
    api.send("jobs", *range(25))
    assert len(api.claim("jobs", limit=12)[1]) == 12
    assert "12" in api.post(f"{URL}?limit=13", 400, {}).json["description"]
    assert len(api.post(f"{URL}?limit=&unknown=1", 201, {}).json["messages"]) == 10
    assert len(api.post(URL, 201, {}).json["messages"]) == 3


@pytest.mark.parametrize("created", [True, False])
def test_a_claim_of_nothing_is_204(api: Api, created: bool) -> None:
    """8.1 [T]: The response is empty and has no Location; a missing queue is not created."""
    if created:
        api.put(QUEUE, 201)
    answer = api.post(URL, 204, {})
    assert "Location" not in answer.headers
    assert api.queues() == (["jobs"] if created else [])


@pytest.mark.parametrize(
    ("message_ttl", "claim_ttl", "grace", "ttl"),
    [(120, 777, 23 + 60, 860), (120, 60, 60, 120), (60, 43200, 43200, 86400), (1209600, 43200, 43200, 1209600)],
)
def test_a_message_outlives_its_claim(
    api: Api, clock: ManualClock, message_ttl: int, claim_ttl: int, grace: int, ttl: int
) -> None:
    """8.1 [T]: A message that would expire before the claim gets claim ttl + grace; other messages keep their ttl."""
    [message] = api.send("jobs", 1, ttl=message_ttl)
    claim, [claimed] = api.claim("jobs", ttl=claim_ttl, grace=grace)
    assert claimed["ttl"] == ttl
    assert api.get(claim, 200).json["messages"][0]["ttl"] == ttl
    api.delete(claim, 204)
    assert api.get(f"{QUEUE}/messages/{message}", 200).json["ttl"] == ttl
    clock.advance(ttl - 0.001)
    api.get(f"{QUEUE}/messages/{message}", 200)
    clock.advance(0.001)
    api.get(f"{QUEUE}/messages/{message}", 404)


@pytest.mark.every_store
def test_a_claim_releases_its_messages_when_it_expires(api: Api, clock: ManualClock) -> None:
    """8.5 [T]: The messages can be claimed, listed and deleted without a claim id; the claim gets 404."""
    api.send("jobs", 1, 2)
    claim, messages = api.claim("jobs", ttl=60)
    clock.advance(59.999)
    api.get(claim, 200)
    api.post(URL, 204, {})
    clock.advance(0.001)
    api.get(claim, 404)
    api.call("PATCH", claim, 404, {"ttl": 100})
    api.delete(claim, 204)
    assert api.seen("jobs") == [1, 2]
    api.delete(messages[0]["href"].split("?")[0], 204)
    assert bodies(api.claim("jobs")[1]) == [2]


@pytest.mark.parametrize("query", ["", "?unknown=1", "?limit=", "?claim_id=x", "?marker=x&echo=None"])
def test_unknown_parameters_of_a_claim_are_ignored(api: Api, query: str) -> None:
    api.send("jobs", 1)
    api.post(URL + query, 201, {})
