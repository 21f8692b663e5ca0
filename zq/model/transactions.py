# SPDX-License-Identifier: Apache-2.0
"""Values of transactions: fences, stages and commits, see ``zq.core.transactions`` (extensions 9)."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from zq.model.queues import QueueRef, Seconds


class Fence(Struct, frozen=True):
    """The name of a fence, and the epoch that a client holds: a fencing token (extensions 9)."""

    name: str
    epoch: int


MAX_STAGED: Final = 1 << 31
"""The message limit of a stage without a limit."""


class ClaimRef(NamedTuple):
    """A claim whose messages a commit deletes.

    Attributes:
        history: Seconds for which the queue keeps history entries of the deleted messages.
    """

    queue: QueueRef
    claim: str
    history: int = 0


class Commit(Struct, frozen=True):
    """One batch of a producer: stages to publish in order, and claims to settle, atomically (extensions 9).

    Attributes:
        ttl: Seconds for which the producer is remembered.
        expected: Required message counts by stage. A stage that is not listed may have any count.
        beside: Further stages to publish if they exist. Their messages count neither in the result nor against
            ``Bounds.most``.
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
    """The maximum numbers of messages in a commit, published and deleted messages together.

    Attributes:
        step: Maximum in one atomic step of the store.
        most: Maximum in total.
    """

    step: int = 2000
    most: int = 1_000_000


class CommitResult(Struct, frozen=True):
    """The last commit of a producer and its effect.

    Attributes:
        batch: Number of the producer's batch.
        replayed: Whether the request repeated this batch or an earlier one, and therefore changed nothing.
        open: Whether the commit is decided but not completely applied.
    """

    batch: int
    published: int
    deleted: int
    replayed: bool = False
    open: bool = False


class UnfinishedCommit(NamedTuple):
    """A commit that is decided but not completely applied. ``progress`` changes with each slice."""

    project: str
    producer: str
    progress: str


class KnownStage(Struct, frozen=True):
    """A stage in a listing: messages that no commit has published yet.

    Attributes:
        bytes: Total size of the message bodies.
        expires: Time at which the stage is deleted.
    """

    name: str
    messages: int
    bytes: int
    expires: Seconds


class KnownFence(Struct, frozen=True):
    """A fence and its last epoch.

    Attributes:
        advanced: Time at which the epoch began; ``None`` = unknown.
    """

    name: str
    epoch: int
    advanced: Seconds | None


class KnownProducer(Struct, frozen=True):
    """A producer and its last commit.

    Attributes:
        decided: Time of the commit; ``None`` = unknown.
        expires: Time at which the producer is forgotten; ``None`` while its commit is open.
    """

    name: str
    last: CommitResult
    decided: Seconds | None
    expires: Seconds | None = None


KnownWork = KnownStage | KnownFence | KnownProducer
"""A transaction object in a listing."""
