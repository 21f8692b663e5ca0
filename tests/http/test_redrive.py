# SPDX-License-Identifier: Apache-2.0
"""Redrives of dead letters (extensions 4)."""

from typing import Any

import pytest

from tests.http.api import Api
from tests.tables import every_row
from zq.clock import ManualClock

DEAD = "/v2/queues/dead"


def bury(api: Api, queue: str, *bodies: Any) -> list[str]:
    """Send messages to ``queue``, bury them, and return their ids."""
    api.call("PUT", f"/v2/queues/{queue}", None, {"_dead_letter_queue": "dead"})
    ids = api.send(queue, *bodies)
    claim, _ = api.claim(queue, limit=20)
    api.post(f"{claim}/settle", 200, {"bury": [{"id": id, "reason": "bad"} for id in ids]})
    return ids


def redrive(api: Api, **terms: Any) -> tuple[int, int]:
    done = api.post(f"{DEAD}/redrive", 200, terms).json
    assert done.keys() == {"moved", "remaining"}
    return done["moved"], done["remaining"]


def test_each_dead_letter_goes_back_to_its_origin(api: Api, clock: ManualClock) -> None:
    """A redrive keeps the id, resets age and claim count, and removes the details of a dead letter."""
    [a] = bury(api, "jobs", "a")
    bury(api, "mail", "b")
    clock.advance(50)
    assert redrive(api) == (2, 0)
    assert (api.seen("jobs"), api.seen("mail"), api.seen("dead")) == (["a"], ["b"], [])
    back = api.get(f"/v2/queues/jobs/messages/{a}?detailed=true", 200).json
    assert (back["age"], back["claim_count"]) == (0, 0)
    assert not {"origin", "origin_claim_count", "reason"} & back.keys()


def test_a_redrive_may_have_another_aim(api: Api) -> None:
    """``to`` may be any queue and is created if missing; other messages of the dead-letter queue move too."""
    bury(api, "jobs", "a")
    api.send("dead", "posted")
    assert redrive(api, to="elsewhere") == (2, 0)
    assert api.seen("elsewhere") == ["a", "posted"]


def test_a_redrive_stops_at_its_limit(api: Api) -> None:
    """The oldest messages move first, and the response has the number of the others."""
    bury(api, "jobs", *range(5))
    assert redrive(api, limit=2) == (2, 3)
    assert api.seen("jobs") == [0, 1]
    assert redrive(api, limit=3) == (3, 0)
    assert redrive(api) == (0, 0)


def test_a_redrive_of_one_origin_leaves_the_others(api: Api) -> None:
    """The limit and the dry run count only messages of that origin; messages of other origins are skipped."""
    bury(api, "mail", *range(3))
    for start in range(0, 120, 20):
        bury(api, "other", *range(start, start + 20))
    bury(api, "mail", 3)
    api.send("dead", "posted")
    told = api.post(f"{DEAD}/redrive", 200, {"origin": "mail", "dry_run": True}).json
    assert (told["would_move"], told["origins"], told["without_origin"]) == (4, {"mail": 4}, 0)
    assert told["counted"] == 125
    assert redrive(api, origin="mail", limit=2) == (2, 123)
    assert redrive(api, origin="mail") == (2, 121)
    assert redrive(api, origin="mail") == (0, 121)
    assert api.seen("mail") == [0, 1, 2, 3]


def test_a_redrive_goes_through_many(api: Api) -> None:
    """The redrive moves more messages than fit in a batch, in order."""
    for start in range(0, 260, 20):
        bury(api, "jobs", *range(start, start + 20))
    assert redrive(api, limit=250) == (250, 10)
    pages = api.pages("/v2/queues/jobs/messages?echo=true&limit=20", "messages")
    assert [message["body"] for page in pages for message in page] == list(range(250))


def test_only_what_is_ready_goes(api: Api, clock: ManualClock) -> None:
    """Claimed and delayed messages stay."""
    api.put(DEAD, 201, {"_redelivery_delay": 60})
    bury(api, "jobs", "held", "delayed", "ready")
    claim, _ = api.claim("dead", limit=1)
    api.delete(api.claim("dead", limit=1)[0], 204)
    assert redrive(api) == (1, 0)
    assert api.seen("jobs") == ["ready"]
    api.get(claim, 200)
    clock.advance(60)
    assert redrive(api) == (1, 0)


def test_the_default_delay_of_the_aim_holds(api: Api, clock: ManualClock) -> None:
    """The delay applies as for a move without a delay."""
    bury(api, "jobs", "a")
    api.put("/v2/queues/slow", 201, {"_default_message_delay": 30})
    redrive(api, to="slow")
    api.post("/v2/queues/slow/claims", 204)
    clock.advance(30)
    api.claim("slow")


def test_a_message_without_origin_needs_an_aim(api: Api) -> None:
    """The server answers 400 if such a message is the first; otherwise the redrive stops before it."""
    bury(api, "jobs", "a")
    api.send("dead", "posted")
    bury(api, "jobs", "b")
    assert redrive(api) == (1, 2)
    assert "to" in api.post(f"{DEAD}/redrive", 400).json["description"]
    assert api.seen("dead") == ["posted", "b"]


def test_nothing_to_redrive_is_fine(api: Api) -> None:
    """A missing queue is accepted too, and is not created."""
    assert redrive(api) == (0, 0)
    assert api.queues() == []


def test_the_queue_may_be_named_in_a_body_or_not(api: Api) -> None:
    bury(api, "jobs", "a")
    assert api.post(f"{DEAD}/redrive", 200).json == {"moved": 1, "remaining": 0}


@every_row(
    ("body", "words"),
    [
        ({"to": "dead"}, 'The field "to" must not name the queue that is redriven'),
        ({"to": ""}, "to must be a queue name"),
        ({"to": "no name"}, "to must be a queue name"),
        ({"to": None}, "to"),
        ({"to": 5}, "to"),
        ({"limit": 0}, "limit must be from 1 to 10000"),
        ({"limit": 10001}, "limit must be from 1 to 10000"),
        ({"limit": "5"}, "limit"),
        ({"limit": None}, "limit"),
        ([], "object"),
        (b"{", "body"),
    ],
)
def test_a_wrong_redrive_is_refused(api: Api, body: Any, words: str) -> None:
    """The server answers 400, names field and limit, and moves nothing."""
    api = api.fresh()
    bury(api, "jobs", "a")
    assert words in api.post(f"{DEAD}/redrive", 400, body).json["description"]
    assert api.seen("dead") == ["a"]


def test_a_redrive_stays_in_its_project(api: Api) -> None:
    bury(api, "jobs", "a")
    assert api.tenant("other").post(f"{DEAD}/redrive", 200).json == {"moved": 0, "remaining": 0}
    assert api.seen("dead") == ["a"]


def dry_run(api: Api, **terms: Any) -> dict[str, Any]:
    told: dict[str, Any] = api.post(f"{DEAD}/redrive", 200, {**terms, "dry_run": True}).json
    return told


def test_a_dry_run_tells_what_a_redrive_does(api: Api) -> None:
    """The response has counts by origin, with deleted origins apart, which the redrive would create. Nothing moves."""
    bury(api, "jobs", *range(12))
    bury(api, "old", "b", "c")
    bury(api, "mail", "d")
    api.delete("/v2/queues/old", 204)
    told = dry_run(api)
    assert told == {
        "would_move": 15,
        "origins": {"jobs": 12, "mail": 1},
        "without_origin": 0,
        "missing_origin": {"old": 2},
        "counted": 15,
    }
    assert (api.seen("jobs"), "old" in api.queues()) == ([], False)
    assert redrive(api) == (told["would_move"], 0)
    assert (len(api.seen("jobs")), len(api.seen("old")), len(api.seen("mail"))) == (12, 2, 1)


def test_a_dry_run_stops_where_the_redrive_would(api: Api) -> None:
    """The dry run stops at the limit and before a message without an origin; messages behind it are only counted."""
    bury(api, "jobs", 1, 2)
    api.send("dead", "posted")
    bury(api, "jobs", 3)
    told = dry_run(api)
    assert (told["would_move"], told["origins"], told["without_origin"], told["counted"]) == (2, {"jobs": 3}, 1, 4)
    assert (dry_run(api, limit=1)["would_move"], dry_run(api, limit=1)["counted"]) == (1, 1)
    assert dry_run(api, to="elsewhere")["would_move"] == 4
    assert "elsewhere" not in api.queues()
    for start in range(0, 120, 20):
        bury(api, "jobs", *range(start, start + 20))
    assert (dry_run(api)["would_move"], dry_run(api)["counted"]) == (2, 124)
    assert redrive(api) == (2, 122)


def test_a_dry_run_goes_through_many_and_leaves_out_what_is_not_ready(api: Api) -> None:
    """The queue is longer than a page of the store."""
    for start in range(0, 240, 20):
        bury(api, "jobs", *range(start, start + 20))
    api.claim("dead", limit=15)
    assert (dry_run(api)["would_move"], dry_run(api, limit=210)["would_move"]) == (225, 210)
    assert redrive(api) == (225, 0)


def test_a_redrive_by_ids_moves_only_these_messages(api: Api) -> None:
    """Messages move in the order of the ids.

    Deleted and claimed ids and ids of other queues are lost, in the dry run too.
    """
    held, *ids = bury(api, "jobs", *range(5))
    api.claim("dead", limit=1)
    [elsewhere] = api.send("other", "x")
    [homeless] = api.send("dead", "posted")
    asked = [ids[2], "gone", held, ids[0], elsewhere, homeless]
    told = dry_run(api, ids=asked)
    assert (told["would_move"], told["counted"], told["without_origin"]) == (2, 3, 1)
    assert told["lost"] == ["gone", held, elsewhere]
    done = api.post(f"{DEAD}/redrive", 200, {"ids": asked}).json
    assert done == {"moved": 2, "remaining": 3, "lost": ["gone", held, elsewhere]}
    assert api.seen("jobs") == [3, 1]
    refused = api.post(f"{DEAD}/redrive", 400, {"ids": [homeless]}).json
    assert 'The field "to" must name a target queue' in refused["description"]
    assert api.post(f"{DEAD}/redrive", 200, {"ids": [homeless], "to": "jobs"}).json["lost"] == []
    assert api.post(f"{DEAD}/redrive", 200, {"ids": ["gone"]}).json == {"moved": 0, "remaining": 2, "lost": ["gone"]}


@every_row("dry", [True, False])
@every_row(
    ("terms", "words"),
    [
        ({"ids": []}, "ids must contain 1 to 1000 values, not 0"),
        ({"ids": [f"{at:032x}" for at in range(1001)]}, "ids must contain 1 to 1000 values, not 1001"),
        ({"ids": ["a", "b", "a"]}, "ids must name each message only once"),
        ({"ids": ["a"], "limit": 5}, "limit cannot be combined with ids"),
        ({"ids": ["a"], "origin": "jobs"}, "origin cannot be combined with ids"),
        ({"origin": "no name"}, "origin must be a queue name"),
        ({"ids": "a"}, "ids"),
        ({"ids": [1]}, "ids"),
        ({"ids": None}, "ids"),
        ({"limit": 0}, "limit must be from 1 to 10000"),
        ({"to": "dead"}, 'The field "to" must not name the queue that is redriven'),
    ],
)
def test_wrong_ids_are_refused(api: Api, terms: dict[str, Any], words: str, dry: bool) -> None:
    """The server answers 400 with field and limit, in a dry run too, and moves nothing."""
    api = api.fresh()
    bury(api, "jobs", "a")
    assert words in api.post(f"{DEAD}/redrive", 400, {**terms, "dry_run": dry}).json["description"]
    assert api.seen("dead") == ["a"]


@pytest.mark.parametrize("value", [1, "true", None, []])
def test_dry_run_is_true_or_false(api: Api, value: Any) -> None:
    """A client that requests a dry run never gets a redrive."""
    bury(api, "jobs", "a")
    assert "dry_run" in api.post(f"{DEAD}/redrive", 400, {"dry_run": value}).json["description"]
    assert api.seen("dead") == ["a"]
