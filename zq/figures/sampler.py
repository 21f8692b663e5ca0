# SPDX-License-Identifier: Apache-2.0
"""The thread that takes the points: all queues in a sweep, and each two seconds those that somebody looks at."""

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
from zq.figures.exchange import About, Exchange, Span, State
from zq.figures.series import COARSE, FINE, Series
from zq.model import QueueRef, Seconds
from zq.model.hidden import HIDDEN
from zq.model.stats import Depth
from zq.storage.api import Storage

LOG = logging.getLogger(__name__)
# Seconds between two looks at watched queues.
TICK: Final = 2.0
# Seconds between two sweeps, while nobody looks; while somebody does, it is ``TICK``.
SWEEP: Final = 10.0
# The next sweep comes so many times as long after the last one as that took: it costs 2.5 % of the time at most.
AT_MOST: Final = 40
# The same of looks at metadata: 1 %.
METADATA_AT_MOST: Final = 100
# Seconds that who begins to look waits for a sweep.
FRESH: Final = 0.5
# Seconds for which somebody who has asked looks.
LOOKS: Final = 10.0
# Queues that are watched at once, that a sweep has, and that have points; half of these have the most messages, half
# the oldest.
MOST_WATCHED: Final = 64
MOST_SWEPT: Final = 200_000
MOST_KEPT: Final = 1000
# Seconds into a span after which other processes have told of the one before.
TOLD: Final = 4.0
# Seconds for which it is known what the metadata of a project's queues say, and projects of which it is.
METADATA_AGE: Final = 4.0
MOST_PROJECTS: Final = 100
# Queues whose metadata are asked for at once: they may be large; and what is in those that matter.
PAGE: Final = 100
MENTIONS: Final = re.compile(b'"_dead_letter_queue"|"_paused"')
# Seconds between two snapshots by which a queue grows.
GROWTH: Final = 60.0

Rows = Mapping[str, Mapping[str, Depth]]


class Snapshot(Struct, frozen=True):
    """What a sweep found: by project and name. ``complete``: it is all queues of the store."""

    rows: Rows
    as_of: Seconds
    complete: bool

    def of(self, project: str) -> Mapping[str, Depth]:
        """The queues of a project."""
        return self.rows.get(project, {})


NOTHING: Final = Snapshot({}, 0.0, True)


class Said(NamedTuple):
    """What the metadata of a queue say: where its dead letters go, and what of it is paused."""

    dead_letter_queue: str | None = None
    paused: str | None = None


class Rates(Struct, frozen=True):
    """What went through all processes in one second of a span."""

    queues: dict[tuple[str, str], list[float]]
    topics: dict[tuple[str, str], list[float]]


class Sampler:
    """``start`` and ``stop`` it; without, who asks has it ``tick``."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        counts: Counts,
        about: About,
        most: Callable[[], int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """``most``: messages of each state that are counted of a queue now."""
        self._storage, self.clock, self._counts, self._monotonic, self.most = storage, clock, counts, monotonic, most
        began = clock.now()
        self.exchange = Exchange(storage.documents, about, began)
        self._told = self._heard = int(began // FINE.step)
        """The slots that were told of and heard of last, or are not to be."""
        self.snapshot = self.former = self._nearer = NOTHING
        """The last one, and one of a minute or two before, which is followed by the one between."""
        self.failing = False
        """Whether the store did not answer the last time."""
        self.spans: dict[int, Rates] = {}
        """What went through, by slots of ``FINE``; the last few."""
        self.known: set[int] = set()
        self.kept: OrderedDict[QueueRef, Series] = OrderedDict()
        self.projects: OrderedDict[str, Series] = OrderedDict()
        self.watched: dict[QueueRef, float] = {}
        """Until when."""
        self.present: dict[QueueRef, tuple[Depth, Seconds]] = {}
        """What was seen last in each watched queue."""
        self.said: OrderedDict[str, tuple[float, Mapping[str, Said]]] = OrderedDict()
        """Of each project that somebody looks at, until when it holds, and what is said of which queue."""
        self._looked = self._asked = -math.inf
        """When somebody looked last, and when the last sweep began."""
        self._took, self._recorded = 0.0, -1
        self._lock = threading.Lock()
        self._wake, self._stopping = threading.Event(), threading.Event()
        self._swept = threading.Condition()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Go on by itself."""
        self._thread = threading.Thread(target=self._run, name="zq-figures", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, before the store is closed."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def look(self, project: str) -> None:
        """Somebody looks at the queues of a project. Raises ``Unavailable`` while the store does not answer."""
        now = self._monotonic()
        awake, self._looked = now - self._looked < LOOKS, now
        with self._lock:
            until, _ = self.said.setdefault(project, (-1.0, {}))
            self.said.move_to_end(project)
        if self._thread is None:
            self._asked = -math.inf
            self.tick()
        elif not awake or until < 0:
            self._wake.set()
            self._await(now)
        if self.snapshot is NOTHING:
            raise Unavailable("The queues were not counted yet.")
        if self.failing:
            raise Unavailable("The store did not answer when the queues were to be counted.")

    def _await(self, now: float) -> None:
        """Give a sweep that is due a moment, so that who begins to look sees no old snapshot."""
        before = self._asked
        if self.snapshot is NOTHING or now >= before + AT_MOST * self._took:
            patience = TICK if self.snapshot is NOTHING else FRESH
            with self._swept:
                self._swept.wait_for(lambda: self._asked != before, patience)

    def watch(self, queue: QueueRef) -> None:
        """Somebody looks at this queue; nothing, if too many are watched."""
        now = self._monotonic()
        with self._lock:
            new = queue not in self.watched
            if new and len(self.watched) >= MOST_WATCHED:
                return
            self.watched[queue] = now + LOOKS
        if self._thread is None:
            self.tick()
        elif new:
            self._wake.set()
            with self._swept:
                self._swept.wait_for(lambda: queue in self.present, FRESH)

    def tick(self) -> None:
        """One round. Raises ``Unavailable``."""
        try:
            self._watch()
            if self._monotonic() >= self._due():
                self._sweep()
            self._find_metadata()
            self._exchange()
        except Unavailable:
            self.failing = True
            raise
        self.failing = False

    def _watch(self) -> None:
        now = self._monotonic()
        with self._lock:
            self.watched = {queue: until for queue, until in self.watched.items() if until > now}
            watched = list(self.watched)
        for queue in watched:
            moment = self.clock.now()
            depth = self._storage.depth(queue, moment, self.most())
            self.present[queue] = depth, moment
            self._series(queue, moment).watched(depth, moment)
        with self._swept:
            self.present = {queue: seen for queue, seen in self.present.items() if queue in self.watched}
            self._swept.notify_all()

    def _due(self) -> float:
        pace = TICK / 2 if self._monotonic() - self._looked < LOOKS else SWEEP - TICK / 2
        return self._asked + max(pace, AT_MOST * self._took)

    def _sweep(self) -> None:
        asked, now = self._monotonic(), self.clock.now()
        found = self._storage.depths(now, MOST_SWEPT, self.most())
        rows: dict[str, dict[str, Depth]] = {}
        for queue, depth in found:
            if not queue.name.startswith(HIDDEN):
                rows.setdefault(queue.project, {})[queue.name] = depth
        self.snapshot = Snapshot(rows, now, len(found) < MOST_SWEPT)
        if now - self._nearer.as_of >= GROWTH:
            first = self._nearer is NOTHING
            self.former, self._nearer = (self.snapshot if first else self._nearer), self.snapshot
        if int(now // FINE.step) != self._recorded:
            self._recorded = int(now // FINE.step)
            self._record(now)
        with self._swept:
            self._asked, self._took = asked, self._monotonic() - asked
            self._swept.notify_all()

    def _record(self, now: Seconds) -> None:
        """A point of each project, and of those queues that have points."""
        for project, queues in self.snapshot.rows.items():
            series = self.projects.setdefault(project, Series(now))
            series.saw(summed(queues.values()), now)
            self.projects.move_to_end(project)
        while len(self.projects) > MOST_KEPT:
            self.projects.popitem(last=False)
        for queue in self._chosen():
            self._series(queue, now).saw(self.snapshot.rows[queue.project][queue.name], now)

    def _chosen(self) -> set[QueueRef]:
        rows = [
            (QueueRef(project, name), depth)
            for project, its in self.snapshot.rows.items()
            for name, depth in its.items()
        ]
        if len(rows) <= MOST_KEPT:
            return {queue for queue, _ in rows}
        half = MOST_KEPT // 2
        deepest = heapq.nlargest(half, rows, key=lambda row: total(row[1]))
        waiting = [row for row in rows if row[1].oldest_ready is not None]
        oldest = heapq.nsmallest(half, waiting, key=lambda row: row[1].oldest_ready or 0.0)
        return {queue for queue, _ in (*deepest, *oldest)} | {
            queue for queue in self.watched if queue.name in self.snapshot.of(queue.project)
        }

    def _series(self, queue: QueueRef, now: Seconds) -> Series:
        """The points of a queue; those go that were not among the chosen for longest."""
        series = self.kept.get(queue)
        if series is None:
            self.kept[queue] = series = Series(now)
            for slot, rates in self.spans.items():
                if (each := rates.queues.get(queue)) is not None:
                    series.went(slot, each)
        self.kept.move_to_end(queue)
        while len(self.kept) > MOST_KEPT + MOST_WATCHED:
            self.kept.popitem(last=False)
        return series

    def _find_metadata(self) -> None:
        now = self._monotonic()
        if now - self._looked >= LOOKS:
            return
        with self._lock:
            while len(self.said) > MOST_PROJECTS:
                self.said.popitem(last=False)
            project, (until, _) = next(reversed(self.said.items()), ("", (now + 1, {})))
        if until <= now:
            found = self._metadata(project)
            took = self._monotonic() - now
            with self._lock:
                self.said[project] = now + max(METADATA_AGE, METADATA_AT_MOST * took), found

    def _metadata(self, project: str) -> dict[str, Said]:
        """Of the queues of the project, those of which something is said."""
        found: dict[str, Said] = {}
        after: str | None = ""
        while after is not None:
            page = self._storage.queues.list(project, after, PAGE)
            for queue in page.items:
                if MENTIONS.search(queue.metadata):
                    metadata = wire.json_object(queue.metadata)
                    found[queue.ref.name] = Said(metadata.get("_dead_letter_queue"), metadata.get("_paused"))
            after = page.next if page.items else None
        return found

    def _exchange(self) -> None:
        """Tell at the end of each span, and hear a few seconds later."""
        now = self.clock.now()
        slot = int(now // FINE.step)
        if slot > self._told:
            self._told = slot
            lag = next((one.value for one in self._storage.measures(now) if one.name == "sweep_lag_seconds"), None)
            state = State(self._counts.waiters, self._counts.open_streams, round(self.clock.drift(), 3), lag)
            self.exchange.publish(slot - 1, self._counts.drain(), state, now)
        if slot > self._heard and now % FINE.step >= TOLD:
            self.exchange.hear(now, self._went)
            self._heard = slot
            oldest = slot - COARSE.points * COARSE.step // FINE.step
            self.known = {known for known in self.known if known >= oldest}
            while len(self.spans) > FINE.points:
                del self.spans[min(self.spans)]

    def _went(self, slot: int, span: Span) -> None:
        """This went through a process. What a clock that is ahead tells of the future is not believed."""
        if slot >= self.clock.now() // FINE.step:
            return
        rates = self.spans.get(slot)
        if rates is None:
            self.spans[slot] = rates = Rates({}, {})
        for project, name, *counts in span.queues:
            each = [count / span.seconds for count in counts]
            _add(rates.queues, (project, name), each)
            if (series := self.kept.get(QueueRef(project, name))) is not None:
                series.went(slot, each)
            if (series := self.projects.get(project)) is not None:
                series.went(slot, each)
        for project, name, count in span.topics:
            _add(rates.topics, (project, name), [count / span.seconds])
        self.known.add(slot)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.tick()
            except (Unavailable, msgspec.MsgspecError) as absence:
                LOG.debug("Figures are not taken now: %s", absence)
            except Exception:  # the edge of this thread, which must outlive any one failure
                LOG.critical("Figures were not taken for a reason that nobody foresaw.", exc_info=True)
            self._wake.wait(TICK)
            self._wake.clear()


def _add(rates: dict[tuple[str, str], list[float]], name: tuple[str, str], more: list[float]) -> None:
    former = rates.get(name)
    rates[name] = more if former is None else [sum(pair) for pair in zip(former, more, strict=True)]


def total(depth: Depth) -> int:
    """All messages that have not expired."""
    return depth.ready + depth.delayed + depth.claimed


def summed(depths: Iterable[Depth]) -> Depth:
    """The messages of several queues, and the oldest of them."""
    found = list(depths)
    oldest = min((depth.oldest_ready for depth in found if depth.oldest_ready is not None), default=None)
    ready, delayed, claimed = (sum(getattr(depth, name) for depth in found) for name in ("ready", "delayed", "claimed"))
    return Depth(ready, delayed, claimed, 0, oldest)
