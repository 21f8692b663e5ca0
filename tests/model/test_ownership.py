# SPDX-License-Identifier: Apache-2.0
"""Three servers that own a store one after the other, or think so, on an object store that answers late or never.

What is run is the code itself (``zq.storage.object.epochs``, ``restoring``), each server in a thread of its own that
stops before every request; Hypothesis says who goes on, and what becomes of each write: it is there, it lands later,
never, or twice, and whether its server learns so.
"""

import threading
from collections.abc import Callable, Sequence

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from zq.errors import Deposed, Unavailable
from zq.storage.object import entries
from zq.storage.object.entries import Batch
from zq.storage.object.epochs import (
    Opening,
    Proof,
    Span,
    Taken,
    depose,
    joined,
    log_name,
    open_epoch,
    read,
    win,
)
from zq.storage.object.objects import Objects
from zq.storage.object.restoring import end_of, whole_log

SERVERS = 3
# Records that each one tries to write.
PUTS = 2
# What becomes of a write of the log; its server is told of the first and the last only.
NOW, LATE, NEVER, UNTOLD, TWICE = range(5)
LEAST_STEPS, MOST_STEPS = 40, 120


class Ended(BaseException):
    """The test is over."""


class World:
    """The objects, the writes that are under way still, and whose turn it is."""

    def __init__(self) -> None:
        self.there: dict[str, bytes] = {}
        self.late: list[tuple[str, bytes]] = []
        self.fates: dict[int, int] = {}
        self.acknowledged: list[bytes] = []
        self.read: list[tuple[int, list[bytes]]] = []
        """What each taker found, by its number."""


class Turns:
    """A thread that stops before each request, until it is let go on."""

    def __init__(self, run: Callable[["Turns"], None]) -> None:
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._ending = False
        self.done = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self._thread.start()
        self._stopped.acquire()

    def _run(self, run: Callable[["Turns"], None]) -> None:
        try:
            self.stop()
            run(self)
        except (Ended, Deposed, Taken):
            pass
        except BaseException as error:  # noqa: BLE001  # shown by the test
            self.error = error
        self.done = True
        self._stopped.release()

    def stop(self) -> None:
        """Called by the thread itself."""
        self._stopped.release()
        self._go.acquire()
        if self._ending:
            raise Ended

    def step(self) -> None:
        """Let it go on to its next request."""
        self._go.release()
        self._stopped.acquire()

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
        self._turns.stop()
        fate = self._world.fates.pop(self._number, NOW) if name.startswith("log/") else NOW
        if fate in (NOW, UNTOLD, TWICE):
            self._world.there[name] = value
        if fate in (LATE, TWICE):
            self._world.late.append((name, value))
        if fate not in (NOW, TWICE):
            raise Unavailable
        return True

    def get(self, name: str) -> bytes | None:
        self._turns.stop()
        return self._world.there.get(name)

    def exists(self, name: str) -> bool:
        return self.get(name) is not None

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


class Restored(Objects):
    """The same without stops: reading the log takes threads of its own, and nothing is decided by its order."""

    def __init__(self, world: World) -> None:
        self.get = world.there.get  # type: ignore[method-assign]


def serve(world: World, number: int, turns: Turns) -> None:
    """One server: it takes the store over and writes its records, each until it is there, and then looks."""
    objects = Slow(world, turns, number)
    epoch = win(objects)
    former, opening = depose(objects, epoch)
    found: list[bytes] = []
    position, chain = 0, list[Span]()
    if opening is not None:
        turns.stop()
        for entry in whole_log(Restored(world), 0, opening.chain):
            found.append(body(entry.batches))
            position = entry.position
        position = end_of(Restored(world), former, position, 0, lambda entry: found.append(body(entry.batches)))
        chain = joined(opening.chain, Span(former, position), 0)
    open_epoch(objects, epoch, Opening(owner=f"{number}", moment=0, chain=chain))
    world.read.append((epoch, found))
    proof = Proof(objects, epoch, 1.0, lambda: 0.0)
    checksum = 0
    for each in range(PUTS):
        text = b"%d-%d" % (number, each)
        position += 1
        batches = [Batch([("default", b"", text)], [])]
        value, checksum = entries.encode(epoch, position, position - 1, 0, checksum, batches)
        insist(lambda: objects.put(log_name(epoch, position), value))  # noqa: B023
        proof.look()
        world.acknowledged.append(text)


def body(batches: Sequence[Batch]) -> bytes:
    ((_, _, text),) = batches[0].writes
    assert text is not None
    return text


def insist(put: Callable[[], object]) -> None:
    while True:
        try:
            put()
            return
        except Unavailable:
            continue


# Who goes on, and what becomes of its next write of the log; beyond the servers: a late write lands.
STEPS = st.lists(
    st.tuples(st.integers(0, SERVERS), st.sampled_from([NOW, NOW, LATE, NEVER, UNTOLD, TWICE])),
    min_size=LEAST_STEPS,
    max_size=MOST_STEPS,
)


@settings(max_examples=300, deadline=None, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # too slow to shrink
@given(STEPS)
def test_nothing_acknowledged_is_lost_or_comes_after_a_successor_has_read(steps: list[tuple[int, int]]) -> None:
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
    final = World()
    final.there = world.there
    last = Turns(lambda turns: serve(final, SERVERS, turns))
    while not last.done:
        last.step()
    assert last.error is None
    ((_, found),) = final.read
    assert [text for text in world.acknowledged if text not in found] == [], "what was acknowledged is lost"
    for _, seen in world.read:
        assert found[: len(seen)] == seen, "a later owner has not what an earlier one had"


def run(world: World, servers: Sequence[Turns], steps: Sequence[tuple[int, int]]) -> None:
    for number, fate in steps:
        if number == SERVERS:
            if world.late:
                name, value = world.late.pop(0)
                world.there[name] = value
        elif not servers[number].done:
            world.fates[number] = fate
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
