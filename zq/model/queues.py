# SPDX-License-Identifier: Apache-2.0
"""Queues, pages, statistics and listing filters. See ``zq.model`` for units."""

from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import Struct

Seconds = float
T = TypeVar("T")
UNBOUNDED: Final = 1 << 62
"""A number of bytes that no answer reaches."""


class QueueRef(NamedTuple):
    """The full name of a queue, which includes the project."""

    project: str
    name: str


class Grouping(StrEnum):
    """The message group mode of a queue, which is fixed at creation (decision 0129)."""

    NONE = ""
    ORDERED = "ordered"
    """Messages of a group are delivered in post order, and only if no earlier one is claimed or delayed."""
    FAIR = "fair"
    """Groups take turns."""


class Queue(Struct, frozen=True):
    """A queue as stored. ``metadata`` is the raw JSON object that its owner set, without defaults."""

    ref: QueueRef
    metadata: bytes
    grouping: Grouping = Grouping.NONE


class ListFilter(Struct, frozen=True):
    """The filter of a message listing.

    Attributes:
        without: Client whose own messages are excluded; "" = none are excluded.
        claimed: Whether claimed messages are included.
        delayed: Whether delayed messages are included.
    """

    without: str = ""
    claimed: bool = False
    delayed: bool = False


class Page(Struct, Generic[T], frozen=True):
    """A page of a listing.

    Attributes:
        next: Marker of the next page; ``None`` if the page is empty.
    """

    items: list[T]
    next: str | None
    metadata: bytes | None = None
    """The queue's metadata if it differs from the expected metadata. Nothing was listed then."""


class Edge(Struct, frozen=True):
    """The oldest or newest message of a queue."""

    id: str
    created: Seconds
    sequence: int = 0


class Stats(Struct, frozen=True):
    """Counts of unexpired messages: held by a live claim, and all others, including delayed ones."""

    claimed: int = 0
    free: int = 0
    oldest: Edge | None = None
    newest: Edge | None = None
    entered: int | None = None
    """Counter of posted messages; the difference between two reads is the number posted in between.

    Purges and restarts do not reset the counter, but a deletion of the queue may. ``None`` for a missing queue and for
    topics.
    """


class Ready(Struct, frozen=True):
    """The ready messages of a queue.

    Attributes:
        count: Number of ready messages, up to the requested bound.
        next: Earliest later time at which another message becomes ready by itself; ``None`` if there is none.
    """

    count: int = 0
    next: Seconds | None = None
