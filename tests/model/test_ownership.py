# SPDX-License-Identifier: Apache-2.0
"""Whatever becomes of servers and their writes: what was acknowledged is found by whoever takes over, and by all alike.

Schedules by Hypothesis, and some that it would take long to find; see ``ownership``.
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

# Which servers fence the log by position.
FENCINGS = {"look": [False] * SERVERS, "position": [True] * SERVERS, "mixed": [True, False, True]}
EXAMPLES = 300
# For mistakes that are planted: the same schedules in each run, among them one that finds the mistake.
PLANTED = settings(max_examples=EXAMPLES, derandomize=True)
LEAST_STEPS, MOST_STEPS = 10, 40
# Requests of a server one after the other.
MOST_AT_ONCE = 20
# Who goes on, for how many requests, what becomes of its writes of the log, and whether readers find what is partly
# there; beyond the servers: a late write lands.
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
    """Each taker finds what was acknowledged before it opened, and nothing is acknowledged behind its back; all agree
    on what the epochs before them have."""
    explore(fencing, settings(max_examples=examples(EXAMPLES)))


def explore(fencing: list[bool], chosen: settings) -> None:
    """Run schedules; a failing one is too slow to shrink."""

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
    """Without the look after the put something is lost."""
    monkeypatch.setattr(Proof, "check_fence", lambda _: None)
    with pytest.raises(AssertionError, match="is lost"):
        explore(FENCINGS["look"], PLANTED)


def test_the_model_notices_a_taker_that_does_not_depose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the fences something is lost."""

    def reads(objects: Objects, below: int) -> tuple[int, Opening | None]:
        for epoch in range(below - 1, 0, -1):
            if opening := read(objects, f"open/{epoch}", Opening):
                return epoch, opening
        return 0, None

    monkeypatch.setattr(f"{ownership.__name__}.depose", reads)
    with pytest.raises(AssertionError, match="is lost"):
        explore(FENCINGS["look"], PLANTED)


def test_a_taker_confirms_what_it_counts() -> None:
    """What it reads is there for later readers too, though its owner has not had the object store's word."""
    world = World()
    owner, taker = partly_there(world), begun(world, 1)
    finish(taker)
    owner.end()
    assert check(world)[:2] == [b"0-0", b"0-1"]


def test_a_standby_does_not_apply_what_it_reads() -> None:
    """Where it is not acknowledged: whoever takes over may not find it."""
    world = World()
    owner, standby, taker = partly_there(world), begun(world, 2), begun(world, 1)
    standby.until("put epoch/2")
    world.sharp = False
    finish(taker, standby)
    owner.end()
    check(world)


def test_the_model_notices_a_taker_that_does_not_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read and counted once, and is found by others no more, is missing."""
    monkeypatch.setattr(restoring, "_confirm", lambda *_: None)
    with pytest.raises(AssertionError, match="is missing"):
        test_a_taker_confirms_what_it_counts()


def test_the_model_notices_a_standby_that_applies_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that was not acknowledged need not be one."""
    monkeypatch.setattr(following, "yield_acknowledged", lambda records, _known: records)
    with pytest.raises(AssertionError, match="has not what an earlier one had"):
        test_a_standby_does_not_apply_what_it_reads()


def test_an_opening_counts_once_there_is_a_head() -> None:
    """Two take over from one owner, and only one of them found its last record: a standby follows the one that began,
    though the other one's opening was there first."""
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
    """Its server may have been deposed before it began."""
    monkeypatch.setattr(following, "is_confirmed", lambda _: True)
    with pytest.raises(AssertionError, match="has not what an earlier one had"):
        test_an_opening_counts_once_there_is_a_head()


def slept_across_removal() -> None:
    """By position: an owner sleeps with its upload before it, until its successor has removed the log: the name that
    it takes is free again."""
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
    """And acknowledges nothing."""
    slept_across_removal()


def test_the_model_notices_an_owner_that_does_not_look_after_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would acknowledge what nobody reads."""
    monkeypatch.setattr(Proof, "is_valid", True)
    with pytest.raises(AssertionError, match="is lost"):
        slept_across_removal()


@pytest.mark.parametrize("late", [False, True])
def test_an_old_record_behind_the_fence_is_void(late: bool) -> None:
    """Of two uploads the second was there before the fence, or is on its way for longer than the next owner serves."""
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
    """By position: the name is taken at the second attempt, by what the first has put."""
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
