# SPDX-License-Identifier: Apache-2.0
"""Values of subscriptions (contract 9) and of deliveries.

Deliveries are messages in hidden queues of their project. A source is a queue or topic with subscribers. Each queue
with subscribers has a queue of notices. Each subscription has a queue of pending deliveries and a dead-letter queue.
"""

from typing import Any, Final

from msgspec import Struct

from zq.model import QueueRef, Seconds
from zq.model.hidden import HIDDEN, NOTICES, Owner

# The roles of the hidden queues of subscriptions.
PENDING: Final = "~pending"
DEAD: Final = "~dead"
PUSHED: Final = "~pushed"
# The prefix of the subscriber's URI if the subscriber is a WebSocket connection.
CONNECTION: Final = "websocket:"
# The queue name that represents a project's topic log in a worker's schedule.
LOG_NAME: Final = f"{HIDDEN}log"


class Source(Owner):
    """A queue or topic that can have subscribers."""

    __slots__ = ()

    def pending(self, subscription: str) -> QueueRef:
        """Return the queue of a subscription's pending deliveries."""
        return self.hidden(PENDING, subscription)

    def pushed(self, subscription: str) -> QueueRef:
        """Return the queue of pending deliveries to a WebSocket connection. Workers do not deliver from this queue."""
        return self.hidden(PUSHED, subscription)

    def outgoing(self, subscription: "Subscription") -> QueueRef:
        """Return the subscription's ``pushed`` queue if the subscriber is a connection, else its ``pending`` queue."""
        is_connection = subscription.subscriber.startswith(CONNECTION)
        return self.pushed(subscription.id) if is_connection else self.pending(subscription.id)

    def dead(self, subscription: str) -> QueueRef:
        """Return the dead-letter queue of a subscription's deliveries."""
        return self.hidden(DEAD, subscription)


def is_notices(queue: QueueRef) -> bool:
    """Return whether the queue holds notices to fan out."""
    return queue.name.startswith(f"{NOTICES}/")


def log_of(project: str) -> QueueRef:
    """Return the reference that represents the project's topic log in a worker's schedule. It names no real queue."""
    return QueueRef(project, LOG_NAME)


def is_log(queue: QueueRef) -> bool:
    """Return whether the reference represents a topic log."""
    return queue.name == LOG_NAME


def pending_of(queue: QueueRef) -> tuple[Source, str] | None:
    """Return the source and id of the subscription whose pending deliveries the queue holds; None for other queues."""
    if not queue.name.startswith(f"{PENDING}/"):
        return None
    _, kind, name, subscription = queue.name.split("/")
    return Source(queue.project, kind, name), subscription


class Notice(Struct, frozen=True, array_like=True):
    """A message to deliver, or a request for confirmation if ``confirmation`` is set.

    Args:
        generation: The queue's generation of subscriptions when the message was posted; the sequence of a topic
            message.
        delay: The delay of the message; None if the queue ignores delays.
        hops: The number of deliveries in the chain that led to the post.
        seal: The seal of the topic's ``Entry``.
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


class Subscription(Struct, frozen=True, omit_defaults=True):
    """A stored subscription.

    Args:
        started: The moment from which ``ttl`` counts.
        confirmed: The first generation of messages that go to the subscriber; None if no message does.
        secret: The sealed secret that signs deliveries.
        former: The previous secret, and the moment until which it signs deliveries, too.
        agreed: The subscriber's answer to the request for confirmation; None if there is no answer yet. In documents of
            earlier versions, None with ``confirmed`` set means that the subscriber has agreed.
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
        """Return the moment at which the subscription expires."""
        return self.started + self.ttl

    def must_agree(self, confirm: bool) -> bool:
        """Return whether deliveries require the subscriber's agreement.

        ``confirm``: the server's option ``require_confirmation``. Mail requires agreement regardless of the option. A
        connection agrees by subscribing.
        """
        return not self.subscriber.startswith(CONNECTION) and (confirm or self.subscriber.startswith("mailto:"))

    def is_sent_to(self, confirm: bool) -> bool:
        """Return whether messages go to the subscriber. ``confirm``: the server's option ``require_confirmation``."""
        return self.confirmed is not None and (self.has_agreed or not self.must_agree(confirm))

    def gets(self, notice: Notice, confirm: bool) -> bool:
        """Return whether the notice goes to the subscriber. ``confirm``: the option ``require_confirmation``.

        A subscriber does not get messages that were posted before it agreed. After it has agreed, it gets no further
        request for confirmation.
        """
        if notice.confirmation:
            return not self.has_agreed
        return self.is_sent_to(confirm) and self.confirmed is not None and self.confirmed <= notice.generation


class SubscriptionSet(Struct, frozen=True):
    """All subscriptions of one source, sorted by id.

    ``generation`` increases with each change, and is at least the clock's milliseconds.
    """

    generation: int = 0
    items: tuple[Subscription, ...] = ()

    def at(self, id: str) -> Subscription | None:
        """Return the subscription with the given id; None if it does not exist."""
        return next((each for each in self.items if each.id == id), None)

    def living(self, now: Seconds) -> "SubscriptionSet":
        """Return the set without its expired subscriptions, in the same generation."""
        return SubscriptionSet(self.generation, tuple(each for each in self.items if each.expires > now))

    def replace(self, *changed: Subscription, without: str = "") -> "SubscriptionSet":
        """Return the next generation with ``changed`` added or replaced, and the id ``without`` removed."""
        gone = {each.id for each in changed} | {without}
        kept = [each for each in self.items if each.id not in gone]
        return SubscriptionSet(self.generation + 1, tuple(sorted([*kept, *changed], key=lambda each: each.id)))

    @property
    def deliverable(self) -> bool:
        """Return whether messages go to at least one subscriber."""
        return any(each.confirmed is not None for each in self.items)
