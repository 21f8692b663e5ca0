# SPDX-License-Identifier: Apache-2.0
"""Parameters and headers in OpenAPI: those of every tenant's request, those in paths, and how to write the others."""

from typing import Any, Final

from zq.http.openapi.operations import TEXT, Json, reference
from zq.limits import (
    FREE_NAME,
    MAX_BODY_NUMBER,
    MAX_FREE_NAME,
    MAX_KEY,
    MAX_NAME,
    MAX_PROJECT,
    MIN_DELAY,
    QUEUE_NAME,
    Limits,
)

UUID: Final = r"^[0-9a-fA-F]{8}-?([0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}$"
QUEUE_NAMES: Final[Json] = TEXT | {"pattern": f"^{QUEUE_NAME.pattern}$", "minLength": 1, "maxLength": MAX_NAME}
FREE_NAMES: Final[Json] = TEXT | {"pattern": f"^{FREE_NAME.pattern}$", "minLength": 1, "maxLength": MAX_FREE_NAME}
CLAIM_NAMES: Final[Json] = FREE_NAMES | {"pattern": rf"^(?=.*\.){FREE_NAME.pattern}$"}
IDS: Final[Json] = TEXT | {"pattern": "^[^/?#]+$", "minLength": 1}
SEQUENCES: Final[Json] = TEXT | {"pattern": "^[0-9]{1,19}$"}
RESPONSE_HEADERS: Final[Json] = {
    "X-OpenStack-Request-ID": {
        "description": "The request's name in the server's log.",
        "required": True,
        "schema": TEXT | {"pattern": "^req-[0-9a-f-]{36}$"},
    },
    "Location": {
        "description": "The path of what was made.",
        "required": True,
        "schema": TEXT | {"pattern": "^/v2/"},
    },
    "Idempotency-Replayed": {
        "description": "Stands where the answer is that of an earlier request with the same Idempotency-Key.",
        "schema": {"enum": ["true"]},
    },
    "X-Zq-Error": {
        "description": "The class of a deliberate failure, as the server and its Python client name it.",
        "schema": TEXT,
    },
    "Retry-After": {
        "description": "Seconds until asking again makes sense: too many wait or listen, or the commit is being made.",
        "schema": TEXT | {"pattern": "^[0-9]+$"},
    },
}


def integer(low: int, high: int, **more: Any) -> Json:
    """The schema of a whole number within bounds."""
    return {"type": "integer", "minimum": low, "maximum": high, **more}


def delays(limits: Limits) -> Json:
    """The schema of a delay."""
    return integer(MIN_DELAY, limits.max_message_delay)


def query(name: str, schema: Json, description: str, **more: Any) -> Json:
    """A query parameter."""
    return {"name": name, "in": "query", "description": description, "schema": schema, **more}


def flag(name: str, description: str) -> Json:
    """A query parameter that is true or false."""
    return query(name, {"type": "boolean", "default": False}, description)


def several(name: str, description: str, **bounds: int) -> Json:
    """A query parameter of ids that are separated by commas; one that cannot be is like one that is not there."""
    schema = {"type": "array", "items": TEXT | {"pattern": "^[^,]+$"}, "minItems": 1, **bounds}
    return query(name, schema, description, style="form", explode=False)


def wait(limits: Limits) -> Json:
    """The query parameter of a long poll."""
    return query("wait", integer(0, limits.max_wait, default=0), "Seconds to wait for messages if there are none.")


def shared(name: str) -> Json:
    """A reference to one of ``shared_parameters``."""
    return reference("parameters", name)


DETAILED: Final = shared("detailed")
FENCE: Final = shared("fence")
KEY: Final = shared("Idempotency-Key")
CLIENT: Final = shared("Client-ID")
PROJECT: Final = shared("X-Project-ID")
RESUME: Final = shared("Last-Event-ID")


def shared_parameters(limits: Limits, strict_client_id: bool) -> Json:
    """Parameters that many operations have; those in paths are named as in the path."""
    low, high = limits.min_length_client_id, limits.max_length_client_id
    client = {"pattern": UUID} if strict_client_id else {"minLength": low, "maxLength": high}
    epoch = query(
        "fence",
        TEXT | {"pattern": rf"^{FREE_NAME.pattern}:[1-9][0-9]{{0,18}}$"},
        f"<name>:<epoch> as the fence gave it, the epoch at most {MAX_BODY_NUMBER}; 409 after a newer one was given.",
    )
    detailed = flag("detailed", "Add sequence, moments, claim count and a dead letter's origin to each message.")
    return {
        "Client-ID": _header("Client-ID", {"type": "string", **client}, "Who asks.", required=True),
        "X-Project-ID": _header(
            "X-Project-ID", {"type": "string", "minLength": 1, "maxLength": MAX_PROJECT}, "Whose queues.", required=True
        ),
        "Idempotency-Key": _header(
            "Idempotency-Key",
            TEXT | {"pattern": rf"^[\x21-\x7e]{{1,{MAX_KEY}}}$"},
            f"A repeat within {limits.idempotency_window} seconds gets the first answer and changes nothing.",
        ),
        "Last-Event-ID": _header(
            "Last-Event-ID",
            SEQUENCES,
            "The id of the last event that the reader has; 0 for all that the log has. Without it, from now on.",
        ),
        "fence": epoch,
        "detailed": detailed,
        "queue": in_path("queue", QUEUE_NAMES, "The name of a queue."),
        "topic": in_path("topic", QUEUE_NAMES, "The name of a topic."),
        "message": in_path("message", IDS, "The id of a message."),
        "claim": in_path("claim", IDS, "The id or the name of a claim."),
        "name": in_path("name", FREE_NAMES, "A name that callers choose."),
        "producer": in_path("producer", FREE_NAMES, "The name that a job commits under."),
    }


def _header(name: str, schema: Json, description: str, required: bool = False) -> Json:
    return {"name": name, "in": "header", "required": required, "description": description, "schema": schema}


def in_path(name: str, schema: Json, description: str) -> Json:
    """A parameter in a path."""
    return {"name": name, "in": "path", "required": True, "description": description, "schema": schema}
