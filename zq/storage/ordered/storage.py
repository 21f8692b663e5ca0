# SPDX-License-Identifier: Apache-2.0
"""The ``Storage`` of the queue engine: controllers, clock, maintenance and metrics over one store."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from itertools import islice
from typing import Final

from msgspec.structs import replace

from zq.errors import StoreDamaged, Unavailable
from zq.model import MAX_CLAIM_ATTEMPTS, HistoryEntry, LocatedMessage, QueueRef, Seconds, levels
from zq.model.expiry import Expiry, Pace, Steps
from zq.model.levels import Initial
from zq.model.quotas import OVERHEAD, Usage
from zq.model.stats import Depth, Measure, Snapshot
from zq.storage import browsing
from zq.storage.concurrency import StripedLocks
from zq.storage.ordered import groups, layout, stages, startup
from zq.storage.ordered.claims import ClaimController
from zq.storage.ordered.documents import DocumentController
from zq.storage.ordered.expiry import ActiveExpiry, LazyExpiry
from zq.storage.ordered.handle import Session, StoreHandle
from zq.storage.ordered.history import HistoryController
from zq.storage.ordered.messages import MessageController
from zq.storage.ordered.parcels import ParcelController
from zq.storage.ordered.queues import QueueController
from zq.storage.ordered.ready import scan_fresh_times
from zq.storage.ordered.registry import EngineContext, QueueState
from zq.storage.ordered.startup import StorageClock
from zq.storage.ordered.store import Housekeeping, Store
from zq.storage.ordered.topics import TopicController
from zq.storage.ordered.transactions import TransactionController


class OrderedStorage:
    """The implementation of ``zq.storage.api.Storage`` over an ordered store."""

    def __init__(
        self,
        open_store: Callable[[], Store],
        expiry: Expiry | None = None,
        housekeeping: Housekeeping | None = None,
        max_clock_jump: int = 0,
        initial: Initial = levels.initial,
    ) -> None:
        """Open the storage.

        ``open_store`` is called again after the store has failed. At most ``max_clock_jump`` seconds may have passed
        since the store's last use. If ``max_clock_jump`` is 0, there is no limit. ``initial`` is called if the store is
        new.

        Raises ``StartRefused`` if the store has another version, or the clock is implausible.
        """
        self._housekeeping = housekeeping or Housekeeping()
        self._clock = StorageClock()

        def admit(store: Store) -> None:
            startup.check_version(store, initial)
            startup.check_clock(store, self._clock, max_clock_jump)

        self._handle = handle = StoreHandle(open_store, EngineContext(expiry or Expiry(), self._housekeeping), admit)
        self._stripes = stripes = StripedLocks()
        self._active_expiry = ActiveExpiry(handle, stripes)
        self._lazy_expiry = LazyExpiry(handle)
        self._metrics = StoreMetrics(handle, self._active_expiry, self._lazy_expiry)
        self._configuring = threading.Lock()
        self._is_clock_distrusted = self._clock.distrusted_lead > 0
        try:
            with handle:
                self._housekeeping.allow_destruction(not self._is_clock_distrusted)
        except Unavailable:
            handle.close()
            raise
        self.queues = QueueController(handle)
        self.messages = MessageController(handle)
        self.claims = ClaimController(handle, stripes)
        self.history = HistoryController(handle)
        self.transactions = TransactionController(handle, stripes)
        self.topics = TopicController(handle)
        self.documents = DocumentController(handle, stripes)
        self.parcels = ParcelController(handle, self, stripes)
        self._lazy_expiry.start()

    @property
    def is_prompt(self) -> bool:
        return self._handle.is_prompt

    @property
    def layout(self) -> str:
        return layout.VERSION.decode()

    def now(self) -> Seconds:
        moment = self._clock.now()
        if self._is_clock_distrusted != (self._clock.distrusted_lead > 0):
            self._allow_destruction()
        return moment

    def clock_lead(self) -> Seconds:
        return self._clock.distrusted_lead

    def ping(self) -> None:
        self._housekeeping.check()
        self._record_clock(probing=True)

    def maintain(self, now: Seconds, expiry: Expiry | None = None, pace: Pace | None = None) -> int:
        if expiry is not None:
            self._configure(expiry)
        self._record_clock()
        with self._handle as (_, registry):
            self._housekeeping.maintain(registry.logs.take_trimmed_ranges())
        return self._active_expiry.sweep(layout.ms(now), pace or Steps())

    def usage(self, project: str, now: Seconds) -> Usage | None:
        with self._handle as (store, registry):
            messages, size = registry.usage(project)
            staged, staged_size = stages.usage(store, project)
        return Usage(messages + staged, size + staged_size + staged * OVERHEAD)

    def depths(self, now: Seconds, queues: int, max_count: int) -> Sequence[tuple[QueueRef, Depth]]:
        return self._metrics.depths(layout.ms(now), queues, max_count)

    def depth(self, queue: QueueRef, now: Seconds, max_count: int) -> Depth:
        return self._metrics.depth(queue, layout.ms(now), max_count)

    def locate(self, project: str, message: str, now: Seconds) -> LocatedMessage | None:
        for _ in range(MAX_CLAIM_ATTEMPTS):  # the message may move in between
            with self._handle as (store, registry):
                place = store.get("ids", layout.id_key(layout.project_prefix(project), message))
                state = registry.find_by_number(layout.pair.unpack(place)[0]) if place else None
            if state is None:
                break
            for found in self.messages.get(state.ref, [message], now):
                return LocatedMessage(state.ref, HistoryEntry(found))
        return browsing.find_latest(self, project, message, now)

    def measures(self, now: Seconds) -> Sequence[Measure]:
        return self._metrics.measures(layout.ms(now))

    def read_level(self) -> bytes | None:
        with self._handle as (store, _):
            return store.get("default", startup.LEVEL)

    def replace_level(self, former: bytes | None, new: bytes) -> bool:
        with self._configuring, self._handle as (store, _):
            if store.get("default", startup.LEVEL) not in (former, new):
                return False
            store.write([("default", startup.LEVEL, new)])
            store.wait_durable(always=True)
            return True

    def has_low_space(self) -> bool:
        return self._housekeeping.has_low_space()

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        return self._snapshot()

    @contextmanager
    def _snapshot(self) -> Iterator[Snapshot]:
        self._record_clock()
        with ExitStack() as kept:
            with self._handle:
                snapshot = kept.enter_context(self._housekeeping.snapshot(self._clock.now()))
            yield snapshot

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        self._handle.context.listen(listener)

    def close(self) -> None:
        self._lazy_expiry.close()
        self._handle.close()

    def _configure(self, expiry: Expiry) -> None:
        with self._configuring:
            if expiry == self._handle.context.expiry:
                return
            self._handle.context.configure(expiry)
            if self._housekeeping.configure(expiry):
                self._handle.reopen()

    def _record_clock(self, probing: bool = False) -> None:
        self.now()
        with self._handle as (store, _):
            if probing and store.contended:
                return  # the store responds, and a write would wait behind other writes
            startup.record_clock(store, self._clock)
            store.wait_durable()

    def _allow_destruction(self) -> None:
        """Let the store drop expired values only while the machine's clock is trusted.

        The compaction filter that drops them reads the machine's clock, not ``StorageClock``.
        """
        with self._configuring:
            doubted = self._clock.distrusted_lead > 0
            with suppress(Unavailable), self._handle:  # the next call of ``now`` tries again
                self._housekeeping.allow_destruction(not doubted)
                self._is_clock_distrusted = doubted


# Maximum number of expired messages that one report counts.
MAX_EXPIRED: Final = 100_000


class StoreMetrics:
    """The message counts and metrics of a store, including the metrics of active and lazy expiry."""

    def __init__(self, handle: StoreHandle, active_expiry: ActiveExpiry, lazy_expiry: LazyExpiry) -> None:
        self._handle = handle
        self._active_expiry = active_expiry
        self._lazy_expiry = lazy_expiry

    def depths(self, now: int, queues: int, max_count: int) -> Sequence[tuple[QueueRef, Depth]]:
        with self._handle as session:
            keys = [key for key, _ in islice(session.store.scan("queues", b"", layout.END, spare=True), queues)]
            states = [
                state for key in keys if (state := session.registry.find(layout.decode_queue_key(key))) is not None
            ]
            due = islice(self._scan_expired(session.store, now), min(max_count * len(states), MAX_EXPIRED))
            expired = Counter(key[8:16] for key in due)
            return [
                (
                    state.ref,
                    _count_depth(session.store, state, expired[layout.number.pack(state.number)], now, max_count),
                )
                for state in states
            ]

    def depth(self, queue: QueueRef, now: int, max_count: int) -> Depth:
        """Return the message counts of one queue; see ``Storage.depth``. Expired messages are not counted."""
        with self._handle as session:
            state = session.registry.find(queue)
            return (
                Depth()
                if state is None
                else replace(_count_depth(session.store, state, max_count, now, max_count), expired=0)
            )

    def measures(self, now: int) -> list[Measure]:
        """Return the metrics of the store. Metrics that are unreadable because of damage are left out."""
        with self._handle as session:
            own = self._handle.context.housekeeping.measures()
            parts = self._measure_expiry(session, now), _measure_messages(session.store), own
            return [figure for part in parts for figure in _yield_readable(part)]

    def _scan_expired(self, store: Store, now: int) -> Iterator[bytes]:
        return (
            key
            for key, _ in store.scan("expiry", self._active_expiry.position, layout.number.pack(now + 1), spare=True)
        )

    def _measure_expiry(self, session: Session, now: int) -> Iterator[Measure]:
        layers = {"read": self._lazy_expiry.removed, "sweep": self._active_expiry.removed}
        for layer, count in layers.items():
            yield Measure("expired_removed_total", count, (("layer", layer),))
        first = next(self._scan_expired(session.store, now), None)
        waiting = sum(1 for _ in islice(self._scan_expired(session.store, now), MAX_EXPIRED))
        yield Measure("expired_waiting", waiting)
        yield Measure("sweep_lag_seconds", (now - layout.number.unpack_from(first)[0]) / 1000 if first else 0)
        lazy_queue = session.registry.context.lazy_queue
        yield Measure("delete_queue_length", len(lazy_queue))
        yield Measure("delete_queue_capacity", lazy_queue.capacity)
        yield Measure("delete_queue_dropped_total", lazy_queue.dropped)


def _yield_readable(figures: Iterator[Measure]) -> Iterator[Measure]:
    with suppress(StoreDamaged):
        yield from figures


def _measure_messages(store: Store) -> Iterator[Measure]:
    tallies = store.scan("tallies", b"", layout.END * 2)
    yield Measure("store_messages", sum(layout.decode_tally(value).count for _, value in tallies))


def _count_depth(store: Store, state: QueueState, expired: int, now: int, max_count: int) -> Depth:
    """Return the message counts of one queue. For each state, scan at most ``max_count`` messages.

    If the scans have counted all claimed, delayed and expired messages, the number of ready messages is the rest, and
    no scan for ready messages is necessary. ``expired`` is the number of expired messages, which the caller has
    counted.
    """
    if state.grouping:
        return groups.count_depth(store, state, expired, now, max_count)
    claimed, all_claims = _count_claimed(store, state, now, max_count)
    present = layout.pair.pack(state.number, now + 1)
    later, all_later = _count_live(store.scan("available", present, state.bounds()[1], spare=True), now, 2 * max_count)
    came = state.ready_cursor.entries(store, present)
    oldest = next((key for key, expires in islice(came, max_count) if layout.number.unpack(expires)[0] > now), None)
    fresh = [moment for moment in islice(scan_fresh_times(store, state, now), max_count) if moment <= now]
    if oldest is None and not fresh:
        ready = 0
    elif all_claims and all_later and expired < max_count:
        ready = max(0, state.tally.count - expired - later)
    else:
        entries = store.scan("available", oldest, present, spare=True) if oldest is not None else iter(())
        ready = min(max_count, _count_live(entries, now, max_count)[0] + len(fresh))
    moments = [*fresh[:1], *([] if oldest is None else [layout.triple.unpack(oldest)[1]])]
    moment = min(moments) / 1000 if moments else None
    delayed = max(0, later - claimed) if all_claims else _count_delayed(store, state, now, max_count)
    return Depth(ready, delayed, claimed, expired, moment)


def _count_claimed(store: Store, state: QueueState, now: int, max_count: int) -> tuple[int, bool]:
    """Count the messages of live claims among the first ``max_count`` messages in ``claims``.

    Also return whether the scan has read all claims of the queue.
    """
    claimed = seen = 0
    for _, value in store.scan("claims", *state.bounds(), spare=True):
        ends, sequences = layout.decode_group(value)
        count = min(len(sequences), max_count - seen)
        claimed += count if ends > now else 0
        seen += count
        if seen == max_count:
            return claimed, False
    return claimed, True


def _count_delayed(store: Store, state: QueueState, now: int, max_count: int) -> int:
    entries = store.scan("available", layout.pair.pack(state.number, now + 1), state.bounds()[1], spare=True)
    values = store.get_many("messages", [key[:8] + key[16:] for key, _ in islice(entries, max_count)])
    records = (layout.decode_record(value) for value in values if value is not None)
    return sum(1 for record in records if record.expires > now and not record.is_held(now))


def _count_live(entries: Iterator[tuple[bytes, bytes]], now: int, max_count: int) -> tuple[int, bool]:
    """Count the unexpired messages among the first ``max_count`` entries.

    Also return whether there are fewer than ``max_count`` entries.
    """
    ends = [layout.number.unpack(value)[0] > now for _, value in islice(entries, max_count)]
    return sum(ends), len(ends) < max_count
