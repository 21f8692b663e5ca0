# SPDX-License-Identifier: Apache-2.0
"""Data model of subscriptions (contract section 9) and deliveries.

A source is a queue or topic with subscribers. A notice describes a posted message. A delivery is a copy of the notice
for one subscription. Notices and deliveries are messages in hidden queues.
"""

from typing import Any, Final

from msgspec import Struct

from zq.model import QueueRef, Seconds
from zq.model.hidden import HIDDEN, NOTICES, Owner
from zq.wire.subscriptions import CONNECTION

# Roles of a subscription's hidden queues.
PENDING: Final = "~pending"
DEAD: Final = "~dead"
PUSHED: Final = "~pushed"
# Queue name that represents a project's topic log in a worker's schedule.
LOG_NAME: Final = f"{HIDDEN}log"


class Source(Owner):
    """A queue or topic to which clients can subscribe."""

    __slots__ = ()

    def worker_queue(self, subscription: str) -> QueueRef:
        """Return the delivery queue of a webhook or mail subscription, from which delivery workers send."""
        return self.hidden(PENDING, subscription)

    def connection_queue(self, subscription: str) -> QueueRef:
        """Return the delivery queue of a WebSocket connection's subscription. Delivery workers ignore this queue."""
        return self.hidden(PUSHED, subscription)

    def delivery_queue(self, subscription: "Subscription") -> QueueRef:
        """Return the delivery queue of a webhook, mail or WebSocket subscription."""
        is_connection = subscription.subscriber.startswith(CONNECTION)
        return self.connection_queue(subscription.id) if is_connection else self.worker_queue(subscription.id)

    def dead_letter_queue(self, subscription: str) -> QueueRef:
        """Return the dead-letter queue for a subscription's failed deliveries."""
        return self.hidden(DEAD, subscription)


def is_notice_queue(queue: QueueRef) -> bool:
    return queue.name.startswith(f"{NOTICES}/")


def make_log_ref(project: str) -> QueueRef:
    """Return a placeholder queue that represents a project's topic log in the schedule of a delivery worker."""
    return QueueRef(project, LOG_NAME)


def is_log(queue: QueueRef) -> bool:
    return queue.name == LOG_NAME


def parse_delivery_queue(queue: QueueRef) -> tuple[Source, str] | None:
    """Return the source and subscription id of a delivery queue, or None for any other queue."""
    if not queue.name.startswith(f"{PENDING}/"):
        return None
    _, kind, name, subscription = queue.name.split("/")
    return Source(queue.project, kind, name), subscription


class Notice(Struct, frozen=True, array_like=True):
    """A message to deliver, or a confirmation request.

    Args:
        generation: For a queue, the version of its subscription set at the time of the post. For a topic, the
            message's sequence number.
        confirmation: The type of a confirmation request; "" for a message.
        delay: The delay of the message in seconds. If the queue has no default delay, the server ignores the delays of
            messages, and ``delay`` is None.
        hops: The number of subscriptions through which the message has already passed, for loop detection.
        seal: Random bytes that are needed to decrypt a topic message (``Entry.seal``).
    """

    message: str
    kind: str
    name: str
    body: bytes
    ttl: int
    delay: int | None = None
    generation: int = 0
    confirmation: str = ""
    hops: int = 0
    seal: bytes = b""
    attributes: bytes = b""


class Subscription(Struct, frozen=True, omit_defaults=True):
    """A stored subscription.

    Args:
        started: The start of ``ttl``, as Unix time in seconds.
        confirmed: The minimum ``Notice.generation`` of messages to deliver, or None if the subscription is not active.
        former: The encrypted previous secret, and the time until which this secret also signs deliveries.
        agreed: Whether the subscriber has confirmed; None until the subscriber responds or the subscription becomes
            active. In documents of earlier versions of zq, None means "confirmed" if ``confirmed`` is set.
    """

    id: str
    subscriber: str
    ttl: int
    started: Seconds
    options: dict[str, Any] = {}
    confirmed: int | None = None
    secret: bytes = b""
    former: tuple[bytes, Seconds] | None = None
    agreed: bool | None = None

    @property
    def has_agreed(self) -> bool:
        """Return whether the subscriber has confirmed the subscription."""
        return self.confirmed is not None if self.agreed is None else self.agreed

    @property
    def expires(self) -> Seconds:
        return self.started + self.ttl

    def must_confirm(self, confirm: bool) -> bool:
        """Return whether the subscriber must confirm the subscription before it receives messages.

        A mail address must always confirm, and a WebSocket connection never. A webhook must confirm if ``confirm`` is
        true.
        """
        return not self.subscriber.startswith(CONNECTION) and (confirm or self.subscriber.startswith("mailto:"))

    def is_sent_to(self, confirm: bool) -> bool:
        """Return whether messages are sent to the subscriber. ``confirm`` is the option ``require_confirmation``."""
        return self.confirmed is not None and (self.has_agreed or not self.must_confirm(confirm))

    def receives(self, notice: Notice, confirm: bool) -> bool:
        """Return whether the notice is delivered to the subscriber. ``confirm`` is the option ``require_confirmation``.

        Only an unconfirmed subscriber receives a confirmation request. A message is delivered only if the subscription
        was active at the time of the post.
        """
        if notice.confirmation:
            return not self.has_agreed
        return self.is_sent_to(confirm) and self.confirmed is not None and self.confirmed <= notice.generation


class SubscriptionSet(Struct, frozen=True):
    """All subscriptions of one source, sorted by id.

    ``generation`` increases with each change. It is at least the Unix time of the last change, in milliseconds.
    """

    generation: int = 0
    items: tuple[Subscription, ...] = ()

    def find(self, id: str) -> Subscription | None:
        return next((each for each in self.items if each.id == id), None)

    def without_expired(self, now: Seconds) -> "SubscriptionSet":
        """Return a copy of the set without expired subscriptions. The generation stays the same."""
        return SubscriptionSet(self.generation, tuple(each for each in self.items if each.expires > now))

    def replace(self, *changed: Subscription, without: str = "") -> "SubscriptionSet":
        """Return a copy of the set with the ``changed`` subscriptions, and with the next generation.

        A changed subscription replaces the subscription with the same id, if any. The subscription with the id
        ``without`` is removed.
        """
        gone = {each.id for each in changed} | {without}
        kept = [each for each in self.items if each.id not in gone]
        return SubscriptionSet(self.generation + 1, tuple(sorted([*kept, *changed], key=lambda each: each.id)))

    @property
    def has_active(self) -> bool:
        return any(each.confirmed is not None for each in self.items)
