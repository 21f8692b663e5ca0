# SPDX-License-Identifier: Apache-2.0
"""Messages on their way in, in a queue, on their way elsewhere, and finished."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

from msgspec import Struct

from zq.model.queues import QueueRef, Seconds, T


class IdempotencyKey(Struct, frozen=True):
    """A request that is to have its effect once (extensions 6): ``window`` seconds long a repeat gets the first answer.

    ``key``: the verb and the caller's key; unique in its queue. ``digest``: of all that a repeat must have in common.
    """

    key: str
    digest: bytes
    window: int


class Draft(Struct, frozen=True, omit_defaults=True):
    """A message on its way in, every default already decided. ``delay`` 0 = claimable at once."""

    id: str
    body: bytes
    ttl: int
    delay: int
    client: str
    checksum: str = ""
    attributes: bytes = b""
    """The encoded ``Attributes``, which may be encrypted; opaque to the drivers, b"" = none."""
    group: str = ""
    """Of which group of its queue's messages it is one: see ``Grouping``."""
    once: IdempotencyKey | None = None
    """By what a repeat of it is known, if it is posted: no two drafts of a post have the same key."""

    @property
    def size(self) -> int:
        """The bytes of the body and the attributes, which count towards storage quotas."""
        return len(self.body) + len(self.attributes)


class Copies(NamedTuple):
    """Messages that another queue of the same project gets in the step of a post."""

    queue: QueueRef
    drafts: Sequence[Draft]


class State(StrEnum):
    """In what state a living message is."""

    READY = "ready"
    DELAYED = "delayed"
    CLAIMED = "claimed"


class Message(Struct, frozen=True):
    """A message as one verb saw it at one moment. ``claim`` is set only while that claim lives.

    ``available`` alone decides whether it can be claimed: it is ready while ``available <= now < expires``. A claim
    sets it to its own end plus the redelivery wait, so a claim that lapses needs no work: its messages are ready again.
    """

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
    attributes: bytes = b""
    """As they were posted; a move keeps them."""
    first_claimed: Seconds = 0.0
    """When it was claimed first, of a dead letter in its former queue too; 0 = never, or it was moved since."""
    group: str = ""
    """As it was posted; a move keeps it."""

    def age(self, now: Seconds) -> int:
        """Whole seconds since creation, never negative."""
        return max(0, int(now - self.created))

    def state(self, now: Seconds) -> State:
        """In what state it is."""
        if self.claim:
            return State.CLAIMED
        return State.DELAYED if self.available > now else State.READY


Messages = list[Message]
"""A name of its own, since ``list`` is a verb of the controllers."""


class Move(Struct, frozen=True):
    """A message's way into queue ``to`` of its project, every default already decided.

    It keeps its id and its attributes and loses its claim count. ``ttl`` None = its own, counted anew; ``body`` None =
    its own.
    With a ``reason`` it goes as a dead letter: it keeps its age and remembers origin, claim count there and reason,
    and when it was claimed first.
    Without, its age restarts unless ``keeps_age``, and what it may have remembered of that kind is forgotten.
    """

    id: str
    to: str
    ttl: int | None = None
    delay: int = 0
    body: bytes | None = None
    checksum: str = ""
    """Of a new body."""
    reason: str = ""
    keeps_age: bool = False
    """Whether its age goes on, though its life begins anew; a dead letter's does anyhow."""


class Outcome(StrEnum):
    """How a message finished."""

    DELETED = "deleted"
    POPPED = "popped"
    MOVED = "moved"
    DEAD_LETTERED = "dead_lettered"


class HistoryEntry(Struct, frozen=True):
    """An entry of history, or (``outcome`` None) a message that lives.

    ``message`` is as it was when it finished, but for its claim id, which is gone; its ``sequence`` is its own in the
    queue. ``position`` is the entry's in the order of finishing. ``finished`` never falls along that order.
    """

    message: Message
    outcome: Outcome | None = None
    finished: Seconds = 0.0
    position: int = 0


class Position(NamedTuple):
    """Behind what a listing of one state goes on: a moment in ms and a sequence, as messages stand in the order of
    claims; ``lane``: a sequence of the driver's own, where that order is made of two. Of claimed messages the sequence
    alone counts."""

    available: int = 0
    sequence: int = 0
    lane: int = 0


class Located(NamedTuple):
    """Where a message is, or the latest record of it."""

    queue: QueueRef
    entry: HistoryEntry


class Browsed(NamedTuple):
    """Messages of one state; ``next``: the position behind which there may be more, None if nothing was found."""

    items: Sequence[Message]
    next: Position | None


class Span(NamedTuple):
    """Moments from ``since`` on that are before ``until``."""

    since: Seconds
    until: Seconds


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
    return int(now - since) if now > since else 0


def new_ids(count: int, now: Seconds) -> list[str]:
    """Fresh ids of 32 hex digits: 12 of the moment, so that stores insert in order, and 20 random ones.

    An id says nothing of queue or sequence and is kept by a move.
    """
    noise = os.urandom(10 * count).hex()
    prefix = f"{int(now * 1000):012x}"
    return [prefix + noise[start : start + 20] for start in range(0, 20 * count, 20)]
