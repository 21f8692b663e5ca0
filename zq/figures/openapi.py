# SPDX-License-Identifier: Apache-2.0
"""OpenAPI operations and schemas of ``/v2/figures…`` and ``/v2/servers``."""

from typing import Any, Final

from zq.figures.counting import RATES
from zq.figures.exchange import Server
from zq.figures.reports import SORTS, TOPIC_SORTS
from zq.figures.resources import MAX_PAGE
from zq.figures.series import DEPTHS, WINDOWS
from zq.http.openapi.operations import QUEUE, TEXT, Json, answer, integer, operation, query, reference
from zq.http.openapi.structs import answer_schemas
from zq.limits import DEFAULT_PAGE

# The path that requires neither a client id nor a project.
SERVERS: Final = "/v2/servers"
COUNT: Final[Json] = {"type": "integer", "minimum": 0}
NUMBER: Final[Json] = {"type": "number"}
UNKNOWN: Final[Json] = {"type": ["number", "null"]}
FLAG: Final[Json] = {"type": "boolean"}
MOMENT: Final[Json] = {"type": "string", "format": "date-time"}
# Descriptions of members whose names are not self-explanatory.
DESCRIPTIONS: Final = {
    "at_least": "True if a state has more messages than are counted.",
    "oldest_ready": "Seconds since the oldest ready message became ready.",
    "growth": "Growth of the backlog in messages per second, over the last one to two minutes.",
    "in": "Posted or published messages per second.",
    "out": "Finished messages per second.",
    "dead": "Messages in the dead-letter queue; null if the caller may not read that queue.",
    "complete": "True if all queues of the store were counted.",
    "servers": "Number of servers that have reported within half a minute.",
    "clock_offset": "Seconds by which the server's clock is ahead of the store's clock.",
    "sweep_lag": "Seconds for which the oldest expired message has been waiting for removal; null if unknown.",
    "recent": "Ready messages at the end of each half minute, for the last ten half minutes.",
}


def figures() -> Json:
    """Return the OpenAPI path items, as a mapping from path to operations."""
    window = query("window", {"enum": list(WINDOWS), "default": 600}, "Range of the points in seconds.")
    sorts = sorted({*SORTS, *TOPIC_SORTS})
    paging = [
        query("kind", {"enum": ["queues", "topics"], "default": "queues"}, "Kind of the listed rows."),
        query(
            "sort", {"enum": sorts}, "Sort key; topics support in and name. Default: oldest for queues, in for topics."
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
    overview = answer(f"Points, which are null if the caller may not see all queues, and lists. {off}", "Overview")
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
    """Return a mapping from name to JSON schema, for the response bodies."""
    depth = dict.fromkeys(DEPTHS[:3], COUNT) | {"oldest_ready": UNKNOWN, "at_least": FLAG}
    rates = dict.fromkeys(("in", "out"), UNKNOWN)
    letters = {"dead_letter_queue": _or_null(TEXT), "dead": _or_null(COUNT)}
    row = _object(
        name=TEXT, **depth, **rates, growth=UNKNOWN, **letters, paused=_or_null(TEXT), recent=_or_null(_list(UNKNOWN))
    )
    lists = dict.fromkeys(("oldest", "deepest", "growing", "dead_letters"), _list(reference("schemas", "FiguresRow")))
    quota = _object(name=TEXT, used=NUMBER, limit=NUMBER)
    points = {"step": COUNT, "since": MOMENT, "as_of": MOMENT, "servers": COUNT}
    kept = {"depth": _points(DEPTHS), "rates": _points(RATES)}
    page = _object(as_of=MOMENT, complete=FLAG, total=COUNT, links=_list(reference("schemas", "Link")))
    topic = _object(name=TEXT, **{"in": UNKNOWN})
    page["properties"] |= {"queues": _list(reference("schemas", "FiguresRow")), "topics": _list(topic)}
    servers = answer_schemas(Server)
    servers["Server"]["properties"] |= dict.fromkeys(("since", "as_of"), MOMENT)
    return {
        "FiguresRow": row,
        "FiguresPage": page,
        "Points": _object(**points, **kept, now=_object(**depth)),
        "Overview": _object(
            **points,
            **{name: _or_null(columns) for name, columns in kept.items()},
            complete=FLAG,
            total=COUNT,
            now=_object(**depth, **rates),
            lists=_object(**lists, quotas=_list(quota)),
            clock_offset=NUMBER,
            sweep_lag=UNKNOWN,
        ),
        **servers,
        "Servers": _object(servers=_list(reference("schemas", "Server"))),
    }


def _points(names: Any) -> Json:
    return _object(**{name: _list(UNKNOWN) for name in names})


def _object(**members: Json) -> Json:
    described = {
        name: schema | ({"description": DESCRIPTIONS[name]} if name in DESCRIPTIONS else {})
        for name, schema in members.items()
    }
    return {"type": "object", "properties": described, "required": sorted(members)}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}
