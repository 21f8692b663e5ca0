# SPDX-License-Identifier: Apache-2.0
"""Use cases of queues (contract 6)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

from zq.clock import Clock
from zq.core.data_keys import DataKeys
from zq.core.followers import Followers
from zq.core.markers import Markers
from zq.core.metadata import (
    ENCRYPTS,
    GROUPED,
    NOT_ENCRYPTED,
    SQS,
    Metadata,
    MetadataSchema,
    is_fifo,
    shown_defaults,
)
from zq.core.quotas import AnyQuotas
from zq.core.resources import DEAD_LETTERS, READ_AHEAD, MetadataResource
from zq.core.rules import ReadThroughCache, RulesCache
from zq.core.values import Seen
from zq.core.waiting import Waiters
from zq.errors import InvalidBody, MetadataConflict, QueueNotFound, Unavailable
from zq.limits import MAX_LONG_NAME, Limits, check_target
from zq.model import Grouping, Queue, QueueRef
from zq.model.allowance import EVERYTHING, Allowance
from zq.model.documents import DocumentRef
from zq.model.hidden import HIDDEN
from zq.model.stats import Depth
from zq.storage.api import Storage
from zq.storage.capabilities import Missing

# Kind of the documents that record, until they expire, that a queue was purged through SQS.
PURGED: Final = "sqs-purge"
# Kind of the documents that record, until they expire, that a queue of this name was deleted through SQS.
DELETED: Final = "sqs-deleted"
# A character that sorts after every character of a name.
LAST: Final = "\x7f"


class Queues(MetadataResource[QueueRef, Queue]):
    """Use cases of queues: create, list, change, count, purge and delete."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        rules_cache: RulesCache,
        keys: DataKeys,
        quotas: AnyQuotas,
        followers: Followers,
        waiters: Waiters,
        max_counted: int,
    ) -> None:
        """Initialize; ``max_counted`` is the maximum that ``depth`` counts in each state."""
        history = storage.history
        unbuilt = {"_history_ttl": history.sentence} if isinstance(history, Missing) else {}
        if not keys.enabled:
            unbuilt[ENCRYPTS] = NOT_ENCRYPTED
        schema = MetadataSchema("queue", limits, shown_defaults(limits), rules_cache.default_ttls.of, unbuilt)
        markers = Markers(storage.documents, clock, MAX_LONG_NAME)
        super().__init__(
            storage.queues, schema, markers, clock, limits, quotas, followers, rules_cache.forget, QueueNotFound
        )
        self._queues = storage.queues
        self._storage = storage
        self._waiters = waiters
        self._max_counted = max_counted
        self._depths = ReadThroughCache(self._counted)

    @property
    def max_counted(self) -> int:
        """The maximum number of messages that ``depth`` counts in each state."""
        return self._max_counted

    def configure(self, max_counted: int) -> None:
        """Count up to ``max_counted`` messages in each state from now on."""
        self._max_counted = max_counted

    def change(
        self,
        ref: QueueRef,
        edit: Callable[[Metadata], Metadata],
        named: Sequence[object] = (),
        allowance: Allowance = EVERYTHING,
    ) -> Metadata:
        """Change the metadata as for any resource.

        Then wake the queue's waiters, because the change may end a pause.
        """
        shown = super().change(ref, edit, named, allowance)
        self._waiters.wake(ref)
        return shown

    def _make(self, ref: QueueRef, metadata: Metadata, raw: bytes) -> bool:
        return self._queues.create(ref, raw, Grouping(metadata.get(GROUPED) or Grouping.NONE))

    def _admitted(self, ref: QueueRef, metadata: Metadata) -> AbstractContextManager[None]:
        return self._quotas.admit_queue(ref, metadata.get(DEAD_LETTERS))

    def _own_metadata(self, ref: QueueRef) -> Metadata:
        return self._followers.mark(ref)

    def _check_dead_letters(self, ref: QueueRef, target: object) -> None:
        self._quotas.check_dead_letters(ref, target)

    def _check(self, ref: QueueRef, metadata: Metadata) -> None:
        super()._check(ref, metadata)
        if (dead := metadata.get(DEAD_LETTERS)) and not metadata.get(SQS):
            check_target(DEAD_LETTERS, QueueRef(ref.project, dead), self._queues.get, InvalidBody)

    def _check_fixed(self, former: Metadata, metadata: Metadata) -> None:
        if (former.get(GROUPED) or None) != (metadata.get(GROUPED) or None):
            raise MetadataConflict(f"{GROUPED} is said when a queue is made, and stays.")
        if is_fifo(former) != is_fifo(metadata):
            raise MetadataConflict(f"{SQS}.fifo is said when a queue is made, and stays.")

    def depth(self, ref: QueueRef) -> Seen[Depth]:
        """Return the number of messages in each state, at most a second old; zeros for a missing queue.

        Each number is at most ``max_counted``.
        """
        return Seen(self._depths.get(ref), self._clock.now())

    def _counted(self, ref: QueueRef) -> Depth:
        most = self._max_counted
        depth = self._storage.depth(ref, self._clock.now(), most)
        return Depth(min(depth.ready, most), min(depth.delayed, most), min(depth.claimed, most), 0, depth.oldest_ready)

    def states(self, ref: QueueRef) -> Depth:
        """Return the number of messages in each state, counted now; see ``depth``."""
        return self._counted(ref)

    def purge_seldom(self, ref: QueueRef, interval: int) -> bool:
        """Purge the queue unless it was purged within the last ``interval`` seconds. Return whether it was purged."""
        note, now = DocumentRef(ref.project, PURGED, ref.name), self._clock.now()
        documents = self._storage.documents
        if interval and not documents.put(note, b"", now, expected="", expires=now + interval):
            return False
        try:
            self.purge(ref, ("messages",))
        except Unavailable:
            documents.delete(note, now)
            raise
        return True

    def forget_purge(self, ref: QueueRef) -> None:
        """Forget the last purge of a deleted queue, so that a new queue of its name can be purged at once."""
        self._storage.documents.delete(DocumentRef(ref.project, PURGED, ref.name), self._clock.now())

    def delete_for(self, ref: QueueRef, seconds: int) -> int | None:
        """Delete the queue and reserve its name for ``seconds``.

        Return the number of deleted messages (see ``delete``).
        """
        if seconds:  # before the deletion, so that no queue of the name can be created in between
            note, now = DocumentRef(ref.project, DELETED, ref.name), self._clock.now()
            self._storage.documents.put(note, b"", now, expires=now + seconds)
        return self.delete(ref)

    def rests(self, ref: QueueRef) -> bool:
        """Return whether the name of a deleted queue is still reserved."""
        return self._storage.documents.get(DocumentRef(ref.project, DELETED, ref.name), self._clock.now()) is not None

    def named(self, project: str, after: str = "", prefix: str = "") -> Iterator[Queue]:
        """Yield the queues whose names are greater than ``after`` and begin with ``prefix``, in the order of names.

        They are read from the store page by page. ``prefix`` may have only characters that names can have.
        """
        marker = max(after, prefix[:-1] + chr(ord(prefix[-1]) - 1) + LAST) if prefix else after
        while True:
            page = self._queues.list(project, marker, READ_AHEAD)
            for queue in page.items:
                if queue.ref.name.startswith(HIDDEN) or not queue.ref.name.startswith(prefix):
                    return
                yield queue
            if page.next is None or len(page.items) < READ_AHEAD:
                return
            marker = page.next

    def count(self, project: str, visible: Callable[[str], bool] | None = None) -> int:
        """Return how many queues the project has.

        With ``visible``, count only queues whose names it accepts, among as many as one request may read.
        """
        if visible is None:
            return self._queues.count(project) - self._hidden(project)
        most, marker, count = self._limits.max_metadata_walk, "", 0
        while most > 0:
            page = self._queues.list(project, marker, min(most, READ_AHEAD))
            count += sum(visible(queue.ref.name) for queue in page.items if not queue.ref.name.startswith(HIDDEN))
            most -= len(page.items)
            if page.next is None:
                break
            marker = page.next
        return count

    def _hidden(self, project: str) -> int:
        """Return how many internal queues of zq the project has."""
        count, after = 0, HIDDEN
        while True:
            page = self._queues.list(project, after, READ_AHEAD)
            count += len(page.items)
            if page.next is None or len(page.items) < READ_AHEAD:
                return count
            after = page.next
