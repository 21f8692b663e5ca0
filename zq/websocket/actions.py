# SPDX-License-Identifier: Apache-2.0
"""Conversion of actions to HTTP requests, and of HTTP responses to answers (contract section 14)."""

from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from msgspec import Struct

from zq.errors import Invalid

Body = Mapping[str, Any]
TYPES: Final = {str: "string", int: "int", bool: "boolean", list: "list", dict: "dict"}


class Request(Struct, frozen=True):
    """An HTTP request. The path and the query are not percent-encoded."""

    method: str
    path: str
    query: list[tuple[str, str]] = []
    document: Any = None


class Reply(Struct, frozen=True):
    """An HTTP response.

    ``location`` and ``error`` are the values of the headers Location and X-Zq-Error. If a header is missing, its value
    is "".
    """

    status: int
    document: Any
    location: str = ""
    error: str = ""


def build_request(action: str, body: Body) -> Request | None:
    """Build the HTTP request for an action. Raises ``Invalid`` if a parameter is missing or has the wrong type.

    Return None if the action is ``message_get_many`` and there are no ids to read: an HTTP request without ids would
    list the queue.
    """
    if action == "queue_list":
        return Request("GET", "/v2/queues", _get_query(body, marker=str, limit=int, detailed=bool))
    queue = "/v2/queues/" + _get_segment(body, "queue_name")
    kind, _, verb = action.partition("_")
    return BUILDERS[kind](queue, verb, body)


def _queue_request(queue: str, verb: str, body: Body) -> Request:
    if verb == "create":
        return Request("PUT", queue, document=_get_field(body, "metadata", dict))
    if verb == "purge":
        types = _get_field(body, "resource_types", list)
        return Request("POST", f"{queue}/purge", document=None if types is None else {"resource_types": types})
    if verb == "get_stats":
        return Request("GET", f"{queue}/stats")
    return Request("DELETE" if verb == "delete" else "GET", queue)


def _message_request(queue: str, verb: str, body: Body) -> Request | None:
    path = f"{queue}/messages"
    if verb == "list":
        flags = {"echo": bool, "include_claimed": bool, "include_delayed": bool}
        return Request("GET", path, _get_query(body, marker=str, limit=int, **flags))
    if verb == "post":
        return Request("POST", path, document={"messages": _get_drafts(body)})
    if verb == "get_many":
        ids = _get_ids(body, "message_ids")
        return Request("GET", path, [("ids", each) for each in ids]) if ids else None
    if verb == "delete_many":
        given = [name for name in ("message_ids", "pop") if body.get(name) is not None]
        if len(given) != 1:
            raise Invalid("Bad request. Exactly one of message_ids and pop must be given.")
        claims = [("claim_ids", each) for each in _get_ids(body, "claim_ids")]
        named = [("ids", each) for each in _get_ids(body, "message_ids")]
        return Request("DELETE", path, named + claims + _get_query(body, pop=int))
    path += "/" + _get_segment(body, "message_id")
    return Request("DELETE", path, _get_query(body, claim_id=str)) if verb == "delete" else Request("GET", path)


def _claim_request(queue: str, verb: str, body: Body) -> Request:
    given = {name: _get_field(body, name, int) for name in ("ttl", "grace")}
    terms = {name: value for name, value in given.items() if value is not None}
    if verb == "create":
        return Request("POST", f"{queue}/claims", _get_query(body, limit=int), terms)
    path = f"{queue}/claims/" + _get_segment(body, "claim_id")
    if verb == "update":
        return Request("PATCH", path, document=terms)
    return Request("DELETE" if verb == "delete" else "GET", path)


def _subscription_request(queue: str, verb: str, body: Body) -> Request:
    path = f"{queue}/subscriptions"
    if verb == "list":
        return Request("GET", path, _get_query(body, marker=str, limit=int))
    if verb == "create":
        kinds = {"subscriber": str, "ttl": int, "options": dict}
        given = {name: _get_field(body, name, kind) for name, kind in kinds.items()}
        return Request("POST", path, document={name: value for name, value in given.items() if value is not None})
    path += "/" + _get_segment(body, "subscription_id")
    return Request("DELETE" if verb == "delete" else "GET", path)


BUILDERS: Final[dict[str, Callable[[str, str, Body], Request | None]]] = {
    "queue": _queue_request,
    "message": _message_request,
    "claim": _claim_request,
    "subscription": _subscription_request,
}


def _get_field(body: Body, name: str, kind: type) -> Any:
    value = body.get(name)
    if value is not None and type(value) is not kind:
        raise Invalid(f'Bad request. The value of the "{name}" field must be a {TYPES[kind]}.')
    return value


def _get_segment(body: Body, name: str) -> str:
    value: str | None = _get_field(body, name, str)
    if value is None:
        raise Invalid(f'Bad request. Missing "{name}" field.')
    if not value or "/" in value:
        raise Invalid(f"Bad request. {name} must not be empty or contain a slash.")
    return value


def _get_query(body: Body, **kinds: type) -> list[tuple[str, str]]:
    given = {name: _get_field(body, name, kind) for name, kind in kinds.items()}
    return [
        (name, str(value).lower() if value is True or value is False else str(value))
        for name, value in given.items()
        if value is not None
    ]


def _get_ids(body: Body, name: str) -> list[str]:
    value: list[Any] = _get_field(body, name, list) or []
    if not all(isinstance(each, str) and each for each in value):
        raise Invalid(f"Bad request. {name} must be a list of strings.")
    return value


def _get_drafts(body: Body) -> list[dict[str, Any]]:
    """Return the messages to post. Remove ``delay`` from them: WebSocket ignores delays (contract section 14).

    Raises ``Invalid`` if the messages are missing or malformed.
    """
    messages = _get_field(body, "messages", list)
    if messages is None:
        raise Invalid('Bad request. Missing "messages" field.')
    for message in messages:
        if not isinstance(message, dict):
            raise Invalid("Bad request. Each message must be a dict.")
        if "body" not in message:
            raise Invalid('Bad request. Missing "body" field.')
        _get_field(message, "ttl", int)
    return [{name: value for name, value in message.items() if name != "delay"} for message in messages]


def build_answer(action: str, body: Body, reply: Reply) -> Any:
    """Convert the HTTP response of a successful action to the body of the WebSocket answer."""
    document, queue = reply.document, body.get("queue_name")
    if action == "queue_create":
        return f"Queue {queue} created."
    if action == "queue_delete":
        return f"Queue {queue} removed."
    if action == "queue_list":
        return {"queues": [{k: v for k, v in each.items() if k != "href"} for each in document["queues"]]}
    if action == "queue_get_stats":
        return _convert_stats(document)
    if action == "subscription_create":
        return document | {"message": f"Subscription {queue} created."}
    if action == "subscription_list":
        return {"subscriptions": document["subscriptions"]}
    if action == "subscription_get":
        return document
    if action == "subscription_delete":
        return f"Subscription {body['subscription_id']} removed."
    if action == "message_get":
        return {"messages": convert_message(document)}
    if action == "message_post":
        return {"message_ids": [_last_segment(href) for href in document["resources"]]}
    if action == "claim_get":
        return {**{name: document[name] for name in ("age", "ttl")}, "messages": _convert_messages(document)}
    if action == "claim_create":
        return {"claim_id": _last_segment(reply.location) or None} | (
            {"messages": _convert_messages(document)} if document else {}
        )
    return {"messages": _convert_messages(document)} if document and "messages" in document else {}


def convert_message(one: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message of the REST API to the format of contract 14."""
    claims = parse_qs(urlsplit(one.get("href", "")).query).get("claim_id", [None])
    names = ("ttl", "age", "body")
    return {"id": one["id"], "claim_id": claims[0], **{name: one[name] for name in names}}


def _convert_messages(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [convert_message(each) for each in document["messages"]]


def _convert_stats(document: Mapping[str, Any]) -> dict[str, Any]:
    counts = dict(document["messages"])
    for name in ("oldest", "newest"):
        if name in counts:
            entry = counts[name]
            counts[name] = {"id": _last_segment(entry["href"])} | {k: v for k, v in entry.items() if k != "href"}
    return {"messages": counts}


def _last_segment(href: str) -> str:
    return urlsplit(href).path.rpartition("/")[2]
