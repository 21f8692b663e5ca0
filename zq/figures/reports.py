# SPDX-License-Identifier: Apache-2.0
"""Reports for the HTTP resources: rankings of queues and topics, time series, project overviews, and servers."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import asdict

from zq.clock import Clock
from zq.core.queues import Queues
from zq.core.quotas import Quotas
from zq.core.topics import Topics
from zq.figures.counting import Counts
from zq.figures.exchange import ProcessInfo
from zq.figures.ranking import MAX_LISTED, NAMES_DESC, ProjectRows, Ranking, current_depth, find_latest_rates
from zq.figures.sampler import NO_SNAPSHOT, Sampler, Snapshot, sum_depths
from zq.figures.series import CLOSE, FINE, WINDOWS, Series, Window
from zq.model import QueueRef, Seconds
from zq.model.stats import Depth
from zq.storage.api import Storage
from zq.wire.encoding import timestamp
from zq.wire.figures import CurrentTotals, FiguresRow, Overview, Points, QuotaUse, Server, TopicRow, TopQueues

# The sort keys of queues and of topics.
SORTS: Final = ("oldest", "ready", "delayed", "claimed", "in", "out", "growth", "name")
TOPIC_SORTS: Final = ("in", "name")
# The used fraction at which a quota is listed as nearly exhausted.
QUOTA_WARNING_SHARE: Final = 0.8
# Maximum number of cached reports per snapshot.
MAX_CACHED_REPORTS: Final = 100
# Age in seconds of a status report from which its server is not counted.
SERVER_TIMEOUT: Final = 30.0

Visible = Callable[[str], bool] | None
Members = dict[str, Any]
"""Members of a response."""
T = TypeVar("T")
Row = TypeVar("Row", FiguresRow, TopicRow)


class RankingPage(NamedTuple, Generic[Row]):
    """A page of a ranking. ``complete`` is true if all queues of the store were counted."""

    as_of: Seconds
    complete: bool
    total: int
    rows: list[Row]
    next: str | None


class RankingQuery(Struct, frozen=True):
    """The parameters of a ranking: filter, sort key, order and page."""

    sort: str
    order: str
    """``asc`` or ``desc``."""
    name_filter: str = ""
    marker: str = ""
    limit: int = 10
    visible: Visible = None

    @property
    def ranking(self) -> str:
        """The sort order for ``Ranking.page``: "asc" or "desc" by metric, "names" or "-names" by name."""
        if self.sort != "name":
            return self.order
        return "names" if self.order == "asc" else NAMES_DESC

    def shows(self, name: str) -> bool:
        """Return whether the name matches the filter and the caller may see the queue or topic."""
        return self.name_filter in name and (self.visible is None or self.visible(name))


class Figures:
    """Builder of reports on queues, topics, projects and servers."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        queues: Queues,
        topics: Topics,
        quotas: Quotas | None,
        counts: Counts,
        about: ProcessInfo = ProcessInfo(),  # noqa: B008
    ) -> None:
        """Create the report builder. ``quotas`` is None if authentication is off."""
        self._topics = topics
        self._quotas = quotas
        self._clock = clock
        self.sampler = Sampler(storage, clock, counts, about, lambda: queues.max_counted)
        self._ranking = Ranking()
        self._reports: tuple[Snapshot, dict[object, Any]] = NO_SNAPSHOT, {}
        """A snapshot, and cached reports of this snapshot for callers that may see all queues."""

    def queues(self, project: str, query: RankingQuery) -> RankingPage[FiguresRow]:
        """Return a page of the project's queues. Raises ``InvalidParameter`` for a malformed marker."""
        self.sampler.register_viewer(project)
        if query.visible is not None or query.marker:
            return self._page(project, query)
        return self._cached((project, query), lambda: self._page(project, query))

    def _page(self, project: str, query: RankingQuery) -> RankingPage[FiguresRow]:
        view = ProjectRows(self.sampler, project, query.visible)
        listed = [name for name in view.rows if query.shows(name)]
        page = self._ranking.page(
            project, lambda: view.keys(listed, query.sort), query.ranking, query.marker, query.limit
        )
        rows = [view.row(name) for name in page.names if name in view.rows and query.shows(name)]
        return RankingPage(view.as_of, view.complete, len(listed), rows, page.next)

    def topics(self, project: str, query: RankingQuery) -> RankingPage[TopicRow]:
        """Return a page of the project's topics with their publish rates.

        Raises ``InvalidParameter`` for a malformed marker.
        """
        self.sampler.register_viewer(project)
        rates, now = find_latest_rates(self.sampler), self._clock.now()
        names = list(self._topic_names(project, query))
        known = {name: rates.topics.get((project, name), [0.0])[0] if rates else 0.0 for name in names}
        page = self._ranking.page(project, lambda: known, query.ranking, query.marker, query.limit)
        rows = [TopicRow(name, round(known[name], 3) if rates else None) for name in page.names if name in known]
        return RankingPage(now, True, len(names), rows, page.next)

    def queue(self, queue: QueueRef, seconds: int) -> Points[str]:
        """Return the time series of a queue. ``seconds`` is the length of the series, a key of ``WINDOWS``."""
        sampler, window = self.sampler, WINDOWS[seconds]
        sampler.register_viewer(queue.project)
        sampler.watch(queue)
        now = self._clock.now()
        swept = sampler.snapshot.of(queue.project).get(queue.name, Depth()), sampler.snapshot.as_of
        depth, as_of = sampler.samples.get(queue, swept)
        points = self._points(sampler.series.get(queue), window, now)
        return Points(**points, as_of=timestamp(as_of), now=current_depth(depth, as_of, sampler.max_counted()))

    def project(self, project: str, seconds: int, visible: Visible) -> Overview[str]:
        """Return the overview of a project: current counts, top queues and time series.

        If ``visible`` is set, the caller may not see all queues, and the overview has no time series.
        """
        sampler, window = self.sampler, WINDOWS[seconds]
        sampler.register_viewer(project)
        now = self._clock.now()
        points = self._points(sampler.projects.get(project), window if window is not CLOSE else FINE, now)
        if visible is not None:
            return Overview(**points | {"depth": None, "rates": None}, **self._overview(project, visible))
        return Overview(**points, **self._cached(project, lambda: self._overview(project, None)))

    def _overview(self, project: str, visible: Visible) -> Members:
        view = ProjectRows(self.sampler, project, visible)
        names = [name for name in view.rows if visible is None or visible(name)]
        living = [name for name in names if name not in view.dead_letter_queues]
        depth = current_depth(sum_depths(view.rows[name] for name in names), view.as_of, self.sampler.max_counted())
        oldest = max((age for name in living if (age := view.age(name)) is not None), default=None)
        incoming, outgoing = (view.sum(names if visible else None, direction) for direction in ("in", "out"))
        lags = [one.sweep_lag for one in self.sampler.exchange.servers if one.sweep_lag is not None]
        return {
            "as_of": timestamp(view.as_of),
            "complete": view.complete,
            "total": len(names),
            "now": CurrentTotals(**asdict(depth) | {"oldest_ready": oldest}, in_=incoming, out=outgoing),
            "lists": TopQueues(**view.lists(names, living), quotas=self._near_quotas(project)),
            "clock_offset": round(self._clock.drift(), 3),
            "sweep_lag": max(lags, default=None),
        }

    def _cached(self, key: object, make: Callable[[], T]) -> T:
        snapshot, made = self._reports
        if snapshot is not self.sampler.snapshot or len(made) >= MAX_CACHED_REPORTS:
            self._reports = _, made = self.sampler.snapshot, {}
        found: T | None = made.get(key)
        if found is None:
            made[key] = found = make()
        return found

    def servers(self) -> Sequence[Server[Seconds]]:
        """Return the latest status report of each process of the deployment, at most one minute old."""
        self.sampler.register_viewer("")
        return self.sampler.exchange.servers

    def _points(self, series: Series | None, window: Window, now: Seconds) -> Members:
        found = series or Series(now)
        servers = {one.server for one in self.sampler.exchange.servers if one.as_of > now - SERVER_TIMEOUT}
        return {
            "step": window.step,
            "since": timestamp((int(now // window.step) - window.points + 1) * window.step),
            "servers": len(servers),
            "depth": found.depths(window, now),
            "rates": found.rates(window, now, frozenset(self.sampler.known), self.sampler.known_counts),
        }

    def _topic_names(self, project: str, query: RankingQuery) -> Iterable[str]:
        after: str | None = ""
        while after is not None:
            page = self._topics.stored(project, after)
            yield from (topic.ref.name for topic in page.items if query.shows(topic.ref.name))
            after = page.next if page.items else None

    def _near_quotas(self, project: str) -> list[QuotaUse]:
        if self._quotas is None:
            return []
        uses = [QuotaUse(name, *use) for name, use in self._quotas.uses(project).items()]
        near = [use for use in uses if use.used >= QUOTA_WARNING_SHARE * use.limit]
        return sorted(near, key=lambda use: -use.used / use.limit)[:MAX_LISTED]
