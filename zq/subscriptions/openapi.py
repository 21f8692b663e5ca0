# SPDX-License-Identifier: Apache-2.0
"""OpenAPI operations and schemas of subscriptions and deliveries (contract 9)."""

from zq.http.openapi.operations import (
    QUEUE,
    SEQUENCES,
    TEXT,
    TOPIC,
    Json,
    answer,
    body,
    integer,
    operation,
    query,
    reference,
    several,
)
from zq.limits import DEFAULT_BATCH, DEFAULT_PAGE, MAX_BATCH, MAX_IDS, Limits
from zq.subscriptions.subscriptions import MAX_COUNTED, MIN_TTL


def subscriptions(limits: Limits) -> Json:
    """Return the operations on subscriptions and deliveries of queues and topics, by path and method."""
    return _project(limits) | _of("queue", QUEUE, limits) | _of("topic", TOPIC, limits)


def _page_parameters(limits: Limits) -> list[Json]:
    size = integer(1, limits.max_messages_per_page, default=DEFAULT_PAGE)
    return [
        query("marker", TEXT, "Marker of the page, from the link in the previous page."),
        query("limit", size, "Maximum number of entries."),
    ]


def _project(limits: Limits) -> Json:
    return {
        "/v2/subscriptions": {
            "get": operation(
                "list_project_subscriptions",
                "List the subscriptions of all queues and topics",
                {200: answer("A page, sorted by source.", "ProjectSubscriptionPage")},
                parameters=_page_parameters(limits),
            )
        }
    }


def _of(word: str, source: str, limits: Limits) -> Json:
    parameters = _page_parameters(limits)
    changed = {204: answer("Done.", "", "Location")}
    path = f"{source}/subscriptions"
    return {
        path: {
            "get": operation(
                f"list_{word}_subscriptions",
                f"List the subscriptions of a {word}",
                {200: answer("A page.", "SubscriptionPage")},
                parameters=parameters,
            ),
            "post": operation(
                f"create_{word}_subscription",
                f"Subscribe to a {word}",
                {
                    201: answer(
                        "The subscription's id; for a new subscription also its secret.", "Subscribed", "Location"
                    )
                },
                body=body("SubscriptionTerms", required=True),
                errors=(409,),
            ),
        },
        f"{path}/{{subscription}}": {
            "get": operation(
                f"get_{word}_subscription",
                "Get a subscription",
                {200: answer("It.", "Subscription")},
                errors=(404,),
            ),
            "patch": operation(
                f"update_{word}_subscription",
                "Change a subscription",
                changed,
                body=body("SubscriptionChange", required=True),
                errors=(404, 409),
            ),
            "delete": operation(f"delete_{word}_subscription", "Delete a subscription", {204: answer("Ended.")}),
        },
        f"{path}/{{subscription}}/confirm": {
            "put": operation(
                f"confirm_{word}_subscription",
                "Confirm or cancel a subscription",
                changed,
                body=body("Agreement", required=True),
                errors=(403, 404),
            )
        },
        f"{path}/{{subscription}}/secret": {
            "post": operation(
                f"rotate_{word}_subscription_secret",
                "Create a new secret; the former one stays valid for one day",
                {200: answer("It.", "Secret")},
                errors=(404,),
            )
        },
        **_deliveries(word, f"{path}/{{subscription}}/deliveries", parameters[1]),
    }


def _deliveries(word: str, path: str, limit: Json) -> Json:
    """Return the operations on the deliveries of a subscription."""
    return {
        path: {
            "get": operation(
                f"list_{word}_deliveries",
                "List failed or pending deliveries",
                {200: answer("A page, the oldest delivery first.", "DeliveryPage")},
                parameters=[
                    query("marker", SEQUENCES, "Marker of the page, from the link in the previous page."),
                    limit,
                    query(
                        "state",
                        {"enum": ["dead", "waiting"], "default": "dead"},
                        "State of the listed deliveries: failed (dead) or pending (waiting).",
                    ),
                ],
                errors=(404,),
            ),
            "post": operation(
                f"test_{word}_subscription",
                "Send a test notification to this subscriber",
                {202: answer("The notification is queued.", "Tested")},
                errors=(404, 409),
            ),
            "delete": operation(
                f"delete_{word}_dead_deliveries",
                "Delete failed or pending deliveries",
                {204: answer("Gone.")},
                parameters=[several("ids", "Ids of the deliveries. Default: all.", maxItems=MAX_IDS)],
                errors=(404,),
            ),
        },
        f"{path}/redrive": {
            "post": operation(
                f"redrive_{word}_dead_deliveries",
                "Retry failed deliveries with the full number of attempts",
                {200: answer("The number of retried deliveries.", "Redriven")},
                body=body("DeliveryRedriveTerms", required=False),
                errors=(404,),
            )
        },
    }


def schemas() -> Json:
    """Return the schemas of request and response bodies."""
    ttl = {"type": "integer", "minimum": MIN_TTL}
    one = {
        "id": TEXT,
        "source": TEXT,
        "subscriber": TEXT,
        "ttl": ttl,
        "age": integer(0, 1 << 53),
        "options": {"type": "object"},
        "confirmed": {"type": "boolean"},
    }
    links = {"type": "array", "maxItems": 1, "items": reference("schemas", "Link")}
    page = {"subscriptions": {"type": "array", "items": reference("schemas", "Subscription")}, "links": links}
    count = integer(0, 1 << 53)
    listed = one | {
        "kind": {"enum": ["queue", "topic"]},
        "waiting": integer(0, MAX_COUNTED),
        "dead": integer(0, MAX_COUNTED),
    }
    project_page = {
        "subscriptions": {"type": "array", "items": reference("schemas", "ProjectSubscription")},
        "links": links,
    }
    dead = dict.fromkeys(("id", "message_id", "Message_Type", "reason"), TEXT)
    dead |= {"attempts": count, "age": count, "ttl": ttl}
    deliveries = {"type": "array", "items": reference("schemas", "Delivery")}
    limit = integer(1, MAX_BATCH, default=DEFAULT_BATCH)
    made = {"subscription_id": TEXT, "secret": TEXT}
    rest = {"ttl": ttl, "options": {"type": ["object", "null"]}}
    return {
        "Subscription": _object(one),
        "SubscriptionPage": _object(page),
        "ProjectSubscription": _object(listed),
        "ProjectSubscriptionPage": _object(project_page),
        "SubscriptionTerms": {"type": "object", "properties": {**rest, "subscriber": TEXT}, "required": ["subscriber"]},
        "SubscriptionChange": {"type": "object", "properties": {**rest, "subscriber": {"type": ["string", "null"]}}},
        "Subscribed": {"type": "object", "properties": made, "required": ["subscription_id"]},
        "Delivery": _object(dead) | {"properties": {**dead, "body": {}}},
        "DeliveryPage": _object({"deliveries": deliveries, "links": links}),
        "Tested": _object({"message_id": TEXT}),
        "DeliveryRedriveTerms": {"type": "object", "properties": {"limit": limit}},
        "Agreement": _object({"confirmed": {"type": "boolean"}}),
        "Secret": _object({"secret": TEXT}),
    }


def _object(properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": sorted(properties)}
