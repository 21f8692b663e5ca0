# SPDX-License-Identifier: Apache-2.0
"""Every operation by its path; here, those on queues and on the service itself."""

import re
from typing import Final

from zq.http.openapi.claims import claims, transactions
from zq.http.openapi.messages import messages
from zq.http.openapi.operations import QUEUE, TEXT, Json, answer, body, operation
from zq.http.openapi.parameters import CLIENT, PROJECT, flag, integer, query, shared
from zq.http.queues import PATCH_TYPE
from zq.limits import DEFAULT_PAGE, Limits

OPEN: Final = ("/", "/healthz", "/readyz", "/metrics", "/v2/openapi.json")
"""Paths that ask for neither client nor project."""


def paths(limits: Limits) -> Json:
    """The operations of each path, with the parameters that they share."""
    themes = {
        "service": _service(),
        "queues": _queues(limits),
        "messages": messages(limits),
        "claims": claims(limits),
        "transactions": transactions(),
    }
    return {
        path: _shared(path) | {method: made | {"tags": [tag]} for method, made in operations.items()}
        for tag, theme in themes.items()
        for path, operations in theme.items()
    }


def _shared(path: str) -> Json:
    given = [] if path in OPEN else [CLIENT, PROJECT]
    given += [shared(name) for name in re.findall(r"{(\w+)}", path)]
    return {"parameters": given} if given else {}


def _service() -> Json:
    headers = (400, 406)
    alive, ready = answer("It serves.", "Alive"), answer("The store answers.", "Alive")
    counted = answer("Every metric.", "Metrics", media_type="text/plain")
    pong = {204: answer("The store answers."), 503: answer("The store does not answer.")}
    return {
        "/": {
            "get": operation("get_versions", "Versions of the API", {300: answer("One.", "Versions")}, usual=headers),
        },
        "/v2/": {
            "get": operation(
                "get_home",
                "The home document",
                {200: answer("Resources.", "Home", media_type="application/json-home")},
                usual=headers,
            )
        },
        "/v2/ping": {
            "get": operation("ping", "Whether the store answers", pong, usual=(400, 403, 406)),
            "head": operation("ping_head", "Whether zq answers", {204: answer("Yes.")}, usual=(400, 403, 406)),
        },
        "/v2/limits": {
            "get": operation("get_limits", "The limits in force", {200: answer("All.", "Limits")}, usual=headers)
        },
        "/v2/openapi.json": {
            "get": operation("get_openapi", "This document", {200: answer("It.", "Document")}, usual=()),
        },
        "/healthz": _probe("health", "Whether the process serves", alive, ()),
        "/readyz": _probe("readiness", "Whether the process and its store serve", ready, (503,)),
        "/metrics": _probe("metrics", "What the server has counted", counted, ()),
    }


def _probe(identity: str, summary: str, fine: Json, errors: tuple[int, ...]) -> Json:
    bare = {status: answer("As for GET, without a body.") for status in (200, *errors)}
    return {
        "get": operation(f"get_{identity}", summary, {200: fine}, usual=errors),
        "head": operation(f"head_{identity}", summary, bare, usual=()),
    }


def _listing(limits: Limits) -> list[Json]:
    return [
        query("marker", TEXT, "List names after this one."),
        query("limit", integer(1, limits.max_queues_per_page, default=DEFAULT_PAGE), "Queues in the page."),
        flag("detailed", "Add each queue's metadata."),
        query("name", TEXT, "List names that contain this."),
        flag("with_count", "Add how many queues the project has."),
        query(
            "filters",
            {"type": "object", "additionalProperties": TEXT},
            "Any other parameter: list queues whose stored metadata have this value under this key.",
            style="form",
            explode=True,
        ),
    ]


def _queues(limits: Limits) -> Json:
    metadata = answer("The metadata.", "ShownMetadata")
    made = {201: answer("Created.", "", "Location"), 204: answer("It exists; nothing was changed.", "", "Location")}
    patch = body("Patch", required=True, media_type=PATCH_TYPE)
    gone = {204: answer("It is not there now.")}
    return {
        "/v2/queues": {
            "get": operation(
                "list_queues", "List queues", {200: answer("A page.", "QueuePage")}, parameters=_listing(limits)
            )
        },
        QUEUE: {
            "get": operation("get_queue", "Metadata of a queue, existing or not", {200: metadata}),
            "put": operation(
                "create_queue", "Create a queue", made, body=body("Metadata", required=False), errors=[501]
            ),
            "patch": operation(
                "update_queue", "Change metadata", {200: metadata}, body=patch, errors=[404, 409, 415, 501]
            ),
            "delete": operation("delete_queue", "Delete a queue and all in it", gone),
        },
        f"{QUEUE}/stats": {
            "get": operation(
                "get_queue_stats",
                "Count a queue's messages",
                {200: answer("Figures; without landmarks if there are no messages.", "Stats")},
                parameters=[flag("detailed", "Add the sequence of the oldest and the newest message.")],
            )
        },
        f"{QUEUE}/purge": {
            "post": operation(
                "purge_queue", "Remove messages", {204: answer("Removed.")}, body=body("Purge", required=False)
            )
        },
    }
