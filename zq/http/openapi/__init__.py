# SPDX-License-Identifier: Apache-2.0
"""``/v2/openapi.json``: the API as an OpenAPI 3.1 document (extensions contract, section 10).

The schemas of request and response bodies are derived from the structs that decode and encode them.
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
from zq.model.limits import Limits

# Description of the API.
DESCRIPTION = """\
Queues and topics over HTTP: the API of OpenStack Zaqar v2 with extensions. Unknown parameters and members are ignored.
An empty parameter counts as absent. Integers must not have a fraction. Every error has a title, and most errors have a
description.

These statuses are possible for every request:

- 400 for an ambiguous request head
- 403 for a change that is requested by a page of another site
- 405 for a method that the path does not support
- 408 if the body is not received in time
- 421 for a Host that does not belong to the server

Statuses that are not listed come from proxies between client and server.
"""
# Tags of operations, with their descriptions.
TAGS = {
    "queues": "Queues and their metadata.",
    "messages": "Messages, dead letters and history.",
    "claims": "Claims of messages: create, renew, release, settle.",
    "transactions": "Transactions of batch jobs: fences, stages and commits.",
    "topics": "Topics, their messages and live streams.",
    "tokens": "Tokens and signed URLs, which authenticate callers.",
    "service": "Versions, limits, probes and metrics.",
    "administration": "Quotas, and the projects of the deployment.",
}
# Authentication schemes.
SECURITY: Final = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "A zq token, or a JSON Web Token."},
    "token": {
        "type": "apiKey",
        "in": "header",
        "name": "X-Auth-Token",
        "description": "A zq token, or a Keystone token.",
    },
}
# Paths that require neither client id nor project.
OPEN_PATHS: Final = ("/", "/healthz", "/readyz", "/metrics", "/v2/openapi.json")


class OpenApiDocument:
    """``/v2/openapi.json``: the OpenAPI document of the server."""

    audience = Audience.PROBE  # no headers except the credential, if callers are authenticated
    open = True  # permitted for all roles

    def __init__(self, limits: Limits, strict_client_id: bool, features: Sequence[Feature] = ()) -> None:
        self._build = partial(document, limits, strict_client_id, features)

    def on_get(self, _req: falcon.Request, resp: falcon.Response) -> None:
        resp.data = self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        return wire.encode(self._build())


def document(limits: Limits, strict_client_id: bool = True, features: Sequence[Feature] = ()) -> dict[str, Any]:
    """Return the OpenAPI document of a server with these limits and features."""
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
    bare = set(OPEN_PATHS)
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
    alive, ready = answer("The process is running.", "Alive"), answer("The server is ready.", "Alive")
    counted = answer("The metrics.", "Metrics", media_type="text/plain")
    pong = {204: answer("The store answers."), 503: answer("The store does not answer.")}
    return {
        "/": {
            "get": operation(
                "get_versions",
                "List the API versions",
                {300: "Versions", 303: answer("A redirect of browsers to the console.")},
                usual=headers,
            ),
        },
        "/v2/": {
            "get": operation(
                "get_home",
                "Get the home document",
                {200: answer("The resources.", "Home", media_type="application/json-home")},
                usual=asked,
            )
        },
        "/v2/ping": {
            "get": operation("ping", "Check that the store answers", pong, usual=asked),
            "head": operation(
                "ping_head", "Check that the server answers", {204: answer("The server answers.")}, usual=asked
            ),
        },
        "/v2/limits": {"get": operation("get_limits", "Get the limits of the server", {200: "Limits"}, usual=asked)},
        "/v2/health": {
            "get": operation(
                "get_health_report",
                "Get a health report of the store; for administrators, with admin_mode only",
                {200: "HealthReport"},
                errors=(404,),
            )
        },
        "/v2/openapi.json": {
            "get": operation("get_openapi", "Get this document", {200: "Document"}, usual=()),
        },
        "/healthz": _probe("health", "Check that the process is running", alive, ()),
        "/readyz": _probe("readiness", "Check that the server is ready to serve requests", ready, (503,)),
        "/metrics": _probe("metrics", "Get the metrics of the server", counted, ()),
    }


def _probe(identity: str, summary: str, fine: Json, errors: tuple[int, ...]) -> Json:
    bare = {status: answer("The status and headers of the GET response, without a body.") for status in (200, *errors)}
    return {
        "get": operation(f"get_{identity}", summary, {200: fine}, usual=errors),
        "head": operation(f"head_{identity}", summary, bare, usual=()),
    }
