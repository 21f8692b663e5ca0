# SPDX-License-Identifier: Apache-2.0
"""Fences, stages and commits (extensions 9)."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from zq.model.queues import QueueRef, Seconds


class Fence(Struct, frozen=True):
    """What a caller knows of a fence: the epoch it was given (extensions 9)."""

    name: str
    epoch: int


MOST_STAGED: Final = 1 << 31
"""Messages of a stage that nobody bounds."""


class ClaimRef(NamedTuple):
    """A claim to be settled by a commit: all that it holds. ``history``: as in ``Settlement``."""

    queue: QueueRef
    claim: str
    history: int = 0


class Commit(Struct, frozen=True):
    """One batch of a producer: stages to publish, in this order, and claims to settle, as one decision (extensions 9).

    ``ttl``: seconds for which the producer is remembered. ``expected``: how many messages stages are to hold, of those
    that are named there. ``beside``: stages that are published too if they are there, and are not counted.
    """

    project: str
    producer: str
    batch: int
    publish: Sequence[str]
    settle: Sequence[ClaimRef]
    ttl: int
    fence: Fence | None = None
    expected: Mapping[str, int] = {}
    beside: Sequence[str] = ()


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


class KnownStage(Struct, frozen=True):
    """A living stage: messages, bytes of their bodies, and when it is dropped."""

    name: str
    messages: int
    bytes: int
    expires: Seconds


class KnownFence(Struct, frozen=True):
    """A fence, its last epoch, and when that was given out; None = not known."""

    name: str
    epoch: int
    advanced: Seconds | None


class KnownProducer(Struct, frozen=True):
    """A producer, its last batch, and when that was decided; None = not known."""

    name: str
    last: Committed
    decided: Seconds | None


KnownWork = KnownStage | KnownFence | KnownProducer
"""What a batch job has named, as listings show it."""
