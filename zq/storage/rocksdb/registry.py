# SPDX-License-Identifier: Apache-2.0
"""The queues of an open store, in memory: numbers, counters, locks and hints.

Whoever changes a queue holds its lock from the first read to the write; several locks are taken in the order of queue
numbers, and the registry's own lock only inside them. Purge and delete replace or drop a ``QueueState``: the old one is
``gone``, and who waited for its lock looks again. What is here is what the store says, or a hint that may be forgotten.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from msgspec import structs

from zq.expiry import Expiry
from zq.model import QueueRef
from zq.storage.rocksdb import layout, starts, unfinished
from zq.storage.rocksdb.damage import Damage
from zq.storage.rocksdb.front import Front
from zq.storage.rocksdb.layout import QueueRecord, Tally
from zq.storage.rocksdb.leftovers import Leftovers
from zq.storage.rocksdb.log import Logs
from zq.storage.rocksdb.port import Store, Write
from zq.storage.rocksdb.quiet import Quiet

NO_METADATA = b"{}"
PINNED = 1 << 62
"""When claims end whose messages a commit has pinned, for whoever reads these: never."""


class Around:
    """What queues know of the server around them; kept while stores are opened anew."""

    def __init__(self, expiry: Expiry) -> None:
        self.leftovers = Leftovers()
        self.damage = Damage()
        self.listener: Callable[[QueueRef], None] | None = None
        """Whom to tell of queues that have something new."""
        self.configure(expiry)

    def configure(self, expiry: Expiry) -> None:
        """Give space back by these options from now on."""
        self.expiry = expiry
        self.leftovers.capacity = expiry.delete_queue_size if expiry.delete_on_read else 0


class QueueState:
    """One queue; ``front``: for claims, ``quiet`` and ``walking``: for listings."""

    __slots__ = (
        "around",
        "front",
        "gone",
        "history",
        "key",
        "lock",
        "metadata",
        "number",
        "pinned",
        "project",
        "quiet",
        "ref",
        "tally",
        "walking",
    )

    def __init__(self, ref: QueueRef, record: QueueRecord, tally: Tally, around: Around) -> None:
        self.ref = ref
        self.key = layout.queue_key(ref)
        self.project = layout.project_prefix(ref.project)
        self.number = record.number
        self.metadata = record.metadata
        self.history = record.history
        self.around = around
        self.tally = tally
        self.lock = threading.Lock()
        self.gone = False
        self.front = Front(*[layout.number.pack(record.number)] * 3)
        self.quiet = Quiet()
        self.walking = threading.Lock()
        self.pinned: set[int] = set()
        """Sequences of messages that a commit is going to delete: they are nobody's to take, and stay claimed."""

    def bounds(self) -> tuple[bytes, bytes]:
        """The range of this queue's keys in every family that begins with a queue number."""
        return layout.number.pack(self.number), layout.number.pack(self.number + 1)


class Registry:
    """Every queue of one open store, and the logs of topics; states are made when first asked for."""

    def __init__(self, store: Store, around: Around, start: int = 0) -> None:
        """``start``: see ``starts``; without it nothing is published."""
        self._store = store
        self._start = start
        self.around = around
        self._lock = threading.Lock()
        self._states: dict[QueueRef, QueueState] = {}
        self._hidden: dict[QueueRef, QueueState] = {}
        self.logs = Logs(store, self.new_number, start)
        self._last_number = int.from_bytes(store.get("default", b"numbers") or b"")
        self._pinned = unfinished.pinned(store)
        """Of queues that were not asked for yet, by number."""
        for key, value in store.scan("hidden", b"", layout.END, spare=True):
            ref = layout.queue_ref(key)
            self._hidden[ref] = QueueState(ref, layout.decode_queue(value), Tally(), around)

    def find(self, ref: QueueRef) -> QueueState | None:
        """The queue, or None."""
        return self._states.get(ref) or self._load(ref)

    def hidden(self, ref: QueueRef) -> QueueState | None:
        """What stands for a queue that does not exist, and nobody sees: it knows keys, and has no messages."""
        return self._hidden.get(ref)

    def by_number(self, number: int) -> QueueState | None:
        """The queue that owns a number; None for a doomed one."""
        key = self._store.get("numbers", layout.number.pack(number))
        if not key:
            return None
        state = self.find(layout.queue_ref(key))
        return state if state is not None and state.number == number else None

    @contextmanager
    def held(self, *refs: QueueRef) -> Iterator[list[QueueState | None]]:
        """The queues, locked; None for one that does not exist while the others are held."""
        while True:
            states = [self.find(ref) for ref in refs]
            locks = [state.lock for state in sorted(set(filter(None, states)), key=lambda state: state.number)]
            for lock in locks:
                lock.acquire()
            try:
                if all(state is self._states.get(ref) for state, ref in zip(states, refs, strict=True)):
                    yield states
                    return
            finally:
                for lock in locks:
                    lock.release()

    @contextmanager
    def known(self, ref: QueueRef) -> Iterator[QueueState | None]:
        """The queue, or what is hidden in its place, locked."""
        while True:
            state = self.find(ref) or self._hidden.get(ref)
            with nullcontext() if state is None else state.lock:
                if state is None or not state.gone:
                    yield state
                    return

    def ensure(self, ref: QueueRef, metadata: bytes = NO_METADATA) -> bool:
        """Create the queue if it is missing; whether it was. It knows what was hidden in its place."""
        while True:
            hidden = self._hidden.get(ref)
            with nullcontext() if hidden is None else hidden.lock, self._lock:
                if self._states.get(ref) or self._load_locked(ref):
                    return False
                if hidden is self._hidden.get(ref):
                    self._create(ref, metadata, hidden)
                    return True

    def hide(self, ref: QueueRef) -> None:
        """Put something that nobody sees in the place of a missing queue."""
        with self._lock:
            if not (self._states.get(ref) or self._load_locked(ref) or self._hidden.get(ref)):
                number = self._last_number + 1
                record = QueueRecord(number, NO_METADATA, number)
                entry: Write = ("hidden", layout.queue_key(ref), layout.encode(record))
                self._store.write([("default", b"numbers", layout.number.pack(number)), entry])
                self._last_number = number
                self._hidden[ref] = QueueState(ref, record, Tally(), self.around)

    def replace(self, state: QueueState) -> None:
        """Give a locked queue a new number and no messages: a purge in one step."""
        with self._lock:
            record = QueueRecord(self._last_number + 1, state.metadata, state.history)
            successor = QueueState(state.ref, record, structs.replace(state.tally, count=0), self.around)
            self._store.write([*self._births(successor, record), *self._deaths(state)])
            self._last_number = record.number
            self._states[state.ref] = successor
            state.gone = True

    def drop(self, state: QueueState) -> None:
        """Remove a locked queue, or what is hidden in its place, in one step."""
        with self._lock:
            dropped: Write = ("default", layout.DROPPED + layout.number.pack(state.history), b"")
            family, states = ("hidden", self._hidden) if state.ref in self._hidden else ("queues", self._states)
            self._store.write([(family, state.key, None), dropped, *self._deaths(state)])
            del states[state.ref]
            state.gone = True

    def new_number(self) -> int:
        """A number that no queue has or had."""
        with self._lock:
            self._store.write([("default", b"numbers", layout.number.pack(self._last_number + 1))])
            self._last_number += 1
            return self._last_number

    def update(self, state: QueueState, metadata: bytes) -> None:
        """Replace a locked queue's metadata."""
        record = QueueRecord(state.number, metadata, state.history)
        self._store.write([("queues", state.key, layout.encode(record))])
        state.metadata = metadata

    def _load(self, ref: QueueRef) -> QueueState | None:
        if self._store.get("queues", layout.queue_key(ref)) is None:
            return None
        with self._lock:
            return self._states.get(ref) or self._load_locked(ref)

    def _load_locked(self, ref: QueueRef) -> QueueState | None:
        stored = self._store.get("queues", layout.queue_key(ref))
        if stored is None:
            return None
        record = layout.decode_queue(stored)
        counted = self._store.get("tallies", layout.number.pack(record.number))
        tally = layout.decode_tally(counted) if counted else Tally()
        skipped = starts.skipped(tally.start, self._start)
        tally.sequence += skipped
        tally.position += skipped
        tally.start = self._start
        state = QueueState(ref, record, tally, self.around)
        state.pinned = self._pinned.pop(record.number, set())
        self._states[ref] = state
        return state

    def _create(self, ref: QueueRef, metadata: bytes, hidden: QueueState | None) -> None:
        number = self._last_number + 1
        record = QueueRecord(number, metadata, number if hidden is None else hidden.history)
        origin = starts.origin(self._start)
        state = QueueState(ref, record, Tally(origin, position=origin, start=self._start), self.around)
        shown: list[Write] = [("hidden", state.key, None)] if hidden is not None else []
        self._store.write([*self._births(state, record), *shown])
        self._last_number = number
        self._states[ref] = state
        if hidden is not None:
            del self._hidden[ref]
            hidden.gone = True

    def _births(self, state: QueueState, record: QueueRecord) -> list[Write]:
        number = layout.number.pack(record.number)
        return [
            ("default", b"numbers", number),
            ("queues", state.key, layout.encode(record)),
            ("numbers", number, state.key),
            ("tallies", number, layout.encode(state.tally)),
        ]

    def _deaths(self, state: QueueState) -> list[Write]:
        number = layout.number.pack(state.number)
        return [("default", layout.DOOMED + number, state.key), ("numbers", number, None), ("tallies", number, None)]
