# SPDX-License-Identifier: Apache-2.0
"""Takeover with failing servers and writes: the next owner finds every acknowledged record, as do all others.

Hypothesis chooses the schedules; some that it would rarely find are listed. See ``ownership``.
"""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.model import ownership
from tests.model.ownership import (
    LATE,
    LOST,
    NEVER,
    NOW,
    PARTLY,
    SERVERS,
    TWICE,
    World,
    begun,
    check,
    finish,
    partly_there,
    run,
)
from tests.rotation import examples
from zq.storage.object import following, restoring
from zq.storage.object.epochs import Opening, Proof, read
from zq.storage.object.objects import Objects

# Whether each server fences the log by position.
FENCINGS = {"look": [False] * SERVERS, "position": [True] * SERVERS, "mixed": [True, False, True]}
EXAMPLES = 300
# For planted faults: the same schedules in each run, among them one that finds the fault.
PLANTED = settings(max_examples=EXAMPLES, derandomize=True)
LEAST_STEPS, MOST_STEPS = 10, 40
# Largest number of consecutive requests of a server.
MOST_AT_ONCE = 20
# Index of the server that continues, number of its requests, outcome of its writes of the log, and whether readers find
# partly stored objects; an index beyond the servers: a late write is applied.
STEPS = st.lists(
    st.tuples(
        st.integers(0, SERVERS),
        st.integers(1, MOST_AT_ONCE),
        st.sampled_from([NOW, NOW, LATE, NEVER, TWICE, LOST, PARTLY]),
        st.booleans(),
    ),
    min_size=LEAST_STEPS,
    max_size=MOST_STEPS,
)


@pytest.fixture(params=FENCINGS)
def fencing(request: pytest.FixtureRequest) -> list[bool]:
    return FENCINGS[request.param]


def test_nothing_acknowledged_is_lost_or_comes_after_a_successor_has_read(fencing: list[bool]) -> None:
    """Each owner finds every record acknowledged before its opening, and none is acknowledged afterwards.

    All owners agree on the records of earlier epochs.
    """
    explore(fencing, settings(max_examples=examples(EXAMPLES)))


def explore(fencing: list[bool], chosen: settings) -> None:
    """Run schedules; a failing one is not reduced, because that is too slow."""

    @settings(chosen, phases=[Phase.generate])
    @given(STEPS)
    def schedule(steps: list[tuple[int, int, int, bool]]) -> None:
        world = World()
        servers = [begun(world, number, fencing[number]) for number in range(SERVERS)]
        try:
            run(world, servers, steps)
        finally:
            for server in servers:
                server.end()
        assert [server.error for server in servers if server.error] == []
        check(world)

    schedule()


def test_the_model_notices_an_owner_that_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the check after the put, an acknowledged record is lost."""
    monkeypatch.setattr(Proof, "check_fence", lambda _: None)
    with pytest.raises(AssertionError, match="is lost"):
        explore(FENCINGS["look"], PLANTED)


def test_the_model_notices_a_taker_that_does_not_depose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the fences, an acknowledged record is lost."""

    def reads(objects: Objects, below: int) -> tuple[int, Opening | None]:
        for epoch in range(below - 1, 0, -1):
            if opening := read(objects, f"open/{epoch}", Opening):
                return epoch, opening
        return 0, None

    monkeypatch.setattr(f"{ownership.__name__}.depose", reads)
    with pytest.raises(AssertionError, match="is lost"):
        explore(FENCINGS["look"], PLANTED)


def test_a_taker_confirms_what_it_counts() -> None:
    """Later readers find each record that an owner has read, even if its writer got no reply from the object store."""
    world = World()
    owner, taker = partly_there(world), begun(world, 1)
    finish(taker)
    owner.end()
    assert check(world)[:2] == [b"0-0", b"0-1"]


def test_a_standby_does_not_apply_what_it_reads() -> None:
    """The next owner may not find a record that is not acknowledged."""
    world = World()
    owner, standby, taker = partly_there(world), begun(world, 2), begun(world, 1)
    standby.until("put epoch/2")
    world.sharp = False
    finish(taker, standby)
    owner.end()
    check(world)


def test_the_model_notices_a_taker_that_does_not_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record was read and counted, but others do not find it any more."""
    monkeypatch.setattr(restoring, "_confirm", lambda *_: None)
    with pytest.raises(AssertionError, match="is missing"):
        test_a_taker_confirms_what_it_counts()


def test_the_model_notices_a_standby_that_applies_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that was not acknowledged may be missing later."""
    monkeypatch.setattr(following, "yield_acknowledged", lambda records, _known: records)
    with pytest.raises(AssertionError, match="has not what an earlier one had"):
        test_a_standby_does_not_apply_what_it_reads()


def test_an_opening_counts_once_there_is_a_head() -> None:
    """A standby follows the owner that began, even if another candidate's opening was stored first.

    Two candidates take over from one owner, and only one of them found its last record.
    """
    world = World()
    turns = [begun(world, number) for number in range(SERVERS + 1)]
    owner, slow, taker, standby = turns
    owner.until("put log/1/1")
    world.fates[0] = PARTLY
    owner.step()
    world.sharp = False
    slow.until("put fence/1")
    world.sharp = True
    slow.until("put log/1/1")
    world.sharp = False
    taker.until("put open/3")
    slow.until("look fence/2")
    standby.until("get head/2")
    standby.step()
    standby.step()
    for server in (taker, standby):
        while not server.done:
            server.step()
    for server in turns:
        server.end()
    assert [server.error for server in turns if server.error] == []
    assert [epoch for epoch, _ in world.read] == [1, 3, 4]
    check(world)


def test_the_model_notices_a_standby_that_believes_any_opening(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server of the opening may have been deposed before it began."""
    monkeypatch.setattr(following, "is_confirmed", lambda _: True)
    with pytest.raises(AssertionError, match="has not what an earlier one had"):
        test_an_opening_counts_once_there_is_a_head()


def slept_across_removal() -> None:
    """Run an owner, fencing by position, that is suspended before its upload until its successor has removed the log.

    The name that the upload takes is free again.
    """
    world = World()
    owner, taker = begun(world, 0, True), begun(world, 1, True)
    owner.until("put log/2")
    finish(taker)
    names = [name for name in world.there if name.startswith("log/")]
    world.removed, world.checkpoint = max(int(name[4:]) for name in names), [*world.acknowledged]
    for name in names:
        del world.there[name]
    world.time += 10.0
    finish(owner)
    assert "log/2" in world.there, "the name was free"
    check(world)


def test_an_owner_that_slept_across_removal_looks() -> None:
    """The owner checks for a successor and acknowledges nothing."""
    slept_across_removal()


def test_the_model_notices_an_owner_that_does_not_look_after_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner would acknowledge a record that no reader finds."""
    monkeypatch.setattr(Proof, "is_valid", True)
    with pytest.raises(AssertionError, match="is lost"):
        slept_across_removal()


@pytest.mark.parametrize("late", [False, True])
def test_an_old_record_behind_the_fence_is_void(late: bool) -> None:
    """The second of two uploads is stored before the fence, or is delayed for longer than the next owner serves."""
    world = World()
    owner, standby, taker = begun(world, 0, True), begun(world, 2, True), begun(world, 1, True)
    owner.until("put log/2")
    world.fates[0] = LATE if late else NOW
    owner.step()
    world.fates[0] = NOW
    taker.until("put head/2")
    if late:
        world.land()
    else:
        owner.until("put log/1")
    finish(owner)
    standby.until("put epoch/3")
    finish(taker, standby)
    assert world.acknowledged == [b"1-0", b"1-1", b"2-0", b"2-1"]
    assert [epoch for epoch, _ in world.read] == [1, 2, 3]
    assert check(world)[:4] == world.acknowledged, "nothing of the first owner's"


def test_an_answer_that_was_lost_is_no_fence() -> None:
    """With fencing by position, the second attempt finds the name taken by the first."""
    world = World()
    owner = begun(world, 0, True)
    for name in ("put log/2", "put log/1"):
        owner.until(name)
        world.fates[0] = LOST
        owner.step()
        world.fates[0] = NOW
        owner.step()
    finish(owner)
    assert world.acknowledged == [b"0-0", b"0-1"]
    check(world)
