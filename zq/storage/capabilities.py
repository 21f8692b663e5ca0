# SPDX-License-Identifier: Apache-2.0
"""The storage interface, second page: history, transactions and topics. What ``api`` says of all verbs and
arguments holds here too. A driver without history, transactions or topics inherits ``api.Defaults``.
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
    """Refuse a commit that expects another number of messages in a stage. Raises ``StageDiffers``."""
    expected = commit.expected.get(stage, count)
    if expected != count:
        raise StageDiffers.of(stage, count, expected)


def check_size(committed: Committed, bounds: Bounds) -> None:
    """Refuse a commit of more messages than one may be about. Raises ``CommitTooLarge``."""
    count = committed.published + committed.deleted
    if count > bounds.most:
        raise CommitTooLarge.of(count, bounds.most)


@runtime_checkable
class Snapshots(Protocol):
    """What a storage has besides whose files lie beside this process."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """The store's files as they stand at this moment, for a backup, until the context ends. All that was
        acknowledged before is in them. Raises ``NotBuilt``, with a sentence, if such a store has none."""
        ...


class HistoryController(Protocol):
    """Records of finished messages. They expire, go with the queue, and stay when it is purged."""

    def list(
        self,
        queue: QueueRef,
        marker: int,
        limit: int,
        span: Span | None,
        now: Seconds,
        most_bytes: int = UNBOUNDED,
    ) -> Page[HistoryEntry]:
        """What finished within the span: entries of position above ``marker``, in the order of finishing; ``next`` is
        the last one's position.

        ``span`` None: living messages, in whatever state, and entries together, of sequence above ``marker`` and in
        sequence; ``next`` is the last sequence. Each message stands there once: no finishing meanwhile hides or doubles
        it. L6 holds for both.
        """
        ...

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Sequence[HistoryEntry]:
        """The latest record of each of the message ids that has one, in the order asked for, each once."""
        ...


class TransactionController(Protocol):
    """Fences, stages and commits (extensions 9)."""

    least_slice: int
    """Messages of ``carry_on`` below which a step takes hardly less time."""

    def advance_fence(self, project: str, name: str, now: Seconds) -> int:
        """Give out the next epoch of a fence; the first is 1. From then on no other one passes in any verb."""
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
        """Store drafts for the queue where nobody sees them, all or none.

        The first drafts make the stage; ``ttl`` seconds later it is gone. Raises ``StageFull`` if it would be more than
        ``most_messages``, or their sizes more than ``most_bytes``.
        ``idempotency_key`` is remembered in the queue; what it repeats is the list of ids.
        """
        ...

    def drop_stage(self, project: str, stage: str) -> None:
        """Drop what is staged there. A missing or published stage is fine; one that an open commit names stays."""
        ...

    def commit(self, commit: Commit, now: Seconds, bounds: Bounds = BOUNDS) -> Committed:
        """Decide to publish every message of the stages, as posts, and to delete all that the claims hold: wholly or
        not at all, whatever is killed when. Stages ``beside`` go with them; one that is not there is fine, and what
        they hold is in no figure.

        Up to ``bounds.step`` messages, and some megabytes, are one step. What is more is decided only: the answer is
        ``open``, and ``carry_on`` does it. From then on its claims' messages are nobody's: they count as claimed (in
        figures as ready, if there are many and their claims would have lapsed), do not lapse, and their holder is
        refused (``MessageClaimed``). Its stages are not there any more for any other verb.
        If a batch of the producer is open, that one is the answer, and nothing else is done. A batch that is not above
        the producer's last one: that one's figures, ``replayed``; its stages are dropped like ``drop_stage``.
        Raises ``StageNotFound``, ``StageDiffers``, ``ClaimLapsed`` (a claim holds nothing), ``CommitTooLarge``,
        ``CommitRunning``; then nothing has changed.
        """
        ...

    def carry_on(self, project: str, producer: str, most: int, now: Seconds) -> bool:
        """One slice of the producer's open batch, if there is one; whether anything of it is left.

        A slice deletes or publishes up to ``most`` messages in one step; what claims held is deleted before anything is
        published, and stages are published in order. Any number of callers may be at it: each message is published
        once.
        """
        ...

    def unfinished(self, now: Seconds) -> Sequence[Unfinished]:
        """Open batches, of all projects; those of a few, if there are very many."""
        ...

    def count(self, project: str, work: Work, name: str, now: Seconds) -> WorkCount:
        """How many living stages, fences or producers the project has, and whether one has the name. Asked where one
        may be made; it may cost as much as there are of them."""
        ...

    def list(self, project: str, work: Work, after: str, limit: int, now: Seconds) -> Page[KnownWork]:
        """Living stages, fences or producers with names greater than ``after``, ascending in byte order; ``next`` is
        the last name. What was stored by a version of the driver that did not note a moment has none."""
        ...

    def last(self, project: str, producer: str, now: Seconds) -> Committed:
        """The producer's last decided batch. Raises ``ProducerNotFound``."""
        ...


class TopicController(Protocol):
    """Published messages: one log for each project, in which all its topics stand in the order of publishing.

    A log lives for ever, and its sequences are never given twice. It knows nothing of topics' metadata.
    """

    def publish(
        self,
        topic: TopicRef,
        entries: Sequence[Entry],
        now: Seconds,
        retention: Retention,
        idempotency_key: IdempotencyKey | None = None,
    ) -> int:
        """Append the entries as one batch, or nothing; the first one's sequence, which the others follow one by one.

        Batches become visible in the order of their sequences: who has seen one will meet none with a smaller one (L6).
        The oldest batches are trimmed as ``retention`` says. ``idempotency_key`` is remembered in the log, for the
        whole project; what it repeats is the first sequence.
        """
        ...

    def read(self, project: str, after: int, limit: int, pattern: Pattern) -> LogSlice:
        """Batches of the topics that the pattern matches, with messages of sequence above ``after``, in sequence:
        as many as make ``limit`` messages together, and one more batch at most.

        It ends earlier rather than carry more than a megabyte of bodies, if it has one batch, or look at many batches
        of others: ``LogSlice`` tells. Of one topic it costs what that topic has, not what others have. Expired messages
        may be among them: readers leave them out (``Batch.messages``).
        """
        ...

    def purge(self, topic: TopicRef) -> None:
        """No message published before this step is read any more; as ``QueueController.purge`` does it."""
        ...

    def stats(self, topic: TopicRef, now: Seconds) -> Stats:
        """Counts (all are free) and landmarks, whose ids are sequences; zeros for a topic without messages."""
        ...

    def subscribe(self, project: str, listener: Listener) -> Callable[[], None]:
        """Tell the listener, within milliseconds, what is published in the project from when this has returned, by
        whatever process; see ``Listener``. The answer ends that; it may be called again.

        A hint: whoever must miss nothing reads what was not told.
        """
        ...


class Missing:
    """Stands where a driver has no such capability: each of its verbs raises ``NotBuilt`` with the sentence."""

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
