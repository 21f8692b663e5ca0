# SPDX-License-Identifier: Apache-2.0
"""Answers about subscriptions and their deliveries, like those of ``answers``."""

from typing import Annotated, Any, TypeAlias

from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from zq.limits import MIN_TTL

SafeCount: TypeAlias = Annotated[int, Meta(extra_json_schema={"minimum": 0, "maximum": 1 << 53})]
Ttl: TypeAlias = Annotated[int, Meta(extra_json_schema={"minimum": MIN_TTL})]


class Subscribed(Struct, frozen=True, omit_defaults=True):
    """The id of a subscription and, if it is new, the ``secret`` that signs its webhooks."""

    id: str = field(name="subscription_id")
    secret: str = ""

    def __repr__(self) -> str:
        """Return the fields without the secret."""
        return f"Subscribed(id={self.id!r})"


class Subscription(Struct, frozen=True):
    """A subscription. Values of headers and the trust id are shown as ``***``.

    Attributes:
        source: Name of the queue or topic.
        age: Age in seconds.
        confirmed: Whether the subscriber has confirmed.
    """

    id: str
    source: str
    subscriber: str
    ttl: Ttl
    age: SafeCount
    options: dict[str, Any]
    confirmed: bool


class Secret(Struct):
    secret: str


class Delivery(Struct, frozen=True):
    """A failed or pending delivery, without a body if the body cannot be decrypted.

    Attributes:
        Message_Type: ``Notification``, or the name of a confirmation request that did not reach the subscriber.
        reason: The reason of the failure; empty for a pending delivery.
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


class Tested(Struct):
    message_id: str
