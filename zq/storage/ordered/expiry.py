# SPDX-License-Identifier: Apache-2.0
"""Lazy and active expiry, as in Redis.

- Lazy expiry: one thread removes expired messages that readers have found.
- Active expiry: regular rounds remove expired messages, other expired data, and the data of purged and deleted queues.

A round reads only the expired part of the indexes ``expiry`` and ``due``, so its cost does not depend on the amount of
live data. A message is removed under its queue's lock, and only if its expiry has not been extended.
"""

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Final

from zq.errors import StoreDamaged, Unavailable
from zq.model import QueueRef
from zq.model.expiry import Pace
from zq.storage.concurrency import StripedLocks
from zq.storage.ordered import documents, due, layout, logs, stages
from zq.storage.ordered.changes import Change
from zq.storage.ordered.handle import Session, StoreHandle
from zq.storage.ordered.reclaim import BatchReclaim, PendingDeletes, delete_unused_hidden
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.store import Store, Write

LOG = logging.getLogger(__name__)
# Maximum number of items that active expiry removes in one write, which blocks all threads for about a millisecond.
MAX_SLICE_REMOVALS: Final = 100
# Pause in seconds after each slice. Without it, another thread would wait up to five milliseconds for the GIL.
SLICE_PAUSE: Final = 0.0001
# Seconds after which active expiry reads both indexes from the beginning again.
RESCAN_INTERVAL: Final = 3600.0
# Number of messages that lazy expiry removes in one write.
LAZY_BATCH: Final = 100
# Pause of lazy expiry as a multiple of the preceding working time, so that it works at most a fifth of the time.
PAUSE_FACTOR: Final = 4
# Maximum pause of lazy expiry in seconds.
MAX_PAUSE: Final = 0.5

# Unix times in milliseconds by key in ``messages``. A message is removed only if it expires at or before its time.
Moments = dict[bytes, int]


class ActiveExpiry:
    """The removal of expired data in regular rounds. Only one thread at a time may run a round."""

    def __init__(self, handle: StoreHandle, stripes: StripedLocks) -> None:
        self._handle = handle
        self._stripes = stripes
        self.position = b""
        self._due_position = b""
        """The key in ``due`` from which the next round scans. ``position`` is the corresponding key in ``expiry``.

        Only entries that were written after their own expiry are below these keys. A later scan from the beginning
        finds them.
        """
        self._rescan_at = 0.0
        self._first = 0
        self._pending_deletes = PendingDeletes()
        self._batch_reclaim = BatchReclaim()
        self._keys_removed = True
        """Whether idempotency keys were removed, so that a missing queue may have none left; true at the start."""
        self.removed = 0

    def sweep(self, now: int, pace: Pace) -> int:
        """Run one round, and return the number of removed expired messages.

        ``pace`` limits the speed and the length of the round. If it ends the round early, the next round begins with
        another type of data.
        """
        before = self.removed
        if time.monotonic() > self._rescan_at:
            self._rescan_at = time.monotonic() + RESCAN_INTERVAL
            self.position = self._due_position = b""
        kinds: list[Callable[[Session, int], int]] = [
            lambda session, size: self._pending_deletes.clear_queues(session.store, size, pace),
            lambda session, size: self._clear_numbers(session, size, pace),
            lambda session, size: self._batch_reclaim.clear_trimmed(session, size, pace),
            lambda session, size: self._batch_reclaim.clear_purged(session, size, pace),
        ]
        if self._handle.context.expiry.sweep:
            kinds[:0] = (
                lambda session, size: self._remove_expired(session, now, size, pace),
                lambda session, size: self._remove_due(session.store, now, size, pace),
            )
        first = self._first % len(kinds)
        ended = [self._repeat(pace, kind) for kind in kinds[first:] + kinds[:first]]
        self._first = 0 if all(ended) else first + 1
        return self.removed - before

    def _repeat(self, pace: Pace, step: Callable[[Session, int], int]) -> bool:
        """Call ``step`` until it has no more data to remove. Return False if ``pace`` ends the round first, else True.

        ``step`` receives the maximum number of removals, and returns the actual number. If ``step`` finds damaged data,
        the method returns True.
        """
        while left := pace.step():
            while left:
                asked = min(left, MAX_SLICE_REMOVALS)
                with self._handle as session:
                    try:
                        if step(session, asked) < asked:
                            return True
                    except StoreDamaged:  # the store has recorded the damage; the round continues with other data
                        return True
                left -= asked
                time.sleep(SLICE_PAUSE)
        return False

    def _remove_expired(self, session: Session, now: int, size: int, pace: Pace) -> int:
        index = session.store.scan("expiry", self.position, layout.number.pack(now + 1), spare=True)
        entries = [key for key, _ in islice(index, size)]
        for number, moments in group_by_queue((entry[8:], layout.number.unpack_from(entry)[0]) for entry in entries):
            count, queue = remove_expired(session, number, moments, sweeping=True)
            if count:
                self.removed += count
                pace.removed(count, queue)
        if entries:
            self.position = entries[-1] + b"\0"
        return len(entries)

    def _clear_numbers(self, session: Session, size: int, pace: Pace) -> int:
        if self._keys_removed:
            self._keys_removed = False
            delete_unused_hidden(session)
        return self._pending_deletes.clear_numbers(session.store, size, pace)

    def _remove_due(self, store: Store, now: int, size: int, pace: Pace) -> int:
        index = store.scan("due", self._due_position, layout.number.pack(now + 1), spare=True)
        entries = list(islice(index, size))
        writes: list[Write] = []
        removed: Counter[bytes] = Counter()
        for entry, note in entries:
            family, key = due.parse_entry(entry)
            gone: list[Write] = [("due", entry, None), (family, key, None)]
            if family in ("history", "keys"):
                removed[key[:8]] += due.parse_size(family, note)
            if family == "history":
                gone += due.history_traces(key, note)
            elif family == "batches":
                gone.append(logs.topic_removal(key, note))
            elif family == "keys":
                self._keys_removed = True
            elif family == "stages":
                with self._stripes.locked(stages.stage_lock(key[:-8])):  # because a commit may be reading the stage
                    store.write([*gone, ("default", layout.PENDING_NUMBER + note, b"")])
            elif family == "records":
                with self._stripes.locked(documents.lock_name(key)):  # because an operation may be extending the expiry
                    store.write(gone if documents.has_expiry(store, key, layout.number.unpack_from(entry)[0]) else [])
                continue
            writes += gone
        if entries:
            store.write([*writes, *_counter_writes(store, removed)])
            pace.removed(len(entries))
            self._due_position = entries[-1][0] + b"\0"
        return len(entries)


def _counter_writes(store: Store, removed: Counter[bytes]) -> list[Write]:
    """Return the writes that add the sizes in ``removed`` to the stored counters.

    ``removed`` maps the encoded history number of a queue to a size in bytes. A counter has the total size of the
    history entries and idempotency results that active expiry has removed from the queue.

    No lock is needed, because only active expiry writes these counters.
    """
    keys = [layout.REMOVED + number for number, size in removed.items() if size]
    before = store.get_many("default", keys)
    sizes = (int.from_bytes(value or b"") + removed[key[-8:]] for key, value in zip(keys, before, strict=True))
    return [("default", key, layout.number.pack(size)) for key, size in zip(keys, sizes, strict=True)]


class LazyExpiry:
    """The executor of lazy expiry: a background thread that removes the expired messages that readers have found."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle
        self._queue = handle.context.lazy_queue
        self._thread = threading.Thread(target=self._run, name="zq-lazy-expiry", daemon=True)
        self.removed = 0

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Discard the queued message keys, and wait until the current removal ends."""
        self._queue.close()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while self._queue.wait():
            began = time.monotonic()
            self._remove(self._queue.take(LAZY_BATCH))
            time.sleep(min(MAX_PAUSE, PAUSE_FACTOR * (time.monotonic() - began)))

    def _remove(self, expired: Moments) -> None:
        try:
            with self._handle as session:
                for number, its in group_by_queue(expired.items()):
                    self.removed += remove_expired(session, number, its, sweeping=False)[0]
        except Unavailable:
            pass  # active expiry will find these messages
        except Exception:  # the thread must survive any failure
            LOG.critical("Unexpected error while removing expired messages; the sweep will retry.", exc_info=True)


def group_by_queue(expired: Iterable[tuple[bytes, int]]) -> Iterator[tuple[int, Moments]]:
    """Group (message key, time) pairs by queue number.

    Each message expired at or before the time in its pair, in Unix milliseconds.
    """
    grouped: defaultdict[bytes, Moments] = defaultdict(dict)
    for key, moment in expired:
        grouped[key[:8]][key] = moment
    return ((layout.number.unpack(number)[0], its) for number, its in grouped.items())


def remove_expired(session: Session, number: int, moments: Moments, sweeping: bool) -> tuple[int, QueueRef | None]:
    """Remove expired messages of a queue in one change. Return the count of removed messages, and the queue.

    ``number`` is the queue's number. If no such queue exists, return (0, None).

    Args:
        moments: A time for each message key, in Unix milliseconds. A message is removed only if it expires by this
            time, because its expiry may have been extended since it was found.
        sweeping: Whether ``moments`` comes from the index ``expiry``. If so, outdated index entries are also removed.
    """
    with _locked(session, number) as state:
        if state is None:
            return 0, None
        change = Change(session.store, max(moments.values()))
        count = 0
        values = session.store.get_many("messages", list(moments), spare=True)
        for (key, moment), value in zip(moments.items(), values, strict=True):
            if value == b"":  # damaged: keep the index entries, from which a salvage rebuilds the message
                continue
            record = layout.decode_record(value) if value is not None else None
            if record is not None and record.expires <= moment:
                change.remove(state, layout.pair.unpack(key)[1], record)
                count += 1
            elif sweeping:
                change.add_writes(("expiry", layout.number.pack(moment) + key, None))
        change.commit()
        return count, state.ref


@contextmanager
def _locked(session: Session, number: int) -> Iterator[QueueState | None]:
    state = session.registry.find_by_number(number)
    if state is None:
        yield None
        return
    with session.registry.locked(state.ref) as (held,):
        yield state if held is state else None
