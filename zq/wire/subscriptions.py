# SPDX-License-Identifier: Apache-2.0
"""Response bodies for subscriptions and their deliveries."""

from typing import Annotated, Any, Final, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from zq.model.limits import MIN_TTL
from zq.model.store_uri import HIDDEN

SafeCount: TypeAlias = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 1 << 53})]
Ttl: TypeAlias = Annotated[int, Meta(extra_json_schema={"minimum": MIN_TTL})]
# Maximum length of a subscriber's URI.
MAX_URI: Final = 2048
# Prefix of the subscribers that are WebSocket connections.
CONNECTION: Final = "websocket:"


class SubscribeResult(Struct, frozen=True, omit_defaults=True):
    """The result of a request to subscribe.

    Attributes:
        secret: Key for verifying webhook signatures. Absent if the subscription existed already.
    """

    id: str = field(name="subscription_id")
    secret: str = ""

    def __repr__(self) -> str:
        return f"SubscribeResult(id={self.id!r})"


class Subscription(Struct, frozen=True):
    """A subscription. Secret options (headers and trust) are shown as ``***``.

    Attributes:
        source: Name of the queue or topic.
        subscriber: URI to which messages are delivered.
        ttl: Lifetime in seconds.
        age: Seconds since creation.
        confirmed: Whether the subscriber has confirmed.
    """

    id: str
    source: str
    subscriber: str
    ttl: Ttl
    age: SafeCount
    options: dict[str, Any]
    confirmed: bool


class ProjectSubscription(Subscription, frozen=True):
    """A subscription in the listing of its project.

    Attributes:
        kind: Kind of the source: queue or topic.
        waiting: Number of pending deliveries, counted up to 1,000.
        dead: Number of failed deliveries, counted up to 1,000.
    """

    kind: str
    waiting: SafeCount
    dead: SafeCount


class Secret(Struct):
    secret: str


class Delivery(Struct, frozen=True):
    """A failed or pending delivery. If the server could not decrypt the body, it is absent.

    Attributes:
        Message_Type: ``Notification``, or the type of a confirmation request that could not be delivered.
        reason: The reason for the failure; empty for a pending delivery.
        age: Seconds since the delivery was stored.
        ttl: Retention in seconds.
    """

    id: str
    message_id: str
    kind: str = field(name="Message_Type")
    attempts: SafeCount
    reason: str
    age: SafeCount
    ttl: Ttl
    raw: Raw | UnsetType = field(name="body", default=UNSET)


class SubscriptionTestResult(Struct):
    message_id: str


def mask_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the options for a response. The header values and the trust id are masked."""
    shown = dict(options)
    if isinstance(headers := options.get("post_headers"), dict):
        shown["post_headers"] = dict.fromkeys(headers, HIDDEN)
    if options.get("trust_id"):
        shown["trust_id"] = HIDDEN
    return shown
