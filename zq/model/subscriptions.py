# SPDX-License-Identifier: Apache-2.0
"""The values of subscriptions (contract 9) and of what is delivered to them, as plain as those of ``model``.

What is to be delivered lies in queues of their project whose names no caller can write, for they begin with
``HIDDEN``: each queue with subscribers has one for a ``Notice`` of each message that was posted to it, each
subscription has one for what goes to it, and one for what could not be delivered.
"""

from typing import Any, Final, NamedTuple

from msgspec import Struct

from zq.model import QueueRef, Seconds

# What the names of zq's own queues begin with. It sorts behind all that names of queues may begin with.
HIDDEN: Final = "~"
_NOTICES: Final = "~notices/"
# The key of a queue's metadata under which its subscriptions stand that are delivered to; no caller can write it.
MARK: Final = "~subscriptions"
_PENDING: Final = "~pending/"
_DEAD: Final = "~dead/"
_PUSHED: Final = "~pushed/"
# What the subscriber of a subscription begins with whose messages go to a connection of WebSocket.
CONNECTION: Final = "websocket:"
_LOG: Final = "~log"


class Source(NamedTuple):
    """What is subscribed to. ``kind``: "queue" or "topic"."""

    project: str
    kind: str
    name: str

    @property
    def notices(self) -> QueueRef:
        """The queue of what is to be fanned out to its subscriptions."""
        return QueueRef(self.project, f"{_NOTICES}{self.kind}/{self.name}")

    def pending(self, subscription: str) -> QueueRef:
        """The queue of what is to be delivered to a subscription."""
        return QueueRef(self.project, f"{_PENDING}{self.kind}/{self.name}/{subscription}")

    def pushed(self, subscription: str) -> QueueRef:
        """The same of one that is a connection: no worker delivers it."""
        return QueueRef(self.project, f"{_PUSHED}{self.kind}/{self.name}/{subscription}")

    def outgoing(self, one: "Subscription") -> QueueRef:
        """``pending`` or ``pushed``, as the subscription is."""
        return self.pushed(one.id) if one.subscriber.startswith(CONNECTION) else self.pending(one.id)

    def dead(self, subscription: str) -> QueueRef:
        """The queue of what could not be delivered to it."""
        return QueueRef(self.project, f"{_DEAD}{self.kind}/{self.name}/{subscription}")


def is_notices(queue: QueueRef) -> bool:
    """Whether the queue holds what is to be fanned out."""
    return queue.name.startswith(_NOTICES)


def is_hidden(queue: QueueRef) -> bool:
    """Whether the queue is one of zq's own."""
    return queue.name.startswith(HIDDEN)


def source_of(queue: QueueRef) -> Source | None:
    """What one of zq's own queues is of; None of others."""
    parts = queue.name.split("/")
    return Source(queue.project, parts[1], parts[2]) if is_hidden(queue) and len(parts) > 2 else None


def copies_of(stage: str) -> str:
    """The stage, of no caller's, for what is to be delivered of a stage's messages."""
    return f"{HIDDEN}{stage}"


def log_of(project: str) -> QueueRef:
    """What stands for the log of the project's topics among queues with work; there is no such queue."""
    return QueueRef(project, _LOG)


def is_log(queue: QueueRef) -> bool:
    """Whether it is a log of topics."""
    return queue.name == _LOG


def pending_of(queue: QueueRef) -> tuple[Source, str] | None:
    """The source and the id of the subscription whose pending deliveries the queue holds; None if it holds none."""
    if not queue.name.startswith(_PENDING):
        return None
    kind, name, subscription = queue.name.removeprefix(_PENDING).split("/")
    return Source(queue.project, kind, name), subscription


class Notice(Struct, frozen=True, array_like=True):
    """What is to be told of a message, or (``confirmation``) to whoever is asked for confirmation.

    ``generation``: of its queue's subscriptions when it was posted. ``delay`` None = it was posted to a queue without.
    ``hops``: by how many deliveries it came there. ``seal``: of a topic's message, as ``Entry`` has it.
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
    """A subscription as stored; ``started``: when its life of ``ttl`` seconds began.

    ``confirmed``: from which ``Subscriptions.generation`` on messages go there, if the subscriber's word suffices; None
    = none does. ``agreed``: what the subscriber said; None = nothing yet, or in documents of earlier versions, that it
    agreed if messages go there. ``secret``: what deliveries are signed with, sealed; ``former``: the one before, and
    until when it is used too.
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
        """Whether the subscriber has confirmed."""
        return self.confirmed is not None if self.agreed is None else self.agreed

    @property
    def expires(self) -> Seconds:
        """When it ends."""
        return self.started + self.ttl

    def must_agree(self, confirm: bool) -> bool:
        """Return whether nothing is delivered before the subscriber agrees; ``confirm``: the server's option.

        Mail always needs it. A connection agrees by subscribing.
        """
        return not self.subscriber.startswith(CONNECTION) and (confirm or self.subscriber.startswith("mailto:"))

    def is_sent_to(self, confirm: bool) -> bool:
        """Return whether messages go there under this value of the server's option."""
        return self.confirmed is not None and (self.has_agreed or not self.must_agree(confirm))

    def gets(self, notice: Notice, confirm: bool) -> bool:
        """Return whether the notice goes there.

        A subscriber that agreed after a message came does not get it, and is not asked again.
        """
        if notice.confirmation:
            return not self.has_agreed
        return self.is_sent_to(confirm) and self.confirmed is not None and self.confirmed <= notice.generation


class Subscriptions(Struct, frozen=True):
    """All of one source, by their ids. ``generation`` grows with each change: milliseconds of the clock, or more."""

    generation: int = 0
    items: tuple[Subscription, ...] = ()

    def at(self, id: str) -> Subscription | None:
        """The one of the id."""
        return next((each for each in self.items if each.id == id), None)

    def living(self, now: Seconds) -> "Subscriptions":
        """Without those that have ended."""
        return Subscriptions(self.generation, tuple(each for each in self.items if each.expires > now))

    def replace(self, *changed: Subscription, without: str = "") -> "Subscriptions":
        """The next generation: these instead of those of their ids, and one of them away."""
        gone = {each.id for each in changed} | {without}
        kept = [each for each in self.items if each.id not in gone]
        return Subscriptions(self.generation + 1, tuple(sorted([*kept, *changed], key=lambda each: each.id)))

    @property
    def deliverable(self) -> bool:
        """Whether anything is delivered."""
        return any(each.confirmed is not None for each in self.items)
