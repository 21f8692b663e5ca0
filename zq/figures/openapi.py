# SPDX-License-Identifier: Apache-2.0
"""Operations and schemas of ``/v2/figures…`` and ``/v2/servers`` in OpenAPI."""

from typing import Any, Final

from zq.figures.counting import RATES
from zq.figures.reports import SORTS, TOPIC_SORTS
from zq.figures.resources import MAX_PAGE
from zq.figures.series import DEPTHS, WINDOWS
from zq.http.openapi.operations import QUEUE, TEXT, Json, answer, integer, operation, query, reference
from zq.limits import DEFAULT_PAGE

# The path that needs neither a client id nor a project.
SERVERS: Final = "/v2/servers"
COUNT: Final[Json] = {"type": "integer", "minimum": 0}
NUMBER: Final[Json] = {"type": "number"}
UNKNOWN: Final[Json] = {"type": ["number", "null"]}
FLAG: Final[Json] = {"type": "boolean"}
MOMENT: Final[Json] = {"type": "string", "format": "date-time"}
# Descriptions of members whose names are not self-explanatory.
DESCRIPTIONS: Final = {
    "at_least": "A state has more messages than are counted.",
    "oldest_ready": "For how many seconds the first ready message could have been claimed.",
    "growth": "Messages more in a second, over the last minute or two.",
    "in": "Messages posted, or published, in a second.",
    "out": "Messages finished in a second.",
    "dead": "Messages in the queue's dead-letter queue; null for who may not see that one.",
    "complete": "All queues of the store were counted.",
    "servers": "How many servers have told of themselves within half a minute.",
    "clock_offset": "For how many seconds the server's clock is ahead of the store's.",
    "sweep_lag": "For how many seconds the first expired message waits to be removed; null = not known.",
    "p95": "Seconds within which 19 of 20 requests were answered; null without any.",
    "recent": "Ready messages at the end of each half minute of the last ten.",
}


def figures() -> Json:
    """Return the operations by path and method."""
    window = query("window", {"enum": list(WINDOWS), "default": 600}, "Seconds that the points go back.")
    sorts = sorted({*SORTS, *TOPIC_SORTS})
    paging = [
        query("kind", {"enum": ["queues", "topics"], "default": "queues"}, "What is listed."),
        query("sort", {"enum": sorts}, "By what; topics by in or name. Without, queues by oldest and topics by in."),
        query("order", {"enum": ["asc", "desc"]}, "Without: names ascend, all else descends."),
        query("name", TEXT, "List only names that contain this text."),
        query("marker", TEXT, "As a link of a page has it: the next one in the order of the first."),
        query("limit", integer(1, MAX_PAGE, default=DEFAULT_PAGE), "Rows in the page."),
    ]
    off = "400 where the server takes none: [console] enabled is false."
    page, points = answer(f"A page. {off}", "FiguresPage"), answer(f"Points; null where nobody looked. {off}", "Points")
    overview = answer(f"Points, which are null for who may not see all queues, and lists. {off}", "Overview")
    return {
        "/v2/figures": {"get": _get("get_figures", "What matters in the project", overview, [window])},
        "/v2/figures/queues": {"get": _get("list_figures", "All queues or topics with their figures", page, paging)},
        f"{QUEUE}/figures": {"get": _get("get_queue_figures", "A queue's past", points, [window])},
        SERVERS: {
            "get": _get("list_servers", "What each server process says of itself", answer("All.", "Servers"), [])
        },
    }


def _get(name: str, summary: str, found: Json, parameters: list[Json]) -> Json:
    return operation(name, summary, {200: found}, parameters=parameters)


def schemas() -> Json:
    """Return the schemas of response bodies."""
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
        "Servers": {"type": "object", "properties": {"servers": _list(_server())}, "required": ["servers"]},
    }


def _server() -> Json:
    texts = dict.fromkeys(("server", "version", "store", "engine"), TEXT)
    counts = dict.fromkeys(("process", "waiters", "max_waiters", "streams", "max_streams"), COUNT)
    moments = dict.fromkeys(("since", "as_of"), MOMENT)
    return _object(**texts, **counts, **moments, requests=NUMBER, p95=UNKNOWN, clock_offset=NUMBER, sweep_lag=UNKNOWN)


def _points(names: Any) -> Json:
    return _object(**{name: _list(UNKNOWN) for name in names})


def _object(**members: Json) -> Json:
    described = {name: schema | _description(name) for name, schema in members.items()}
    return {"type": "object", "properties": described, "required": sorted(members)}


def _description(name: str) -> Json:
    return {"description": DESCRIPTIONS[name]} if name in DESCRIPTIONS else {}


def _list(items: Json) -> Json:
    return {"type": "array", "items": items}


def _or_null(schema: Json) -> Json:
    return {"anyOf": [schema, {"type": "null"}]}
