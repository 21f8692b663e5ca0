# SPDX-License-Identifier: Apache-2.0
"""What calls take and return: messages and the like, as frozen values. A body is decoded when it is asked for."""

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
# Characters of a body in the ``repr`` of a message.
REPR_BODY: Final = 200
M_co = TypeVar("M_co", bound="Message", covariant=True)
# The body of a message of which only the start was asked for.
NO_BODY: Final = Raw()
# What becomes of a message; its id alone means that it is deleted.
Decision = str | Released | Moved | Buried


class UndecodableBody(InvalidBody, ValueError):
    """A body that the client cannot decode; ``message_id`` is its message. ``Message.content`` has the bytes."""

    def __init__(self, message_id: str, reason: str) -> None:
        super().__init__(f"The body of message {message_id} cannot be decoded: {reason}.")
        self.message_id = message_id


class Message(AttributesOut, frozen=True, dict=True, omit_defaults=True):
    """A message as the server showed it. What stands below ``checksum`` is set where the request asked for details."""

    id: str
    ttl: int
    age: int
    raw: Raw = field(name="body", default=NO_BODY)
    """The body as it travels: JSON. Empty where only ``body_start`` was asked for."""
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
    """The first 256 characters of a body that was not asked for whole."""
    body_bytes: int = 0
    """How many bytes such a body has."""
    group: str = ""

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        """The body, shortened, and what is set of the rest."""
        body = self.content.decode(errors="replace") or f"{self.body_start}…"
        if len(body) > REPR_BODY:
            body = f"{body[:REPR_BODY]}…"
        shown = {name: getattr(self, name) for name in ("ttl", "age", "claim_count", "reason", "claim")}
        details = "".join(f", {name}={value!r}" for name, value in shown.items() if value)
        return f"{type(self).__name__}(id={self.id!r}, body={body}{details})"

    @cached_property
    def body(self) -> Any:
        """The body, decoded.

        Raises ``ValueError`` where only its start was asked for, and ``UndecodableBody`` for a body that Python cannot
        hold.
        """
        if not self.content:
            raise ValueError("Only the start of the body was asked for: it is body_start.")
        return _decoded(self.raw, self.id)

    @property
    def content(self) -> bytes:
        """The body as bytes of JSON."""
        return bytes(self.raw)

    def body_as(self, kind: type[T]) -> T:
        """The body as a value of a class that msgspec can decode: a dataclass, a ``Struct``, ``list[int]`` …

        Raises ``msgspec.ValidationError``.
        """
        return msgspec.json.decode(self.raw, type=kind)

    @property
    def claim(self) -> str:
        """The claim that held it when it was shown; "" = none."""
        return self.href.partition("?claim_id=")[2]


# A name of its own, since ``list`` is a verb of the handles.
Messages = list[Message]


class Delivery(Message, frozen=True, dict=True, omit_defaults=True):
    """A message to work on. What is decided about it is carried out when its work has ended; the last one counts."""

    @cached_property
    def decisions(self) -> list[Any]:
        """The decisions so far. They are no member, since encoded messages have what the server showed."""
        return []

    def done(self) -> None:
        """It is finished and will be deleted."""
        self.decisions.append(self.id)

    def release(self, delay: int | None = None) -> None:
        """It is released: after so many seconds; None = as the queue's redelivery rules say."""
        self._decide(Released(self.id) if delay is None else Released(self.id, delay))

    def move(self, queue: str, *, body: Any = msgspec.UNSET, ttl: int | None = None, delay: int | None = None) -> None:
        """It goes to another queue in one step, with a new body if one is given."""
        content = body if body is msgspec.UNSET else _move_body(body)
        moved = Moved(self.id, queue, content)
        moved.ttl = msgspec.UNSET if ttl is None else ttl
        moved.delay = msgspec.UNSET if delay is None else delay
        self._decide(moved)

    def bury(self, reason: str) -> None:
        """It goes to the queue's dead letters."""
        self._decide(Buried(self.id, reason))

    def _decide(self, decision: Decision) -> None:
        msgspec.json.encode(decision)  # what is no JSON fails here, and not in the settlement later
        self.decisions.append(decision)


class Event(Message, frozen=True, dict=True, omit_defaults=True):
    """A message of a topic, from a stream."""

    topic: str = ""


class Gap(Struct, frozen=True):
    """A gap in a stream: messages with sequences between these two were trimmed before they were read.

    Both are None when a connection was lost before the server had sent any position in the log, and when the log is
    not there any more, as after the loss of the whole store: then all follows that the new one has.
    """

    after: int | None
    resumes: int | None


class Stretch(Struct, Generic[M_co], frozen=True):
    """Some messages in their order; ``end``: the marker behind the last one, None if there was none."""

    messages: list[M_co]
    end: int | None
    gap: Gap | None = None
    """What of a topic was trimmed before it was read."""
    looked: int | None = None
    """Of a topic in which nothing was found: up to where the project's log was searched."""


class Finished(Message, frozen=True, dict=True, omit_defaults=True):
    """A message of a queue's history; ``outcome`` "" = it lives."""

    finished: datetime | None = None
    outcome: str = ""


class Located(Struct, frozen=True):
    """Where a message is: its queue, and its state there: ``ready``, ``delayed``, ``claimed``; or ``finished``, and
    ``message`` has how."""

    queue: str
    state: str
    message: Finished


class Claim(Struct, frozen=True):
    """Messages that are the caller's until the claim ends; none, and no claim, if there was nothing to take."""

    id: str
    messages: list[Message]
    age: int = 0
    ttl: int = 0
    client: str | None = None
    """Of its holder, as ``agent`` is; None if that is not known, or was not asked for."""
    agent: str | None = None


class LiveClaim(Struct, frozen=True):
    """A claim in a listing. ``client`` and ``agent`` of its holder: the Client-ID and the first 64 characters of the
    User-Agent, None if they are not known. ``created``: when it was made or renewed last, ``age`` seconds ago."""

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
    """The oldest or the newest message."""

    href: str
    age: int
    created: datetime
    sequence: int = 0


class Depth(Struct, frozen=True):
    """Messages of a queue by state, each counted up to the server's ``max_counted``, at most a second ago.

    ``backlog``: ready and claimed ones. ``oldest_ready_seconds``: for how long the first ready one could be claimed.
    """

    ready: int
    claimed: int
    delayed: int
    backlog: int
    oldest_ready_seconds: float


class Stats(Struct, frozen=True):
    """How many messages there are."""

    claimed: int
    free: int
    total: int
    oldest: Edge | None = None
    newest: Edge | None = None
    entered: int | None = None
    """Messages that have entered a queue, counted from any start: only differences count. None: not counted."""


class Listed(Struct, frozen=True):
    """A queue or a topic in a listing; ``metadata`` only if asked for."""

    name: str
    metadata: Mapping[str, Any] | None = None


class Worked(Struct, frozen=True):
    """How many handlers have returned, and how many have raised, in one ``work``.

    ``unstarted``: messages that were claimed and, at its end, given back without having been handed to any.
    """

    done: int
    failed: int
    unstarted: int = 0


class Draft(Struct, frozen=True):
    """A message to be posted with a ttl, a delay, a group or attributes of its own.

    ``attributes``: text, numbers and bytes by name, or ``TypedValue`` for a type with a label.
    """

    body: Any
    ttl: int | None = None
    delay: int | None = None
    group: str | None = None
    attributes: Mapping[str, Attribute] | None = None


class LastCommit(Struct, frozen=True):
    """A producer's last batch and what it did."""

    batch: int
    published: int
    deleted: int


class JobStage(Struct, frozen=True):
    """Staged messages that wait for a commit, and the bytes of their bodies; ``dropped_in``: seconds."""

    name: str
    messages: int
    bytes: int
    expires: str
    dropped_in: int


class JobFence(Struct, frozen=True):
    """A fence and its last epoch; when it was given out, and seconds since then: None where that is not known."""

    name: str
    epoch: int
    advanced: str | None
    age: int | None


class JobCommit(Struct, frozen=True):
    """A producer's last batch and what it does; ``open``: not all of it is done yet. ``decided`` and ``age``: as of a
    fence."""

    producer: str
    batch: int
    published: int
    deleted: int
    open: bool
    decided: str | None
    age: int | None


class Redriven(Struct, frozen=True):
    """What a redrive moved, and how many are left, exact up to 10,000; ``lost``: named ones that are not ready now."""

    moved: int
    remaining: int
    lost: list[str] = []


class RedriveDryRun(Struct, frozen=True):
    """What a redrive would move, and how many of the ``counted`` messages have which origin, a missing one, or none."""

    would_move: int
    origins: dict[str, int]
    without_origin: int
    missing_origin: dict[str, int]
    counted: int
    lost: list[str] = []


class ReplayDryRun(Struct, frozen=True):
    """How many of the ``counted`` records a replay would post copies of; ``lost``: named ones that have none."""

    would_replay: int
    counted: int
    lost: list[str] = []


class Subscribed(Struct, frozen=True):
    """The id of a subscription, and of a new one the ``secret`` by which its webhooks are signed."""

    id: str = field(name="subscription_id")
    secret: str = field(default="")

    def __repr__(self) -> str:
        """Without the secret."""
        return f"Subscribed(id={self.id!r})"


class Subscription(Struct, frozen=True):
    """A subscription; ``age`` in seconds. Its headers and trust show as ``***``."""

    id: str
    source: str
    """Name of the queue or topic."""
    subscriber: str
    ttl: int
    age: int
    options: dict[str, Any]
    confirmed: bool
    """Whether the subscriber has agreed."""


class DeadDelivery(Struct, frozen=True, dict=True):
    """What could not be delivered, or waits: of which message, how often it was tried, and why the last time failed
    (known of what was given up)."""

    id: str
    message_id: str
    kind: str = field(name="Message_Type")
    """``Notification``, or the name of a question that did not reach the subscriber."""
    attempts: int
    reason: str
    age: int
    """Seconds since the message was stored to be delivered; ``ttl``: how long it is kept."""
    ttl: int
    raw: Raw = field(name="body", default=Raw(b"null"))

    @cached_property
    def body(self) -> Any:
        """The message's body, decoded; None where it cannot be opened."""
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
