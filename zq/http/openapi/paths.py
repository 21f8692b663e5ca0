# SPDX-License-Identifier: Apache-2.0
"""Every operation by its path; here, those on the service itself."""

import re
from typing import Final

from zq.http.openapi.claims import claims, transactions
from zq.http.openapi.messages import messages
from zq.http.openapi.named import queues, topics
from zq.http.openapi.operations import Json, answer, operation
from zq.http.openapi.parameters import CLIENT, PROJECT, shared
from zq.http.openapi.topics import publishing, streams
from zq.limits import Limits

OPEN: Final = ("/", "/healthz", "/readyz", "/metrics", "/v2/openapi.json")
"""Paths that ask for neither client nor project."""


def paths(limits: Limits) -> Json:
    """The operations of each path, with the parameters that they share."""
    themes = {
        "service": _service(),
        "queues": queues(limits),
        "messages": messages(limits),
        "claims": claims(limits),
        "transactions": transactions(),
        "topics": topics(limits) | publishing(limits) | streams(),
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
