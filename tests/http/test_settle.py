# SPDX-License-Identifier: Apache-2.0
"""Settlement of claims (extensions 3)."""

import json
from typing import Any

import pytest

from tests.http.api import Api
from tests.tables import every_row
from zq.clock import ManualClock

JOBS = "/v2/queues/jobs"
NEXT = "/v2/queues/next"
NOTHING = {"deleted": 0, "released": 0, "moved": 0, "buried": 0, "lost": []}


def held(api: Api, *bodies: Any, **terms: int) -> tuple[str, list[str]]:
    """Post messages with these bodies and claim them. Return the path of the claim and the ids."""
    ids = api.send("jobs", *bodies)
    claim, messages = api.claim("jobs", limit=20, **terms)
    assert [message["id"] for message in messages] == ids
    return claim, ids


def settle(api: Api, claim: str, **terms: Any) -> dict[str, Any]:
    """Settle messages and return the counts."""
    return api.post(f"{claim}/settle", 200, terms).json


def shown(api: Api, queue: str, message: str) -> dict[str, Any]:
    return api.get(f"/v2/queues/{queue}/messages/{message}?detailed=true", 200).json


def test_every_member_of_a_settlement_in_one_request(api: Api) -> None:
    """Each message is settled on its own; unnamed messages stay claimed."""
    api.put(JOBS, 201, {"_dead_letter_queue": "dead"})
    claim, [a, b, c, d, e] = held(api, *"abcde")
    done = settle(
        api,
        claim,
        delete=[a],
        release=[{"id": b}],
        move=[{"id": c, "queue": "next"}],
        bury=[{"id": d, "reason": "schema mismatch"}],
    )
    assert done == {"deleted": 1, "released": 1, "moved": 1, "buried": 1, "lost": []}
    assert (api.seen("jobs"), api.seen("next"), api.seen("dead")) == (["b"], ["c"], ["d"])
    assert [message["id"] for message in api.get(claim, 200).json["messages"]] == [e]
    api.get(f"{JOBS}/messages/{a}", 404)


def test_a_star_deletes_whatever_else_the_claim_holds(api: Api) -> None:
    """Messages that other members name are settled as named, and the claim ends."""
    claim, [a, *_] = held(api, *"abc")
    assert settle(api, claim, delete="*", release=[{"id": a}]) == {**NOTHING, "deleted": 2, "released": 1}
    assert api.seen("jobs", "echo=true&include_claimed=true") == ["a"]
    api.get(claim, 404)
    api.post(f"{claim}/settle", 404, {"delete": "*"})


def test_a_release_without_delay_returns_to_the_former_place(api: Api) -> None:
    """The messages precede later posts."""
    claim, [a, _] = held(api, "a", "b")
    api.send("jobs", "c")
    settle(api, claim, release=[{"id": a}])
    assert [message["body"] for message in api.claim("jobs")[1]] == ["a", "c"]


@pytest.mark.parametrize("delay", [0, 1, 900])
def test_a_release_with_delay_counts_from_now_on_any_queue(api: Api, clock: ManualClock, delay: int) -> None:
    """The message is ready exactly after its delay (L4). With a delay of 0 it follows messages posted since."""
    claim, [a] = held(api, "a", ttl=2000)
    clock.advance(10)
    api.send("jobs", "b")
    clock.advance(1)
    settle(api, claim, release=[{"id": a, "delay": delay}])
    if delay:
        clock.advance(delay - 0.1)
        assert [message["body"] for message in api.claim("jobs")[1]] == ["b"]
        clock.advance(0.1)
        assert [message["body"] for message in api.claim("jobs")[1]] == ["a"]
    else:
        assert [message["body"] for message in api.claim("jobs")[1]] == ["b", "a"]


def test_a_moved_message_starts_anew_under_its_id(api: Api, clock: ManualClock) -> None:
    """Age, claim count and ttl restart; the message is ready behind earlier messages of the target."""
    [first] = api.send("next", "first")
    claim, [a] = held(api, {"a": 1})
    clock.advance(30)
    settle(api, claim, move=[{"id": a, "queue": "next"}])
    api.get(f"{JOBS}/messages/{a}", 404)
    moved = shown(api, "next", a)
    assert (moved["age"], moved["ttl"], moved["body"], moved["claim_count"]) == (0, 3600, {"a": 1}, 0)
    assert moved["href"] == f"{NEXT}/messages/{a}"
    assert not {"origin", "origin_claim_count", "reason"} & moved.keys()
    assert [message["id"] for message in api.claim("next")[1]] == [first, a]


@pytest.mark.parametrize("body", [{"new": [1, "é"]}, None, 0, ""])
def test_a_move_may_bring_a_body_a_ttl_and_a_delay(api: Api, clock: ManualClock, body: Any) -> None:
    """``null`` is a valid body; the delay applies even to a queue without delay."""
    claim, [a] = held(api, "old")
    settle(api, claim, move=[{"id": a, "queue": "next", "body": body, "ttl": 60, "delay": 30}])
    moved = shown(api, "next", a)
    assert (moved["body"], moved["ttl"]) == (body, 60)
    api.post(f"{NEXT}/claims", 204)
    clock.advance(30)
    assert [message["id"] for message in api.claim("next")[1]] == [a]


def test_a_move_has_the_default_delay_of_the_target(api: Api, clock: ManualClock) -> None:
    """A delay of the move takes precedence. The target's default ttl applies only to posts."""
    api.put(NEXT, 201, {"_default_message_delay": 20, "_default_message_ttl": 100})
    claim, [a, b] = held(api, "a", "b")
    settle(api, claim, move=[{"id": a, "queue": "next"}, {"id": b, "queue": "next", "delay": 0}])
    assert [message["id"] for message in api.claim("next")[1]] == [b]
    assert shown(api, "next", a)["ttl"] == 3600
    clock.advance(20)
    assert [message["id"] for message in api.claim("next")[1]] == [a]


def test_moved_messages_stand_in_the_order_of_naming(api: Api) -> None:
    """Several messages that move into a queue are in the order that one post would give."""
    claim, ids = held(api, *"abc")
    settle(api, claim, move=[{"id": id, "queue": "next"} for id in reversed(ids)])
    assert api.seen("next") == ["c", "b", "a"]


def test_the_checksum_follows_the_body(compose: Any) -> None:
    """Contract 7.10: A new body gets a new checksum, and an old body keeps its own."""
    api = compose(checksum=True)
    claim, [a, b] = held(api, "a", "b")
    before = shown(api, "jobs", b)["checksum"]
    settle(api, claim, move=[{"id": a, "queue": "next", "body": {"event": "x"}}, {"id": b, "queue": "next"}])
    assert shown(api, "next", a)["checksum"] == "MD5:a8b8e614767ada136e158f48b517e2e6"
    assert shown(api, "next", b)["checksum"] == before


def test_a_new_body_keeps_the_bound_of_the_target(api: Api) -> None:
    """The server answers 400 and names the limit; no part of the settlement is applied."""
    api.put(NEXT, 201, {"_max_messages_post_size": 10})
    claim, [a, b] = held(api, "a", "b")
    move = {"id": a, "queue": "next", "body": "x" * 9}
    assert "10" in api.post(f"{claim}/settle", 400, {"delete": [b], "move": [move]}).json["description"]
    assert len(api.get(claim, 200).json["messages"]) == 2
    settle(api, claim, move=[{**move, "body": "x" * 8}])


def test_a_buried_message_remembers_where_it_came_from_and_why(api: Api, clock: ManualClock) -> None:
    """Extensions 4: The message keeps its age; _max_claim_count is not required."""
    api.put(JOBS, 201, {"_dead_letter_queue": "dead", "_dead_letter_queue_messages_ttl": 500})
    api.send("jobs", "a")
    api.delete(api.claim("jobs")[0], 204)
    clock.advance(7)
    claim, [message] = api.claim("jobs")
    settle(api, claim, bury=[{"id": message["id"], "reason": "no such “order”"}])
    buried = shown(api, "dead", message["id"])
    assert (buried["age"], buried["ttl"], buried["claim_count"]) == (7, 500, 0)
    assert (buried["origin"], buried["origin_claim_count"], buried["reason"]) == ("jobs", 2, "no such “order”")
    assert api.claim("dead")[1][0]["id"] == message["id"]


@pytest.mark.parametrize("metadata", [{}, {"_dead_letter_queue": None}])
def test_burying_needs_a_dead_letter_queue(api: Api, metadata: dict[str, Any]) -> None:
    """The server answers 400, names the key, and changes nothing."""
    api.put(JOBS, 201, metadata)
    claim, [a] = held(api, "a")
    refused = api.post(f"{claim}/settle", 400, {"bury": [{"id": a, "reason": "bad"}]}).json
    assert "_dead_letter_queue" in refused["description"]
    assert len(api.get(claim, 200).json["messages"]) == 1


def test_what_the_claim_does_not_hold_is_lost_and_untouched(api: Api) -> None:
    """The lost ids are in the order of the request: unknown, free, or claimed by another claim."""
    claim, [a, b] = held(api, "a", "b")
    settle(api, claim, release=[{"id": a}])
    other, _ = api.claim("jobs")
    [free] = api.send("jobs", "free")
    done = settle(api, claim, delete=["nope", free], move=[{"id": a, "queue": "next"}], release=[{"id": b}])
    assert done == {**NOTHING, "released": 1, "lost": ["nope", free, a]}
    assert [message["id"] for message in api.get(other, 200).json["messages"]] == [a]
    assert api.seen("next") == []
    assert api.seen("jobs") == ["b", "free"]


def test_a_lapsed_or_unknown_claim_settles_nothing(api: Api, clock: ManualClock) -> None:
    """L2: A late holder changes nothing, and neither does a holder in another queue or project."""
    claim, [a] = held(api, "a", ttl=60)
    everything = {"delete": [a]}
    api.post(f"{JOBS}/claims/nope/settle", 404, everything)
    api.post(claim.replace("jobs", "next") + "/settle", 404, everything)
    api.tenant("other").post(f"{claim}/settle", 404, everything)
    clock.advance(60)
    api.post(f"{claim}/settle", 404, everything)
    assert api.seen("jobs") == ["a"]


BAD: list[tuple[Any, str]] = [
    ({}, "1 to 1000"),
    ({"delete": []}, "1 to 1000"),
    ({"delete": [], "release": [], "move": [], "bury": []}, "1 to 1000"),
    ({"delete": ["x"] * 1001}, "1 to 1000"),
    ({"delete": [f"x{n}" for n in range(500)], "release": [{"id": f"y{n}"} for n in range(501)]}, "1 to 1000"),
    ({"delete": ["ID", "ID"]}, "once"),
    ({"delete": ["ID"], "release": [{"id": "ID"}]}, "once"),
    ({"move": [{"id": "ID", "queue": "next"}, {"id": "ID", "queue": "next"}]}, "once"),
    ({"delete": "*", "release": [{"id": "ID"}, {"id": "ID"}]}, "once"),
    ({"delete": "ID"}, "delete"),
    ({"delete": None}, "delete"),
    ({"delete": [1]}, "delete"),
    ({"delete": {"id": "ID"}}, "delete"),
    ({"release": ["ID"]}, "release"),
    ({"release": [{}]}, "id"),
    ({"release": [{"id": "ID", "delay": -1}]}, "delay must be from 0 to 900"),
    ({"release": [{"id": "ID", "delay": 901}]}, "delay must be from 0 to 900"),
    ({"release": [{"id": "ID", "delay": "5"}]}, "delay"),
    ({"release": [{"id": "ID", "delay": 1.5}]}, "delay"),
    ({"release": [{"id": "ID", "delay": True}]}, "delay"),
    ({"release": [{"id": "ID", "delay": None}]}, "delay"),
    ({"release": [{"id": "ID", "delay": 2**63}]}, "integer"),
    ({"move": [{"id": "ID"}]}, "queue"),
    ({"move": [{"queue": "next"}]}, "id"),
    ({"move": [{"id": "ID", "queue": ""}]}, "queue"),
    ({"move": [{"id": "ID", "queue": "no name"}]}, "queue"),
    ({"move": [{"id": "ID", "queue": "x" * 65}]}, "64"),
    ({"move": [{"id": "ID", "queue": "next", "ttl": 59}]}, "ttl must be from 60 to 1209600"),
    ({"move": [{"id": "ID", "queue": "next", "ttl": 1209601}]}, "ttl must be from 60 to 1209600"),
    ({"move": [{"id": "ID", "queue": "next", "ttl": "60"}]}, "ttl"),
    ({"move": [{"id": "ID", "queue": "next", "delay": 901}]}, "delay must be from 0 to 900"),
    ({"bury": [{"id": "ID"}]}, "reason"),
    ({"bury": [{"id": "ID", "reason": ""}]}, "reason must be 1 to 1024"),
    ({"bury": [{"id": "ID", "reason": "x" * 1025}]}, "reason must be 1 to 1024"),
    ({"bury": [{"id": "ID", "reason": 5}]}, "reason"),
    ([], "object"),
    ("*", "object"),
    (b"{", "body"),
    (b"", "body"),
    (b'{"bury": [{"id": "ID", "reason": "\\ud800"}]}', "body"),
]


@every_row(("body", "words"), BAD)
def test_a_wrong_settlement_is_refused_with_field_and_bound(api: Api, body: Any, words: str) -> None:
    """The server answers 400 and changes nothing."""
    api = api.fresh()
    api.put(JOBS, 201, {"_dead_letter_queue": "dead"})
    claim, [a] = held(api, "a")
    raw = body if isinstance(body, bytes) else str_of(body, a)
    assert words in api.post(f"{claim}/settle", 400, raw).json["description"]
    assert [message["id"] for message in api.get(claim, 200).json["messages"]] == [a]
    assert api.queues() == ["jobs"]


def str_of(body: Any, message: str) -> bytes:
    """Return the body with the message's id in place of ID."""
    return json.dumps(body).replace('"ID"', f'"{message}"').encode()


def test_a_wrong_settlement_is_refused_before_the_store_is_asked(door: Api) -> None:
    door.post(f"{JOBS}/claims/c/settle", 400, {"release": [{"id": "a", "delay": 901}]})
    door.post(f"{JOBS}/claims/c/settle", 400, b"x" * (262144 + 65536 + 1))


def test_a_settlement_may_carry_as_much_as_a_post(api: Api) -> None:
    """Bodies may have max_messages_post_size bytes, and the rest 64 KiB."""
    claim, [a] = held(api, "a")
    settle(api, claim, move=[{"id": a, "queue": "next", "body": "x" * 262142}])
    assert len(api.seen("next")[0]) == 262142


def test_unknown_members_are_ignored(api: Api) -> None:
    """The rule of the base API applies (1.6)."""
    claim, [a] = held(api, "a")
    assert settle(api, claim, delete=[a], later={"x": 1})["deleted"] == 1
