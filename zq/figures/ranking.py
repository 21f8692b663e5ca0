# SPDX-License-Identifier: Apache-2.0
"""The queues of a project as rows, and their order by a figure, page by page, each of them once.

An order that has more than one page is remembered for a minute under an id, which the marker carries, and a page is the
next of its names: however their figures change meanwhile, none comes twice or never. The marker carries the figure and
the name of the last row as well. A process that does not know the id, as another worker of the server, or after that
minute, goes on behind that row in the order of its own snapshot: of those that have changed places meanwhile one may
come twice or not at all, and in the order of names none does.
"""

import base64
import binascii
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from zq.errors import InvalidParameter
from zq.figures.counting import RATES
from zq.figures.sampler import Rates, Said, Sampler, total
from zq.figures.series import FINE
from zq.model import QueueRef, Seconds
from zq.model.stats import Depth

Json = dict[str, Any]

# Rows of each list of an overview.
MOST_LISTED: Final = 10
# Points of a row's own small chart: half a minute each.
RECENT: Final = 20
# What is less than every figure.
LEAST: Final = -1e18
# Seconds for which an order is remembered.
REMEMBERED: Final = 60.0
# Rows in all orders that are remembered together: 50 MB at the most.
MOST_ROWS: Final = 500_000
# The order of names from the last to the first.
BACKWARDS: Final = "-names"

# A figure, negative where the highest comes first, and a name.
_Row = tuple[float, str]
_Marker = tuple[str, int, float, str]
_decoder: Final[msgspec.json.Decoder[_Marker]] = msgspec.json.Decoder(_Marker)


class Ranked(NamedTuple):
    """A page of names; ``next``: the marker of the one after it."""

    names: Sequence[str]
    next: str | None


class _Order(NamedTuple):
    rows: Sequence[_Row]
    project: str
    until: float


class Ranking:
    """The orders of one process. Any thread may ask."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._orders: OrderedDict[str, _Order] = OrderedDict()

    def page(
        self, project: str, figures: Callable[[], Mapping[str, float]], order: str, marker: str, limit: int
    ) -> Ranked:
        """Names by their figures; equal ones by their names. ``order``: ``desc`` has the highest first, ``names`` goes
        by names alone, and ``-names`` backwards. Raises ``InvalidParameter``."""
        id, start, after, last = _read(marker) if marker else ("", 0, 0.0, "")
        known = self._orders.get(id)
        if known is None or known.project != project or known.until < self._monotonic():
            rows = _sorted(figures(), order)
            if marker:
                rows = [row for row in rows if (row < (after, last) if order == BACKWARDS else row > (after, last))]
            id, start, known = "", 0, _Order(rows, project, 0.0)
        page, end = known.rows[start : start + limit], start + limit
        names = [name for _, name in page]
        if end >= len(known.rows):
            return Ranked(names, None)
        told = msgspec.json.encode((id or self._remember(project, known.rows), end, *page[-1]))
        return Ranked(names, base64.urlsafe_b64encode(told).decode().rstrip("="))

    def _remember(self, project: str, rows: Sequence[_Row]) -> str:
        now, id = self._monotonic(), secrets.token_urlsafe(6)
        with self._lock:
            self._orders[id] = _Order(rows, project, now + REMEMBERED)
            while self._orders:
                oldest = next(iter(self._orders))
                held = sum(len(order.rows) for order in self._orders.values())
                if self._orders[oldest].until >= now and (held <= MOST_ROWS or len(self._orders) == 1):
                    break
                del self._orders[oldest]
        return id


def _sorted(figures: Mapping[str, float], order: str) -> list[_Row]:
    if order.endswith("names"):
        return sorted(((0.0, name) for name in figures), reverse=order == BACKWARDS)
    return sorted((-figure if order == "desc" else figure, name) for name, figure in figures.items())


def _read(marker: str) -> _Marker:
    try:
        return _decoder.decode(base64.urlsafe_b64decode(marker + "=" * (-len(marker) % 4)))
    except (msgspec.MsgspecError, binascii.Error, ValueError) as error:
        raise InvalidParameter("marker must be one that a listing of figures has given.") from error


class ProjectRows:
    """One project's queues in the last snapshot. ``visible``: None = all; of others no row tells anything."""

    def __init__(self, sampler: Sampler, project: str, visible: Callable[[str], bool] | None) -> None:
        self._sampler, self._project, self._visible = sampler, project, visible
        self.rows, self.as_of = sampler.snapshot.of(project), sampler.snapshot.as_of
        self._rates = latest_rates(sampler)
        self._former = sampler.former.of(project)
        self._passed = self.as_of - sampler.former.as_of
        self._known = frozenset(sampler.known)
        self._said = sampler.said.get(project, (0.0, {}))[1]
        self.receivers = frozenset(said.dead_letter_queue for said in self._said.values())
        """Queues for the dead letters of others."""

    def about(self) -> Json:
        return {"as_of": self.as_of, "complete": self._sampler.snapshot.complete}

    def age(self, name: str) -> Seconds | None:
        """For how many seconds the first ready message waits."""
        return age_of(self.rows[name], self.as_of)

    def rate(self, name: str, way: str) -> float | None:
        """Messages in a second: posted, or finished."""
        if self._rates is None:
            return None
        return self._rates.queues.get((self._project, name), [0.0] * len(RATES))[0 if way == "in" else 2]

    def sum(self, names: Iterable[str] | None, way: str) -> float | None:
        """The rates of these queues together; None: of all of the project, those without figures of their own too."""
        if self._rates is None:
            return None
        if names is None:
            names = [name for project, name in self._rates.queues if project == self._project]
        return round(sum(self.rate(name, way) or 0.0 for name in names), 3)

    def growth(self, name: str) -> float | None:
        """Messages more in a second, over the last minute or two; None where nobody looked, or it was not there."""
        before = self._former.get(name)
        return None if before is None or self._passed <= 0 else (total(self.rows[name]) - total(before)) / self._passed

    def keys(self, names: Iterable[str], sort: str) -> dict[str, float]:
        """By what these are sorted; what is not known is the least."""
        of: Mapping[str, Callable[[str], float | None]] = {
            "oldest": self.age,
            "growth": self.growth,
            "in": lambda name: self.rate(name, "in"),
            "out": lambda name: self.rate(name, "out"),
        }
        figure = of.get(sort) or (lambda name: getattr(self.rows[name], sort, 0))
        return {name: LEAST if (value := figure(name)) is None else float(value) for name in names}

    def row(self, name: str) -> Json:
        """What a list shows of a queue."""
        letters, paused = self._said.get(name, Said())
        rates = {way: _rounded(self.rate(name, way)) for way in ("in", "out")}
        return {
            "name": name,
            **shown(self.rows[name], self.as_of, self._sampler.most()),
            **rates,
            "growth": _rounded(self.growth(name)),
            "dead_letter_queue": letters,
            "dead": self._dead(letters),
            "paused": paused,
            "recent": self._recent(name),
        }

    def _dead(self, letters: str | None) -> int | None:
        if letters is None or (self._visible and not self._visible(letters)):
            return None
        return total(self.rows.get(letters, Depth()))

    def lists(self, names: Sequence[str], living: Sequence[str]) -> Json:
        """The first of several orders."""
        rows = self.rows
        growing = [name for name in living if (self.growth(name) or 0.0) > 0]
        return {
            "oldest": self._first(
                (name for name in living if rows[name].oldest_ready is not None), lambda n: -(self.age(n) or 0)
            ),
            "deepest": self._first((name for name in living if total(rows[name])), lambda n: -total(rows[n])),
            "growing": self._first(growing, lambda n: -(self.growth(n) or 0.0)),
            "dead_letters": self._first(
                (name for name in names if name in self.receivers and total(rows[name])), lambda n: -total(rows[n])
            ),
        }

    def _first(self, names: Iterable[str], key: Callable[[str], float]) -> list[Json]:
        return [self.row(name) for name in sorted(names, key=lambda name: (key(name), name))[:MOST_LISTED]]

    def _recent(self, name: str) -> list[float | None] | None:
        series = self._sampler.kept.get(QueueRef(self._project, name))
        if series is None:
            return None
        points = series.depths(FINE, self.as_of)["ready"]
        each = len(points) // RECENT
        parts = (points[start : start + each] for start in range(0, len(points), each))
        return [next((value for value in reversed(part) if value is not None), None) for part in parts]


def latest_rates(sampler: Sampler) -> Rates | None:
    """What went through in the last span that is known, if that is not long ago."""
    spans = dict(sampler.spans)
    now = int(sampler.clock.now() // FINE.step)
    latest = max((slot for slot in spans if now - 4 <= slot < now), default=None)
    return None if latest is None else spans[latest]


def shown(depth: Depth, now: Seconds, most: int) -> Json:
    return {
        "ready": depth.ready,
        "delayed": depth.delayed,
        "claimed": depth.claimed,
        "oldest_ready": age_of(depth, now),
        "at_least": max(depth.ready, depth.delayed, depth.claimed) >= most,
    }


def age_of(depth: Depth, now: Seconds) -> Seconds | None:
    return None if depth.oldest_ready is None else round(max(0.0, now - depth.oldest_ready), 3)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
