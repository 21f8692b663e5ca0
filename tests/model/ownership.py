# SPDX-License-Identifier: Apache-2.0
"""Three servers that own a store in turn, or assume that they do, on an object store with late or lost replies.

The code under test is the real one (``zq.storage.object.epochs``, ``restoring``, ``following``). Each server runs in a
thread that stops before every request; tests decide which thread continues, and what happens to each write of the log:
it is stored, stored later, twice or never, its reply is lost, or some readers find it and others do not until it is put
again. Each server follows the log for a while before it takes over the store, and fences the log by looks or by
position.
"""

import threading
from collections.abc import Callable, Sequence

from zq.errors import Deposed, StoreDamaged, Unavailable
from zq.storage.object import entries
from zq.storage.object.entries import Batch, Entry
from zq.storage.object.epochs import (
    Head,
    Opening,
    Proof,
    Span,
    TakeoverLost,
    depose,
    extend_chain,
    log_name,
    newest_opened,
    open_epoch,
    read,
    win_election,
    write,
)
from zq.storage.object.following import Tail
from zq.storage.object.objects import Objects
from zq.storage.object.restoring import close_log, close_log_by_position, read_chain
from zq.storage.object.shipping import store_record

SERVERS = 3
# Number of records that each server tries to write.
PUTS = 2
# Number of reads of the log before a server takes over.
LOOKS = 2
# Outcomes of a write of the log. ``LOST``: stored, but its writer gets no reply. ``PARTLY``: some readers find it.
NOW, LATE, NEVER, TWICE, LOST, PARTLY = range(6)


class Ended(BaseException):
    """An exception that ends a server's thread at the end of the test."""


class World:
    """The stored objects, the pending writes, and the outcomes of writes that a test chooses."""

    def __init__(self) -> None:
        self.there: dict[str, bytes] = {}
        self.partly: dict[str, bytes] = {}
        self.sharp = True
        """Whether readers currently find partly stored objects."""
        self.late: list[tuple[str, bytes]] = []
        self.fates: dict[int, int] = {}
        self.acknowledged: list[bytes] = []
        self.read: list[tuple[int, list[bytes]]] = []
        """The records that each owner found, by its number."""

        self.time = 0.0
        self.removed = 0
        self.checkpoint: list[bytes] = []
        """The records of the log up to the position ``removed``."""

    def get(self, name: str) -> bytes | None:
        return self.there.get(name) or (self.partly.get(name) if self.sharp else None)

    def take(self, name: str, value: bytes) -> bool:
        """Store the value unless the name exists; return whether it was stored."""
        if name in self.there:
            return False
        self.there[name] = value
        return True

    def land(self) -> None:
        """Apply the first late write."""
        name, value = self.late.pop(0)
        if name.count("/") == 1:  # an object of the log by position
            self.take(name, value)
        else:
            self.there[name] = value


class Turns:
    """A thread that stops before each request until it may continue."""

    def __init__(self, run: Callable[["Turns"], None]) -> None:
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._ending = False
        self.done = False
        self.at = ""
        """The next request of the thread."""
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self.thread.start()
        self._stopped.acquire()

    def _run(self, run: Callable[["Turns"], None]) -> None:
        try:
            self.stop()
            run(self)
        except StoreDamaged as error:
            self.error = error
        except (Ended, Deposed, TakeoverLost, Unavailable):
            pass
        except BaseException as error:  # noqa: BLE001  # shown by the test
            self.error = error
        self.done = True
        self._stopped.release()

    def stop(self, at: str = "") -> None:
        """Wait until the thread may continue; called by the thread itself."""
        self.at = at
        self._stopped.release()
        self._go.acquire()
        if self._ending:
            raise Ended

    def step(self) -> None:
        """Let the thread continue to its next request."""
        self._go.release()
        self._stopped.acquire()

    def until(self, at: str) -> None:
        """Let the thread continue to the request ``at``."""
        while self.at != at:
            assert not self.done, at
            self.step()

    def end(self) -> None:
        self._ending = True
        while not self.done:
            self.step()
        self.thread.join()


class Slow(Objects):
    """The objects as one server sees them, with stops."""

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
        if fate in (NOW, TWICE, LOST):
            self._world.there[name] = value
        if fate in (NOW, TWICE):
            return True
        raise Unavailable

    def put_new(self, name: str, value: bytes) -> bool:
        if threading.current_thread() is not self._turns.thread:  # one of several threads that fence concurrently
            return self._world.take(name, value)
        self._turns.stop(f"put {name}")
        fate = self._world.fates.get(self._number, NOW)
        if fate in (LATE, TWICE):
            self._world.late.append((name, value))
        first = fate in (NOW, TWICE, LOST) and self._world.take(name, value)
        if fate in (NOW, TWICE):
            return first
        raise Unavailable

    def get(self, name: str) -> bytes | None:
        self._turns.stop(f"get {name}")
        return self._world.get(name)

    def exists(self, name: str) -> bool:
        self._turns.stop(f"look {name}")
        return name in self._world.there

    def delete(self, name: str) -> None:
        raise AssertionError(f"Nothing removes objects here: {name}")

    def elect(self, number: int) -> bool:
        self._turns.stop(f"put epoch/{number}")
        first = not self.has_election(number)
        self._world.there[f"epoch/{number}"] = b""
        return first

    def has_election(self, number: int) -> bool:
        return f"epoch/{number}" in self._world.there

    def close(self) -> None:
        pass


class Reading(Objects):
    """Objects with stops at writes only."""

    def __init__(self, world: World, objects: Objects) -> None:
        self.get = world.get  # type: ignore[method-assign]
        self.put = objects.put  # type: ignore[method-assign]
        self.put_new = objects.put_new  # type: ignore[method-assign]


class Restored(Objects):
    """Objects without stops: the log is read by several threads, whose order does not matter."""

    def __init__(self, world: World) -> None:
        self.get = world.get  # type: ignore[method-assign]
        self.exists = lambda name: world.get(name) is not None  # type: ignore[method-assign]


def serve(world: World, number: int, turns: Turns, by_position: bool = False) -> None:
    """Run one server: follow the log, take over the store, and write the second record before the first.

    Each record is put until it is stored. If the log is fenced by position, the server checks for a successor only
    after some time.
    """
    objects = Slow(world, turns, number)
    found = list(world.checkpoint)
    position = followed(world, objects, turns, found)
    epoch = win_election(objects)
    former, opening = depose(objects, epoch)
    chain = list[Span]()
    if opening is not None:
        turns.stop()
        found += map(body, read_chain(Restored(world), position, opening.chain))
        position = max([position, *(span.last for span in opening.chain)])
        reading, each = Reading(world, objects), lambda entry: found.append(body(entry))
        if opening.by_position:
            position = close_log_by_position(reading, former, position, 0, each, epoch)
        else:
            position = close_log(reading, former, position, 0, each)
        chain = extend_chain(opening.chain, Span(former, position, opening.by_position), world.removed)
    open_epoch(objects, epoch, Opening(owner=f"{number}", moment=0, chain=chain, by_position=by_position))
    world.read.append((epoch, found))
    proof = Proof(objects, epoch, 1.0, lambda: world.time)
    proof.check_fence()
    write(objects, f"head/{epoch}", Head(acknowledged=position))
    texts = [b"%d-%d" % (number, each) for each in range(PUTS)]
    values, checksum = [], 0
    for place, text in enumerate(texts, position + 1):
        value, checksum = entries.encode(epoch, place, position, 0, checksum, [Batch([("default", b"", text)], [])])
        values.append((log_name(epoch, place, by_position), value))
    for name, value in reversed(values):
        if not insist(lambda: store_record(objects, name, value, by_position)):  # noqa: B023
            raise Deposed
        proof.after_put(by_position)
    world.acknowledged += texts


def followed(world: World, objects: Objects, turns: Turns, found: list[bytes]) -> int:
    """Return the position up to which a standby has applied the log."""
    tail = Tail(Restored(world), world.removed)
    for _ in range(LOOKS):
        epoch, opening = newest_opened(objects)
        head = read(objects, f"head/{epoch}", Head)
        turns.stop()
        if opening is not None:
            found += map(body, tail.read_new(epoch, opening, head))
    return tail.position


def body(entry: Entry) -> bytes:
    ((_, _, text),) = entry.batches[0].writes
    assert text is not None
    return text


def insist(put: Callable[[], bool]) -> bool:
    while True:
        try:
            return put()
        except Unavailable:
            continue


def begun(world: World, number: int, by_position: bool = False) -> Turns:
    return Turns(lambda turns: serve(world, number, turns, by_position))


def check(world: World) -> list[bytes]:
    """Let one more server take over; assert that it finds the records that all others relied on, and return them."""
    final = World()
    final.there, final.sharp = world.there, False
    final.removed, final.checkpoint = world.removed, world.checkpoint
    last = begun(final, SERVERS)
    while not last.done:
        last.step()
    assert last.error is None, str(last.error)
    ((_, found),) = final.read
    assert [text for text in world.acknowledged if text not in found] == [], "what was acknowledged is lost"
    for _, seen in world.read:
        assert found[: len(seen)] == seen, "a later owner has not what an earlier one had"
    return found


def run(world: World, servers: Sequence[Turns], steps: Sequence[tuple[int, int, int, bool]]) -> None:
    for number, times, fate, world.sharp in steps:
        if number == SERVERS:
            if world.late:
                world.land()
            continue
        world.fates[number] = fate
        for _ in range(times):
            if not servers[number].done:
                servers[number].step()


def finish(*servers: Turns) -> None:
    for server in servers:
        while not server.done:
            server.step()
        assert server.error is None


def partly_there(world: World) -> Turns:
    """Return an owner whose first record is found by some readers only, and whose second one is found by all."""
    owner = begun(world, 0)
    owner.until("put log/1/1")
    world.fates[0] = PARTLY
    owner.step()
    return owner
