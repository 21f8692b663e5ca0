# SPDX-License-Identifier: Apache-2.0
"""``/v2/openapi.json``: the API as an OpenAPI 3.1 document (extensions 10).

Schemas of bodies are derived from the structs that decode and encode them, limits from the current limits, statuses
from the table of errors. Parameters and answers are written here. ``tests/http/test_openapi.py`` compares the document
with the routes, ``tests/http/test_fuzz.py`` with the server's behaviour.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, Final

import falcon

from zq import __version__, wire
from zq.http.features import Feature
from zq.http.openapi import messages, resources, schemas
from zq.http.openapi.access import administration, sharing, tokens
from zq.http.openapi.access import schemas as access_schemas
from zq.http.openapi.operations import (
    CLIENT,
    PROJECT,
    RESPONSE_HEADERS,
    Json,
    answer,
    error_answers,
    operation,
    shared,
    shared_parameters,
)
from zq.http.tenant import Audience
from zq.limits import Limits

# The description of the document.
DESCRIPTION = """\
Queues and topics over HTTP with the wire contract of OpenStack Zaqar v2, and more. Unknown parameters and members are
ignored, an empty parameter counts as absent, integers are written without a fraction, a known path answers 405 to a
method that is not here. Every error has a title and mostly a description. Any request may get 400 for a head that could
mean two things, 403 for what a page of another site would change, 421 for a Host that is not the server's, and 408 if
its body does not come in time; other statuses than those named come only from what stands between client and server.
"""
# Groups of operations, with descriptions.
TAGS = {
    "queues": "Queues and their metadata.",
    "messages": "Messages, dead letters and history.",
    "claims": "Work on messages: claim, renew, release, settle.",
    "transactions": "Fences, staged posts and commits of batch jobs.",
    "topics": "Topics, their messages and live streams.",
    "tokens": "Tokens and signed URLs, by which callers prove who they are.",
    "service": "Versions, limits, probes and metrics.",
    "administration": "Quotas, and the projects of the deployment.",
}
# Authentication schemes.
SECURITY: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A token of zq, or a JSON Web Token."},
    "token": {"type": "apiKey", "in": "header", "name": "X-Auth-Token", "description": "A token of zq, or Keystone's."},
}
# Paths that need neither client id nor project.
OPEN: Final = ("/", "/healthz", "/readyz", "/metrics", "/v2/openapi.json")


class OpenApiDocument:
    """``/v2/openapi.json``"""

    audience = Audience.PROBE  # no headers except the credential, if there is a strategy
    open = True  # for all roles

    def __init__(self, limits: Limits, strict_client_id: bool, features: Sequence[Feature] = ()) -> None:
        self._build = partial(document, limits, strict_client_id, features)

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        resp.data = self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        return wire.encode(self._build())


def document(limits: Limits, strict_client_id: bool = True, features: Sequence[Feature] = ()) -> dict[str, Any]:
    """Return the document of a server with these limits and features."""
    named = dict(TAGS)
    protocol_keys = [key for feature in features for key in feature.extension.protocol_keys]
    bodies = schemas.schemas(limits, protocol_keys) | access_schemas()
    parameters = shared_parameters(limits, strict_client_id)
    for feature in features:
        parameters |= feature.path_parameters
        named |= feature.tags
        bodies |= feature.schemas(limits)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "zq",
            "version": __version__,
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": description} for name, description in named.items()],
        "paths": _paths(limits, features),
        # No credential is needed if auth_strategy is empty.
        "security": [{}, {"bearer": []}, {"token": []}],
        "components": {
            "securitySchemes": SECURITY,
            "schemas": bodies,
            "parameters": parameters,
            "headers": RESPONSE_HEADERS,
            "responses": error_answers(),
        },
    }


def _paths(limits: Limits, features: Sequence[Feature]) -> Json:
    """Return the operations of each path, with the parameters that they share."""
    themes: dict[str, Mapping[str, Json]] = {
        "service": _service(),
        "administration": administration(),
        "queues": resources.queues(limits),
        "messages": messages.messages(limits),
        "claims": messages.claims(limits),
        "transactions": messages.transactions(),
        "tokens": tokens() | sharing(),
        "topics": resources.topics(limits) | resources.publishing(limits) | resources.streams(),
    }
    bare = set(OPEN)
    for feature in features:
        for tag, operations in feature.operations(limits).items():
            themes[tag] = {**themes.get(tag, {}), **operations}
        bare.update(feature.open_paths)
    return {
        path: _shared(path, bare) | {method: made | {"tags": [tag]} for method, made in operations.items()}
        for tag, theme in themes.items()
        for path, operations in theme.items()
    }


def _shared(path: str, bare: Collection[str]) -> Json:
    given = [] if path in bare or path.startswith("/v2/admin/") else [CLIENT, PROJECT]
    if path == resources.DEPTH:
        given = [PROJECT]
    given += [shared(name) for name in re.findall(r"{(\w+)}", path)]
    return {"parameters": given} if given else {}


def _service() -> Json:
    headers, asked = (400, 406), (400, 403, 406)
    alive, ready = answer("It serves.", "Alive"), answer("The store answers.", "Alive")
    counted = answer("Every metric.", "Metrics", media_type="text/plain")
    pong = {204: answer("The store answers."), 503: answer("The store does not answer.")}
    return {
        "/": {
            "get": operation(
                "get_versions",
                "Versions of the API",
                {300: answer("One.", "Versions"), 303: answer("For a browser: where the console is.")},
                usual=headers,
            ),
        },
        "/v2/": {
            "get": operation(
                "get_home",
                "The home document",
                {200: answer("Resources.", "Home", media_type="application/json-home")},
                usual=asked,
            )
        },
        "/v2/ping": {
            "get": operation("ping", "Whether the store answers", pong, usual=asked),
            "head": operation("ping_head", "Whether zq answers", {204: answer("Yes.")}, usual=asked),
        },
        "/v2/limits": {
            "get": operation("get_limits", "The limits in force", {200: answer("All.", "Limits")}, usual=asked)
        },
        "/v2/health": {
            "get": operation(
                "get_health_report",
                "How each operation on the store goes; for administrators, with admin_mode only",
                {200: answer("Each.", "HealthReport")},
                errors=(404,),
            )
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
