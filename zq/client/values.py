# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of API calls as frozen values."""

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from zq.errors import InvalidBody
from zq.wire.attributes import Attribute, AttributesOut
from zq.wire.extensions import Buried, Moved, Released
from zq.wire.numbers import check_numbers, checked_json

T = TypeVar("T")
# Maximum length of a body in the ``repr`` of a message.
REPR_BODY: Final = 200
M_co = TypeVar("M_co", bound="Message", covariant=True)
# Placeholder for the body of a message in a listing with ``bodies="start"``.
NO_BODY: Final = Raw()
# A consumer's decision on a message. A string is a message id and means deletion.
Decision = str | Released | Moved | Buried


class UndecodableBody(InvalidBody, ValueError):
    """An error for a message body that the client cannot decode. ``Message.content`` has the bytes."""

    def __init__(self, message_id: str, reason: str) -> None:
        super().__init__(f"The body of message {message_id} cannot be decoded: {reason}.")
        self.message_id = message_id


class Message(AttributesOut, frozen=True, dict=True, omit_defaults=True):
    """A message that the server returned. ``body`` is decoded on first access.

    The fields after ``checksum`` are set only in detailed responses.
    """

    id: str
    ttl: int
    age: int
    raw: Raw = field(name="body", default=NO_BODY)
    """Body as JSON. Empty in a listing with ``bodies="start"``."""
    href: str = ""
    checksum: str = ""
    claim_count: int = 0
    sequence: int = 0
    created: datetime | None = None
    expires: datetime | None = None
    available_at: datetime | None = None
    origin: str = ""
    origin_claim_count: int = 0
    reason: str = ""
    body_start: str = ""
    """First 256 characters of the body, in a listing with ``bodies="start"``."""
    body_bytes: int = 0
    """Size of the whole body in bytes, in a listing with ``bodies="start"``."""
    group: str = ""

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        body = self.content.decode(errors="replace") or f"{self.body_start}…"
        if len(body) > REPR_BODY:
            body = f"{body[:REPR_BODY]}…"
        shown = {name: getattr(self, name) for name in ("ttl", "age", "claim_count", "reason", "claim")}
        details = "".join(f", {name}={value!r}" for name, value in shown.items() if value)
        return f"{type(self).__name__}(id={self.id!r}, body={body}{details})"

    @cached_property
    def body(self) -> Any:
        """The decoded body.

        Raises ``ValueError`` if the listing has only the start of the body, and ``UndecodableBody`` if Python cannot
        represent the body.
        """
        if not self.content:
            raise ValueError("Only the start of the body was requested; see body_start.")
        return _decoded(self.raw, self.id)

    @property
    def content(self) -> bytes:
        """The body as JSON bytes."""
        return bytes(self.raw)

    def body_as(self, kind: type[T]) -> T:
        """Decode the body as a type that msgspec supports, such as a dataclass, a ``Struct`` or ``list[int]``.

        Raises ``msgspec.ValidationError``.
        """
        return msgspec.json.decode(self.raw, type=kind)

    @property
    def claim(self) -> str:
        """Id of the claim that held the message when the server returned it; "" = not claimed."""
        return self.href.partition("?claim_id=")[2]


# An alias for classes that have a method named ``list``.
Messages = list[Message]


class Delivery(Message, frozen=True, dict=True, omit_defaults=True):
    """A claimed message, passed to a handler. The last decision is applied when the handler returns."""

    @cached_property
    def decisions(self) -> list[Any]:
        """The decisions so far."""
        return []  # not a field, because fields are encoded with the message

    def done(self) -> None:
        """Delete the message when the handler returns."""
        self.decisions.append(self.id)

    def release(self, delay: int | None = None) -> None:
        """Return the message to the queue. It is redelivered after ``delay`` seconds.

        Args:
            delay: Seconds. Default: the delay in the queue's redelivery rules.
        """
        self._decide(Released(self.id) if delay is None else Released(self.id, delay))

    def move(self, queue: str, *, body: Any = msgspec.UNSET, ttl: int | None = None, delay: int | None = None) -> None:
        """Move the message to another queue atomically. If ``body`` is given, it replaces the body."""
        content = body if body is msgspec.UNSET else _move_body(body)
        moved = Moved(self.id, queue, content)
        moved.ttl = msgspec.UNSET if ttl is None else ttl
        moved.delay = msgspec.UNSET if delay is None else delay
        self._decide(moved)

    def bury(self, reason: str) -> None:
        """Move the message to the queue's dead-letter queue."""
        self._decide(Buried(self.id, reason))

    def _decide(self, decision: Decision) -> None:
        msgspec.json.encode(decision)  # fail here, not in the settlement, if the value cannot be encoded as JSON
        self.decisions.append(decision)


class Event(Message, frozen=True, dict=True, omit_defaults=True):
    """A message that a stream received from a topic."""

    topic: str = ""


class Gap(Struct, frozen=True):
    """A gap in a stream. The messages between ``after`` and ``resumes`` were trimmed before they were read.

    Both sequences are ``None`` in two cases:

    - The connection broke before the server sent a position.
    - The log was lost, for example with its store. All messages of the new log follow.
    """

    after: int | None
    resumes: int | None


class Stretch(Struct, Generic[M_co], frozen=True):
    """A page of messages with its end position.

    Attributes:
        end: Marker of the last message; ``None`` for an empty page.
    """

    messages: list[M_co]
    end: int | None
    gap: Gap | None = None
    """Gap in the topic's log before this page."""
    looked: int | None = None
    """End position of the search, for an empty page of a topic."""


class Finished(Message, frozen=True, dict=True, omit_defaults=True):
    """A message in a listing of a queue's history. ``outcome`` is "" for a live message."""

    finished: datetime | None = None
    outcome: str = ""


class Located(Struct, frozen=True):
    """A message found by id, with its queue and state.

    Attributes:
        state: ``ready``, ``delayed``, ``claimed`` or ``finished``.
    """

    queue: str
    state: str
    message: Finished


class Claim(Struct, frozen=True):
    """Messages reserved for a consumer for ``ttl`` seconds. ``id`` is "" if no message was ready."""

    id: str
    messages: list[Message]
    age: int = 0
    ttl: int = 0
    client: str | None = None
    """Client id of the holder. ``None`` if unknown or not requested."""
    agent: str | None = None
    """User-Agent of the holder. ``None`` if unknown or not requested."""


class LiveClaim(Struct, frozen=True):
    """A claim in a listing.

    Attributes:
        client: Client id of the holder; ``None`` if unknown.
        agent: First 64 characters of the holder's User-Agent; ``None`` if unknown.
        age: Seconds since ``created``.
        created: Time of the last renewal, or of the creation.
        ends: Expiry time.
        messages: Number of messages in the claim.
    """

    queue: str
    id: str
    client: str | None
    agent: str | None
    age: int
    ttl: int
    created: datetime
    ends: datetime
    messages: int
    href: str = ""


class Edge(Struct, frozen=True):
    """The oldest or newest message of a queue or topic."""

    href: str
    age: int
    created: datetime
    sequence: int = 0


class Depth(Struct, frozen=True):
    """The number of messages per state. The counts stop at the server's ``max_counted`` and may be one second old.

    Attributes:
        backlog: Number of ready and claimed messages.
        oldest_ready_seconds: Seconds since the oldest ready message became ready.
    """

    ready: int
    claimed: int
    delayed: int
    backlog: int
    oldest_ready_seconds: float


class Stats(Struct, frozen=True):
    """The message counts of a queue or topic."""

    claimed: int
    free: int
    total: int
    oldest: Edge | None = None
    newest: Edge | None = None
    entered: int | None = None
    """Counter of posted messages with an arbitrary start. Only differences are meaningful. ``None`` = unknown."""


class Listed(Struct, frozen=True):
    """A queue or topic in a listing. ``metadata`` is set only if requested."""

    name: str
    metadata: Mapping[str, Any] | None = None


class Worked(Struct, frozen=True):
    """The outcome of ``work``.

    Attributes:
        done: Number of messages whose handler returned.
        failed: Number of messages whose handler raised an exception.
        unstarted: Number of claimed messages that were released without a call of the handler.
    """

    done: int
    failed: int
    unstarted: int = 0


class Draft(Struct, frozen=True):
    """A message to post, with its own ttl, delay, group or attributes.

    Attributes:
        attributes: Strings, numbers, bytes or ``TypedValue`` by name.
    """

    body: Any
    ttl: int | None = None
    delay: int | None = None
    group: str | None = None
    attributes: Mapping[str, Attribute] | None = None


class LastCommit(Struct, frozen=True):
    """The last committed batch of a producer.

    Attributes:
        published: Number of published messages.
        deleted: Number of deleted messages.
    """

    batch: int
    published: int
    deleted: int


class JobStage(Struct, frozen=True):
    """A stage in a listing.

    Attributes:
        bytes: Total size of the message bodies.
        dropped_in: Seconds until the stage expires.
    """

    name: str
    messages: int
    bytes: int
    expires: str
    dropped_in: int


class JobFence(Struct, frozen=True):
    """A fence in a listing.

    Attributes:
        epoch: Current epoch.
        advanced: Time at which the epoch began; ``None`` = unknown.
        age: Seconds since ``advanced``; ``None`` = unknown.
    """

    name: str
    epoch: int
    advanced: str | None
    age: int | None


class JobCommit(Struct, frozen=True):
    """The last committed batch of a producer, in a listing.

    Attributes:
        published: Number of published messages.
        deleted: Number of deleted messages.
        open: Whether the server is still applying the commit.
        decided: Time of the commit; ``None`` = unknown.
        age: Seconds since ``decided``; ``None`` = unknown.
    """

    producer: str
    batch: int
    published: int
    deleted: int
    open: bool
    decided: str | None
    age: int | None


class Redriven(Struct, frozen=True):
    """The result of a redrive.

    Attributes:
        remaining: Number of messages left in the queue, exact up to 10,000.
        lost: Requested ids whose messages are not ready.
    """

    moved: int
    remaining: int
    lost: list[str] = []


class RedriveDryRun(Struct, frozen=True):
    """The expected result of a redrive.

    Attributes:
        would_move: Number of messages that would be moved.
        origins: Number of messages by origin queue.
        without_origin: Number of messages without an origin.
        missing_origin: Number of messages by origin queue that does not exist.
        counted: Number of inspected messages.
        lost: Requested ids whose messages are not ready.
    """

    would_move: int
    origins: dict[str, int]
    without_origin: int
    missing_origin: dict[str, int]
    counted: int
    lost: list[str] = []


class ReplayDryRun(Struct, frozen=True):
    """The expected result of a replay.

    Attributes:
        would_replay: Number of copies that would be posted.
        counted: Number of inspected history entries.
        lost: Requested ids without a history entry.
    """

    would_replay: int
    counted: int
    lost: list[str] = []


class Subscribed(Struct, frozen=True):
    """The result of ``subscribe``.

    Attributes:
        secret: Key for verifying webhook signatures; "" for an existing subscription.
    """

    id: str = field(name="subscription_id")
    secret: str = field(default="")

    def __repr__(self) -> str:
        return f"Subscribed(id={self.id!r})"


class Subscription(Struct, frozen=True):
    """A subscription. Secret options (headers and trust) are shown as ``***``."""

    id: str
    source: str
    """Name of the queue or topic."""
    subscriber: str
    """URI to which messages are delivered."""
    ttl: int
    """Lifetime in seconds."""
    age: int
    """Seconds since creation."""
    options: dict[str, Any]
    confirmed: bool
    """Whether the subscriber has confirmed."""


class ProjectSubscription(Subscription, frozen=True):
    """A subscription in the listing of its project.

    Attributes:
        kind: Kind of the source: ``queue`` or ``topic``.
        waiting: Number of pending deliveries, counted up to 1,000.
        dead: Number of failed deliveries, counted up to 1,000.
    """

    kind: str
    waiting: int
    dead: int


class DeadDelivery(Struct, frozen=True, dict=True):
    """A failed or pending delivery. ``reason`` is set only for failed deliveries."""

    id: str
    message_id: str
    kind: str = field(name="Message_Type")
    """``Notification``, or the type of a confirmation request that could not be delivered."""
    attempts: int
    reason: str
    age: int
    """Seconds since the delivery was stored."""
    ttl: int
    """Retention in seconds."""
    raw: Raw = field(name="body", default=Raw(b"null"))

    @cached_property
    def body(self) -> Any:
        """The decoded message body; ``None`` if the server could not decrypt it."""
        return _decoded(self.raw, self.id)


def _decoded(raw: Raw, message_id: str) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UndecodableBody(message_id, str(error)) from error


def _move_body(body: object) -> Raw:
    content = checked_json(body, "body")
    check_numbers(content, "body")
    return Raw(content)
