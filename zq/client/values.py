# SPDX-License-Identifier: Apache-2.0
"""Arguments and results of API calls as frozen values."""

from collections.abc import Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
from msgspec import Raw, Struct, field

from zq.client.tracing import link_to
from zq.errors import InvalidBody
from zq.wire import answers, subscriptions
from zq.wire.attributes import Attribute
from zq.wire.extensions import BuryTerms, MoveTerms, ReleaseTerms
from zq.wire.numbers import check_numbers, checked_json

if TYPE_CHECKING:
    from opentelemetry.trace import Link

T = TypeVar("T")
# Maximum length of a body in the ``repr`` of a message.
REPR_BODY: Final = 200
M_co = TypeVar("M_co", bound="Message", covariant=True)
# Placeholder for the body of a message in a listing with ``bodies="start"``.
NO_BODY: Final = Raw()
# A consumer's decision on a message. A string is a message id and means deletion.
Decision = str | ReleaseTerms | MoveTerms | BuryTerms


class UndecodableBody(InvalidBody, ValueError):
    """An error for a message body that the client cannot decode. ``Message.content`` has the bytes."""

    def __init__(self, message_id: str, reason: str) -> None:
        super().__init__(f"The body of message {message_id} cannot be decoded: {reason}.")
        self.message_id = message_id


class Message(answers.Message[datetime], kw_only=True, frozen=True, dict=True, omit_defaults=True, gc=True):
    raw: Raw = field(name="body", default=NO_BODY)
    """Body as JSON. Empty in a listing with ``bodies="start"``."""
    sequence: int = 0
    claim_count: int = 0
    origin_claim_count: int = 0

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

        Raises ``UndecodableBody`` if the body cannot be decoded. Raises ``ValueError`` if the listing has only the
        start of the body.
        """
        if not self.content:
            raise ValueError("Only the start of the body was requested; see body_start.")
        return _decoded(self.raw, self.id)

    @property
    def content(self) -> bytes:
        """The body as JSON bytes."""
        return bytes(self.raw)

    def body_as(self, kind: type[T]) -> T:
        """Decode the body as a type that msgspec supports. Raises ``msgspec.ValidationError``."""
        return msgspec.json.decode(self.raw, type=kind)

    def link(self) -> "Link | None":
        """Return an OpenTelemetry link to the span that posted the message.

        Add the link to the span in which you process the message. Return ``None`` if the message has no trace context.
        Requires the package ``opentelemetry-api``.
        """
        return link_to(self.attributes)

    @property
    def claim(self) -> str:
        """Id of the claim that held the message when the server returned it; "" = not claimed."""
        return self.href.partition("?claim_id=")[2]


# An alias for use in classes that have a method named ``list``.
Messages = list[Message]


class Delivery(Message, frozen=True, dict=True, omit_defaults=True, gc=True):
    """A claimed message, passed to a handler.

    The methods ``done``, ``release``, ``move`` and ``bury`` record a decision on the message. When the handler returns,
    the last decision is applied.
    """

    @cached_property
    def decisions(self) -> list[Any]:
        """The decisions on this message so far. The last one is applied."""
        return []  # not a field, because fields are encoded with the message

    def done(self) -> None:
        """Delete the message when the handler returns."""
        self.decisions.append(self.id)

    def release(self, delay: int | None = None) -> None:
        """Release the message when the handler returns, by default with the queue's redelivery delay."""
        self._decide(ReleaseTerms(self.id) if delay is None else ReleaseTerms(self.id, delay))

    def move(self, queue: str, *, body: Any = msgspec.UNSET, ttl: int | None = None, delay: int | None = None) -> None:
        """Move the message to another queue when the handler returns. The move is atomic."""
        content = body if body is msgspec.UNSET else _move_body(body)
        moved = MoveTerms(self.id, queue, content)
        moved.ttl = msgspec.UNSET if ttl is None else ttl
        moved.delay = msgspec.UNSET if delay is None else delay
        self._decide(moved)

    def bury(self, reason: str) -> None:
        """Move the message to the queue's dead-letter queue when the handler returns."""
        self._decide(BuryTerms(self.id, reason))

    def _decide(self, decision: Decision) -> None:
        msgspec.json.encode(decision)  # fail here, not in the settlement, if the value cannot be encoded as JSON
        self.decisions.append(decision)


class Event(Message, kw_only=True, frozen=True, dict=True, omit_defaults=True, gc=True):
    """A message that a stream received from a topic."""

    topic: str = ""


class Gap(Struct, frozen=True):
    """A gap in a stream. The messages between ``after`` and ``resumes`` were trimmed before they were read.

    Both sequence numbers are ``None`` if the connection broke before the server sent a position, or if the log was
    lost. After a loss, all messages of the new log follow.
    """

    after: int | None
    resumes: int | None


class MessagePage(Struct, Generic[M_co], frozen=True):
    """A page of messages.

    ``end`` is the marker after which the next page starts. If the page is empty, ``end`` is ``None``.
    """

    messages: list[M_co]
    end: int | None
    gap: Gap | None = None
    """Gap in the topic's log before this page."""
    position: int | None = None
    """Position up to which a topic was searched, if the page is empty."""


class FinishedMessage(Message, kw_only=True, frozen=True, dict=True, omit_defaults=True, gc=True):
    """A message in a listing of a queue's history. ``outcome`` is "" for a live message."""

    finished: datetime | None = None
    outcome: str = ""


class LocatedMessage(answers.LocatedMessage[FinishedMessage], frozen=True):
    pass


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


class LiveClaim(answers.LiveClaim[datetime], frozen=True):
    pass


class Stats(answers.Stats[datetime], frozen=True, omit_defaults=True):
    pass


class ListedResource(Struct, frozen=True):
    """A queue or topic in a listing. ``metadata`` is set only if requested."""

    name: str
    metadata: Mapping[str, Any] | None = None


class WorkResult(Struct, frozen=True):
    """The message counts that ``work`` returns. ``unstarted`` messages were released without calling the handler."""

    done: int
    failed: int
    unstarted: int = 0


class Draft(Struct, frozen=True):
    """A message to post, with its own ttl, delay, group or attributes (see ``post``)."""

    body: Any
    ttl: int | None = None
    delay: int | None = None
    group: str | None = None
    attributes: Mapping[str, Attribute] | None = None


class RedriveResult(answers.RedriveResult, frozen=True):
    lost: list[str] = []


class RedriveDryRun(answers.RedriveDryRun, frozen=True):
    lost: list[str] = []


class ReplayDryRun(answers.ReplayDryRun, frozen=True):
    lost: list[str] = []


class DeadDelivery(subscriptions.Delivery, kw_only=True, frozen=True, dict=True):
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
