# SPDX-License-Identifier: Apache-2.0
"""OpenAPI operations and schemas of subscriptions and deliveries (contract section 9)."""

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
    several,
)
from zq.http.openapi.structs import answer_schemas, page_schema
from zq.model.limits import DEFAULT_BATCH, DEFAULT_PAGE, MAX_BATCH, MAX_IDS, Limits
from zq.subscriptions.subscriptions import MIN_TTL
from zq.wire.subscriptions import (
    Delivery,
    ProjectSubscription,
    Secret,
    SubscribeResult,
    Subscription,
    SubscriptionTestResult,
)


def subscriptions(limits: Limits) -> Json:
    """Return the OpenAPI operations of subscriptions and deliveries, by path and method."""
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
                {200: "ProjectSubscriptionPage"},
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
                {200: "SubscriptionPage"},
                parameters=parameters,
            ),
            "post": operation(
                f"create_{word}_subscription",
                f"Subscribe to a {word}",
                {
                    201: answer(
                        "The subscription's id; for a new subscription also its secret.", "SubscribeResult", "Location"
                    )
                },
                body=body("SubscriptionTerms", required=True),
                errors=(409,),
            ),
        },
        f"{path}/{{subscription}}": {
            "get": operation(f"get_{word}_subscription", "Get a subscription", {200: "Subscription"}, errors=[404]),
            "patch": operation(
                f"update_{word}_subscription",
                "Change a subscription",
                changed,
                body=body("SubscriptionChange", required=True),
                errors=(404, 409),
            ),
            "delete": operation(f"delete_{word}_subscription", "Delete a subscription", {204: ""}),
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
                {200: "Secret"},
                errors=(404,),
            )
        },
        **_deliveries(word, f"{path}/{{subscription}}/deliveries", parameters[1]),
    }


def _deliveries(word: str, path: str, limit: Json) -> Json:
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
                {202: "SubscriptionTestResult"},
                errors=(404, 409),
            ),
            "delete": operation(
                f"delete_{word}_dead_deliveries",
                "Delete failed or pending deliveries",
                {204: ""},
                parameters=[several("ids", "Ids of the deliveries. Default: all.", maxItems=MAX_IDS)],
                errors=(404,),
            ),
        },
        f"{path}/redrive": {
            "post": operation(
                f"redrive_{word}_dead_deliveries",
                "Retry failed deliveries with the full number of attempts",
                {200: "RedriveResult"},
                body=body("DeliveryRedriveTerms", required=False),
                errors=(404,),
            )
        },
    }


def schemas() -> Json:
    """Return the schemas of request and response bodies."""
    ttl, limit = {"type": "integer", "minimum": MIN_TTL}, integer(1, MAX_BATCH, default=DEFAULT_BATCH)
    rest = {"ttl": ttl, "options": {"type": ["object", "null"]}}
    confirmed = {"confirmed": {"type": "boolean"}}
    return answer_schemas(
        Subscription, ProjectSubscription, SubscribeResult, Delivery, SubscriptionTestResult, Secret
    ) | {
        "SubscriptionPage": page_schema("subscriptions", "Subscription"),
        "ProjectSubscriptionPage": page_schema("subscriptions", "ProjectSubscription"),
        "DeliveryPage": page_schema("deliveries", "Delivery"),
        "SubscriptionTerms": {"type": "object", "properties": {**rest, "subscriber": TEXT}, "required": ["subscriber"]},
        "SubscriptionChange": {"type": "object", "properties": {**rest, "subscriber": {"type": ["string", "null"]}}},
        "DeliveryRedriveTerms": {"type": "object", "properties": {"limit": limit}},
        "Agreement": {"type": "object", "properties": confirmed, "required": ["confirmed"]},
    }
