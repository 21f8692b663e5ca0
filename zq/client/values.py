# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of calls as frozen values. The body of a message is decoded on first access."""

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
# The body of a message of which only the start was requested.
NO_BODY: Final = Raw()
# The decision on a message. Its id alone means deletion.
Decision = str | Released | Moved | Buried


class UndecodableBody(InvalidBody, ValueError):
    """The error for a body that the client cannot decode. ``Message.content`` has the bytes."""

    def __init__(self, message_id: str, reason: str) -> None:
        super().__init__(f"The body of message {message_id} cannot be decoded: {reason}.")
        self.message_id = message_id


class Message(AttributesOut, frozen=True, dict=True, omit_defaults=True):
    """A message as returned by the server. The fields after ``checksum`` are set only if details were requested."""

    id: str
    ttl: int
    age: int
    raw: Raw = field(name="body", default=NO_BODY)
    """The body as JSON. Empty if only ``body_start`` was requested."""
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
    """The first 256 characters of the body, if only the start was requested."""
    body_bytes: int = 0
    """Size of the whole body in bytes, if only the start was requested."""
    group: str = ""

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        """Return the shortened body and all fields that are set."""
        body = self.content.decode(errors="replace") or f"{self.body_start}…"
        if len(body) > REPR_BODY:
            body = f"{body[:REPR_BODY]}…"
        shown = {name: getattr(self, name) for name in ("ttl", "age", "claim_count", "reason", "claim")}
        details = "".join(f", {name}={value!r}" for name, value in shown.items() if value)
        return f"{type(self).__name__}(id={self.id!r}, body={body}{details})"

    @cached_property
    def body(self) -> Any:
        """The decoded body.

        Raises ``ValueError`` if only the start was requested, and ``UndecodableBody`` if Python cannot represent the
        body.
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
        """The claim that held the message when it was read; "" = none."""
        return self.href.partition("?claim_id=")[2]


# An alias, because ``list`` is a verb of the handles.
Messages = list[Message]


class Delivery(Message, frozen=True, dict=True, omit_defaults=True):
    """A claimed message to be handled. Its last decision is applied when its handling ends."""

    @cached_property
    def decisions(self) -> list[Any]:
        """The decisions so far. They are not a field, because an encoded message has the server's fields only."""
        return []

    def done(self) -> None:
        """Delete the message when its handling ends."""
        self.decisions.append(self.id)

    def release(self, delay: int | None = None) -> None:
        """Release the message after ``delay`` seconds; ``None`` = the queue's redelivery rules."""
        self._decide(Released(self.id) if delay is None else Released(self.id, delay))

    def move(self, queue: str, *, body: Any = msgspec.UNSET, ttl: int | None = None, delay: int | None = None) -> None:
        """Move the message to another queue atomically, with a new body if one is given."""
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
    """A message of a topic, received from a stream."""

    topic: str = ""


class Gap(Struct, frozen=True):
    """A gap in a stream: messages between these two sequences were trimmed before they were read.

    Both are ``None`` in two cases: if the connection was lost before the server sent a position, and if the log no
    longer exists, for example after the loss of the store. In the second case, all messages of the new log follow.
    """

    after: int | None
    resumes: int | None


class Stretch(Struct, Generic[M_co], frozen=True):
    """A page of messages with its end position.

    Attributes:
        end: Marker of the last message; ``None`` if the page is empty.
    """

    messages: list[M_co]
    end: int | None
    gap: Gap | None = None
    """The trimmed part of a topic's log before this page."""
    looked: int | None = None
    """The log position up to which an empty page of a topic was searched."""


class Finished(Message, frozen=True, dict=True, omit_defaults=True):
    """A message in a queue's history; ``outcome`` is "" for a live message."""

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
    """Messages reserved for the caller until the claim ends. ``id`` is "" if no message was ready."""

    id: str
    messages: list[Message]
    age: int = 0
    ttl: int = 0
    client: str | None = None
    """Client id of the holder; ``agent`` is its User-Agent. ``None`` if unknown or not requested."""
    agent: str | None = None


class LiveClaim(Struct, frozen=True):
    """A claim in a listing.

    Attributes:
        client: Client id of the holder; ``None`` if unknown.
        agent: First 64 characters of the holder's User-Agent; ``None`` if unknown.
        age: Seconds since ``created``.
        created: Time of creation or of the last renewal.
        messages: Number of messages that the claim holds.
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
    """The oldest or newest message."""

    href: str
    age: int
    created: datetime
    sequence: int = 0


class Depth(Struct, frozen=True):
    """The message count per state, each up to the server's ``max_counted``, at most one second old.

    Attributes:
        backlog: Number of ready and claimed messages.
        oldest_ready_seconds: Seconds for which the first ready message has been ready.
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
    """Counter of posted messages with an arbitrary start: only differences are meaningful. ``None`` = unknown."""


class Listed(Struct, frozen=True):
    """A queue or topic in a listing. ``metadata`` is set only if requested."""

    name: str
    metadata: Mapping[str, Any] | None = None


class Worked(Struct, frozen=True):
    """The outcome of one ``work``: the number of handlers that returned, and of those that raised.

    Attributes:
        unstarted: Number of claimed messages that were released without being handled.
    """

    done: int
    failed: int
    unstarted: int = 0


class Draft(Struct, frozen=True):
    """A message to be posted with its own ttl, delay, group or attributes.

    ``attributes``: strings, numbers, bytes or ``TypedValue`` by name.
    """

    body: Any
    ttl: int | None = None
    delay: int | None = None
    group: str | None = None
    attributes: Mapping[str, Attribute] | None = None


class LastCommit(Struct, frozen=True):
    """A producer's last batch and its effect."""

    batch: int
    published: int
    deleted: int


class JobStage(Struct, frozen=True):
    """A stage that waits for a commit. ``bytes`` is the size of its bodies; ``dropped_in`` is in seconds."""

    name: str
    messages: int
    bytes: int
    expires: str
    dropped_in: int


class JobFence(Struct, frozen=True):
    """A fence and its last epoch, with the time of that epoch and its age in seconds; ``None`` = unknown."""

    name: str
    epoch: int
    advanced: str | None
    age: int | None


class JobCommit(Struct, frozen=True):
    """A producer's last batch.

    Attributes:
        open: Whether the commit is not completely applied.
        decided: Time of the commit; ``None`` = unknown.
        age: Seconds since ``decided``.
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
        remaining: Number of messages left, exact up to 10,000.
        lost: Requested ids of messages that are not ready.
    """

    moved: int
    remaining: int
    lost: list[str] = []


class RedriveDryRun(Struct, frozen=True):
    """The expected result of a redrive: counts of the ``counted`` inspected messages by origin."""

    would_move: int
    origins: dict[str, int]
    without_origin: int
    missing_origin: dict[str, int]
    counted: int
    lost: list[str] = []


class ReplayDryRun(Struct, frozen=True):
    """The expected result of a replay of ``counted`` entries; ``lost`` has the requested ids without an entry."""

    would_replay: int
    counted: int
    lost: list[str] = []


class Subscribed(Struct, frozen=True):
    """The id of a subscription and, if it is new, the ``secret`` that signs its webhooks."""

    id: str = field(name="subscription_id")
    secret: str = field(default="")

    def __repr__(self) -> str:
        """Return the fields without the secret."""
        return f"Subscribed(id={self.id!r})"


class Subscription(Struct, frozen=True):
    """A subscription. ``age`` is in seconds; headers and trust are shown as ``***``."""

    id: str
    source: str
    """Name of the queue or topic."""
    subscriber: str
    ttl: int
    age: int
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
    """``Notification``, or the name of a confirmation request that did not reach the subscriber."""
    attempts: int
    reason: str
    age: int
    """Seconds since the delivery was stored. ``ttl`` is its retention."""
    ttl: int
    raw: Raw = field(name="body", default=Raw(b"null"))

    @cached_property
    def body(self) -> Any:
        """The decoded body of the message; ``None`` if it cannot be decrypted."""
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
