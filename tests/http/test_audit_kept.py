# SPDX-License-Identifier: Apache-2.0
"""``GET /v2/audit``: changes, latest first, kept in the store without delaying requests."""

import re
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.http.api import Api
from tests.http.scoped import Scoped
from tests.http.stores import down
from tests.servers import wait_for
from zq.clock import ManualClock
from zq.core import trail as module
from zq.core.trail import MAX_PER_SECOND, MAX_TEXT, MAX_WAITING, Trail
from zq.errors import Unavailable
from zq.model.audit import Entry
from zq.model.identity import Identity
from zq.storage.api import Storage

QUEUE = "/v2/queues/jobs"
TEXTS = ("credential", "peer", "object", "why")


@pytest.fixture
def trail(storage: Storage, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Trail:
    """Return the trail that all applications of this test share."""
    kept = Trail(storage.documents, clock)
    monkeypatch.setattr("zq.core.Trail", lambda *_: kept)
    return kept


@pytest.fixture
def caller(trail: Trail, compose: Callable[..., Api]) -> Api:
    return compose()


def listed(caller: Api, query: str = "") -> list[dict[str, Any]]:
    entries: list[dict[str, Any]] = caller.get(f"/v2/audit{query}", 200).json["entries"]
    return entries


def test_changes_are_listed_the_latest_first(caller: Api, trail: Trail) -> None:
    """Entries have the id of the request, the number of messages if it is known, and failed changes too."""
    caller.put(QUEUE, 201)
    caller.send("jobs", 1, 2, 3)
    caller.claim("jobs", limit=2)
    purged = caller.post(f"{QUEUE}/purge", 204)
    caller.post(f"{QUEUE}/redrive", 200)
    caller.post(f"{QUEUE}/purge", 400, {})
    trail.finish()
    failed, redriven, done = listed(caller)
    assert [failed["outcome"], redriven["messages"], done["messages"]] == ["failed with 400", 0, 3]
    assert "messages" not in failed
    assert done["request_id"] == purged.headers["X-OpenStack-Request-ID"]
    assert (done["object"], done["rule"], done["outcome"]) == ("queue jobs", "queues:purge", "done")
    assert (redriven["method"], redriven["route"]) == ("POST", "/v2/queues/{queue}/redrive")
    assert done["time"].endswith("Z")


def test_daily_work_refusals_and_dry_runs_are_not_listed(caller: Api, trail: Trail, scoped: Scoped) -> None:
    caller.put(QUEUE, 201)
    caller.post(f"{QUEUE}/redrive", 200, {"dry_run": True})
    caller.post(f"{QUEUE}/history/replay", 200, {"ids": ["a" * 32], "dry_run": True})
    (message,) = caller.send("jobs", 1)
    claim, _ = caller.claim("jobs")
    caller.post(f"{claim}/settle", 200, {"delete": "*"})
    caller.delete(f"{QUEUE}/messages/{message}", 204)
    caller.get(QUEUE, 200)
    scoped.api("observe:**").delete(QUEUE, 403)
    trail.finish()
    assert listed(caller) == []


def test_pages_have_each_entry_once(caller: Api, trail: Trail, clock: ManualClock) -> None:
    """Pages stay complete while entries are added; ``since`` ends the listing."""
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
    moment = listed(caller, "?limit=100")[-3]["time"]
    assert begin < clock.now()
    found = [entry["object"] for entry in listed(caller, f"?limit=100&since={moment}")]
    assert found[-1] == "queue q2"


def test_entries_end_with_their_time(caller: Api, trail: Trail, clock: ManualClock) -> None:
    trail.configure(60)
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
    """Entries name objects of every kind."""
    scoped.api("observe:**", "observe:work/**").get("/v2/audit", 200)
    for scopes in (["observe:jobs"], ["observe:queue/**"], ["*:work/**"], ["manage:**", "manage:work/**"]):
        scoped.api(*scopes).get("/v2/audit", 403)


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("marker=x", "marker is not valid"),
        ("since=now", "since must"),
        ("limit=0", "limit must"),
        ("limit=101", "limit must"),
    ],
)
def test_bad_parameters_are_named(caller: Api, query: str, told: str) -> None:
    assert caller.get(f"/v2/audit?{query}", 400).json["description"].startswith(told)


def test_a_store_that_is_down_is_said(gate: Callable[..., Api]) -> None:
    gate(down).get("/v2/audit", 503)


def test_a_store_that_is_away_loses_the_entry_and_not_the_answer(
    caller: Api, trail: Trail, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with monkeypatch.context() as broken:

        def away(*_: Any, **__: Any) -> bool:
            raise Unavailable("away")

        broken.setattr(trail._documents, "put", away)
        caller.delete(QUEUE, 204)
        trail.finish()
    assert "was lost" in caplog.text
    assert "queue jobs" in caplog.text
    caller.delete("/v2/queues/mail", 204)
    trail.finish()
    assert [entry["object"] for entry in listed(caller)] == ["queue mail"]


def test_a_removal_tells_how_many_messages_went(
    storage: Storage, caller: Api, trail: Trail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for queues and topics, for purges and deletions.

    Messages that cannot be counted are removed as well.
    """
    for path in (QUEUE, "/v2/topics/jobs"):
        for act in (lambda url: caller.post(f"{url}/purge", 204), lambda url: caller.delete(url, 204)):
            caller.post(f"{path}/messages", 201, {"messages": [{"body": 1}, {"body": 2}]})
            act(path)
    caller.post(f"{QUEUE}/purge", 204, {"resource_types": ["subscriptions"]})
    trail.finish()
    assert [entry["messages"] for entry in reversed(listed(caller))] == [2, 2, 2, 2, 0]
    caller.send("jobs", 1)
    with monkeypatch.context() as broken:

        def slow(*_: Any) -> None:
            raise Unavailable("counting took too long")

        broken.setattr(type(storage.queues), "stats", slow)
        caller.post(f"{QUEUE}/purge", 204)
    trail.finish()
    assert "messages" not in listed(caller)[0]
    assert caller.get(f"{QUEUE}/stats", 200).json["messages"]["total"] == 0


def test_too_many_changes_are_counted(trail: Trail, caller: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of omitted changes is listed for the project that made them; other projects are not affected."""
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 7.0))
    for _ in range(MAX_PER_SECOND + 3):
        trail.put(Entry(project=caller.project, outcome="done"))
    trail.put(Entry(project="other", outcome="done", object="queue theirs"))
    trail.finish()
    entries = listed(caller, "?limit=100")
    assert len(entries) == MAX_PER_SECOND + 1
    assert entries[0]["why"] == "3 more changes within a second are not listed"
    assert [entry.object for entry in trail.list("other", "", None, "").items] == ["queue theirs"]


def test_half_a_pair_of_surrogates_is_kept_as_an_escape(trail: Trail, scoped: Scoped) -> None:
    """The id of a token that another issuer signed may not be valid UTF-8.

    Such an entry used to end the writer, and no entries of any project were written after it.
    """
    hostile = scoped.api()
    hostile.token = scoped.strategy.admit(Identity(hostile.project, "u", frozenset({"member"}), None, "jwt:\ud800"))
    hostile._headers["X-Auth-Token"] = hostile.token
    hostile.delete(QUEUE, 204)
    hostile.delete("/v2/queues/mail", 204)
    trail.finish()
    assert [entry["credential"] for entry in listed(hostile)] == ["jwt:\\ud800", "jwt:\\ud800"]


@pytest.mark.parametrize(
    "error", [Unavailable, UnicodeEncodeError, RuntimeError, MemoryError, SystemExit, BaseException]
)
def test_the_writer_outlives_whatever_is_raised(
    trail: Trail,
    caller: Api,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[BaseException],
) -> None:
    """The writer survives errors that are no ``Exception``, such as a panic of an extension module.

    Only the entry at hand is lost, and the loss is logged.
    """
    monkeypatch.setattr(module, "IDLE_TIMEOUT", 60.0)
    caller.delete("/v2/queues/first", 204)
    wait_for(lambda: listed(caller), 60, "the first entry")
    writer = trail._writer
    with monkeypatch.context() as broken:

        def failing(*_: Any, **__: Any) -> bool:
            raise error("utf-8", "", 0, 1, "x") if error is UnicodeEncodeError else error("away")

        broken.setattr(trail._documents, "put", failing)
        caller.delete("/v2/queues/lost", 204)
        wait_for(lambda: re.search("was lost: .*'queue lost'", caplog.text), 60, "the loss is logged")
    caller.delete("/v2/queues/mail", 204)
    assert trail._writer is writer
    trail.finish()
    assert [entry["object"] for entry in listed(caller)] == ["queue mail", "queue first"]


def test_a_writer_that_died_has_a_successor(trail: Trail, caller: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as fatal:
        fatal.setattr(trail, "_run", lambda: None)
        caller.delete(QUEUE, 204)
        wait_for(lambda: trail._writer and not trail._writer.is_alive(), 60, "the writer is dead")
    caller.delete("/v2/queues/mail", 204)
    trail.finish()
    assert [entry["object"] for entry in listed(caller)] == ["queue mail", "queue jobs"]


def test_a_process_without_another_thread_answers(
    trail: Trail, caller: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The entry waits until the next entry starts a writer."""
    with monkeypatch.context() as full:

        def start(_: object) -> None:
            raise RuntimeError("can't start new thread")

        full.setattr(module.threading.Thread, "start", start)
        caller.delete(QUEUE, 204)
    assert "writer thread of the audit trail cannot be started" in caplog.text
    caller.delete("/v2/queues/mail", 204)
    trail.finish()
    assert {entry["object"] for entry in listed(caller)} == {"queue jobs", "queue mail"}


def test_a_writer_without_work_ends(trail: Trail, caller: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next entry starts a new writer: a process keeps no idle thread for rare changes."""
    monkeypatch.setattr(module, "IDLE_TIMEOUT", 0.05)
    for name in ("a", "b"):
        caller.delete(f"/v2/queues/{name}", 204)
        wait_for(lambda: trail._writer is None, 60, "the writer has ended")
    assert len(listed(caller)) == 2


def test_memory_is_bounded_while_the_store_hangs(
    trail: Trail, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Entries beyond ``MAX_WAITING`` are lost and counted, texts are cut, and ``finish`` waits as long as allowed."""
    release = threading.Event()
    written: list[bytes] = []

    def hanging(_ref: object, value: bytes, *_: Any, **__: Any) -> bool:
        release.wait(120)
        written.append(value)
        return True

    monkeypatch.setattr(trail._documents, "put", hanging)
    long = "é" * 100_000
    for number in range(MAX_WAITING + 50):
        trail.put(Entry(project=f"p{number}", outcome="done", **dict.fromkeys(TEXTS, long)))
    assert len(trail._waiting) <= MAX_WAITING
    trail.finish(0.01)
    assert "because the store is slow: 1" in caplog.text
    release.set()
    trail.finish(60)
    assert MAX_WAITING <= len(written) // 2 <= MAX_WAITING + 1
    assert max(map(len, written)) < 2 * len(TEXTS) * MAX_TEXT + 1000
    told = re.findall(r"entries were already queued: (\d+)", caplog.text)
    assert sum(map(int, told)) + len(written) // 2 == MAX_WAITING + 50
