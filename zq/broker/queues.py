# SPDX-License-Identifier: Apache-2.0
"""Use cases on queues (contract 6)."""

from collections.abc import Callable, Sequence

from zq import wire
from zq.broker.data_keys import DataKeys
from zq.broker.markers import Markers
from zq.broker.metadata import ENCRYPTS, GROUPED, NOT_ENCRYPTED, Metadata, MetadataSchema, shown_defaults
from zq.broker.resources import READ_AHEAD, MetadataResource
from zq.broker.rules import ReadThroughCache, RulesCache
from zq.broker.values import Seen
from zq.clock import Clock
from zq.errors import MetadataConflict, QueueNotFound
from zq.limits import MAX_COUNTED, Limits
from zq.model import Grouping, Queue, QueueRef
from zq.model.allowance import EVERYTHING, Allowance
from zq.model.stats import Depth
from zq.model.subscriptions import HIDDEN
from zq.storage.api import Storage
from zq.storage.capabilities import Missing


class Queues(MetadataResource[QueueRef, Queue]):
    """What a caller can do with queues."""

    def __init__(self, storage: Storage, clock: Clock, limits: Limits, rules_cache: RulesCache, keys: DataKeys) -> None:
        history = storage.history
        unbuilt = {"_history_ttl": history.sentence} if isinstance(history, Missing) else {}
        if not keys.enabled:
            unbuilt[ENCRYPTS] = NOT_ENCRYPTED
        schema = MetadataSchema("queue", limits, shown_defaults(limits), rules_cache.default_ttls.of, unbuilt)
        markers = Markers(storage.documents, clock)
        super().__init__(storage.queues, schema, markers, clock, limits, rules_cache.forget, QueueNotFound)
        self._queues = storage.queues
        self._storage = storage
        self._depths = ReadThroughCache(self._counted)
        self.max_counted = MAX_COUNTED
        """Messages of one state that ``depth`` counts at most."""
        self.wake: Callable[[QueueRef], object] = lambda _queue: None
        """Has those look again that wait for messages of the queue."""

    def patch(self, ref: QueueRef, operations: Sequence[wire.Operation], allowance: Allowance = EVERYTHING) -> Metadata:
        """As for all resources. Whoever waits at a queue that was paused may claim now."""
        shown = super().patch(ref, operations, allowance)
        self.wake(ref)
        return shown

    def _make(self, ref: QueueRef, metadata: Metadata, raw: bytes) -> bool:
        return self._queues.create(ref, raw, Grouping(metadata.get(GROUPED) or Grouping.NONE))

    def _check_fixed(self, former: Metadata, metadata: Metadata) -> None:
        if (former.get(GROUPED) or None) != (metadata.get(GROUPED) or None):
            raise MetadataConflict(f"{GROUPED} is said when a queue is made, and stays.")

    def depth(self, ref: QueueRef) -> Seen[Depth]:
        """How many messages are in each state, counted up to ``max_counted`` of each, as of at most a second ago; zeros
        for a missing queue."""
        return Seen(self._depths.get(ref), self._clock.now())

    def _counted(self, ref: QueueRef) -> Depth:
        most = self.max_counted
        told = self._storage.depth(ref, self._clock.now(), most)
        return Depth(min(told.ready, most), min(told.delayed, most), min(told.claimed, most), 0, told.oldest_ready)

    def count(self, project: str, visible: Callable[[str], bool] | None = None) -> int:
        """How many queues the project has; of those that are ``visible``, as many as one request may look at."""
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
        """How many of zq's own it has; none where nothing was ever subscribed."""
        count, after = 0, HIDDEN
        while True:
            page = self._queues.list(project, after, READ_AHEAD)
            count += len(page.items)
            if page.next is None or len(page.items) < READ_AHEAD:
                return count
            after = page.next
