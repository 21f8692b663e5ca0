# SPDX-License-Identifier: Apache-2.0
"""HTTP resources ``/v2/figures…`` and ``/v2/servers`` (decision 0108)."""

from collections.abc import Sequence
from typing import Any, Final

import falcon
from msgspec.structs import asdict

from zq import wire
from zq.errors import InvalidParameter, NotBuilt
from zq.figures import Figures
from zq.figures.reports import SORTS, TOPIC_SORTS, RankingQuery
from zq.figures.series import WINDOWS
from zq.http import query
from zq.http.context import Request
from zq.http.tenant import Audience
from zq.model import Seconds, limits
from zq.model.allowance import Allowance
from zq.model.scopes import Kind, Verb
from zq.wire import encoding
from zq.wire.figures import FiguresPage, Server, Servers

# Maximum number of rows in a page.
MAX_PAGE: Final = 100
FIGURES_DISABLED: Final = "This server collects no figures, because [console] enabled is false."


class _Reports:
    def __init__(self, figures: Figures | None) -> None:
        self._optional_figures = figures

    @property
    def _figures(self) -> Figures:
        if self._optional_figures is None:
            raise NotBuilt(FIGURES_DISABLED)
        return self._optional_figures


class QueueFigures(_Reports):
    """``/v2/figures/queues``: a page of the project's queues (or topics, if requested) with their metrics."""

    policy = {"GET": "queues:get_all"}

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        kind = _choice(req, "kind", ("queues", "topics"))
        allowance: Allowance = req.context.allowance
        if kind == "topics" and not allowance.permits("topics:get_all"):
            raise allowance.refusal("topics:get_all")
        ranking = _ranking_query(req, TOPIC_SORTS if kind == "topics" else SORTS, allowance)
        report = self._figures.topics if kind == "topics" else self._figures.queues
        found = report(req.context.project, ranking)
        given = {"sort": ranking.sort, "order": ranking.order, "name": ranking.name_filter, "limit": ranking.limit}
        links = encoding.next_links("/v2/figures/queues", query.next_page_query(found.next, kind=kind, **given))
        rows: dict[str, Any] = {kind: found.rows}
        as_of = encoding.timestamp(found.as_of)
        resp.data = wire.encode(
            FiguresPage(as_of=as_of, complete=found.complete, total=found.total, links=links, **rows)
        )


class QueuePoints(_Reports):
    """``/v2/queues/{queue}/figures``: the time series of one queue."""

    policy = {"GET": "queues:stats"}

    def on_get(self, req: Request, resp: falcon.Response, **_path: str) -> None:
        resp.data = wire.encode(self._figures.queue(req.context.queue, _window(req)))


class ProjectFigures(_Reports):
    """``/v2/figures``: the time series and the overview of the project."""

    policy = {"GET": "queues:get_all"}

    def on_get(self, req: Request, resp: falcon.Response) -> None:
        visible = req.context.allowance.visible(Verb.OBSERVE, Kind.QUEUE)
        resp.data = wire.encode(self._figures.project(req.context.project, _window(req), visible))


class ServerCollection(_Reports):
    """``/v2/servers``: the latest status report of each server process."""

    audience = Audience.OPERATOR
    policy = {"GET": "admin:server"}

    def on_get(self, _req: Request, resp: falcon.Response) -> None:
        resp.data = wire.encode(Servers([_format_times(server) for server in self._figures.servers()]))


def _ranking_query(req: Request, sorts: Sequence[str], allowance: Allowance) -> RankingQuery:
    sort = _choice(req, "sort", sorts)
    order = _choice(req, "order", ("asc", "desc") if sort == "name" else ("desc", "asc"))
    given = query.integer(req, "limit")
    limit = limits.DEFAULT_PAGE if given is None else limits.check_range("limit", given, 1, MAX_PAGE)
    kind = Kind.TOPIC if sorts is TOPIC_SORTS else Kind.QUEUE
    visible = allowance.visible(Verb.OBSERVE, kind)
    return RankingQuery(sort, order, query.text(req, "name"), query.text(req, "marker"), limit, visible)


def _choice(req: Request, name: str, words: Sequence[str]) -> str:
    given = query.text(req, name) or words[0]
    if given not in words:
        raise InvalidParameter(f"{name} must be one of {', '.join(words)}.")
    return given


def _window(req: Request) -> int:
    given = query.integer(req, "window") or 600
    if given not in WINDOWS:
        raise InvalidParameter(f"window must be one of {', '.join(map(str, WINDOWS))}.")
    return given


def _format_times(server: Server[Seconds]) -> Server[str]:
    members = asdict(server)
    return Server(**members | {name: encoding.timestamp(members[name]) for name in ("since", "as_of")})
