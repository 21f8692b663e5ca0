# SPDX-License-Identifier: Apache-2.0
"""Usage counts on MongoDB: by one server at a time, on an index, for the projects that were queried."""

import random
from collections.abc import Callable

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import Scene
from zq.conformance.usage_builders import (
    MANY,
    EstimatedRandomCalls,
    figures,
    fill,
    is_close,
    post,
    size,
    used,
    wait_for_usage,
)
from zq.errors import Unavailable
from zq.model import QueueRef
from zq.storage.mongodb import MongoStorage, usage
from zq.storage.mongodb.usage import KIND, LEASE, SMALL_PROJECT

pytestmark = [pytest.mark.parametrize("store_name", ["mongodb"], indirect=True)]


@pytest.fixture
def scene(storage: MongoStorage, clock: ManualClock, queue: QueueRef) -> Scene:
    return Scene(storage, clock, queue)


@pytest.fixture
def other(open_store: Callable[[], MongoStorage], scene: Scene):
    """Yield a scene on another server."""
    opened = open_store()
    yield Scene(opened, scene.clock, scene.queue)
    opened.close()


def counts(scene: Scene) -> list[str]:
    """Return the projects that rounds have counted or are counting."""
    return [document.ref.name for document in scene.storage.documents.list("", KIND, "", "", 10, scene.now).items]


def test_only_queried_projects_are_counted(scene: Scene):
    fill(scene)
    scene.tick(60)
    scene.storage.maintain(scene.now)
    assert counts(scene) == []


def test_few_messages_leave_no_count(scene: Scene):
    post(scene, 10)
    assert used(scene).messages == 1
    scene.storage.maintain(scene.now)
    assert counts(scene) == []


def test_before_the_first_count_figures_are_a_lower_bound(scene: Scene):
    stored = fill(scene)
    messages, size = figures(scene)
    assert SMALL_PROJECT <= messages < MANY
    assert 0 < size < stored


def test_a_count_reads_keys_and_a_sample_of_bodies(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    """The server's query plan reads index keys and only a sample of the bodies."""
    stored = fill(scene)
    monkeypatch.setattr(usage, "MAX_SAMPLE", 300)
    monkeypatch.setattr(usage.random, "randrange", lambda _: 0)
    client, sent = scene.storage._client, []
    aggregate = client.aggregate
    monkeypatch.setattr(
        client, "aggregate", lambda stages, hint: sent.append((stages, hint)) or aggregate(stages, hint)
    )
    assert is_close(wait_for_usage(scene), MANY, stored)
    by_messages = [(stages, hint) for stages, hint in sent if "q" in stages[0]["$match"]]
    docs = [documents_read(client, stages, hint) for stages, hint in by_messages]
    assert len(docs) >= 4
    assert set(docs) == {0, 300}


def documents_read(client, stages, hint: str) -> int:
    command = {"aggregate": "messages", "pipeline": stages, "cursor": {}, "hint": hint}
    told = client.database.command({"explain": command, "verbosity": "executionStats"})
    stats = told.get("executionStats") or told["stages"][0]["$cursor"]["executionStats"]
    return int(stats["totalDocsExamined"])


def test_messages_with_a_common_residue_are_sampled(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    """If every second message was deleted, the sample may select only deleted sequences."""
    monkeypatch.setattr(usage, "MAX_SAMPLE", 100)
    ids = post(scene, *[10] * 400)
    scene.delete_many(ids[1::2])
    [first] = scene.storage.messages.get(scene.queue, ids[:1], scene.now)
    monkeypatch.setattr(usage.random, "randrange", lambda every: (first.sequence + 1) % every)
    assert figures(scene) == size(*[10] * 200)


def test_the_last_verbs_are_in_counts_of_rounds(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    """All counts come from rounds here, as for projects with many messages."""
    monkeypatch.setattr(usage, "SMALL_PROJECT", 1)
    EstimatedRandomCalls(scene, random.Random(18)).run(200)


def test_only_one_server_counts_and_both_know(scene: Scene, other: Scene, monkeypatch: pytest.MonkeyPatch):
    stored = fill(scene)
    surveys: list[str] = []
    for each in (scene, other):
        usages = each.storage._usages
        used(each)
        monkeypatch.setattr(usages, "_count_all", noting(usages._count_all, surveys))
    for each in (scene, other):
        each.storage.maintain(scene.now)
    assert surveys == [scene.queue.project]
    assert figures(scene) == figures(other)
    assert is_close(figures(other), MANY, stored)


def noting(function, calls: list[str]):
    def noted(project: str, *arguments):
        calls.append(project)
        return function(project, *arguments)

    return noted


def test_another_server_counts_after_the_death_of_the_first(
    scene: Scene, other: Scene, monkeypatch: pytest.MonkeyPatch
):
    """The other server starts the count once the lease has expired, not before."""
    stored = fill(scene)
    monkeypatch.setattr(scene.storage._usages, "_count_all", dies)
    used(scene)
    with pytest.raises(Unavailable):
        scene.storage.maintain(scene.now)
    for seconds in (LEASE / 2, LEASE):
        before = figures(other)
        assert before[0] < MANY
        scene.tick(seconds)
        other.storage.maintain(scene.now)
    assert is_close(figures(other), MANY, stored)


def dies(*_: object) -> None:
    raise Unavailable


def test_a_count_that_takes_too_long_leaves_the_last_one(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    fill(scene)
    before = wait_for_usage(scene)
    scene.pop(100)
    monkeypatch.setattr(usage, "MAX_DURATION", 1e-6)
    assert wait_for_usage(scene) == before
    assert "could not be counted" in caplog.text


def test_a_count_by_a_clock_that_was_ahead_is_made_again(scene: Scene):
    fill(scene)
    scene.storage.usage(scene.queue.project, scene.now + 1800)
    scene.storage.maintain(scene.now + 1800)
    scene.at("a").pop(500)
    assert figures(scene)[0] == MANY
    scene.storage.maintain(scene.now)
    assert figures(scene)[0] == MANY - 500


def test_messages_of_earlier_versions_count(scene: Scene):
    """The queue counters of earlier versions do not include these messages; the first count does."""
    stored = fill(scene)
    scene.storage._client.messages.update_many({}, {"$unset": {"n1": "", "w1": ""}})
    assert is_close(wait_for_usage(scene), MANY, stored)
    post(scene.at("a"), 10)
    messages, bytes_before = figures(scene)
    post(scene.at("a"), 20)
    assert figures(scene) == (messages + 1, bytes_before + size(20)[1])


def test_a_recreated_queue_starts_at_zero(scene: Scene):
    """The deleted queue's counter is kept, but its messages do not count for the new queue."""
    fill(scene)
    wait_for_usage(scene)
    scene.storage.queues.delete(scene.at("a").queue)
    wait_for_usage(scene)
    before = figures(scene)
    post(scene.at("a"), 10)
    assert figures(scene) == (before[0] + 1, before[1] + size(10)[1])
