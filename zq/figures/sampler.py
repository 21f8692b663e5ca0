# SPDX-License-Identifier: Apache-2.0
"""Background sampling of queue depths.

- A sweep reads the depths of all queues.
- A viewer is a client that has requested statistics within the last ``VIEWER_TTL`` seconds.
- A watched queue is a queue whose chart a client has open. Its depth is read every two seconds.
"""

import heapq
import logging
import math
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from zq import wire
from zq.clock import Clock
from zq.errors import Unavailable
from zq.figures.counting import Counts
from zq.figures.exchange import Exchange, ProcessInfo, Span, State
from zq.figures.series import COARSE, FINE, KnownCounts, Series
from zq.model import QueueRef, Seconds
from zq.model.hidden import HIDDEN
from zq.model.stats import Depth
from zq.storage.api import Storage

LOG = logging.getLogger(__name__)
# Seconds between two samples of watched queues.
TICK_SECONDS: Final = 2.0
# Seconds between two sweeps without viewers. With viewers, the interval is ``TICK_SECONDS``.
SWEEP_INTERVAL: Final = 10.0
# Minimum interval between two sweeps, as a multiple of a sweep's duration: sweeps take at most 2.5 % of the time.
SWEEP_INTERVAL_FACTOR: Final = 40
# Minimum interval between two reads of metadata, as a multiple of their duration: reads take at most 1 % of the time.
METADATA_INTERVAL_FACTOR: Final = 100
# Maximum seconds that a new viewer waits for a sweep.
VIEWER_PATIENCE: Final = 0.5
# Seconds after a request for which the client is a viewer.
VIEWER_TTL: Final = 10.0
# Maximum number of watched queues, of queues in a sweep, and of time series. If more queues exist, half of
# the time series are for the deepest queues, and half for those with the oldest messages.
MAX_WATCHED: Final = 64
MAX_SWEPT: Final = 200_000
MAX_SERIES: Final = 1000
# Seconds after the start of an interval by which all processes have published the previous interval.
READ_DELAY: Final = 4.0
# Minimum time for which a project's metadata are cached in seconds, and maximum number of cached projects.
METADATA_AGE: Final = 4.0
MAX_PROJECTS: Final = 100
# Number of queues per page of a listing. The number is small because metadata can be large.
PAGE: Final = 100
# Matches encoded metadata with a dead-letter queue or paused operations. Other metadata is not parsed.
RELEVANT: Final = re.compile(b'"_dead_letter_queue"|"_paused"')
# Minimum seconds between the two snapshots from which growth is computed.
GROWTH_INTERVAL: Final = 60.0

Rows = Mapping[str, Mapping[str, Depth]]


class Snapshot(Struct, frozen=True):
    """The depths of all queues by project and name. ``complete`` is False if some queues are missing."""

    rows: Rows
    as_of: Seconds
    complete: bool

    def of(self, project: str) -> Mapping[str, Depth]:
        """Return the depths of the project's queues by queue name."""
        return self.rows.get(project, {})


NO_SNAPSHOT: Final = Snapshot({}, 0.0, True)


class MetadataSummary(NamedTuple):
    """A queue's dead-letter queue and paused operations, as stored in its metadata."""

    dead_letter_queue: str | None = None
    paused: str | None = None


class Rates(Struct, frozen=True):
    """The message rates of each queue and topic in one ten-second interval, summed over all server processes.

    Rates are in messages per second. The keys are pairs of project and name.
    """

    queues: dict[tuple[str, str], list[float]]
    topics: dict[tuple[str, str], list[float]]


class Sampler:
    """The background sampler of queue depths and message rates in this process.

    Without a call of ``start``, there is no sampling thread. Each request for statistics then takes a sample itself.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        counts: Counts,
        about: ProcessInfo,
        max_counted: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage, self.clock, self._counts, self._monotonic, self.max_counted = (
            storage,
            clock,
            counts,
            monotonic,
            max_counted,
        )
        began = clock.now()
        self.exchange = Exchange(storage.documents, about, began)
        self._published_slot = self._read_slot = int(began // FINE.step)
        """The slots of the last interval published and the last interval read."""
        self.snapshot = self.former = self._newer = NO_SNAPSHOT
        """Snapshots: the latest, one that is one to two minutes older, and the next value of ``former``."""
        self.failing = False
        self.spans: dict[int, Rates] = {}
        """The message rates of the latest ten-second intervals, by interval number."""
        self.known_counts = KnownCounts()
        self.known: set[int] = set()
        self.series: OrderedDict[QueueRef, Series] = OrderedDict()
        self.projects: OrderedDict[str, Series] = OrderedDict()
        self.watched: dict[QueueRef, float] = {}
        """The watched queues, and the monotonic time until which each queue is watched."""
        self.samples: dict[QueueRef, tuple[Depth, Seconds]] = {}
        self.summaries: OrderedDict[str, tuple[float, Mapping[str, MetadataSummary]]] = OrderedDict()
        """The cached metadata by project: expiry time, and summaries by queue name."""
        self._viewed_at = self._swept_at = -math.inf
        """The monotonic times of the last request and of the start of the last sweep."""
        self._sweep_seconds, self._recorded_slot = 0.0, -1
        self._lock = threading.Lock()
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._sweep_ended = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the sampling thread."""
        self._thread = threading.Thread(target=self._run, name="zq-figures", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the sampling thread. Call this method before the store is closed."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def register_viewer(self, project: str) -> None:
        """Register that a client is viewing the project's statistics. Wait briefly for a sample if none is recent.

        Raises ``Unavailable`` if the queue depths are not known.
        """
        now = self._monotonic()
        awake, self._viewed_at = now - self._viewed_at < VIEWER_TTL, now
        with self._lock:
            until, _ = self.summaries.setdefault(project, (-1.0, {}))
            self.summaries.move_to_end(project)
        if self._thread is None:
            self._swept_at = -math.inf
            self.tick()
        elif not awake or until < 0:
            self._wake.set()
            self._await_sweep(now)
        if self.snapshot is NO_SNAPSHOT:
            raise Unavailable("Queue depths are not available yet. Try again later.")
        if self.failing:
            raise Unavailable("Queue depths are not available, because the store did not respond. Try again later.")

    def _await_sweep(self, now: float) -> None:
        """Wait briefly until the queue depths have been read again, unless they were read very recently."""
        before = self._swept_at
        if self.snapshot is NO_SNAPSHOT or now >= before + SWEEP_INTERVAL_FACTOR * self._sweep_seconds:
            patience = TICK_SECONDS if self.snapshot is NO_SNAPSHOT else VIEWER_PATIENCE
            with self._sweep_ended:
                self._sweep_ended.wait_for(lambda: self._swept_at != before, patience)

    def watch(self, queue: QueueRef) -> None:
        """Sample the queue's depth every two seconds for the next ``VIEWER_TTL`` seconds.

        If ``MAX_WATCHED`` other queues are sampled in this way already, the call has no effect.
        """
        now = self._monotonic()
        with self._lock:
            new = queue not in self.watched
            if new and len(self.watched) >= MAX_WATCHED:
                return
            self.watched[queue] = now + VIEWER_TTL
        if self._thread is None:
            self.tick()
        elif new:
            self._wake.set()
            with self._sweep_ended:
                self._sweep_ended.wait_for(lambda: queue in self.samples, VIEWER_PATIENCE)

    def tick(self) -> None:
        """Run one sampling round. Raises ``Unavailable`` if the store is unavailable."""
        try:
            self._sample_watched()
            if self._monotonic() >= self._next_sweep():
                self._sweep()
            self._refresh_metadata()
            self._exchange()
        except Unavailable:
            self.failing = True
            raise
        self.failing = False

    def _sample_watched(self) -> None:
        now = self._monotonic()
        with self._lock:
            self.watched = {queue: until for queue, until in self.watched.items() if until > now}
            watched = list(self.watched)
        for queue in watched:
            moment = self.clock.now()
            depth = self._storage.depth(queue, moment, self.max_counted())
            self.samples[queue] = depth, moment
            self._get_series(queue, moment).record_watched(depth, moment)
        with self._sweep_ended:
            self.samples = {queue: seen for queue, seen in self.samples.items() if queue in self.watched}
            self._sweep_ended.notify_all()

    def _next_sweep(self) -> float:
        pace = (
            TICK_SECONDS / 2 if self._monotonic() - self._viewed_at < VIEWER_TTL else SWEEP_INTERVAL - TICK_SECONDS / 2
        )
        return self._swept_at + max(pace, SWEEP_INTERVAL_FACTOR * self._sweep_seconds)

    def _sweep(self) -> None:
        began, now = self._monotonic(), self.clock.now()
        found = self._storage.depths(now, MAX_SWEPT, self.max_counted())
        rows: dict[str, dict[str, Depth]] = {}
        for queue, depth in found:
            if not queue.name.startswith(HIDDEN):
                rows.setdefault(queue.project, {})[queue.name] = depth
        self.snapshot = Snapshot(rows, now, len(found) < MAX_SWEPT)
        if now - self._newer.as_of >= GROWTH_INTERVAL:
            first = self._newer is NO_SNAPSHOT
            self.former, self._newer = (self.snapshot if first else self._newer), self.snapshot
        if int(now // FINE.step) != self._recorded_slot:
            self._recorded_slot = int(now // FINE.step)
            self._record(now)
        with self._sweep_ended:
            self._swept_at, self._sweep_seconds = began, self._monotonic() - began
            self._sweep_ended.notify_all()

    def _record(self, now: Seconds) -> None:
        for project, queues in self.snapshot.rows.items():
            series = self.projects.setdefault(project, Series(now))
            series.record(sum_depths(queues.values()), now)
            self.projects.move_to_end(project)
        while len(self.projects) > MAX_SERIES:
            self.projects.popitem(last=False)
        for queue in self._choose_queues():
            self._get_series(queue, now).record(self.snapshot.rows[queue.project][queue.name], now)

    def _choose_queues(self) -> set[QueueRef]:
        rows = [
            (QueueRef(project, name), depth)
            for project, its in self.snapshot.rows.items()
            for name, depth in its.items()
        ]
        if len(rows) <= MAX_SERIES:
            return {queue for queue, _ in rows}
        half = MAX_SERIES // 2
        deepest = heapq.nlargest(half, rows, key=lambda row: count_messages(row[1]))
        waiting = [row for row in rows if row[1].oldest_ready is not None]
        oldest = heapq.nsmallest(half, waiting, key=lambda row: row[1].oldest_ready or 0.0)
        return {queue for queue, _ in (*deepest, *oldest)} | {
            queue for queue in self.watched if queue.name in self.snapshot.of(queue.project)
        }

    def _get_series(self, queue: QueueRef, now: Seconds) -> Series:
        """Return the queue's time series. If there is none, create one and evict the least recently used series."""
        series = self.series.get(queue)
        if series is None:
            self.series[queue] = series = Series(now)
            for slot, rates in self.spans.items():
                if (each := rates.queues.get(queue)) is not None:
                    series.add_rates(slot, each)
        self.series.move_to_end(queue)
        while len(self.series) > MAX_SERIES + MAX_WATCHED:
            self.series.popitem(last=False)
        return series

    def _refresh_metadata(self) -> None:
        now = self._monotonic()
        if now - self._viewed_at >= VIEWER_TTL:
            return
        with self._lock:
            while len(self.summaries) > MAX_PROJECTS:
                self.summaries.popitem(last=False)
            project, (until, _) = next(reversed(self.summaries.items()), ("", (now + 1, {})))
        if until <= now:
            found = self._read_metadata(project)
            took = self._monotonic() - now
            with self._lock:
                self.summaries[project] = now + max(METADATA_AGE, METADATA_INTERVAL_FACTOR * took), found

    def _read_metadata(self, project: str) -> dict[str, MetadataSummary]:
        found: dict[str, MetadataSummary] = {}
        after: str | None = ""
        while after is not None:
            page = self._storage.queues.list(project, after, PAGE)
            for queue in page.items:
                if RELEVANT.search(queue.metadata):
                    metadata = wire.json_object(queue.metadata)
                    found[queue.ref.name] = MetadataSummary(metadata.get("_dead_letter_queue"), metadata.get("_paused"))
            after = page.next if page.items else None
        return found

    def _exchange(self) -> None:
        """Exchange message counts with the other server processes through the store, once per ten-second interval."""
        now = self.clock.now()
        slot = int(now // FINE.step)
        if slot > self._published_slot:
            self._published_slot = slot
            lag = next((one.value for one in self._storage.measures(now) if one.name == "sweep_lag_seconds"), None)
            state = State(self._counts.waiters, self._counts.open_streams, round(self.clock.drift(), 3), lag)
            self.exchange.publish(slot - 1, self._counts.drain(), state, now)
        if slot > self._read_slot and now % FINE.step >= READ_DELAY:
            self.exchange.read(now, self._add_span)
            self._read_slot = slot
            oldest = slot - COARSE.points * COARSE.step // FINE.step
            self.known = {known for known in self.known if known >= oldest}
            while len(self.spans) > FINE.points:
                del self.spans[min(self.spans)]

    def _add_span(self, slot: int, span: Span) -> None:
        """Convert one server process's message counts in an interval to rates, and add them to the total rates."""
        if slot >= self.clock.now() // FINE.step:  # The other process's clock is ahead.
            return
        rates = self.spans.get(slot)
        if rates is None:
            self.spans[slot] = rates = Rates({}, {})
        for project, name, *counts in span.queues:
            each = [count / span.seconds for count in counts]
            _add(rates.queues, (project, name), each)
            if (series := self.series.get(QueueRef(project, name))) is not None:
                series.add_rates(slot, each)
            if (series := self.projects.get(project)) is not None:
                series.add_rates(slot, each)
        for project, name, count in span.topics:
            _add(rates.topics, (project, name), [count / span.seconds])
        if slot not in self.known:
            self.known_counts.add(slot)
        self.known.add(slot)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.tick()
            except (Unavailable, msgspec.MsgspecError) as absence:
                LOG.debug("Cannot sample queues: %s", absence)
            except Exception:  # the thread must continue after any error
                LOG.critical("Unexpected error while sampling queues.", exc_info=True)
            self._wake.wait(TICK_SECONDS)
            self._wake.clear()


def _add(rates: dict[tuple[str, str], list[float]], name: tuple[str, str], more: list[float]) -> None:
    former = rates.get(name)
    rates[name] = more if former is None else [sum(pair) for pair in zip(former, more, strict=True)]


def count_messages(depth: Depth) -> int:
    """Return the number of ready, delayed and claimed messages."""
    return depth.ready + depth.delayed + depth.claimed


def sum_depths(depths: Iterable[Depth]) -> Depth:
    """Return the total depth of several queues. ``oldest_ready`` of the result is the earliest of all queues."""
    found = list(depths)
    oldest = min((depth.oldest_ready for depth in found if depth.oldest_ready is not None), default=None)
    ready, delayed, claimed = (sum(getattr(depth, name) for depth in found) for name in ("ready", "delayed", "claimed"))
    return Depth(ready, delayed, claimed, 0, oldest)
