# SPDX-License-Identifier: Apache-2.0
"""Ranking of a project's queues by a metric, such as the depth, with stable pagination.

The process caches the order of rows for a minute. The marker contains the id of the cached order, so that pages neither
skip nor repeat a queue, even if metrics change.

The marker also contains the last row's metric and name. If the order is not cached, the next page starts after this row
in a new order, and may skip or repeat queues whose rank has changed. A ranking by name never skips
or repeats a queue.
"""

import base64
import binascii
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import asdict

from zq.errors import InvalidParameter
from zq.figures.counting import RATES
from zq.figures.sampler import MetadataSummary, Rates, Sampler, count_messages
from zq.figures.series import FINE
from zq.model import QueueRef, Seconds
from zq.model.stats import Depth
from zq.wire.figures import CurrentDepth, FiguresRow

# Maximum number of rows in each list of an overview.
MAX_LISTED: Final = 10
# Number of points in the sparkline of a row. Each point covers half a minute.
SPARKLINE_POINTS: Final = 20
# The sort key for an unknown metric, lower than all known metrics.
LOWEST: Final = -1e18
# Seconds for which an order is cached.
ORDER_TTL: Final = 60.0
# Maximum total number of rows in all cached orders. They take at most 50 MB.
MAX_CACHED_ROWS: Final = 500_000
# The descending order by name.
NAMES_DESC: Final = "-names"

# Sort key and name. In a descending order, the sort key is the negated metric.
_Row = tuple[float, str]
_Marker = tuple[str, int, float, str]
_decoder: Final[msgspec.json.Decoder[_Marker]] = msgspec.json.Decoder(_Marker)


class RankedPage(NamedTuple):
    """A page of queue or topic names. ``next`` is the marker of the next page; None = this page is the last one."""

    names: Sequence[str]
    next: str | None


class _Order(NamedTuple):
    rows: Sequence[_Row]
    project: str
    until: float


class Ranking:
    """Pages of names in the order of a metric, with a cache of the sorted names. Thread-safe."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._orders: OrderedDict[str, _Order] = OrderedDict()

    def page(
        self, project: str, figures: Callable[[], Mapping[str, float]], order: str, marker: str, limit: int
    ) -> RankedPage:
        """Return a page of names, sorted by metric and then by name.

        Args:
            figures: Returns the value of the metric for each name. Not called if the order of the names is cached.
            order: ``asc`` or ``desc`` to sort by metric, ``names`` or ``-names`` to sort by name.

        Raises ``InvalidParameter`` if the marker is malformed.
        """
        id, start, after, last = _decode_marker(marker) if marker else ("", 0, 0.0, "")
        known = self._orders.get(id)
        if known is None or known.project != project or known.until < self._monotonic():
            rows = _sort(figures(), order)
            if marker:
                rows = [row for row in rows if (row < (after, last) if order == NAMES_DESC else row > (after, last))]
            id, start, known = "", 0, _Order(rows, project, 0.0)
        page, end = known.rows[start : start + limit], start + limit
        names = [name for _, name in page]
        if end >= len(known.rows):
            return RankedPage(names, None)
        next_marker = msgspec.json.encode((id or self._cache_order(project, known.rows), end, *page[-1]))
        return RankedPage(names, base64.urlsafe_b64encode(next_marker).decode().rstrip("="))

    def _cache_order(self, project: str, rows: Sequence[_Row]) -> str:
        now, id = self._monotonic(), secrets.token_urlsafe(6)
        with self._lock:
            self._orders[id] = _Order(rows, project, now + ORDER_TTL)
            while self._orders:
                oldest = next(iter(self._orders))
                held = sum(len(order.rows) for order in self._orders.values())
                if self._orders[oldest].until >= now and (held <= MAX_CACHED_ROWS or len(self._orders) == 1):
                    break
                del self._orders[oldest]
        return id


def _sort(figures: Mapping[str, float], order: str) -> list[_Row]:
    if order.endswith("names"):
        return sorted(((0.0, name) for name in figures), reverse=order == NAMES_DESC)
    return sorted((-figure if order == "desc" else figure, name) for name, figure in figures.items())


def _decode_marker(marker: str) -> _Marker:
    try:
        return _decoder.decode(base64.urlsafe_b64decode(marker + "=" * (-len(marker) % 4)))
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise InvalidParameter("marker must be the marker in the link to the next page of the same listing.") from error


class ProjectRows:
    """The queues of one project in the latest snapshot.

    ``visible`` returns whether the caller may see the name of a dead-letter queue; None = the caller sees all names.
    """

    def __init__(self, sampler: Sampler, project: str, visible: Callable[[str], bool] | None) -> None:
        self._sampler, self._project, self._visible = sampler, project, visible
        self.rows, self.as_of = sampler.snapshot.of(project), sampler.snapshot.as_of
        self.complete = sampler.snapshot.complete
        self._rates = find_latest_rates(sampler)
        self._former = sampler.former.of(project)
        self._elapsed = self.as_of - sampler.former.as_of
        self._known = frozenset(sampler.known)
        self._summaries = sampler.summaries.get(project, (0.0, {}))[1]
        self.dead_letter_queues = frozenset(summary.dead_letter_queue for summary in self._summaries.values())

    def age(self, name: str) -> Seconds | None:
        """Return the age of the oldest ready message in seconds, or None if no message is ready."""
        return compute_ready_age(self.rows[name], self.as_of)

    def rate(self, name: str, direction: str) -> float | None:
        """Return the rate per second of posted ("in") or finished ("out") messages, or None if unknown."""
        if self._rates is None:
            return None
        return self._rates.queues.get((self._project, name), [0.0] * len(RATES))[0 if direction == "in" else 2]

    def sum(self, names: Iterable[str] | None, direction: str) -> float | None:
        """Return the sum of the queues' rates. The argument ``direction`` is "in" or "out", as in ``rate``.

        If ``names`` is None, return the sum of all queues of the project.
        """
        if self._rates is None:
            return None
        if names is None:
            names = [name for project, name in self._rates.queues if project == self._project]
        return round(sum(self.rate(name, direction) or 0.0 for name in names), 3)

    def growth(self, name: str) -> float | None:
        """Return the increase of the queue's depth in messages per second, or None if it is unknown.

        The value is an average over the last one to two minutes.
        """
        before = self._former.get(name)
        return (
            None
            if before is None or self._elapsed <= 0
            else (count_messages(self.rows[name]) - count_messages(before)) / self._elapsed
        )

    def keys(self, names: Iterable[str], sort: str) -> dict[str, float]:
        """Return each queue's sort key: its value of the metric ``sort``, or ``LOWEST`` if the value is unknown."""
        of: Mapping[str, Callable[[str], float | None]] = {
            "oldest": self.age,
            "growth": self.growth,
            "in": lambda name: self.rate(name, "in"),
            "out": lambda name: self.rate(name, "out"),
        }
        figure = of.get(sort) or (lambda name: getattr(self.rows[name], sort, 0))
        return {name: LOWEST if (value := figure(name)) is None else float(value) for name in names}

    def row(self, name: str) -> FiguresRow:
        """Return the queue's row in a ranking: depth, rates, growth and dead-letter queue."""
        dead_letter_queue, paused = self._summaries.get(name, MetadataSummary())
        return FiguresRow(
            **asdict(current_depth(self.rows[name], self.as_of, self._sampler.max_counted())),
            name=name,
            in_=_round(self.rate(name, "in")),
            out=_round(self.rate(name, "out")),
            growth=_round(self.growth(name)),
            dead_letter_queue=dead_letter_queue,
            dead=self._dead(dead_letter_queue),
            paused=paused,
            recent=self._recent(name),
        )

    def _dead(self, dead_letter_queue: str | None) -> int | None:
        if dead_letter_queue is None or (self._visible and not self._visible(dead_letter_queue)):
            return None
        return count_messages(self.rows.get(dead_letter_queue, Depth()))

    def lists(self, names: Sequence[str], living: Sequence[str]) -> dict[str, list[FiguresRow]]:
        """Return the overview's lists of top queues, as a mapping from list name to rows.

        ``names`` are the queues that the caller may see. ``living`` contains the same queues except dead-letter queues.
        """
        rows = self.rows
        growing = [name for name in living if (self.growth(name) or 0.0) > 0]
        return {
            "oldest": self._first(
                (name for name in living if rows[name].oldest_ready is not None), lambda n: -(self.age(n) or 0)
            ),
            "deepest": self._first(
                (name for name in living if count_messages(rows[name])), lambda n: -count_messages(rows[n])
            ),
            "growing": self._first(growing, lambda n: -(self.growth(n) or 0.0)),
            "dead_letters": self._first(
                (name for name in names if name in self.dead_letter_queues and count_messages(rows[name])),
                lambda n: -count_messages(rows[n]),
            ),
        }

    def _first(self, names: Iterable[str], key: Callable[[str], float]) -> list[FiguresRow]:
        return [self.row(name) for name in sorted(names, key=lambda name: (key(name), name))[:MAX_LISTED]]

    def _recent(self, name: str) -> list[float | None] | None:
        series = self._sampler.series.get(QueueRef(self._project, name))
        if series is None:
            return None
        points = series.depths(FINE, self.as_of).ready
        each = len(points) // SPARKLINE_POINTS
        parts = (points[start : start + each] for start in range(0, len(points), each))
        return [next((value for value in reversed(part) if value is not None), None) for part in parts]


def find_latest_rates(sampler: Sampler) -> Rates | None:
    """Return the latest known rates, or None if the rates of the last four intervals are unknown."""
    spans = dict(sampler.spans)
    now = int(sampler.clock.now() // FINE.step)
    latest = max((slot for slot in spans if now - 4 <= slot < now), default=None)
    return None if latest is None else spans[latest]


def current_depth(depth: Depth, now: Seconds, max_counted: int) -> CurrentDepth:
    return CurrentDepth(
        ready=depth.ready,
        delayed=depth.delayed,
        claimed=depth.claimed,
        oldest_ready=compute_ready_age(depth, now),
        at_least=max(depth.ready, depth.delayed, depth.claimed) >= max_counted,
    )


def compute_ready_age(depth: Depth, now: Seconds) -> Seconds | None:
    return None if depth.oldest_ready is None else round(max(0.0, now - depth.oldest_ready), 3)


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
