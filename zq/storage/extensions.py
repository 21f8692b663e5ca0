# SPDX-License-Identifier: Apache-2.0
"""The storage interface, second page: history, transactions, topics and records. What ``api`` says of all verbs and
arguments holds here too.
"""

from collections.abc import Sequence
from typing import Final, Protocol

from zq.errors import CommitTooLarge, StageDiffers
from zq.model import (
    MOST_STAGED,
    UNBOUNDED,
    Bounds,
    Commit,
    Committed,
    Draft,
    Finished,
    Once,
    Page,
    QueueRef,
    Seconds,
    Stats,
    Unfinished,
)
from zq.records import Record, RecordRef
from zq.topics import Entry, Keep, Listener, Pattern, Reading, TopicRef

BOUNDS: Final = Bounds()


def check_stage(commit: Commit, stage: str, count: int) -> None:
    """Refuse a commit that expects another number of messages in a stage. Raises ``StageDiffers``."""
    expected = commit.expected.get(stage, count)
    if expected != count:
        raise StageDiffers(
            f"The stage {stage} holds {count} messages, and {expected} are expected; nothing has changed."
        )


def check_size(committed: Committed, bounds: Bounds) -> None:
    """Refuse a commit of more messages than one may be about. Raises ``CommitTooLarge``."""
    count = committed.published + committed.deleted
    if count > bounds.most:
        raise CommitTooLarge(f"A commit may publish and delete {bounds.most} messages together; this one has {count}.")


class HistoryController(Protocol):
    """Records of finished messages. They expire, go with the queue, and stay when it is purged."""

    def list(
        self,
        queue: QueueRef,
        marker: int,
        limit: int,
        since: Seconds,
        until: Seconds,
        now: Seconds,
        most_bytes: int = UNBOUNDED,
    ) -> Page[Finished]:
        """Records of position above ``marker``, in the order of finishing, that finished at or after ``since`` and
        before ``until``; ``next`` is the last one's position. L6 holds."""
        ...

    def list_all(
        self, queue: QueueRef, marker: int, limit: int, now: Seconds, most_bytes: int = UNBOUNDED
    ) -> Page[Finished]:
        """Living messages, in whatever state, and records together, in sequence; ``next`` is the last sequence.

        Each message of sequence above ``marker`` stands there once: no finishing meanwhile hides or doubles it (L6).
        """
        ...

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Sequence[Finished]:
        """The latest record of each of the message ids that has one, in the order asked for, each once."""
        ...


class TransactionController(Protocol):
    """Fences, stages and commits (extensions 9)."""

    least_slice: int
    """Messages of ``carry_on`` below which a step takes hardly less time."""

    def advance_fence(self, project: str, name: str) -> int:
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
        once: Once | None = None,
        most_messages: int = MOST_STAGED,
    ) -> None:
        """Store drafts for the queue where nobody sees them, all or none. ``once`` is remembered in the queue.

        The first drafts make the stage; ``ttl`` seconds later it is gone. Raises ``StageFull`` if it would be more than
        ``most_messages``, or their bodies more than ``most_bytes``. What ``once`` repeats is the list of ids.
        """
        ...

    def drop_stage(self, project: str, stage: str) -> None:
        """Drop what is staged there. A missing or published stage is fine; one that an open commit names stays."""
        ...

    def commit(self, commit: Commit, now: Seconds, bounds: Bounds = BOUNDS) -> Committed:
        """Decide to publish every message of the stages, as posts, and to delete all that the claims hold: wholly or
        not at all, whatever is killed when.

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

    def last(self, project: str, producer: str, now: Seconds) -> Committed:
        """The producer's last decided batch. Raises ``ProducerNotFound``."""
        ...


class TopicController(Protocol):
    """Published messages: one log for each project, in which all its topics stand in the order of publishing.

    A log lives for ever, and its sequences are never given twice. It knows nothing of topics' metadata.
    """

    def publish(
        self, topic: TopicRef, entries: Sequence[Entry], now: Seconds, keep: Keep, once: Once | None = None
    ) -> int:
        """Append the entries as one batch, or nothing; the first one's sequence, which the others follow one by one.

        Batches become visible in the order of their sequences: who has seen one will meet none with a smaller one (L6).
        The oldest batches fall off as ``keep`` says. ``once`` is remembered in the log, for the whole project; what it
        repeats is the first sequence.
        """
        ...

    def read(self, project: str, after: int, limit: int, pattern: Pattern) -> Reading:
        """Batches of the topics that the pattern matches, with messages of sequence above ``after``, in sequence:
        as many as make ``limit`` messages together, and one more batch at most.

        It ends earlier rather than carry more than a megabyte of bodies, if it has one batch, or look at many batches
        of others: ``Reading`` tells. Of one topic it costs what that topic has, not what others have. Expired messages
        may be among them: readers leave them out (``Batch.messages``).
        """
        ...

    def purge(self, topic: TopicRef) -> None:
        """No message published before this step is read any more; as ``QueueController.purge`` does it."""
        ...

    def stats(self, topic: TopicRef, now: Seconds) -> Stats:
        """Counts (all are free) and landmarks, whose ids are sequences; zeros for a topic without messages."""
        ...

    def listen(self, listener: Listener) -> None:
        """From now on tell the listener what is published in the followed projects, by whatever process, within
        milliseconds; see ``Listener``. A later one replaces it."""
        ...

    def follow(self, project: str) -> None:
        """Begin to tell of a project. What is published once this has returned is told, but for what is lost."""
        ...

    def unfollow(self, project: str) -> None:
        """End it; for one that is not followed too."""
        ...


class RecordController(Protocol):
    """Small documents of any kind, each changed as a whole: topics' metadata, subscriptions, pools ...

    One that has expired (``Record.expires <= now``) exists for no verb.
    """

    def get(self, ref: RecordRef, now: Seconds) -> Record | None:
        """The record, or None."""
        ...

    def put(
        self, ref: RecordRef, value: bytes, now: Seconds, expected: str | None = None, expires: Seconds | None = None
    ) -> bool:
        """Store the value, in one step, if the record's version is ``expected``; False, and nothing changed, if not.

        ``expected``: "" = there must be no such record; None = whatever there is. ``expires``: None = never. The
        record has a new version then.
        """
        ...

    def list(self, project: str, kind: str, prefix: str, after: str, limit: int, now: Seconds) -> Page[Record]:
        """Records of a kind whose names begin with ``prefix`` and are greater than ``after``, ascending in byte order;
        ``next`` is the last name."""
        ...

    def delete(self, ref: RecordRef, now: Seconds, expected: str | None = None) -> bool:
        """Remove the record; False if there is none, or none of the ``expected`` version."""
        ...
