# SPDX-License-Identifier: Apache-2.0
"""The values that travel between the layers, and the rules that need nothing but them.

No I/O, no clock, no JSON. Moments (``created``, ``available``, ``expires``, ``now``) are seconds since the epoch, UTC,
to the millisecond; ``ttl``, ``delay`` and ``grace`` are whole seconds. Bodies are raw JSON bytes.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

from msgspec import Struct

Seconds = float
T = TypeVar("T")
Moment = TypeVar("Moment", int, float)

UNBOUNDED: Final = 1 << 62
"""Bytes that no answer has."""


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
    origin: str = ""
    """Of a dead letter: name of the queue that it came from; with its claim count there and why it came."""
    origin_claim_count: int = 0
    reason: str = ""

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


class Redelivery(Struct, frozen=True):
    """How long a message stays away after a claim of it lapsed, or gave it back without a delay of its own.

    Extensions 4. Seconds; ``cap`` bounds what the back-off makes of ``delay``.
    """

    delay: int = 0
    exponential: bool = False
    cap: int = 0

    def wait(self, count: int) -> int:
        """Seconds after the ``count``-th claim; the first is 1."""
        doublings = min(count - 1, MOST_DOUBLINGS) if self.exponential else 0
        return min(self.delay << doublings, self.cap)


MOST_DOUBLINGS = 31
AT_ONCE = Redelivery()


class DeadLetters(Struct, frozen=True):
    """Where a claim sends a message that was handed out ``max_claims`` times; ``ttl`` None = its own, counted anew.

    ``history``: seconds for which the queue that they leave keeps a record of them; 0 = none.
    """

    queue: QueueRef
    max_claims: int
    ttl: int | None
    history: int = 0


class Move(Struct, frozen=True):
    """A message's way into queue ``to`` of its project, every default already decided.

    It keeps its id and loses its claim count. ``ttl`` None = its own, counted anew; ``body`` None = its own.
    With a ``reason`` it goes as a dead letter: it keeps its age and remembers origin, claim count there and reason.
    Without, its age restarts, and what it may have remembered of that kind is forgotten.
    """

    id: str
    to: str
    ttl: int | None = None
    delay: int = 0
    body: bytes | None = None
    checksum: str = ""
    """Of a new body."""
    reason: str = ""


class Release(Struct, frozen=True):
    """A held message given back: after ``delay`` seconds; None = after its redelivery delay, or to its place."""

    id: str
    delay: int | None = None


class Settlement(Struct, frozen=True):
    """What becomes of the messages of a claim (extensions 3). No id stands in it twice.

    ``rest``: delete whatever the claim holds besides those named. ``history``: as in ``DeadLetters``.
    """

    delete: Sequence[str] = ()
    rest: bool = False
    release: Sequence[Release] = ()
    move: Sequence[Move] = ()
    history: int = 0


class Settled(Struct, frozen=True):
    """What a settlement did; ``lost`` = the ids that the claim did not hold any more, in the order of naming."""

    deleted: int = 0
    released: int = 0
    moved: int = 0
    buried: int = 0
    lost: list[str] = []


class Once(Struct, frozen=True):
    """A request that is to have its effect once (extensions 6): ``window`` seconds long a repeat gets the first answer.

    ``key``: the verb and the caller's key; unique in its queue. ``digest``: of all that a repeat must have in common.
    """

    key: str
    digest: bytes
    window: int


class Fence(Struct, frozen=True):
    """What a caller knows of a fence: the epoch it was given (extensions 9)."""

    name: str
    epoch: int


class Outcome(StrEnum):
    """How a message finished."""

    DELETED = "deleted"
    POPPED = "popped"
    MOVED = "moved"
    DEAD_LETTERED = "dead_lettered"


class Finished(Struct, frozen=True):
    """A record of history, or (``outcome`` None) a message that lives.

    ``message`` is as it was when it finished, but for its claim id, which is gone; its ``sequence`` is its own in the
    queue. ``position`` is the record's in the order of finishing. ``finished`` never falls along that order.
    """

    message: Message
    outcome: Outcome | None = None
    finished: Seconds = 0.0
    position: int = 0


MOST_STAGED: Final = 1 << 31
"""Messages of a stage that nobody bounds."""


class Held(NamedTuple):
    """A claim to be settled by a commit: all that it holds. ``history``: as in ``DeadLetters``."""

    queue: QueueRef
    claim: str
    history: int = 0


class Commit(Struct, frozen=True):
    """One batch of a producer: stages to publish, in this order, and claims to settle, as one decision (extensions 9).

    ``ttl``: seconds for which the producer is remembered. ``expected``: how many messages stages are to hold, of those
    that are named there.
    """

    project: str
    producer: str
    batch: int
    publish: Sequence[str]
    settle: Sequence[Held]
    ttl: int
    fence: Fence | None = None
    expected: Mapping[str, int] = {}


class Bounds(Struct, frozen=True):
    """Messages, published and deleted together, that a commit may be about: ``step`` in one step of the store, ``most``
    at all."""

    step: int = 2000
    most: int = 1_000_000


class Committed(Struct, frozen=True):
    """A producer's last batch and what it does. ``replayed``: the caller's own batch was not above it.

    ``open``: it is decided, and not all of it is done yet.
    """

    batch: int
    published: int
    deleted: int
    replayed: bool = False
    open: bool = False


class Unfinished(NamedTuple):
    """A commit that is decided and not done. ``progress`` is another text after each slice of it."""

    project: str
    producer: str
    progress: str


class Claim(Struct, frozen=True):
    """A live claim: ``created`` is its creation or last renewal.

    ``lapsed``: how many of its messages it took over from claims that had lapsed; told when it is made only.
    """

    id: str
    ttl: int
    created: Seconds
    messages: list[Message]
    lapsed: int = 0


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
    sequence: int = 0


class Stats(Struct, frozen=True):
    """Unexpired messages: under a live claim, and every other one (delayed ones included)."""

    claimed: int = 0
    free: int = 0
    oldest: Landmark | None = None
    newest: Landmark | None = None


def portion(items: Iterable[T], most_bytes: int, body_of: Callable[[T], bytes]) -> Iterator[T]:
    """The first of the items: those whose bodies have up to ``most_bytes`` together, but one at least."""
    left = most_bytes
    for at, item in enumerate(items):
        left -= len(body_of(item))
        if left < 0 and at:
            return
        yield item


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
