# SPDX-License-Identifier: Apache-2.0
"""Dead letters (contract 8.6, as amended by extensions 1 and 4)."""

from typing import Any

import pytest

from tests.http.api import OTHER_CLIENT, Api
from zq.clock import ManualClock

URL = "/v2/queues/jobs"
DEAD = "/v2/queues/dead"


def rules(count: int | None = 2, queue: str | None = "dead", **more: Any) -> dict[str, Any]:
    """Return the metadata of a queue that moves messages to ``queue`` after ``count`` claims."""
    return {"_max_claim_count": count, "_dead_letter_queue": queue, **more}


def exhaust(api: Api, times: int, clock: ManualClock | None = None) -> None:
    """Claim all messages ``times`` times. Let the claims expire if a clock is given; otherwise release them."""
    for _ in range(times):
        claim, _ = api.claim("jobs", limit=20, ttl=60)
        if clock is None:
            api.delete(claim, 204)
        else:
            clock.advance(60)


@pytest.mark.parametrize("by", ["lapse", "release"])
def test_a_message_may_be_claimed_n_times(api: Api, clock: ManualClock, by: str) -> None:
    """8.6 [T]: With N = 2, claims answer 201, 201 and 204; the count survives expiry and release of claims."""
    api.put(URL, 201, rules())
    [message] = api.send("jobs", "poison")
    exhaust(api, 2, clock if by == "lapse" else None)
    assert api.seen("jobs") == ["poison"]
    api.post(f"{URL}/claims", 204, {"ttl": 60})
    assert api.seen("jobs", "echo=true&include_claimed=true") == []
    assert api.seen("dead") == ["poison"]
    api.get(f"{URL}/messages/{message}", 404)
    assert api.get(f"{DEAD}/messages/{message}", 200).json["body"] == "poison"


def test_the_tempest_walk_with_waits_of_70_seconds(api: Api, clock: ManualClock) -> None:
    """17 (tempest): Claims of 60 s, 70 s apart, answer 201, 201 and 204; the dead-letter queue can be listed."""
    api.put(DEAD, 201)
    api.put(URL, 201, rules(_dead_letter_queue_messages_ttl=300))
    api.send("jobs", "poison", ttl=3600)
    for status in (201, 201, 204):
        api.post(f"{URL}/claims", status, {"ttl": 60, "grace": 60})
        clock.advance(70)
    assert api.seen("dead", "echo=true&include_claimed=true") == ["poison"]


def test_a_dead_letter_arrives_ready_and_unclaimed(api: Api) -> None:
    """Extensions 4: The message can be listed, claimed and popped at once, and its claim count restarts."""
    api.put(DEAD, 201, {"_default_message_delay": 900})
    api.put(URL, 201, rules(1))
    [message] = api.send("jobs", {"a": 1})
    exhaust(api, 1)
    api.post(f"{URL}/claims", 204)
    [shown] = api.get(f"{DEAD}/messages?echo=true", 200).json["messages"]
    assert (shown["id"], shown["body"], shown["href"]) == (message, {"a": 1}, f"{DEAD}/messages/{message}")
    assert shown.keys() == {"id", "href", "ttl", "age", "body"}
    claim, [claimed] = api.claim("dead")
    assert claimed["id"] == message
    api.delete(claim, 204)
    [popped] = api.delete(f"{DEAD}/messages?pop=1", 200).json["messages"]
    assert (popped["id"], popped["claim_count"]) == (message, 1)


def test_a_dead_letter_keeps_its_client_and_age(api: Api, clock: ManualClock) -> None:
    api.put(URL, 201, rules(1))
    api.tenant(client=OTHER_CLIENT).send("jobs", 1)
    exhaust(api, 1, clock)
    api.post(f"{URL}/claims", 204)
    assert api.seen("dead", "") == [1]
    assert api.tenant(client=OTHER_CLIENT).seen("dead", "") == []
    assert api.get(f"{DEAD}/messages", 200).json["messages"][0]["age"] == 60


@pytest.mark.parametrize(("dead_ttl", "ttl"), [(9999, 9999), (60, 60), (None, 500)])
def test_the_ttl_of_a_dead_letter_starts_when_it_moves(
    api: Api, clock: ManualClock, dead_ttl: int | None, ttl: int
) -> None:
    """8.6 [T], extensions 4: The ttl is _dead_letter_queue_messages_ttl or the message's own, from the move on."""
    api.put(URL, 201, rules(1, _dead_letter_queue_messages_ttl=dead_ttl))
    [message] = api.send("jobs", 1, ttl=500)
    clock.advance(100)
    exhaust(api, 1, clock)
    api.post(f"{URL}/claims", 204)
    assert api.get(f"{DEAD}/messages/{message}", 200).json["ttl"] == ttl
    clock.advance(ttl - 1)
    api.get(f"{DEAD}/messages/{message}", 200)
    clock.advance(1)
    api.get(f"{DEAD}/messages/{message}", 404)
    assert api.seen("dead") == []


@pytest.mark.parametrize(
    "metadata", [rules(2, None), rules(None, "dead"), {"_max_claim_count": 2}, {"_dead_letter_queue": "dead"}, {}]
)
def test_both_keys_are_needed(api: Api, metadata: dict[str, Any]) -> None:
    """8.6: null means unset; with only one of the keys no message is moved."""
    api.put(URL, 201, metadata)
    api.send("jobs", 1)
    exhaust(api, 4)
    assert (api.seen("jobs"), api.seen("dead")) == ([1], [])
