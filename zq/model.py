# SPDX-License-Identifier: Apache-2.0
"""The values that travel between the layers, and the rules that need nothing but them.

No I/O, no clock, no JSON. Moments (``created``, ``available``, ``expires``, ``now``) are seconds since the epoch, UTC,
to the millisecond; ``ttl``, ``delay`` and ``grace`` are whole seconds. Bodies are raw JSON bytes.
"""

import os
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct

Seconds = float
T = TypeVar("T")
Moment = TypeVar("Moment", int, float)


class QueueRef(NamedTuple):
    """A queue's full name: the tenant travels inside it."""

    project: str
    name: str


class Queue(Struct, frozen=True):
    """A queue as stored: ``metadata`` is the raw JSON object its owner set, without defaults."""

    ref: QueueRef
    metadata: bytes


class Draft(Struct, frozen=True):
    """A message on its way in, every default already decided. ``delay`` 0 = claimable at once."""

    id: str
    body: bytes
    ttl: int
    delay: int
    client: str
    checksum: str = ""


class Message(Struct, frozen=True):
    """A message as one verb saw it at one moment. ``claim`` is set only while that claim lives."""

    id: str
    body: bytes
    ttl: int
    created: Seconds
    expires: Seconds
    available: Seconds
    sequence: int
    client: str
    claim: str = ""
    claim_count: int = 0
    checksum: str = ""

    def age(self, now: Seconds) -> int:
        """Whole seconds since creation, never negative."""
        return max(0, int(now - self.created))


Messages = list[Message]
"""A name of its own, since ``list`` is a verb of the controllers."""


class Lease(Struct, frozen=True):
    """What a claim grants: the messages are its holder's for ``ttl`` seconds."""

    claim: str
    ttl: int
    grace: int

    def life(self, ttl: int, expires: Moment, ends: Moment, second: Moment) -> tuple[int, Moment]:
        """A held message's (ttl, expires): one that would expire before the claim ends lives until its end + grace.

        Contract 8.1. In whatever unit the store counts moments; ``second`` is one second of it.
        """
        if expires < ends:
            return self.ttl + self.grace, ends + self.grace * second
        return ttl, expires


class DeadLetters(Struct, frozen=True):
    """Where a claim sends a message that was handed out ``max_claims`` times; ``ttl`` None = its own, counted anew."""

    queue: QueueRef
    max_claims: int
    ttl: int | None


class Claim(Struct, frozen=True):
    """A live claim: ``created`` is its creation or last renewal."""

    id: str
    ttl: int
    created: Seconds
    messages: list[Message]


class View(Struct, frozen=True):
    """Which messages a listing shows. ``without`` hides one client's own; "" hides nobody's."""

    without: str = ""
    claimed: bool = False
    delayed: bool = False


class Page(Struct, Generic[T], frozen=True):
    """One page of a listing. ``next`` continues after it; None means that the page is empty."""

    items: list[T]
    next: str | None


class Landmark(Struct, frozen=True):
    """The oldest or the newest message of a queue."""

    id: str
    created: Seconds


class Stats(Struct, frozen=True):
    """Unexpired messages: under a live claim, and every other one (delayed ones included)."""

    claimed: int = 0
    free: int = 0
    oldest: Landmark | None = None
    newest: Landmark | None = None


def age(since: Seconds, now: Seconds) -> int:
    """Whole seconds from ``since`` to ``now``, never negative."""
    return max(0, int(now - since))


def new_ids(count: int, now: Seconds) -> list[str]:
    """Fresh ids of 32 hex digits: 12 of the moment, so that stores insert in order, and 20 random ones.

    An id says nothing of queue or sequence and is kept by a move.
    """
    noise = os.urandom(10 * count).hex()
    prefix = f"{int(now * 1000):012x}"
    return [prefix + noise[start : start + 20] for start in range(0, 20 * count, 20)]
