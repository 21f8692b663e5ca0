# SPDX-License-Identifier: Apache-2.0
"""Three servers that own a store one after the other, or think so, on an object store that answers late or never.

What is run is the code itself (``zq.storage.object.epochs``, ``restoring``, ``following``), each server in a thread of
its own that stops before every request; Hypothesis says who goes on, and what becomes of each write of the log: it is
there, it lands later, twice or never, or some readers find it and others do not until it is put again. Each server
follows the log for a while before it takes the store over.
"""

import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from zq.errors import Deposed, StoreDamaged, Unavailable
from zq.storage.object import entries, following, restoring
from zq.storage.object.entries import Batch, Entry
from zq.storage.object.epochs import (
    Head,
    Opening,
    Proof,
    Span,
    Taken,
    depose,
    joined,
    log_name,
    newest_opened,
    open_epoch,
    read,
    win,
    write,
)
from zq.storage.object.following import Tail
from zq.storage.object.objects import Objects
from zq.storage.object.restoring import end_of, whole_log

SERVERS = 3
# Records that each one tries to write.
PUTS = 2
# Looks at the log before it takes over.
LOOKS = 2
# What becomes of a write of the log. ``PARTLY``: some readers find it.
NOW, LATE, NEVER, TWICE, PARTLY = range(5)
LEAST_STEPS, MOST_STEPS = 10, 40
# Requests of a server one after the other.
MOST_AT_ONCE = 20


class Ended(BaseException):
    """The test is over."""


class World:
    """The objects, the writes that are under way still, and whose turn it is."""

    def __init__(self) -> None:
        self.there: dict[str, bytes] = {}
        self.partly: dict[str, bytes] = {}
        self.sharp = True
        """Whether readers find at present what is partly there."""
        self.late: list[tuple[str, bytes]] = []
        self.fates: dict[int, int] = {}
        self.acknowledged: list[bytes] = []
        self.read: list[tuple[int, list[bytes]]] = []
        """What each taker found, by its number."""

    def get(self, name: str) -> bytes | None:
        return self.there.get(name) or (self.partly.get(name) if self.sharp else None)


class Turns:
    """A thread that stops before each request, until it is let go on."""

    def __init__(self, run: Callable[["Turns"], None]) -> None:
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._ending = False
        self.done = False
        self.at = ""
        """What it asks next."""
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self._thread.start()
        self._stopped.acquire()

    def _run(self, run: Callable[["Turns"], None]) -> None:
        try:
            self.stop()
            run(self)
        except StoreDamaged as error:
            self.error = error
        except (Ended, Deposed, Taken, Unavailable):
            pass
        except BaseException as error:  # noqa: BLE001  # shown by the test
            self.error = error
        self.done = True
        self._stopped.release()

    def stop(self, at: str = "") -> None:
        """Called by the thread itself."""
        self.at = at
        self._stopped.release()
        self._go.acquire()
        if self._ending:
            raise Ended

    def step(self) -> None:
        """Let it go on to its next request."""
        self._go.release()
        self._stopped.acquire()

    def until(self, at: str) -> None:
        """Let it go on to that request."""
        while self.at != at:
            assert not self.done, at
            self.step()

    def end(self) -> None:
        self._ending = True
        while not self.done:
            self.step()
        self._thread.join()


class Slow(Objects):
    """Objects as one server sees them."""

    def __init__(self, world: World, turns: Turns, number: int) -> None:
        self._world = world
        self._turns = turns
        self._number = number

    def put(self, name: str, value: bytes) -> bool:
        self._turns.stop(f"put {name}")
        fate = self._world.fates.get(self._number, NOW) if name.startswith("log/") else NOW
        if fate in (LATE, TWICE):
            self._world.late.append((name, value))
        if fate == PARTLY:
            self._world.partly[name] = value
        if fate in (NOW, TWICE):
            self._world.there[name] = value
            return True
        raise Unavailable

    def get(self, name: str) -> bytes | None:
        self._turns.stop(f"get {name}")
        return self._world.get(name)

    def exists(self, name: str) -> bool:
        self._turns.stop(f"look {name}")
        return name in self._world.there

    def delete(self, name: str) -> None:
        raise NotImplementedError

    def elect(self, number: int) -> bool:
        self._turns.stop()
        first = not self.elected(number)
        self._world.there[f"epoch/{number}"] = b""
        return first

    def elected(self, number: int) -> bool:
        return f"epoch/{number}" in self._world.there

    def close(self) -> None:
        pass


class Reading(Objects):
    """Reads without stops, and writes with them."""

    def __init__(self, world: World, objects: Objects) -> None:
        self.get = world.get  # type: ignore[method-assign]
        self.put = objects.put  # type: ignore[method-assign]


class Restored(Objects):
    """The same without stops: reading the log takes threads of its own, and nothing is decided by its order."""

    def __init__(self, world: World) -> None:
        self.get = world.get  # type: ignore[method-assign]
        self.exists = lambda name: world.get(name) is not None  # type: ignore[method-assign]


def serve(world: World, number: int, turns: Turns) -> None:
    """One server: it follows the log, takes the store over and writes its records, each until it is there, and then
    looks."""
    objects = Slow(world, turns, number)
    found: list[bytes] = []
    position = followed(world, objects, turns, found)
    epoch = win(objects)
    former, opening = depose(objects, epoch)
    chain = list[Span]()
    if opening is not None:
        turns.stop()
        for entry in whole_log(Restored(world), position, opening.chain):
            found.append(body(entry))
            position = entry.position
        position = end_of(Reading(world, objects), former, position, 0, lambda entry: found.append(body(entry)))
        chain = joined(opening.chain, Span(former, position), 0)
    open_epoch(objects, epoch, Opening(owner=f"{number}", moment=0, chain=chain))
    world.read.append((epoch, found))
    proof = Proof(objects, epoch, 1.0, lambda: 0.0)
    proof.look()
    write(objects, f"head/{epoch}", Head(acknowledged=position))
    checksum = 0
    for each in range(PUTS):
        text = b"%d-%d" % (number, each)
        position += 1
        batches = [Batch([("default", b"", text)], [])]
        value, checksum = entries.encode(epoch, position, position - 1, 0, checksum, batches)
        insist(lambda: objects.put(log_name(epoch, position), value))  # noqa: B023
        proof.look()
        world.acknowledged.append(text)


def followed(world: World, objects: Objects, turns: Turns, found: list[bytes]) -> int:
    """The position up to which a standby has applied the log."""
    tail = Tail(Restored(world), 0)
    for _ in range(LOOKS):
        epoch, opening = newest_opened(objects)
        head = read(objects, f"head/{epoch}", Head)
        turns.stop()
        if opening is not None:
            found += map(body, tail.new(epoch, opening, head))
    return tail.position


def body(entry: Entry) -> bytes:
    ((_, _, text),) = entry.batches[0].writes
    assert text is not None
    return text


def insist(put: Callable[[], object]) -> None:
    while True:
        try:
            put()
            return
        except Unavailable:
            continue


# Who goes on, for how many requests, what becomes of its writes of the log, and whether readers find what is partly
# there; beyond the servers: a late write lands.
STEPS = st.lists(
    st.tuples(
        st.integers(0, SERVERS),
        st.integers(1, MOST_AT_ONCE),
        st.sampled_from([NOW, NOW, LATE, NEVER, TWICE, PARTLY]),
        st.booleans(),
    ),
    min_size=LEAST_STEPS,
    max_size=MOST_STEPS,
)


@settings(max_examples=500, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # too slow to shrink
@given(STEPS)
def test_nothing_acknowledged_is_lost_or_comes_after_a_successor_has_read(
    steps: list[tuple[int, int, int, bool]],
) -> None:
    """Each taker finds what was acknowledged before it opened, and nothing is acknowledged behind its back; all agree
    on what the epochs before them have."""
    world = World()
    servers = [Turns(lambda turns, number=number: serve(world, number, turns)) for number in range(SERVERS)]
    try:
        run(world, servers, steps)
    finally:
        for server in servers:
            server.end()
    assert [server.error for server in servers if server.error] == []
    check(world)


def check(world: World) -> None:
    """One more server takes the store over, and finds what all others have gone by."""
    final = World()
    final.there, final.sharp = world.there, False
    last = Turns(lambda turns: serve(final, SERVERS, turns))
    while not last.done:
        last.step()
    assert last.error is None
    ((_, found),) = final.read
    assert [text for text in world.acknowledged if text not in found] == [], "what was acknowledged is lost"
    for _, seen in world.read:
        assert found[: len(seen)] == seen, "a later owner has not what an earlier one had"


def run(world: World, servers: Sequence[Turns], steps: Sequence[tuple[int, int, int, bool]]) -> None:
    for number, times, fate, world.sharp in steps:
        if number == SERVERS:
            if world.late:
                name, value = world.late.pop(0)
                world.there[name] = value
            continue
        world.fates[number] = fate
        for _ in range(times):
            if not servers[number].done:
                servers[number].step()


def test_the_model_notices_an_owner_that_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the look after the put something is lost."""
    monkeypatch.setattr(Proof, "look", lambda _: None)
    with pytest.raises(AssertionError, match="is lost"):
        test_nothing_acknowledged_is_lost_or_comes_after_a_successor_has_read()


def test_the_model_notices_a_taker_that_does_not_depose(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the fences something is lost."""

    def reads(objects: Objects, below: int) -> tuple[int, Opening | None]:
        for epoch in range(below - 1, 0, -1):
            if opening := read(objects, f"open/{epoch}", Opening):
                return epoch, opening
        return 0, None

    monkeypatch.setattr(f"{__name__}.depose", reads)
    with pytest.raises(AssertionError, match="is lost"):
        test_nothing_acknowledged_is_lost_or_comes_after_a_successor_has_read()


def test_the_model_notices_a_taker_that_does_not_put_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read and counted once, and is found by others no more, is missing."""
    monkeypatch.setattr(restoring, "_confirm", lambda *_: None)
    with pytest.raises(AssertionError):
        test_nothing_acknowledged_is_lost_or_comes_after_a_successor_has_read()


def test_the_model_notices_a_standby_that_applies_what_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record that was not acknowledged need not be one."""
    monkeypatch.setattr(following, "acknowledged", lambda records, _known: records)
    with pytest.raises(AssertionError):
        test_nothing_acknowledged_is_lost_or_comes_after_a_successor_has_read()


def test_an_opening_counts_once_there_is_a_head() -> None:
    """Two take over from one owner, and only one of them found its last record: a standby follows the one that began,
    though the other one's opening was there first."""
    world = World()
    turns = [Turns(lambda turns, number=number: serve(world, number, turns)) for number in range(SERVERS + 1)]
    owner, slow, taker, standby = turns
    world.fates[0] = PARTLY
    owner.until("put log/1/1")
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
    monkeypatch.setattr(following, "began", lambda _: True)
    with pytest.raises(AssertionError, match="has not what an earlier one had"):
        test_an_opening_counts_once_there_is_a_head()
