# SPDX-License-Identifier: Apache-2.0
"""Queues, pages, statistics and listing filters. See ``zq.model`` for units."""

from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import Struct

Seconds = float
T = TypeVar("T")
UNBOUNDED: Final = 1 << 62
"""A number of bytes that no response reaches. As a maximum, it means "no limit"."""


class QueueRef(NamedTuple):
    """The full name of a queue, which includes the project."""

    project: str
    name: str


class Grouping(StrEnum):
    """The message group mode of a queue, which is fixed at creation (decision 0129)."""

    NONE = ""
    ORDERED = "ordered"
    """Messages of a group are delivered in post order. A claimed or delayed message blocks later ones."""
    FAIR = "fair"
    """Messages are delivered round-robin from the groups."""


class Queue(Struct, frozen=True):
    """A stored queue. ``metadata`` is the JSON object that clients have set. It contains no default values."""

    ref: QueueRef
    metadata: bytes
    grouping: Grouping = Grouping.NONE


class ListFilter(Struct, frozen=True):
    """The filter of a message listing."""

    without: str = ""
    claimed: bool = False
    delayed: bool = False


class Page(Struct, Generic[T], frozen=True):
    """A page of a listing."""

    items: list[T]
    next: str | None
    metadata: bytes | None = None
    """The queue's metadata if it differs from the expected metadata. In this case, the page is empty."""


class EndMessage(Struct, frozen=True):
    """The oldest or newest message of a queue or topic."""

    id: str
    created: Seconds
    sequence: int = 0


class Stats(Struct, frozen=True):
    """Counts of unexpired messages. ``free`` counts all messages that are not claimed, even delayed ones."""

    claimed: int = 0
    free: int = 0
    oldest: EndMessage | None = None
    newest: EndMessage | None = None
    entered: int | None = None
    """Number of messages ever posted; ``None`` for topics and missing queues.

    A deletion of the queue may reset this counter.
    """


class ReadyMessages(Struct, frozen=True):
    """The number of ready messages, and the time when the next delayed or claimed message becomes ready."""

    count: int = 0
    next: Seconds | None = None
