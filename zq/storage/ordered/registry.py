# SPDX-License-Identifier: Apache-2.0
"""The in-memory states of the queues of an open store: numbers, counters, locks and hints.

- An operation that changes a queue holds the queue's lock from the first read to the write.
- A thread acquires several queue locks in the order of the queue numbers, and the registry's lock last.
- A purge or deletion marks the old ``QueueState`` as ``gone``. A thread that waited for its lock looks up the queue
  again.
- A state is loaded from the store, except for hints: caches that only speed up operations and may be dropped.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from itertools import chain
from operator import is_

from msgspec import structs

from zq.model import Grouping, QueueRef
from zq.model.expiry import Expiry
from zq.storage.ordered import layout, stages, startup
from zq.storage.ordered.hints import LazyExpiryQueue, ReadyCursor, VisibilityIndex
from zq.storage.ordered.layout import QueueRecord, Tally
from zq.storage.ordered.logs import Logs
from zq.storage.ordered.store import Housekeeping, Store, Write

NO_METADATA = b"{}"
# The claim end that readers see on messages that an open commit will delete. It is later than any other time.
RESERVED = 1 << 62


class EngineContext:
    """The state that all queues share. The same object is used after the store is reopened."""

    def __init__(self, expiry: Expiry, housekeeping: Housekeeping) -> None:
        self.lazy_queue = LazyExpiryQueue()
        self.housekeeping = housekeeping
        self.listener: Callable[[QueueRef], None] | None = None
        """A function to call with each queue that has new messages."""
        self.configure(expiry)

    def configure(self, expiry: Expiry) -> None:
        self.expiry = expiry
        self.lazy_queue.resize(expiry.delete_queue_size if expiry.delete_on_read else 0)

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        self.listener = listener


class QueueState:
    """The state of one queue in memory. ``gone`` is true after a purge or deletion of the queue."""

    __slots__ = (
        "context",
        "gone",
        "grouping",
        "history",
        "key",
        "lock",
        "long_scan_lock",
        "metadata",
        "number",
        "project",
        "ready_cursor",
        "ref",
        "reserved",
        "tally",
        "visibility",
    )

    def __init__(self, ref: QueueRef, record: QueueRecord, tally: Tally, context: EngineContext) -> None:
        self.ref = ref
        self.key = layout.queue_key(ref)
        self.project = layout.project_prefix(ref.project)
        self.number = record.number
        self.metadata = record.metadata
        self.history = record.history
        self.grouping = record.grouping
        self.context = context
        self.tally = tally
        self.lock = threading.Lock()
        self.gone = False
        self.ready_cursor = ReadyCursor(*[layout.number.pack(record.number)] * 3)
        self.visibility = VisibilityIndex()
        self.long_scan_lock = threading.Lock()
        self.reserved: set[int] = set()
        """Sequences of messages that an open commit will delete. No other operation changes these messages."""

    def advance(self, head: bytes) -> None:
        """Move the ready cursor to the key ``head`` of ``available``, because no message before it is ready."""
        self.ready_cursor = self.ready_cursor.move_to(head)

    def skip_unreadable(self, head: bytes, fresh_head: int) -> None:
        """Move the queue's cursors beyond unreadable messages, so that later claims do not read them again.

        Claims begin their search at two cursors. ``head`` is a key in the index ``available``. ``fresh_head`` is the
        sequence after which claims search for messages that are not in this index.
        """
        self.advance(head)
        self.tally = structs.replace(self.tally, fresh_head=max(self.tally.fresh_head, fresh_head))

    def set_tally(self, tally: Tally) -> bool:
        """Replace the counters after a write. Return whether the write has added messages."""
        added = tally.sequence > self.tally.sequence
        self.tally = tally
        return added

    def join_available(self, keys: Sequence[bytes]) -> None:
        self.ready_cursor = self.ready_cursor.extend(keys)

    def bounds(self) -> tuple[bytes, bytes]:
        """Return the range (lower, upper) of this queue's keys."""
        return layout.number.pack(self.number), layout.number.pack(self.number + 1)


class LockedQueues:
    """A context manager that locks queues in the order of their numbers. A generator function would be slower."""

    __slots__ = ("_find", "_locks", "_refs", "_states")

    def __init__(
        self,
        find: Callable[[QueueRef], QueueState | None],
        states: Mapping[QueueRef, QueueState],
        refs: Sequence[QueueRef],
    ) -> None:
        """Create a context manager that locks the queues ``refs``.

        ``find`` loads the state of a queue. ``states`` has the current state of each loaded queue. If another thread
        replaces a state while the locks are acquired, all locks are released and acquired again.
        """
        self._find = find
        self._states = states
        self._refs = refs
        self._locks: list[threading.Lock] = []

    def __enter__(self) -> list[QueueState | None]:
        while True:
            found = [self._find(ref) for ref in self._refs]
            locks = {state.number: state.lock for state in found if state is not None}
            self._locks = [locks[number] for number in sorted(locks)]
            for lock in self._locks:
                lock.acquire()
            if all(map(is_, found, map(self._states.get, self._refs))):
                return found
            self.__exit__()

    def __exit__(self, *_: object) -> None:
        for lock in self._locks:
            lock.release()


class Registry:
    """The queue states and topic logs of one open store, loaded on first use."""

    def __init__(self, store: Store, context: EngineContext, start: int) -> None:
        """Create the registry. ``start`` is the boot epoch: the number of starts of the store."""
        self._store = store
        self._start = start
        self.context = context
        self._lock = threading.Lock()
        self._states: dict[QueueRef, QueueState] = {}
        self._hidden: dict[QueueRef, QueueState] = {}
        self.logs = Logs(store, self.new_number, start)
        self._last_number = int.from_bytes(store.get("default", b"numbers") or b"")
        self._reserved = stages.find_reserved(store)
        """Sequences of messages that open commits will delete, by queue number, for queues that are not loaded yet."""
        for key, value in store.scan("hidden", b"", layout.END, spare=True):
            ref = layout.decode_queue_key(key)
            record = layout.decode_queue(value)
            counted = store.get("tallies", layout.number.pack(record.number))
            self._hidden[ref] = QueueState(ref, record, layout.decode_tally(counted) if counted else Tally(), context)

    def find(self, ref: QueueRef) -> QueueState | None:
        return self._states.get(ref) or self._load(ref)

    def find_hidden(self, ref: QueueRef) -> QueueState | None:
        """Return the hidden state of a missing queue, or None if the queue has no hidden state.

        A hidden state keeps only idempotency keys.
        """
        return self._hidden.get(ref)

    def find_by_number(self, number: int) -> QueueState | None:
        """Return the queue with this number, or None if the queue was purged or deleted."""
        key = self._store.get("numbers", layout.number.pack(number))
        if not key:
            return None
        state = self.find(layout.decode_queue_key(key))
        return state if state is not None and state.number == number else None

    def locked(self, *refs: QueueRef) -> "LockedQueues":
        """Lock the queues within a ``with`` block.

        The context manager returns the states of the queues. The state of a missing queue is None.
        """
        return LockedQueues(self.find, self._states, refs)

    @contextmanager
    def locked_or_hidden(self, ref: QueueRef) -> Iterator[QueueState | None]:
        """Lock a queue, or the hidden state of a missing queue, within a ``with`` block.

        The context manager returns the locked state, or None if neither exists.
        """
        while True:
            state = self.find(ref) or self._hidden.get(ref)
            with nullcontext() if state is None else state.lock:
                if state is None or not state.gone:
                    yield state
                    return

    def ensure(self, ref: QueueRef, metadata: bytes = NO_METADATA, grouping: Grouping = Grouping.NONE) -> bool:
        """Create the queue if it is missing, and return whether it was missing.

        A missing queue may have a hidden state, which keeps its idempotency keys. The new queue takes over these keys.
        """
        while True:
            hidden = self._hidden.get(ref)
            with nullcontext() if hidden is None else hidden.lock, self._lock:
                if self._states.get(ref) or self._load_locked(ref):
                    return False
                if hidden is self._hidden.get(ref):
                    self._create(ref, metadata, hidden, grouping)
                    return True

    def create_hidden(self, ref: QueueRef) -> None:
        """Create a hidden state for the idempotency keys of a missing queue. Do nothing if the queue exists."""
        with self._lock:
            if not (self._states.get(ref) or self._load_locked(ref) or self._hidden.get(ref)):
                number = self._last_number + 1
                record = QueueRecord(number, NO_METADATA, number)
                entry: Write = ("hidden", layout.queue_key(ref), layout.encode(record))
                self._store.write([("default", b"numbers", layout.number.pack(number)), entry])
                self._last_number = number
                self._hidden[ref] = QueueState(ref, record, Tally(), self.context)

    def purge(self, state: QueueState) -> None:
        """Purge a locked queue atomically by giving it a new number.

        Active expiry removes the messages under the old number later.
        """
        with self._lock:
            record = QueueRecord(self._last_number + 1, state.metadata, state.history, state.grouping)
            empty = structs.replace(state.tally, count=0, bytes=0, fresh_head=state.tally.fresh_tail, fresh_gap=0)
            successor = QueueState(state.ref, record, empty, self.context)
            self._store.write([*self._creation_writes(successor, record), *self._removal_writes(state)])
            self._last_number = record.number
            self._states[state.ref] = successor
            state.gone = True

    def delete(self, state: QueueState) -> None:
        """Delete a locked queue, or a locked hidden state (idempotency keys of a missing queue), atomically."""
        with self._lock:
            dropped: Write = ("default", layout.PENDING_NUMBER + layout.number.pack(state.history), b"")
            family, states = ("hidden", self._hidden) if state.ref in self._hidden else ("queues", self._states)
            self._store.write([(family, state.key, None), dropped, *self._removal_writes(state)])
            del states[state.ref]
            state.gone = True

    def usage(self, project: str) -> tuple[int, int]:
        """Return the project's message count and its storage use in bytes.

        The bytes include history entries and idempotency results.
        """
        prefix, scan, get_many = layout.project_prefix(project), self._store.scan, self._store.get_many
        found = chain.from_iterable(scan(family, prefix, layout.prefix_end(prefix)) for family in ("queues", "hidden"))
        owners = [layout.decode_queue(value) for _, value in found]
        # The removed bytes are read before the kept bytes, so that the difference is never negative.
        removed = get_many("default", [layout.REMOVED + layout.number.pack(owner.history) for owner in owners])
        values = get_many("tallies", [layout.number.pack(owner.number) for owner in owners])
        messages = size = 0
        for value, gone in zip(values, removed, strict=True):
            if value:
                tally = layout.decode_tally(value)
                messages += tally.count
                size += tally.bytes + tally.kept - int.from_bytes(gone or b"")
        return messages, size

    def new_number(self) -> int:
        """Issue a new number for a log or stage."""
        with self._lock:
            self._store.write([("default", b"numbers", layout.number.pack(self._last_number + 1))])
            self._last_number += 1
            return self._last_number

    def update(self, state: QueueState, metadata: bytes) -> None:
        record = QueueRecord(state.number, metadata, state.history, state.grouping)
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
        skipped = startup.epoch_growth(tally.start, self._start)
        tally.sequence += skipped
        tally.position += skipped
        tally.start = self._start
        state = QueueState(ref, record, tally, self.context)
        state.reserved = self._reserved.pop(record.number, set())
        self._states[ref] = state
        return state

    def _create(self, ref: QueueRef, metadata: bytes, hidden: QueueState | None, grouping: Grouping) -> None:
        number = self._last_number + 1
        record = QueueRecord(number, metadata, number if hidden is None else hidden.history, grouping)
        origin = startup.initial_value(self._start)
        tally, shown = Tally(origin, position=origin, start=self._start), list[Write]()
        if hidden is not None:
            tally.kept = hidden.tally.kept
            shown = [("hidden", hidden.key, None), ("tallies", layout.number.pack(hidden.number), None)]
        state = QueueState(ref, record, tally, self.context)
        self._store.write([*self._creation_writes(state, record), *shown])
        self._last_number = number
        self._states[ref] = state
        if hidden is not None:
            del self._hidden[ref]
            hidden.gone = True

    def _creation_writes(self, state: QueueState, record: QueueRecord) -> list[Write]:
        number = layout.number.pack(record.number)
        return [
            ("default", b"numbers", number),
            ("queues", state.key, layout.encode(record)),
            ("numbers", number, state.key),
            ("tallies", number, layout.encode(state.tally)),
        ]

    def _removal_writes(self, state: QueueState) -> list[Write]:
        number = layout.number.pack(state.number)
        return [
            ("default", layout.PENDING_QUEUE + number, state.key),
            ("numbers", number, None),
            ("tallies", number, None),
        ]
