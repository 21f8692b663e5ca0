# SPDX-License-Identifier: Apache-2.0
"""What is answered of the figures: pages of queues, the points of one queue or of a project, the servers."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import asdict

from zq.clock import Clock
from zq.core.queues import Queues
from zq.core.quotas import Quotas
from zq.core.topics import Topics
from zq.figures.counting import Counts
from zq.figures.exchange import About, Server
from zq.figures.ranking import BACKWARDS, MOST_LISTED, ProjectRows, Ranking, latest_rates, shown
from zq.figures.sampler import NOTHING, Sampler, Snapshot, summed
from zq.figures.series import CLOSE, FINE, WINDOWS, Series, Window
from zq.model import QueueRef, Seconds
from zq.model.stats import Depth
from zq.storage.api import Storage

# What queues can be sorted by, and topics.
SORTS: Final = ("oldest", "ready", "delayed", "claimed", "in", "out", "growth", "name")
TOPIC_SORTS: Final = ("in", "name")
# A quota of which this part is used is near its end.
NEAR: Final = 0.8
# Answers that are remembered of one snapshot.
MOST_COMMON: Final = 100
# Seconds after which a server that told nothing is not counted any more.
SILENT: Final = 30.0

Visible = Callable[[str], bool] | None
Json = dict[str, Any]


class Asked(Struct, frozen=True):
    """Which names, in which order, and which page of them."""

    sort: str
    order: str
    """``asc`` or ``desc``."""
    part: str = ""
    marker: str = ""
    limit: int = 10
    visible: Visible = None

    @property
    def ranking(self) -> str:
        """The order as ``Ranking`` has it."""
        if self.sort != "name":
            return self.order
        return "names" if self.order == "asc" else BACKWARDS

    def shows(self, name: str) -> bool:
        """Whether the name is among those asked for."""
        return self.part in name and (self.visible is None or self.visible(name))


class Figures:
    """The figures as this process has them. Each method may raise ``Unavailable``: the store does not answer now."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        queues: Queues,
        topics: Topics,
        quotas: Quotas | None,
        counts: Counts,
        about: About = About(),  # noqa: B008
    ) -> None:
        """``quotas``: None if the server authenticates no caller."""
        self._topics = topics
        self._quotas = quotas
        self._clock = clock
        self.sampler = Sampler(storage, clock, counts, about, lambda: queues.max_counted)
        self._ranking = Ranking()
        self._common: tuple[Snapshot, dict[object, Json]] = NOTHING, {}
        """What was answered of a snapshot to those who may see all: many viewers ask the same."""

    def queues(self, project: str, asked: Asked) -> Json:
        """A page of the project's queues; ``next``: the marker of the next one. Raises ``InvalidParameter``."""
        self.sampler.look(project)
        if asked.visible is not None or asked.marker:
            return self._page(project, asked)
        return self._once((project, asked), lambda: self._page(project, asked))

    def _page(self, project: str, asked: Asked) -> Json:
        view = ProjectRows(self.sampler, project, asked.visible)
        listed = [name for name in view.rows if asked.shows(name)]
        page = self._ranking.page(
            project, lambda: view.keys(listed, asked.sort), asked.ranking, asked.marker, asked.limit
        )
        rows = [view.row(name) for name in page.names if name in view.rows and asked.shows(name)]
        return view.about() | {"total": len(listed), "queues": rows, "next": page.next}

    def topics(self, project: str, asked: Asked) -> Json:
        """The same of topics, of which it is known what was published in a second."""
        self.sampler.look(project)
        rates, now = latest_rates(self.sampler), self._clock.now()
        names = list(self._topic_names(project, asked))
        known = {name: rates.topics.get((project, name), [0.0])[0] if rates else 0.0 for name in names}
        page = self._ranking.page(project, lambda: known, asked.ranking, asked.marker, asked.limit)
        rows = [{"name": name, "in": round(known[name], 3) if rates else None} for name in page.names if name in known]
        return {"as_of": now, "complete": True, "total": len(names), "topics": rows, "next": page.next}

    def queue(self, queue: QueueRef, seconds: int) -> Json:
        """The points of a queue within so many seconds, a key of ``WINDOWS``."""
        sampler, window = self.sampler, WINDOWS[seconds]
        sampler.look(queue.project)
        sampler.watch(queue)
        now = self._clock.now()
        swept = sampler.snapshot.of(queue.project).get(queue.name, Depth()), sampler.snapshot.as_of
        depth, as_of = sampler.present.get(queue, swept)
        return self._points(sampler.kept.get(queue), window, now) | {"as_of": as_of, "now": self._state(depth, as_of)}

    def project(self, project: str, seconds: int, visible: Visible) -> Json:
        """The project's points, which are None for one who may not see all of its queues, and what matters of it."""
        sampler, window = self.sampler, WINDOWS[seconds]
        sampler.look(project)
        now = self._clock.now()
        points = self._points(sampler.projects.get(project), window if window is not CLOSE else FINE, now)
        if visible is not None:
            return points | dict.fromkeys(("depth", "rates")) | self._matters(project, visible)
        return points | self._once(project, lambda: self._matters(project, None))

    def _matters(self, project: str, visible: Visible) -> Json:
        """The sums of what is seen of the project, and the lists."""
        view = ProjectRows(self.sampler, project, visible)
        names = [name for name in view.rows if visible is None or visible(name)]
        living = [name for name in names if name not in view.receivers]
        state = self._state(summed(view.rows[name] for name in names), view.as_of) | {
            "oldest_ready": max((age for name in living if (age := view.age(name)) is not None), default=None),
            **{way: view.sum(names if visible else None, way) for way in ("in", "out")},
        }
        lags = [one.sweep_lag for one in self.sampler.exchange.servers if one.sweep_lag is not None]
        return view.about() | {
            "total": len(names),
            "now": state,
            "lists": view.lists(names, living) | {"quotas": self._near_quotas(project)},
            "clock_offset": round(self._clock.drift(), 3),
            "sweep_lag": max(lags, default=None),
        }

    def _once(self, key: object, make: Callable[[], Json]) -> Json:
        """What was made under the key of this snapshot."""
        snapshot, made = self._common
        if snapshot is not self.sampler.snapshot or len(made) >= MOST_COMMON:
            self._common = _, made = self.sampler.snapshot, {}
        found = made.get(key)
        if found is None:
            made[key] = found = make()
        return dict(found)

    def servers(self) -> Sequence[Server]:
        """What each process of the deployment has said of itself within a minute."""
        self.sampler.look("")
        return self.sampler.exchange.servers

    def _points(self, series: Series | None, window: Window, now: Seconds) -> Json:
        found = series or Series(now)
        servers = {one.server for one in self.sampler.exchange.servers if one.as_of > now - SILENT}
        return {
            "step": window.step,
            "since": (int(now // window.step) - window.points + 1) * window.step,
            "servers": len(servers),
            "depth": found.depths(window, now),
            "rates": found.rates(window, now, frozenset(self.sampler.known)),
        }

    def _state(self, depth: Depth, now: Seconds) -> Json:
        return shown(depth, now, self.sampler.most())

    def _topic_names(self, project: str, asked: Asked) -> Iterable[str]:
        after: str | None = ""
        while after is not None:
            page = self._topics.stored(project, after)
            yield from (topic.ref.name for topic in page.items if asked.shows(topic.ref.name))
            after = page.next if page.items else None

    def _near_quotas(self, project: str) -> list[Json]:
        """Return the quotas of which the project has used most, the largest share first."""
        quotas = self._quotas
        if quotas is None:
            return []
        bounds, used = asdict(quotas.of(project).quota), dict(quotas.used(project))
        if (stored := quotas.stored(project)) is not None:
            used |= {"stored_messages": stored.messages, "stored_bytes": stored.bytes}
        near = [
            {"name": name, "used": count, "limit": bounds[name]} for name, count in used.items() if bounds.get(name)
        ]
        near = [one for one in near if one["used"] >= NEAR * one["limit"]]
        return sorted(near, key=lambda one: -one["used"] / one["limit"])[:MOST_LISTED]
