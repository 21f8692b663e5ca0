# SPDX-License-Identifier: Apache-2.0
"""The optional parts of the storage interface: history, transactions, topics and migration.

A driver that lacks one of these parts inherits ``api.Defaults``.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, NamedTuple, NoReturn, Protocol, runtime_checkable

from zq.errors import CommitTooLarge, NotBuilt, StageDiffers
from zq.model import (
    MAX_STAGED,
    UNBOUNDED,
    Bounds,
    Commit,
    CommitResult,
    Draft,
    Grouping,
    HistoryEntry,
    IdempotencyKey,
    KnownWork,
    Page,
    QueueRef,
    Seconds,
    Span,
    Stats,
    UnfinishedCommit,
)
from zq.model.documents import Guard
from zq.model.parcels import Parcel
from zq.model.quotas import Work, WorkCount
from zq.model.stats import Snapshot
from zq.model.topics import Entry, Listener, LogSlice, Pattern, Retention, TopicRef

BOUNDS: Final = Bounds()


def check_stage(commit: Commit, stage: str, count: int) -> None:
    """Raise ``StageDiffers`` if the stage does not have the number of messages that the commit expects.

    ``count`` is the number of messages in the stage. If the commit expects no number, any number is valid.
    """
    expected = commit.expected.get(stage, count)
    if expected != count:
        raise StageDiffers.of(stage, count, expected)


def check_size(committed: CommitResult, bounds: Bounds) -> None:
    """Raise ``CommitTooLarge`` if more than ``bounds.max_messages`` messages were published and deleted in total."""
    count = committed.published + committed.deleted
    if count > bounds.max_messages:
        raise CommitTooLarge.of(count, bounds.max_messages)


@runtime_checkable
class Snapshots(Protocol):
    """A storage whose files can be backed up while it is open."""

    def snapshot(self) -> AbstractContextManager[Snapshot]:
        """Return a context manager that provides a snapshot of the store's files for a backup.

        The context manager removes the snapshot on exit.
        """
        ...


class UndecidedCommit(NamedTuple):
    """A commit that a server is still preparing or aborting.

    ``seconds`` is the time until the commit reaches its time limit; 0 = the limit has passed.
    """

    project: str
    producer: str
    seconds: Seconds


class ParcelController(Protocol):
    """The operations that move a project to another store, as exported items called parcels; see ``zq.model.parcels``.

    During a move, no other operation may change the project or, if only queues move, these queues.

    A guarded operation compares the document of its ``Guard`` and takes effect in one atomic step. If the document has
    another value, the operation changes nothing and raises ``Fenced``. The value is the fencing token of a mover.
    """

    def projects(self) -> Sequence[str]:
        """Return the names of all projects with data. The name "" represents data that belongs to no project.

        Raises ``StartRefused`` if the store contains data of a project but not the project's name.
        """
        ...

    def export(self, project: str, after: str, limit: int, now: Seconds) -> Page[Parcel]:
        """Return a page of up to ``limit`` parcels (exported items) of the project.

        A page may be short, but it is empty only if no parcels follow. Expired items, stages and removed messages are
        not exported. Raises ``CommitRunning`` if a commit of the project is not complete.
        """
        ...

    def export_queue(self, queue: QueueRef, after: str, limit: int, now: Seconds) -> Page[Parcel]:
        """Return a page of up to ``limit`` parcels of one queue, as ``export`` does for a project.

        If the queue does not exist, the page is empty.
        """
        ...

    def adopt(self, project: str, parcels: Sequence[Parcel], now: Seconds, guard: Guard | None = None) -> None:
        """Import parcels (exported items of another store) with their ids, sequences, positions and times.

        - The caller imports the parcels in the order of the export.
        - Items that already exist are ignored. Items that have expired at ``now`` may be omitted.
        - Counters never decrease, so later messages get higher sequences.
        - All messages of one queue in ``parcels`` are stored atomically, and so are its history entries.
        - Each write checks ``guard`` atomically.

        Raises ``Fenced`` if the guard does not permit the import. Raises ``Invalid`` if the store cannot store an item,
        or if the import contains a queue whose name the store still needs to delete an earlier queue.
        """
        ...

    def create_queue(self, queue: QueueRef, metadata: bytes, grouping: Grouping, guard: Guard) -> bool:
        """Create the queue as ``QueueController.create`` does, if the guard permits it."""
        ...

    def delete_queue(self, queue: QueueRef, guard: Guard, sequence: int | None = None) -> bool:
        """Delete the queue, if the guard permits it. Return True if the queue is now missing.

        If ``sequence`` is given and differs from the queue's last sequence, delete nothing and return False.
        """
        ...

    def find_undecided_commits(self, project: str, now: Seconds) -> Sequence[UndecidedCommit]:
        """Return all undecided commits of the project."""
        ...

    def abort_commit(self, project: str, producer: str, now: Seconds) -> None:
        """Abort the producer's commit if it is undecided and its time limit has passed."""
        ...

    def last_clock(self) -> Seconds | None:
        """Return the time that is stored in the store, without updating it.

        Running servers update this time every few seconds. If the store has no time, return 0. If only one process can
        open the store, return None, because no server can then be running.
        """
        ...


@runtime_checkable
class MigratableStorage(Protocol):
    """A storage whose projects can be moved to another store."""

    @property
    def parcels(self) -> ParcelController: ...


@runtime_checkable
class LevelledStorage(Protocol):
    """A ``Storage`` whose store records its level, which determines the versions of zq that can use the store.

    Opening the store checks the level; see ``zq.model.levels``.
    """

    def read_level(self) -> bytes | None:
        """Return the record of the level, or None if the store has none."""
        ...

    def replace_level(self, former: bytes | None, new: bytes) -> bool:
        """If the store's level record is ``former``, durably replace it with ``new`` in one step.

        Return True if the record is now ``new``. If the current record is neither ``former`` nor ``new``, change
        nothing and return False. If ``former`` is None, the store must not have a record yet.
        """
        ...


@runtime_checkable
class LaidOutStorage(Protocol):
    """A storage that reports its layout. The drivers of shared stores report theirs in ``zq-server doctor``."""

    @property
    def layout(self) -> str:
        """The version of the store's layout, which the storage has checked when it opened the store."""
        ...


@runtime_checkable
class LimitedSpace(Protocol):
    """A storage on a file system of the server's machine."""

    def has_low_space(self) -> bool:
        """Return whether the file system has too little free space for posts.

        Raises ``OSError`` if the free space cannot be determined.
        """
        ...


class HistoryController(Protocol):
    """The operations on the history of finished messages.

    History entries expire. A purge of the queue keeps them, and a deletion of the queue deletes them.
    """

    def list(
        self,
        queue: QueueRef,
        marker: int,
        limit: int,
        span: Span | None,
        now: Seconds,
        max_bytes: int = UNBOUNDED,
        newest_first: bool = False,
    ) -> Page[HistoryEntry]:
        """Return a page of the queue's history.

        - If ``span`` is given, the page has the entries of messages that finished within this time span, in the order
          in which they finished. Their positions are above ``marker``, and ``next`` is the last position.
        - If ``newest_first`` is true too, the order is reversed. The positions are below ``marker``; 0 = begin with the
          newest entry.
        - If ``span`` is None, the page has history entries and live messages in any state, in order of sequence. Their
          sequences are above ``marker``, and ``next`` is the last sequence. Each message is listed once, even if it
          finishes during the listing. ``newest_first`` must be false.

        A reader that continues from ``next`` misses no item (law L6).
        """
        ...

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Sequence[HistoryEntry]:
        """Return the latest history entry of each message id, in input order. Skip ids without history."""
        ...


class TransactionController(Protocol):
    """The operations on fences, stages and commits.

    A fence issues fencing tokens. A stage holds invisible messages until a commit publishes them. A producer's commits
    are numbered; each one is a *batch*.
    """

    min_slice: int
    """The smallest useful slice of ``continue_commit``, in messages. A smaller slice is not noticeably faster."""

    def advance_fence(self, project: str, name: str, now: Seconds) -> int:
        """Issue and return the next epoch of a fence. The first epoch is 1.

        Operations with any other epoch then raise ``Fenced``.
        """
        ...

    def stage(
        self,
        project: str,
        stage: str,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        ttl: int,
        max_bytes: int,
        idempotency_key: IdempotencyKey | None = None,
        max_messages: int = MAX_STAGED,
    ) -> None:
        """Store all drafts for the queue atomically in an invisible stage.

        A missing stage is created, and expires ``ttl`` seconds after ``now``. The idempotency key belongs to the queue,
        which stores the list of message ids for repeated requests. Raises ``StageFull`` if the stage would exceed
        ``max_messages`` or ``max_bytes``.
        """
        ...

    def drop_stage(self, project: str, stage: str) -> None:
        """Delete a stage. Do nothing if it is missing, was published, or belongs to an incomplete commit."""
        ...

    def commit(self, commit: Commit, now: Seconds, bounds: Bounds = BOUNDS) -> CommitResult:
        """Publish all messages of the stages and delete all messages of the claims, atomically.

        The stages in ``commit.beside`` are published too, if they exist. Their messages do not count in the result
        and in the limit ``bounds.max_messages``.

        **Size.** A commit of up to ``bounds.step`` messages and a few megabytes is completed by this call. A larger
        commit is decided by this call, but stays *open* (``CommitResult.open``) until ``continue_commit`` has completed
        it. While a commit is open:

        - The claims do not expire. A deletion with the argument ``claims`` raises ``MessageClaimed`` for a message of
          these claims, even if the caller holds the claim.
        - The stages are invisible to all other operations.

        **Repeated requests.** Each commit of a producer has a batch number. If the producer's last commit is open, the
        operation only returns the result of that commit. If the batch number is not above the producer's last one, the
        operation returns the counts of the last commit with ``replayed`` set, and deletes the stages of the request.

        After one of the following errors, nothing has changed.

        Raises:
            StageNotFound: A stage to publish does not exist.
            StageDiffers: The message count of a stage is not the count that the commit expects.
            ClaimLapsed: A claim has expired or holds no messages.
            CommitTooLarge: The commit has more than ``bounds.max_messages`` messages.
            CommitRunning: Another commit of the producer is still undecided, or another commit uses one of the stages.
                The caller can retry.
        """
        ...

    def continue_commit(self, project: str, producer: str, max_messages: int, now: Seconds) -> bool:
        """Continue the producer's incomplete commit. Return whether the commit is still incomplete.

        A call deletes or publishes up to ``max_messages`` messages in one step, first all deletions, then the stages
        in order. Each message is published once, even if several callers process the commit concurrently.
        """
        ...

    def find_unfinished_commits(self, now: Seconds, project: str | None = None) -> Sequence[UnfinishedCommit]:
        """Return all open (not completed) commits of the project.

        If ``project`` is None, return the open commits of all projects. This result may be incomplete if there are
        many.
        """
        ...

    def is_idle(self, project: str, now: Seconds) -> bool:
        """Return whether the project has neither stages nor incomplete commits.

        A stage counts throughout its life, also while a commit reserves, publishes or returns it. The result therefore
        stays correct if a commit begins, is decided or is aborted during the call.
        """
        ...

    def count(self, project: str, work: Work, name: str, now: Seconds) -> WorkCount:
        """Count the project's live stages, fences or producers, and look for ``name`` among them.

        ``work`` selects stages, fences or producers.
        """
        ...

    def list(self, project: str, work: Work, after: str, limit: int, now: Seconds) -> Page[KnownWork]:
        """Return live stages, fences or producers with names greater than ``after``, in byte order of names."""
        ...

    def last(self, project: str, producer: str, now: Seconds) -> CommitResult:
        """Return the result of the producer's last commit. The commit may still be incomplete.

        Raises ``ProducerNotFound`` if the store has no commit of the producer.
        """
        ...


class TopicController(Protocol):
    """The operations on topics. The messages of all topics of a project are in one log, in order of publishing.

    A log is never deleted, and its sequences are never reused. The log does not depend on topics' metadata.
    """

    def publish(
        self,
        topic: TopicRef,
        entries: Sequence[Entry],
        now: Seconds,
        retention: Retention,
        idempotency_key: IdempotencyKey | None = None,
    ) -> int:
        """Append the entries atomically as one batch, and return the sequence of the first entry.

        - The sequences of the entries are consecutive.
        - Once a reader has seen a batch, no earlier batch appears (law L6).
        - If the log exceeds the limits ``retention``, the oldest batches are trimmed.
        - The idempotency key is valid for the whole project. For repeated requests, the store keeps the sequence of the
          first entry.
        """
        ...

    def read(self, project: str, after: int, limit: int, pattern: Pattern) -> LogSlice:
        """Return a slice of the log: batches of the topics that match ``pattern``, in log order.

        Each batch has a message above the sequence ``after``. It may also have expired messages and messages up to
        ``after``, which the caller filters out. The driver stops adding batches under one of these conditions:

        - The slice has at least ``limit`` messages.
        - With the next batch, the bodies would exceed a megabyte. The first batch may be larger.
        - The search has skipped many batches of other topics, or purged batches.

        If the pattern is a single topic, the cost depends on that topic only.
        """
        ...

    def purge(self, topic: TopicRef) -> None:
        """Remove all messages of the topic atomically, as ``QueueController.purge`` does for a queue."""
        ...

    def stats(self, topic: TopicRef, now: Seconds) -> Stats:
        """Return the number of unexpired messages (``free``), and the oldest and newest message by sequence."""
        ...

    def subscribe(self, project: str, listener: Listener) -> Callable[[], None]:
        """Notify the listener, within milliseconds, of each batch that any process publishes after this call.

        Return a function that ends the subscription; calling it again has no effect. Notifications may be lost, so a
        listener that must not miss a message reads the log. See ``Listener``.
        """
        ...


class MissingCapability:
    """A placeholder for a capability that a driver lacks. All its methods raise ``NotBuilt``."""

    def __init__(self, capability: str) -> None:
        self.sentence = f"The store of this server does not support {capability}."

    def __getattr__(self, verb: str) -> Callable[..., NoReturn]:
        return self._reject

    def _reject(self, *_args: object, **_terms: object) -> NoReturn:
        raise NotBuilt(self.sentence)


NO_HISTORY: Final = MissingCapability("history")
NO_TRANSACTIONS: Final = MissingCapability("transactions")
NO_TOPICS: Final = MissingCapability("topics")
NO_CLAIM_LISTS: Final = MissingCapability("listings of claims")
