# SPDX-License-Identifier: Apache-2.0
"""Operations on queues (contract section 6)."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Final

from zq.cache import ReadThroughCache
from zq.clock import Clock
from zq.core.data_keys import DataKeys
from zq.core.extensions import ProtocolKey, uses_protocol
from zq.core.followers import Followers
from zq.core.markers import Markers
from zq.core.metadata import (
    ENCRYPTS,
    GROUPED,
    NOT_ENCRYPTED,
    Metadata,
    MetadataSchema,
)
from zq.core.quotas import AnyQuotas
from zq.core.resources import DEAD_LETTERS, READ_AHEAD, MetadataResource
from zq.core.rules import CACHE_SIZE, CACHE_TTL, RulesCache
from zq.core.values import ReadResult
from zq.core.waiting import Waiters
from zq.errors import InvalidBody, MetadataConflict, QueueNotFound
from zq.model import Grouping, Queue, QueueRef
from zq.model.allowance import EVERYTHING, Allowance
from zq.model.hidden import HIDDEN
from zq.model.limits import MAX_LONG_NAME, Limits, check_target
from zq.model.stats import Depth
from zq.storage.api import Storage
from zq.storage.capabilities import MissingCapability

# A character that sorts after all characters that names may contain.
LAST_CHARACTER: Final = "\x7f"


class Queues(MetadataResource[QueueRef, Queue]):
    """Operations on queues: create, list, update, count, purge and delete."""

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
        protocol_keys: Sequence[ProtocolKey],
    ) -> None:
        history = storage.history
        unbuilt = {"_history_ttl": history.sentence} if isinstance(history, MissingCapability) else {}
        if not keys.enabled:
            unbuilt[ENCRYPTS] = NOT_ENCRYPTED
        schema = MetadataSchema("queue", limits, rules_cache.default_ttls.of, unbuilt, protocol_keys)
        markers = Markers(storage.documents, clock, MAX_LONG_NAME)
        super().__init__(
            storage.queues, schema, markers, clock, limits, quotas, followers, rules_cache.forget, QueueNotFound
        )
        self._queues = storage.queues
        self._storage = storage
        self._protocol_keys = protocol_keys
        self._waiters = waiters
        self._max_counted = max_counted
        self._depths = ReadThroughCache(self._count_states, CACHE_SIZE, CACHE_TTL)

    @property
    def max_counted(self) -> int:
        return self._max_counted

    def configure(self, max_counted: int) -> None:
        self._max_counted = max_counted

    def change(
        self,
        ref: QueueRef,
        edit: Callable[[Metadata], Metadata],
        named: Sequence[object] = (),
        allowance: Allowance = EVERYTHING,
    ) -> Metadata:
        """Change the metadata like ``MetadataResource.change``. Then wake the long polls of the queue.

        The change may have resumed a paused queue, so that messages are available to the long polls.
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
        if (dead := metadata.get(DEAD_LETTERS)) and not uses_protocol(self._protocol_keys, metadata):
            check_target(DEAD_LETTERS, QueueRef(ref.project, dead), self._queues.get, InvalidBody)

    def _check_fixed(self, former: Metadata, metadata: Metadata) -> None:
        if (former.get(GROUPED) or None) != (metadata.get(GROUPED) or None):
            raise MetadataConflict(f"{GROUPED} can only be set when the queue is created.")
        for key in self._protocol_keys:
            key.check_change(former, metadata)

    def depth(self, ref: QueueRef) -> ReadResult[Depth]:
        """Return the message count of each state, at most one second old. No count exceeds ``max_counted``."""
        return ReadResult(self._depths.get(ref), self._clock.now())

    def _count_states(self, ref: QueueRef) -> Depth:
        max_counted = self._max_counted
        depth = self._storage.depth(ref, self._clock.now(), max_counted)
        return Depth(
            min(depth.ready, max_counted),
            min(depth.delayed, max_counted),
            min(depth.claimed, max_counted),
            0,
            depth.oldest_ready,
        )

    def states(self, ref: QueueRef) -> Depth:
        return self._count_states(ref)

    def named(self, project: str, after: str = "", prefix: str = "") -> Iterator[Queue]:
        """Yield the queues whose names begin with ``prefix`` and sort after ``after``, ordered by name.

        ``prefix`` may contain only characters that are allowed in names.
        """
        marker = max(after, prefix[:-1] + chr(ord(prefix[-1]) - 1) + LAST_CHARACTER) if prefix else after
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
        """Return the number of the project's queues.

        If ``visible`` is set, count only the queues for whose names ``visible`` returns ``True``. Then only the first
        ``max_metadata_walk`` queues are inspected, so the number may be too low.
        """
        if visible is None:
            return self._queues.count(project) - self._count_hidden(project)
        remaining, marker, count = self._limits.max_metadata_walk, "", 0
        while remaining > 0:
            page = self._queues.list(project, marker, min(remaining, READ_AHEAD))
            count += sum(visible(queue.ref.name) for queue in page.items if not queue.ref.name.startswith(HIDDEN))
            remaining -= len(page.items)
            if page.next is None:
                break
            marker = page.next
        return count

    def _count_hidden(self, project: str) -> int:
        count, after = 0, HIDDEN
        while True:
            page = self._queues.list(project, after, READ_AHEAD)
            count += len(page.items)
            if page.next is None or len(page.items) < READ_AHEAD:
                return count
            after = page.next
