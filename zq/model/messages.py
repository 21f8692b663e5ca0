# SPDX-License-Identifier: Apache-2.0
"""Messages that are posted, stored, moved or finished."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from msgspec import Struct

from zq.model.queues import QueueRef, Seconds, T


class IdempotencyKey(Struct, frozen=True):
    """The idempotency key of a request (extensions, section 6).

    A repeated request with the same key has no effect and returns the result of the first request.

    Attributes:
        key: The operation's name together with the client's key; unique within a queue.
        digest: Digest of the request. A request with another digest is rejected with ``KeyReused``.
        window: Seconds for which a repeated request is recognized.
    """

    key: str
    digest: bytes
    window: int


class Draft(Struct, frozen=True, omit_defaults=True):
    """A message to post, with all defaults applied.

    Attributes:
        delay: Seconds until the message can be claimed.
        attributes: Stored form of ``Attributes``, possibly encrypted; b"" = no attributes.
    """

    id: str
    body: bytes
    ttl: int
    delay: int
    client: str
    checksum: str = ""
    attributes: bytes = b""
    group: str = ""
    """The message's group, see ``Grouping``."""
    once: IdempotencyKey | None = None
    """The message's own idempotency key, unique within a post."""

    @property
    def size(self) -> int:
        """Size in bytes that counts against quotas: body and attributes."""
        return len(self.body) + len(self.attributes)


class Copies(NamedTuple):
    """Copies of posted messages for another queue of the project."""

    queue: QueueRef
    drafts: Sequence[Draft]


class State(StrEnum):
    """The state of a live message."""

    READY = "ready"
    DELAYED = "delayed"
    CLAIMED = "claimed"


class Message(Struct, frozen=True):
    """A stored message at the time when it was read. ``claim`` is set only while the claim is live.

    A message is ready while ``available <= now < expires``. A claim sets ``available`` to the time at which the message
    may be redelivered.
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
    """The queue from which a dead letter came. The next two fields are its claim count there and the reason."""
    origin_claim_count: int = 0
    reason: str = ""
    attributes: bytes = b""
    """Stored form of the attributes. A move keeps them."""
    first_claimed: Seconds = 0.0
    """Time of the first claim; 0 = not claimed since the last move. A dead letter keeps the time from its origin."""
    group: str = ""
    """The message's group. A move keeps it."""

    @property
    def size(self) -> int:
        """Size of the body and the attributes in bytes."""
        return len(self.body) + len(self.attributes)

    def age(self, now: Seconds) -> int:
        """Return the whole seconds since creation, at least 0."""
        return max(0, int(now - self.created))

    def state(self, now: Seconds) -> State:
        if self.claim:
            return State.CLAIMED
        return State.DELAYED if self.available > now else State.READY


Messages = list[Message]
"""An alias, because ``list`` is a method of the controllers."""


class Move(Struct, frozen=True):
    """A request to move a message to the queue ``to`` of the same project.

    The message keeps its id and attributes. Its claim count is reset.

    - With a ``reason``, the message becomes a dead letter. It keeps its age, and stores the reason, its origin queue,
      its claim count there, and the time of its first claim.
    - Without a ``reason``, the message becomes a regular message. Its age restarts unless ``keeps_age`` is set.

    Attributes:
        ttl: Seconds from the move until the message expires. If ``None``, the message's previous ttl is used.
    """

    id: str
    to: str
    ttl: int | None = None
    delay: int = 0
    body: bytes | None = None
    checksum: str = ""
    """Checksum of a new body."""
    reason: str = ""
    keeps_age: bool = False
    """Whether the message keeps its age although the ttl restarts. A dead letter always does."""
    may_create: bool = True
    """Whether the store creates a missing target queue. Otherwise, the move raises ``QueueNotFound``."""


class Outcome(StrEnum):
    """The operation that removed a message from its queue."""

    DELETED = "deleted"
    POPPED = "popped"
    MOVED = "moved"
    DEAD_LETTERED = "dead_lettered"


class HistoryEntry(Struct, frozen=True):
    """An entry in a queue's history: a finished message that the queue keeps.

    A listing that contains both finished and live messages also uses this class for live messages.

    Attributes:
        outcome: How the message finished; ``None`` = the message is live.
        position: Position in the order of finishing. Finish times never decrease in this order.
        expires: Time at which the entry is removed.
    """

    message: Message
    outcome: Outcome | None = None
    finished: Seconds = 0.0
    position: int = 0
    expires: Seconds = 0.0


class Position(NamedTuple):
    """A position in a listing of the messages in one state. The next page begins after this position.

    Attributes:
        available: Available-at time of the last listed message in milliseconds. Not used for claimed messages.
        lane: Sequence number of the last listed message that was posted without a delay and has never been claimed.
            Used only by drivers that list from two indexes.
    """

    available: int = 0
    sequence: int = 0
    lane: int = 0


class LocatedMessage(NamedTuple):
    """The result of a search by message id: the queue, and the message or its latest history entry."""

    queue: QueueRef
    entry: HistoryEntry


class BrowsePage(NamedTuple):
    """A page of messages in one state."""

    items: Sequence[Message]
    next: Position | None


class Span(NamedTuple):
    """The time span from ``since`` (inclusive) to ``until`` (exclusive)."""

    since: Seconds
    until: Seconds


def take_portion(items: Iterable[T], max_bytes: int, size_of: Callable[[T], int]) -> Iterator[T]:
    """Yield the first items, as long as their total size is at most ``max_bytes``. Yield at least one item."""
    left = max_bytes
    for at, item in enumerate(items):
        left -= size_of(item)
        if left < 0 and at:
            return
        yield item


def age(since: Seconds, now: Seconds) -> int:
    """Return the whole seconds from ``since`` to ``now``, at least 0."""
    return int(now - since) if now > since else 0


# Number of ids for which random digits are read at once.
ID_BATCH: Final = 256
# Random digits for the next ids. A forked process must not reuse the digits of its parent.
_digits: Final[list[str]] = []
os.register_at_fork(after_in_child=_digits.clear)


def new_ids(count: int, now: Seconds) -> list[str]:
    """Return new message ids. The first 12 of 32 hex digits are the time in milliseconds, so that new ids sort last."""
    prefix = f"{int(now * 1000):012x}"
    return [prefix + _random_digits() for _ in range(count)]


def _random_digits() -> str:
    """Return 20 random hexadecimal digits."""
    # One call of ``os.urandom`` provides the digits of many ids, because each call may cause a thread switch.
    try:
        return _digits.pop()
    except IndexError:
        noise = os.urandom(10 * ID_BATCH).hex()
        first, *rest = [noise[start : start + 20] for start in range(0, len(noise), 20)]
        _digits.extend(rest)
        return first
