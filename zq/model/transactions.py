# SPDX-License-Identifier: Apache-2.0
"""Values of transactions, such as fences, stages and commits (extensions, section 9). See ``zq.core.transactions``."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from zq.model.queues import QueueRef, Seconds


class Fence(Struct, frozen=True):
    """A fencing token: the name of a fence, and the epoch that a client holds (extensions contract, section 9)."""

    name: str
    epoch: int


MAX_STAGED: Final = 1 << 31
"""A number of messages that no stage reaches. As a maximum, it means "no limit"."""


class ClaimRef(NamedTuple):
    """A claim whose messages a commit deletes."""

    queue: QueueRef
    claim: str
    history: int = 0


class Commit(Struct, frozen=True):
    """An atomic commit of one batch of a producer (extensions contract, section 9).

    The commit publishes stages in order, and deletes the messages of claims.

    Attributes:
        ttl: Seconds for which the producer is remembered.
        expected: Required message counts by stage. A stage without an entry may have any count.
        beside: Internal stages to publish too, if they exist. Their messages do not count towards limits, nor in the
            ``CommitResult``.
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
    """Limits on the number of messages that a commit publishes and deletes.

    ``max_messages`` limits the commit. ``step`` limits each database transaction with which the store applies the
    commit.
    """

    step: int = 2000
    max_messages: int = 1_000_000


class CommitResult(Struct, frozen=True):
    """The last commit of a producer and its effect.

    Attributes:
        replayed: Whether the request repeated this batch or an earlier one, and therefore changed nothing.
        open: Whether the commit is still being applied: it can no longer fail, but not all messages have been published
            and deleted.
    """

    batch: int
    published: int
    deleted: int
    replayed: bool = False
    open: bool = False


class UnfinishedCommit(NamedTuple):
    """A commit that can no longer fail, but whose messages have not all been published and deleted.

    ``progress`` is opaque text. It changes whenever the store has applied a part of the commit.
    """

    project: str
    producer: str
    progress: str


class KnownStage(Struct, frozen=True):
    """A stage in a listing: messages that no commit has published yet."""

    name: str
    messages: int
    bytes: int
    expires: Seconds


class KnownFence(Struct, frozen=True):
    """A fence in a listing, with its last epoch."""

    name: str
    epoch: int
    advanced: Seconds | None


class KnownProducer(Struct, frozen=True):
    """A producer in a listing, with its last commit. ``expires`` is ``None`` while the commit is being applied."""

    name: str
    last: CommitResult
    decided: Seconds | None
    expires: Seconds | None = None


KnownWork = KnownStage | KnownFence | KnownProducer
"""A stage, fence or producer in a listing."""
