# SPDX-License-Identifier: Apache-2.0
"""How an operation, its body and its answers are written in OpenAPI."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from zq.wire.refusals import STATUSES

Json = dict[str, Any]
QUEUE: Final = "/v2/queues/{queue}"
TOPIC: Final = "/v2/topics/{topic}"
TEXT: Final[Json] = {"type": "string"}
USUAL: Final = (400, 403, 406, 503)
"""Errors of nearly every operation: bad input, the operator's policy, content negotiation, the store."""
NOT_ACCEPTABLE: Final = {406: "406 Not Acceptable"}
"""Falcon's own."""


def reference(kind: str, name: str) -> Json:
    """A reference to a component."""
    return {"$ref": f"#/components/{kind}/{name}"}


def operation(
    identity: str,
    summary: str,
    answers: Mapping[int, Json],
    *,
    parameters: Sequence[Json] = (),
    body: Json | None = None,
    errors: Sequence[int] = (),
    usual: Sequence[int] = USUAL,
) -> Json:
    """An operation, without what all operations of its path have."""
    statuses = dict(answers) | {status: reference("responses", f"Error{status}") for status in (*usual, *errors)}
    return {
        "operationId": identity,
        "summary": summary,
        **({"parameters": list(parameters)} if parameters else {}),
        **({"requestBody": body} if body else {}),
        "responses": {str(status): statuses[status] for status in sorted(statuses)},
    }


def body(schema: str, *, required: bool, media_type: str = "application/json") -> Json:
    """A request's body."""
    return {"required": required, "content": {media_type: {"schema": reference("schemas", schema)}}}


def answer(description: str, schema: str = "", *headers: str, media_type: str = "application/json") -> Json:
    """A response, without a body if there is no ``schema``; it has the request's id and ``headers``."""
    return {
        "description": description,
        "headers": {name: reference("headers", name) for name in ("X-OpenStack-Request-ID", *headers)},
        **({"content": {media_type: {"schema": reference("schemas", schema)}}} if schema else {}),
    }


def error_answers() -> Json:
    """The responses that are errors, with the titles that they can have."""
    titles: dict[int, list[str]] = {status: [title] for status, title in NOT_ACCEPTABLE.items()}
    for status, title in STATUSES.values():
        titles.setdefault(status, []).append(title)
    more = {409: ["Retry-After"], 503: ["Retry-After"]}
    return {
        f"Error{status}": answer(" / ".join(titles[status]), "Error", "X-Zq-Error", *more.get(status, []))
        for status in sorted(titles)
    }
