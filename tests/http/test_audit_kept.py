# SPDX-License-Identifier: Apache-2.0
"""``GET /v2/audit``: what was changed, the latest first, kept by the store and never in the way of a request."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.http.api import Api
from tests.http.scoped import Scoped
from zq.audit import Entry
from zq.broker.trail import MOST, Trail
from zq.clock import ManualClock
from zq.errors import Unavailable
from zq.storage.api import Storage

QUEUE = "/v2/queues/jobs"


@pytest.fixture
def trail(storage: Storage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Trail:
    """That of every application of this test."""
    kept = Trail(storage.documents, clock)
    monkeypatch.setattr("zq.broker.Trail", lambda *_: kept)
    return kept


@pytest.fixture
def caller(trail: Trail, compose: Callable[..., Api]) -> Api:
    return compose()


def listed(caller: Api, query: str = "") -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = caller.get(f"/v2/audit{query}", 200).json["entries"]
    return entries


def test_changes_are_listed_the_latest_first(caller: Api, trail: Trail) -> None:
    """With the id of the request, the number of messages where it is known, and also what failed."""
    caller.put(QUEUE, 201)
    purged = caller.post(f"{QUEUE}/purge", 204)
    caller.post(f"{QUEUE}/redrive", 200)
    caller.post(f"{QUEUE}/purge", 400, {})
    trail.finish()
    failed, redriven, done = listed(caller)
    assert [failed["outcome"], redriven["messages"], "messages" in done] == ["failed with 400", 0, False]
    assert done["request_id"] == purged.headers["X-OpenStack-Request-ID"]
    assert (done["object"], done["rule"], done["outcome"]) == ("queue jobs", "queues:purge", "done")
    assert done["time"].endswith("+00:00")


def test_daily_work_and_refusals_are_not_listed(caller: Api, trail: Trail) -> None:
    caller.put(QUEUE, 201)
    (message,) = caller.send("jobs", 1)
    claim, _ = caller.claim("jobs")
    caller.post(f"{claim}/settle", 200, {"delete": "*"})
    caller.delete(f"{QUEUE}/messages/{message}", 204)
    caller.get(QUEUE, 200)
    trail.finish()
    assert listed(caller) == []


def test_pages_have_each_entry_once(caller: Api, trail: Trail, clock: ManualClock) -> None:
    """Though more comes meanwhile; ``since`` ends the listing."""
    begin = clock.now()
    for number in range(7):
        caller.delete(f"/v2/queues/q{number}", 204)
        trail.finish()
        clock.advance(10)
    seen, query = [], "?limit=3"
    while query:
        answer = caller.get(f"/v2/audit{query}", 200).json
        seen += [entry["object"] for entry in answer["entries"]]
        query = answer["links"][0]["href"].removeprefix("/v2/audit") if answer["links"] else ""
        caller.delete("/v2/queues/later", 204)
        trail.finish()
    assert seen == [f"queue q{number}" for number in reversed(range(7))]
    moment = listed(caller, "?limit=100")[-3]["time"].replace("+", "%2B")
    assert begin < clock.now()
    found = [entry["object"] for entry in listed(caller, f"?limit=100&since={moment}")]
    assert found[-1] == "queue q2"


def test_entries_end_with_their_time(caller: Api, trail: Trail, clock: ManualClock) -> None:
    trail.ttl = 60
    caller.delete(QUEUE, 204)
    trail.finish()
    assert len(listed(caller)) == 1
    clock.advance(60)
    assert listed(caller) == []


def test_a_project_sees_its_own_and_administrators_see_all(trail: Trail, scoped: Scoped) -> None:
    ours, theirs = scoped.api(), scoped.api(project="rival")
    ours.delete(QUEUE, 204)
    theirs.delete("/v2/queues/mail", 204)
    trail.finish()
    assert [entry["object"] for entry in listed(ours)] == ["queue jobs"]
    everything = listed(scoped.api(project="boss", roles=frozenset({"admin"})), "?limit=100")
    assert {entry["project"] for entry in everything} >= {ours.project, theirs.project}


def test_a_scope_must_be_to_observe_everything(scoped: Scoped) -> None:
    """Entries name things of every kind."""
    scoped.api("observe:**", "observe:work/**").get("/v2/audit", 200)
    for scopes in (["observe:jobs"], ["observe:queue/**"], ["*:work/**"], ["manage:**", "manage:work/**"]):
        scoped.api(*scopes).get("/v2/audit", 403)


@pytest.mark.parametrize(
    ("query", "told"),
    [("marker=x", "marker must"), ("since=now", "since must"), ("limit=0", "limit must"), ("limit=101", "limit must")],
)
def test_bad_parameters_are_named(caller: Api, query: str, told: str) -> None:
    assert caller.get(f"/v2/audit?{query}", 400).json["description"].startswith(told)


def test_a_store_that_is_away_loses_the_entry_and_not_the_answer(
    caller: Api, trail: Trail, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as broken:

        def away(*_: Any, **__: Any) -> bool:
            raise Unavailable("away")

        broken.setattr(trail._documents, "put", away)
        caller.delete(QUEUE, 204)
        trail.finish()
    assert "is lost" in caplog.text
    assert "queue jobs" in caplog.text
    caller.delete("/v2/queues/mail", 204)
    trail.finish()
    assert [entry["object"] for entry in listed(caller)] == ["queue mail"]


def test_too_many_changes_are_counted(trail: Trail, caller: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one project, whose number is told; others are not touched by that."""
    monkeypatch.setattr("zq.broker.trail.time.monotonic", lambda: 7.0)
    for _ in range(MOST + 3):
        trail.put(Entry(project=caller.project, outcome="done"))
    trail.put(Entry(project="other", outcome="done", object="queue theirs"))
    trail.finish()
    entries = listed(caller, "?limit=100")
    assert len(entries) == MOST + 1
    assert entries[0]["why"] == "3 more changes within a second are not listed"
    assert [entry.object for entry in trail.list("other", "", None, "").items] == ["queue theirs"]
