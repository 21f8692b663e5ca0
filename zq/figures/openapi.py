# SPDX-License-Identifier: Apache-2.0
"""OpenAPI operations and schemas of ``/v2/figures…`` and ``/v2/servers``."""

from typing import Final

from zq.figures.reports import SORTS, TOPIC_SORTS
from zq.figures.resources import MAX_PAGE
from zq.figures.series import WINDOWS
from zq.http.openapi.operations import QUEUE, TEXT, Json, answer, integer, operation, query
from zq.http.openapi.structs import answer_schemas
from zq.model.limits import DEFAULT_PAGE
from zq.wire.answers import DateTime
from zq.wire.figures import FiguresPage, Overview, Points, Servers

# The path that requires neither a client id nor a project.
SERVERS: Final = "/v2/servers"


def figures() -> Json:
    """Return the OpenAPI path items of the statistics routes, as a mapping from path to operations."""
    window = query("window", {"enum": list(WINDOWS), "default": 600}, "Period that the points cover, in seconds.")
    sorts = sorted({*SORTS, *TOPIC_SORTS})
    paging = [
        query("kind", {"enum": ["queues", "topics"], "default": "queues"}, "Whether to list queues or topics."),
        query(
            "sort",
            {"enum": sorts},
            "Sort key. Topics support only in and name. Default: oldest for queues, in for topics.",
        ),
        query(
            "order", {"enum": ["asc", "desc"]}, "Sort order. Default: ascending for names, descending for other keys."
        ),
        query("name", TEXT, "List only names that contain this text."),
        query("marker", TEXT, "Marker of the page, from the link in the previous page."),
        query("limit", integer(1, MAX_PAGE, default=DEFAULT_PAGE), "Maximum number of rows in the page."),
    ]
    off = "400 if figures are off ([console] enabled is false)."
    page, points = answer(f"A page. {off}", "FiguresPage"), answer(f"Points; null without samples. {off}", "Points")
    overview = answer(f"Points and lists. Points are null if the caller may not see all queues. {off}", "Overview")
    return {
        "/v2/figures": {"get": _get("get_figures", "Get an overview of the project", overview, [window])},
        "/v2/figures/queues": {"get": _get("list_figures", "List queues or topics with their figures", page, paging)},
        f"{QUEUE}/figures": {
            "get": _get("get_queue_figures", "Get the history of a queue's figures", points, [window])
        },
        SERVERS: {
            "get": _get(
                "list_servers", "List the latest reports of all server processes", answer("The reports.", "Servers"), []
            )
        },
    }


def _get(name: str, summary: str, found: Json, parameters: list[Json]) -> Json:
    return operation(name, summary, {200: found}, parameters=parameters)


def schemas() -> Json:
    """Return the JSON schemas of the response bodies by name."""
    pages = FiguresPage[DateTime], Points[DateTime], Overview[DateTime], Servers[DateTime]
    found = answer_schemas(*pages)
    del found["Link"]  # declared by the core
    return found
