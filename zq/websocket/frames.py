# SPDX-License-Identifier: Apache-2.0
"""Decoding, encoding and validation of frames. Text frames contain JSON, and binary frames contain MessagePack."""

import json
from typing import Any, Final

import msgspec

from zq.errors import Invalid

# Supported actions (contract 14).
QUEUES: Final = ("queue_list", "queue_create", "queue_get", "queue_delete", "queue_get_stats", "queue_purge")
MESSAGES: Final = (
    *("message_list", "message_get", "message_get_many", "message_post", "message_delete", "message_delete_many"),
)
CLAIMS: Final = ("claim_create", "claim_get", "claim_update", "claim_delete")
SUBSCRIPTIONS: Final = ("subscription_create", "subscription_list", "subscription_get", "subscription_delete")
AUTHENTICATE: Final = "authenticate"
ACTIONS: Final = frozenset({*QUEUES, *MESSAGES, *CLAIMS, *SUBSCRIPTIONS, AUTHENTICATE})
# Actions whose body is optional.
OPTIONAL_BODY: Final = frozenset({"queue_list", AUTHENTICATE})
NO_REQUEST: Final[dict[str, Any]] = {"action": None, "body": {}, "headers": {}, "api": "v2"}


class FrameError(Exception):
    """Raised if a frame cannot be decoded."""


def decode(frame: str | bytes) -> Any:
    """Decode a frame. Raises ``FrameError`` if the frame is malformed or has a value that JSON cannot represent."""
    try:
        document = msgspec.json.decode(frame) if isinstance(frame, str) else msgspec.msgpack.decode(frame)
        json.dumps(document, allow_nan=False)  # reject MessagePack values that JSON cannot represent
    except (ValueError, TypeError, RecursionError) as error:
        kind = "text" if isinstance(frame, str) else "binary"
        raise FrameError(
            f"Can't decode {kind} frame: it must be one document with values that JSON supports."
        ) from error
    return document


def encode(document: Any, binary: bool) -> str | bytes:
    """Encode a document as a frame. If MessagePack cannot represent a number, encode an error answer instead."""
    if not binary:
        return msgspec.json.encode(document).decode()
    try:
        return msgspec.msgpack.encode(document)
    except OverflowError:
        sentence = "A number is too large for MessagePack. Send the request in a text frame."
        return msgspec.msgpack.encode(build_answer(NO_REQUEST, 400, {"error": sentence}))


def build_answer(echoed: dict[str, Any], status: int, body: Any) -> dict[str, Any]:
    """Build an answer document. ``echoed`` is the copy of the request that ``echo`` returned."""
    return {"request": echoed, "headers": {"status": status}, "body": body}


def echo(document: Any) -> dict[str, Any]:
    """Return a copy of the request without its credential, to include in the answer."""
    if not isinstance(document, dict):
        return NO_REQUEST
    headers = document.get("headers") or {}
    if isinstance(headers, dict):
        headers = {name: value for name, value in headers.items() if name != "X-Auth-Token"}
    return {"action": document.get("action"), "body": document.get("body") or {}, "headers": headers, "api": "v2"}


def check(document: Any) -> str:
    """Validate the members of a request. Return its action. Raises ``Invalid`` if a member is missing or invalid."""
    if not isinstance(document, dict):
        raise Invalid(f"Unexpected body type. Expected dict, not {type(document).__name__}.")
    action = document.get("action")
    if not isinstance(action, str) or action not in ACTIONS:
        raise Invalid(f"{str(action)[:64]} is not a valid action")
    headers, body = document.get("headers"), document.get("body")
    if not isinstance(headers, dict):
        raise Invalid("headers must be an object.")
    for name in ("X-Project-ID", "X-Auth-Token" if action == AUTHENTICATE else "Client-ID"):
        if not isinstance(headers.get(name), str):
            raise Invalid(f"headers must contain {name}, a string.")
    if not isinstance(body, dict) and not (body is None and action in OPTIONAL_BODY):
        raise Invalid("body must be an object.")
    return action
