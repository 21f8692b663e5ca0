# SPDX-License-Identifier: Apache-2.0
"""Concurrency of commits with each other, with consumers and with readers (extensions contract, section 9)."""

import time
from functools import partial

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import DEADLINE, EVERYTHING, RunningWorkers, Scene, ids_of, run_together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS
from zq.errors import ClaimLapsed, ClaimNotFound, CommitRunning, ProducerNotFound
from zq.model import ClaimRef, CommitResult, SettleResult

pytestmark = ONE_OR_TWO_CONNECTIONS

NAME = "etl.0"


def commit(scene: Scene, *arguments: object, verb: str = "commit", **terms: object) -> CommitResult | None:
    """Commit, or only decide the commit. Repeat it while another attempt runs. Return None if a claim has lapsed."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        try:
            return getattr(scene, verb)(*arguments, **terms)
        except CommitRunning:
            time.sleep(0.01)
        except ClaimLapsed:
            return None
    raise AssertionError("The other attempt does not come to an end.")


def test_two_commits_of_one_batch_take_effect_once(scene: Scene):
    """Each attempt has its own stage: one is published, the other is dropped, and both return the same counts."""
    source = scene.at("in")
    for batch in range(10):
        source.post(3)
        source.named(NAME)
        before = scene.page()
        staged = [scene.stage(f"attempt.{at}", 2) for at in range(3)]
        held = [ClaimRef(source.queue, NAME)]
        told = run_together(*(partial(commit, scene, batch, [f"attempt.{at}"], held) for at in range(3)))
        assert sorted((one is not None and one.replayed) for one in told) == [False, True, True]
        assert {(one.batch, one.published, one.deleted) for one in told if one} == {(batch, 2, 3)}
        [winner] = [at for at, one in enumerate(told) if one and not one.replayed]
        assert scene.page() == before + staged[winner]
        assert source.is_empty()


def test_a_commit_repeated_while_it_runs_takes_effect_once(scene: Scene):
    for batch in range(8):
        before = scene.page()
        staged = scene.stage("s1", 3)
        told = run_together(*[partial(commit, scene, batch, ["s1"])] * 6)
        assert sorted(one is not None and one.replayed for one in told) == [False] + [True] * 5
        assert scene.page() == before + staged


def test_concurrent_producers_publish_each_stage_once(scene: Scene):
    """Six producers publish into two queues: each stage once, complete, and each producer's stages in order."""
    other = scene.at("other")

    def producer(at: int) -> list[list[str]]:
        made = []
        for batch in range(5):
            made.append(scene.stage(f"s.{at}.{batch}", 2) + other.stage(f"s.{at}.{batch}", 2))
            assert commit(scene, batch, [f"s.{at}.{batch}"], producer=f"etl{at}") == CommitResult(batch, 4, 0)
        return made

    made = run_together(*(partial(producer, at) for at in range(6)))
    for room, part in [(scene, slice(0, 2)), (other, slice(2, 4))]:
        listed = room.page()
        assert sorted(listed) == sorted(id for stages in made for stage in stages for id in stage[part])
        for stages in made:
            own = [id for stage in stages for id in stage[part]]
            assert [id for id in listed if id in own] == own
        assert room.claimable() == listed


def test_a_commit_races_the_end_of_its_claim(scene: Scene):
    """Each message is either settled by the commit or claimed by another consumer. A refused commit settles none."""
    for turn in range(10):
        room = scene.at(f"q{turn}")
        posted = room.post(6)
        room.named(NAME, 6, ttl=60)
        holder = Scene(room.storage, ManualClock(room.now + 59.999), room.queue)
        room.tick(60)
        work = partial(commit, holder, turn, [], [ClaimRef(room.queue, NAME)], producer=f"etl{turn}")
        told, *taken = run_together(work, *[partial(room.claimable, 2)] * 3)
        claimed = [id for some in taken for id in some] + room.claimable()
        assert len(claimed) == len(set(claimed)) == 6 - (told.deleted if told else 0)
        assert set(claimed) <= set(posted)
        assert ids_of(room.walk()) == [id for id in posted if id in claimed]


def test_a_commit_races_a_settlement_of_its_claim(scene: Scene):
    """Either the commit or the settlement settles each message."""
    for turn in range(10):
        room = scene.at(f"q{turn}")
        posted = room.post(6)
        room.named(NAME)

        def settle(room: Scene = room, ids: list[str] = posted) -> SettleResult:
            try:
                return room.settle(NAME, delete=ids[:3], history=600)
            except ClaimNotFound:
                return SettleResult(lost=ids[:3])

        held = [ClaimRef(room.queue, NAME, 600)]
        told, settled = run_together(partial(commit, room, turn, [], held, producer=f"etl{turn}"), settle)
        assert told is not None
        assert told.deleted + settled.deleted == 6
        assert len(settled.lost) + settled.deleted == 3
        assert sorted(id for id, _ in room.finished()) == sorted(posted)


@pytest.mark.parametrize("way", ["purge", "delete"])
@pytest.mark.parametrize("history", [0, 600])
@pytest.mark.parametrize("verb", ["commit", "decide"])
def test_a_commit_races_a_removal_of_its_messages(scene: Scene, way: str, history: int, verb: str):
    """Either the commit is decided before the removal returns, or the claim has lapsed and nothing is published."""
    for turn in range(10):
        source, target, producer = scene.at(f"in{turn}"), scene.at(f"out{turn}"), f"etl{turn}"
        source.post(3)
        source.named(NAME)
        staged = target.stage(f"s{turn}", 2)

        def remove(source: Scene = source, producer: str = producer) -> CommitResult | None:
            getattr(source.storage.queues, way)(source.queue)
            try:
                return source.last(producer)
            except ProducerNotFound:
                return None

        held = [ClaimRef(source.queue, NAME, history)]
        work = partial(commit, scene, 1, [f"s{turn}"], held, producer=producer, verb=verb)
        told, seen = run_together(work, remove)
        assert (told is None) == (seen is None)
        while scene.continue_commit(100, producer=producer):
            pass
        assert target.page() == (staged if told else [])
        assert source.is_empty()


def test_a_reader_by_marker_misses_nothing_that_is_published(scene: Scene):
    """During posts and commits, a reader gets each message once, in rising sequence (L6)."""
    shift = RunningWorkers(5)

    def publisher(at: int) -> list[str]:
        ids: list[str] = []
        with shift.at_work():
            for batch in range(4):
                ids += scene.stage(f"s.{at}.{batch}", 1 + 30 * at)
                commit(scene, batch, [f"s.{at}.{batch}"], producer=f"etl{at}")
        return ids

    def poster() -> list[str]:
        with shift.at_work():
            return [id for _ in range(20) for id in scene.post(3)]

    def reader() -> list[str]:
        seen: list[str] = []
        marker = 0
        while True:
            last = shift.is_over()
            page = scene.storage.messages.list(scene.queue, marker, 10, EVERYTHING, scene.now)
            seen += ids_of(page.items)
            marker = int(page.next or marker)
            if last and not page.items:
                return seen

    works = [partial(publisher, at) for at in range(3)]
    seen, *made = run_together(reader, *works, poster, poster)
    assert sorted(seen) == sorted(id for some in made for id in some)
    assert scene.page(limit=2000) == seen
