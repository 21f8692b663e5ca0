# SPDX-License-Identifier: Apache-2.0
"""Builders for OpenAPI operations, parameters, request bodies and responses."""

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, Final

from zq.model.limits import (
    FREE_NAME,
    LONG_QUEUE_NAME,
    MAX_FREE_NAME,
    MAX_KEY,
    MAX_LONG_NAME,
    MAX_NAME,
    MAX_PROJECT,
    MIN_DELAY,
    QUEUE_NAME,
    Limits,
)
from zq.wire.numbers import MAX_BODY_NUMBER
from zq.wire.refusals import STATUSES

# A JSON object of the OpenAPI document.
Json = dict[str, Any]
# The path of a queue.
QUEUE: Final = "/v2/queues/{queue}"
# The path of a topic.
TOPIC: Final = "/v2/topics/{topic}"
# The schema of any text.
TEXT: Final[Json] = {"type": "string"}
# The schema of the name of a pool or flavor in a path.
NAME_SCHEMA: Final[Json] = TEXT | {"pattern": "^[^/?#{}]+$", "maxLength": 255}
# Error statuses of almost every operation: invalid input, missing permission, content negotiation, unavailable store.
COMMON_ERRORS: Final = (400, 403, 406, 503)
# Error statuses of all operations that require a credential: invalid credential, too many attempts.
CREDENTIAL_ERRORS: Final = (401, 429)
# Operations that never require a credential.
UNGUARDED_OPERATIONS: Final = frozenset(
    {"get_versions", "get_health", "head_health", "get_readiness", "head_readiness"}
)
# Error raised by Falcon itself.
NOT_ACCEPTABLE: Final = {406: "406 Not Acceptable"}
# Pattern of a client id that must be a UUID.
UUID: Final = r"^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$"
# The schema of the name of a topic.
TOPIC_NAMES: Final[Json] = TEXT | {"pattern": f"^{QUEUE_NAME.pattern}$", "minLength": 1, "maxLength": MAX_NAME}
# The schema of the name of a queue.
QUEUE_NAMES: Final[Json] = TOPIC_NAMES | {"pattern": f"^{LONG_QUEUE_NAME.pattern}$", "maxLength": MAX_LONG_NAME}
# The schema of the name of a fence, a stage or a producer.
FREE_NAMES: Final[Json] = TEXT | {"pattern": f"^{FREE_NAME.pattern}$", "minLength": 1, "maxLength": MAX_FREE_NAME}
# The schema of a claim's name, which has a dot.
CLAIM_NAMES: Final[Json] = FREE_NAMES | {"pattern": rf"^(?=.*\.){FREE_NAME.pattern}$"}
# The schema of an id.
IDS: Final[Json] = TEXT | {"pattern": "^[^/?#]+$", "minLength": 1}
# The schema of a position in a log.
SEQUENCES: Final[Json] = TEXT | {"pattern": "^[0-9]{1,19}$"}
# Response headers by name.
RESPONSE_HEADERS: Final[Json] = {
    "X-OpenStack-Request-ID": {
        "description": "Id of the request in the server log.",
        "required": True,
        "schema": TEXT | {"pattern": "^req-[0-9a-f-]{36}$"},
    },
    "Location": {
        "description": "Path of the created resource.",
        "required": True,
        "schema": TEXT | {"pattern": "^/v2/"},
    },
    "Content-Location": {"description": "Path and query of the request.", "schema": TEXT},
    "Idempotency-Replayed": {
        "description": "Present if the answer repeats that of an earlier request with the same Idempotency-Key.",
        "schema": {"enum": ["true"]},
    },
    "Warning": {
        "description": "Present if the queue ignores a delay of the post, because it has no default delay.",
        "schema": TEXT | {"pattern": '^299 - "delay is ignored: '},
    },
    "X-Zq-Error": {
        "description": "Class name of an expected error, as in the Python client.",
        "schema": TEXT,
    },
    "WWW-Authenticate": {"description": "How to authenticate.", "schema": TEXT},
    "Retry-After": {
        "description": "Seconds until a retry, if no slot is free, a limit is exceeded, or a commit is running.",
        "schema": TEXT | {"pattern": "^[0-9]+$"},
    },
}


def reference(kind: str, name: str) -> Json:
    """Return a ``$ref`` to an OpenAPI component."""
    return {"$ref": f"#/components/{kind}/{name}"}


def operation(
    identity: str,
    summary: str,
    answers: Mapping[int, Json | str],
    *,
    parameters: Sequence[Json] = (),
    body: Json | None = None,
    errors: Sequence[int] = (),
    usual: Sequence[int] = COMMON_ERRORS,
) -> Json:
    """Return an OpenAPI operation.

    Args:
        answers: Responses by status code. A string is the name of the body's schema; "" means no body.
        parameters: Parameters of this operation, without the parameters that are declared for the whole path.
        errors: Status codes of further error responses. This function adds ``usual`` and, if the operation requires a
            credential, the status codes of failed authentication.
        usual: Status codes of the error responses that almost all operations have.
    """
    errors = (*usual, *errors, *(() if identity in UNGUARDED_OPERATIONS else CREDENTIAL_ERRORS))
    statuses = {
        status: answer(f"{HTTPStatus(status).phrase}.", given) if isinstance(given, str) else given
        for status, given in answers.items()
    } | {status: reference("responses", f"Error{status}") for status in errors}
    return {
        "operationId": identity,
        "summary": summary,
        **({"parameters": list(parameters)} if parameters else {}),
        **({"requestBody": body} if body else {}),
        "responses": {str(status): statuses[status] for status in sorted(statuses)},
    }


def body(schema: str, *, required: bool, media_type: str = "application/json") -> Json:
    """Return the OpenAPI description of a request body. ``schema`` is the name of its schema."""
    return {"required": required, "content": {media_type: {"schema": reference("schemas", schema)}}}


def answer(description: str, schema: str = "", *headers: str, media_type: str = "application/json") -> Json:
    """Return the OpenAPI description of a response with these headers, and a body if ``schema`` is set."""
    return {
        "description": description,
        "headers": {name: reference("headers", name) for name in ("X-OpenStack-Request-ID", *headers)},
        **({"content": {media_type: {"schema": reference("schemas", schema)}}} if schema else {}),
    }


def error_answers() -> Json:
    """Return the shared error responses by component name, such as ``Error404``."""
    titles: dict[int, list[str]] = {status: [title] for status, title in NOT_ACCEPTABLE.items()}
    for status, title in STATUSES.values():
        titles.setdefault(status, []).append(title)
    more = {401: ["WWW-Authenticate"], 409: ["Retry-After"], 429: ["Retry-After"], 503: ["Retry-After"]}
    return {
        f"Error{status}": answer(
            " / ".join(dict.fromkeys(titles[status])), "Error", "X-Zq-Error", *more.get(status, [])
        )
        for status in sorted(titles)
    }


def integer(low: int, high: int, **more: Any) -> Json:
    """Return the JSON Schema of an integer within bounds."""
    return {"type": "integer", "minimum": low, "maximum": high, **more}


def delays(limits: Limits) -> Json:
    """Return the JSON Schema of a delay in seconds."""
    return integer(MIN_DELAY, limits.max_message_delay)


def query(name: str, schema: Json, description: str, **more: Any) -> Json:
    """Return the OpenAPI description of a query parameter."""
    return {"name": name, "in": "query", "description": description, "schema": schema, **more}


def flag(name: str, description: str) -> Json:
    """Return the OpenAPI description of a boolean query parameter."""
    return query(name, {"type": "boolean", "default": False}, description)


def several(name: str, description: str, **bounds: int) -> Json:
    """Return the OpenAPI description of a query parameter that contains comma-separated ids."""
    schema = {"type": "array", "items": TEXT | {"pattern": "^[^,]+$"}, "minItems": 1, **bounds}
    return query(name, schema, description, style="form", explode=False)


def wait(limits: Limits) -> Json:
    """Return the OpenAPI description of the query parameter ``wait`` of a long poll."""
    return query("wait", integer(0, limits.max_wait, default=0), "Maximum seconds to wait for a message.")


def shared(name: str) -> Json:
    """Return a ``$ref`` to one of ``shared_parameters``."""
    return reference("parameters", name)


# References to shared parameters.
DETAILED: Final = shared("detailed")
BODIES: Final = shared("bodies")
FENCE: Final = shared("fence")
KEY: Final = shared("Idempotency-Key")
CLIENT: Final = shared("Client-ID")
PROJECT: Final = shared("X-Project-ID")
RESUME: Final = shared("Last-Event-ID")


def shared_parameters(limits: Limits, strict_client_id: bool) -> Json:
    """Return the OpenAPI descriptions of the parameters that several operations share, by component name."""
    low, high = limits.min_length_client_id, limits.max_length_client_id
    client = {"pattern": UUID} if strict_client_id else {"minLength": low, "maxLength": high}
    epoch = query(
        "fence",
        TEXT | {"pattern": rf"^{FREE_NAME.pattern}:[1-9][0-9]{{0,18}}$"},
        f"<name>:<epoch> of a fence, with an epoch of at most {MAX_BODY_NUMBER}; 409 if a newer epoch exists.",
    )
    bodies = query(
        "bodies",
        {"enum": ["start", "whole"], "default": "whole"},
        "start: body_start (the first 256 characters of the JSON) and body_bytes instead of body.",
    )
    detailed = flag("detailed", "Add sequence, times, claim count and the origin of a dead letter to each message.")
    return {
        "Client-ID": _header("Client-ID", {"type": "string", **client}, "Id of the client.", required=True),
        "X-Project-ID": _header(
            "X-Project-ID",
            {"type": "string", "minLength": 1, "maxLength": MAX_PROJECT},
            "Project of the queues.",
            required=True,
        ),
        "Idempotency-Key": _header(
            "Idempotency-Key",
            TEXT | {"pattern": rf"^[\x21-\x7e]{{1,{MAX_KEY}}}$"},
            f"A repeated request within {limits.idempotency_window} seconds gets the first answer and has no effect.",
        ),
        "Last-Event-ID": _header(
            "Last-Event-ID",
            SEQUENCES,
            "Id of the last event received; 0 = from the start of the log. Default: from the end of the log.",
        ),
        "fence": epoch,
        "detailed": detailed,
        "bodies": bodies,
        "queue": in_path("queue", QUEUE_NAMES, f"The name of a queue; new names have up to {MAX_NAME} characters."),
        "topic": in_path("topic", TOPIC_NAMES, "The name of a topic."),
        "subscription": in_path("subscription", TEXT, "The id of a subscription."),
        "message": in_path("message", IDS, "The id of a message."),
        "claim": in_path("claim", IDS, "The id or name of a claim."),
        "name": in_path("name", FREE_NAMES, "The name of a fence or stage."),
        "pool": in_path("pool", NAME_SCHEMA, "The name of a pool."),
        "flavor": in_path("flavor", NAME_SCHEMA, "The name of a flavor."),
        "token": in_path(
            "token", TEXT | {"pattern": "^[^/?#]+$", "maxLength": 256}, "The id of a token, not its secret."
        ),
        "producer": in_path("producer", FREE_NAMES, "The name of the producer."),
    }


def _header(name: str, schema: Json, description: str, required: bool = False) -> Json:
    return {"name": name, "in": "header", "required": required, "description": description, "schema": schema}


def in_path(name: str, schema: Json, description: str) -> Json:
    """Return the OpenAPI description of a path parameter."""
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}
