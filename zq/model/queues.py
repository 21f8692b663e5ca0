# SPDX-License-Identifier: Apache-2.0
"""Queues, and what is said of many: pages, statistics, the filter of a listing.

Units: see ``zq.model``.
"""

from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import Struct

Seconds = float
T = TypeVar("T")
UNBOUNDED: Final = 1 << 62
"""Bytes that no answer has."""


class QueueRef(NamedTuple):
    """A queue's full name: the tenant travels inside it."""

    project: str
    name: str


class Grouping(StrEnum):
    """What groups of messages are to a queue, for good (decision 0129)."""

    NONE = ""
    ORDERED = "ordered"
    """A group's messages are handed out in the order of posts, and none while one before it is held or delayed."""
    FAIR = "fair"
    """Groups take turns."""


class Queue(Struct, frozen=True):
    """A queue as stored: ``metadata`` is the raw JSON object its owner set, without defaults."""

    ref: QueueRef
    metadata: bytes
    grouping: Grouping = Grouping.NONE


class ListFilter(Struct, frozen=True):
    """Which messages a listing shows. ``without`` hides one client's own; "" hides nobody's."""

    without: str = ""
    claimed: bool = False
    delayed: bool = False


class Page(Struct, Generic[T], frozen=True):
    """One page of a listing. ``next`` continues after it; None means that the page is empty."""

    items: list[T]
    next: str | None
    metadata: bytes | None = None
    """Of a listing that expects others: the queue's metadata; nothing was listed then."""


class Edge(Struct, frozen=True):
    """The oldest or the newest message of a queue."""

    id: str
    created: Seconds
    sequence: int = 0


class Stats(Struct, frozen=True):
    """Unexpired messages: under a live claim, and every other one (delayed ones included)."""

    claimed: int = 0
    free: int = 0
    oldest: Edge | None = None
    newest: Edge | None = None
    entered: int | None = None
    """How many messages have come in, counted from anywhere: what came meanwhile is the difference of two answers.
    Purges and restarts go on counting, deletions need not; None for a missing queue, and of topics."""


class Ready(Struct, frozen=True):
    """What of a queue is ready: ``count``, up to the bound that was asked for. ``next``: the earliest moment after now
    at which one more message becomes ready by itself; None if none will."""

    count: int = 0
    next: Seconds | None = None
