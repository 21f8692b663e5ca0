# SPDX-License-Identifier: Apache-2.0
"""The optional parts of the storage interface: history, transactions and topics.

The rules in ``api`` for all verbs and arguments also apply here. A driver without one of these parts inherits
``api.Defaults``.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, NoReturn, Protocol, runtime_checkable

from zq.errors import CommitTooLarge, NotBuilt, StageDiffers
from zq.model import (
    MOST_STAGED,
    UNBOUNDED,
    Bounds,
    Commit,
    Committed,
    Draft,
    HistoryEntry,
    IdempotencyKey,
    KnownWork,
    Page,
    QueueRef,
    Seconds,
    Span,
    Stats,
    Unfinished,
)
from zq.model.quotas import Work, WorkCount
from zq.model.stats import Snapshot
from zq.model.topics import Entry, Listener, LogSlice, Pattern, Retention, TopicRef

BOUNDS: Final = Bounds()


def check_stage(commit: Commit, stage: str, count: int) -> None:
    """Check the number of messages that the commit expects in a stage. Raises ``StageDiffers``."""
    expected = commit.expected.get(stage, count)
    if expected != count:
        raise StageDiffers.of(stage, count, expected)


def check_size(committed: Committed, bounds: Bounds) -> None:
    """Check the number of messages in a commit. Raises ``CommitTooLarge``."""
    count = committed.published + committed.deleted
    if count > bounds.most:
        raise CommitTooLarge.of(count, bounds.most)


@runtime_checkable
class Snapshots(Protocol):
    """A storage whose files can be backed up while it is open."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Provide a snapshot of the store's files for a backup; a context manager.

        The snapshot includes all acknowledged changes. Raises ``NotBuilt`` if the store has no snapshots.
        """
        ...


class HistoryController(Protocol):
    """The history of finished messages. Entries expire, are deleted with the queue, and survive a purge."""

    def list(
        self,
        queue: QueueRef,
        marker: int,
        limit: int,
        span: Span | None,
        now: Seconds,
        most_bytes: int = UNBOUNDED,
    ) -> Page[HistoryEntry]:
        """List history entries that finished within the span, with positions above ``marker``, in order of finishing.

        ``next`` is the last position. With ``span`` None, the page has live messages in any state and history entries
        with sequences above ``marker``, in order of sequence; ``next`` is the last sequence. Each message is listed
        once: finishing it concurrently neither hides nor duplicates it. L6 applies to both.
        """
        ...

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Sequence[HistoryEntry]:
        """Return the latest history entry of each message id that has one, in the given order without duplicates."""
        ...


class TransactionController(Protocol):
    """Fences, stages and commits (extensions 9)."""

    least_slice: int
    """The number of messages below which a smaller slice of ``carry_on`` takes about the same time."""

    def advance_fence(self, project: str, name: str, now: Seconds) -> int:
        """Issue the next epoch of a fence, starting with 1. From then on, every verb refuses all other epochs."""
        ...

    def stage(
        self,
        project: str,
        stage: str,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        ttl: int,
        most_bytes: int,
        idempotency_key: IdempotencyKey | None = None,
        most_messages: int = MOST_STAGED,
    ) -> None:
        """Store drafts for the queue in an invisible stage, all or none.

        The first drafts create the stage, which expires after ``ttl`` seconds. The idempotency key is remembered in the
        queue; its answer is the list of ids.

        Raises:
            StageFull: The stage would exceed ``most_messages``, or the sizes would exceed ``most_bytes``.
        """
        ...

    def drop_stage(self, project: str, stage: str) -> None:
        """Delete a stage. Do nothing if it is missing, was published, or belongs to an open commit."""
        ...

    def commit(self, commit: Commit, now: Seconds, bounds: Bounds = BOUNDS) -> Committed:
        """Decide to publish all messages of the stages and to delete all messages of the claims, atomically.

        Stages in ``beside`` are published too. They may be missing, and their messages are not counted.

        Up to ``bounds.step`` messages, and some megabytes, are committed in one step. A larger commit is only decided:
        the answer is ``open``, and ``carry_on`` completes it. Until then:

        - The messages of its claims count as claimed, do not lapse, and their holder gets ``MessageClaimed``. Metrics
          may count them as ready if there are many and their claims would have lapsed.
        - Its stages are invisible for all other verbs.

        If a batch of the producer is open, the commit only returns that batch. If the batch is not above the producer's
        last one, the answer has the counts of the last batch and ``replayed``, and the stages are deleted as by
        ``drop_stage``.

        Raises ``StageNotFound``, ``StageDiffers``, ``ClaimLapsed`` (a claim has no messages), ``CommitTooLarge`` or
        ``CommitRunning``; then nothing has changed.
        """
        ...

    def carry_on(self, project: str, producer: str, most: int, now: Seconds) -> bool:
        """Carry out one slice of the producer's open batch, if there is one; return whether anything is left.

        A slice deletes or publishes up to ``most`` messages in one step. Claimed messages are deleted before any
        message is published, and stages are published in order. With concurrent callers, each message is still
        published once.
        """
        ...

    def unfinished(self, now: Seconds) -> Sequence[Unfinished]:
        """Return the open batches of all projects, or only some of them if there are very many."""
        ...

    def count(self, project: str, work: Work, name: str, now: Seconds) -> WorkCount:
        """Return the number of live stages, fences or producers of the project, and whether one has this name.

        Called before one is created; the cost may be proportional to their number.
        """
        ...

    def list(self, project: str, work: Work, after: str, limit: int, now: Seconds) -> Page[KnownWork]:
        """List live stages, fences or producers with names greater than ``after``, in ascending byte order.

        ``next`` is the last name. Work that an older driver version has stored may lack times.
        """
        ...

    def last(self, project: str, producer: str, now: Seconds) -> Committed:
        """Return the producer's last decided batch. Raises ``ProducerNotFound``."""
        ...


class TopicController(Protocol):
    """Topics: one log per project with the messages of all its topics, in order of publishing.

    A log is never deleted, and its sequences are never reused. It does not depend on topics' metadata.
    """

    def publish(
        self,
        topic: TopicRef,
        entries: Sequence[Entry],
        now: Seconds,
        retention: Retention,
        idempotency_key: IdempotencyKey | None = None,
    ) -> int:
        """Append the entries as one batch, all or none; return the first sequence.

        The other entries follow without gaps. Batches become visible in order of their sequences: a reader that has
        seen a batch finds no earlier one later (L6). The oldest batches are trimmed according to ``retention``. The
        idempotency key is remembered in the log, for the whole project; its answer is the first sequence.
        """
        ...

    def read(self, project: str, after: int, limit: int, pattern: Pattern) -> LogSlice:
        """Read batches of matching topics with messages above the sequence ``after``, in order.

        The slice has enough batches for ``limit`` messages, and at most one more. It ends earlier if it has a batch and
        would exceed a megabyte of bodies, or after many batches of other topics; see ``LogSlice``. For a single topic,
        the cost depends on that topic only. Expired messages may be included; readers filter them (``Batch.messages``).
        """
        ...

    def purge(self, topic: TopicRef) -> None:
        """Hide all messages published before this step; see ``QueueController.purge``."""
        ...

    def stats(self, topic: TopicRef, now: Seconds) -> Stats:
        """Return counts (all are free) and the oldest and newest message, with sequences as ids."""
        ...

    def subscribe(self, project: str, listener: Listener) -> Callable[[], None]:
        """Notify the listener within milliseconds of batches that any process publishes after this call.

        Return a function that ends the subscription; it may be called repeatedly. Notifications are hints: a listener
        that must not miss anything reads the log. See ``Listener``.
        """
        ...


class Missing:
    """The replacement for a capability that a driver lacks. Each of its verbs raises ``NotBuilt`` with the message."""

    def __init__(self, capability: str) -> None:
        self.sentence = f"The store of this server does not have {capability}."

    def __getattr__(self, verb: str) -> Callable[..., NoReturn]:
        return self._refuse

    def _refuse(self, *_args: object, **_terms: object) -> NoReturn:
        raise NotBuilt(self.sentence)


NO_HISTORY: Final = Missing("history")
NO_TRANSACTIONS: Final = Missing("transactions")
NO_TOPICS: Final = Missing("topics")
NO_CLAIM_LISTS: Final = Missing("listings of claims")
