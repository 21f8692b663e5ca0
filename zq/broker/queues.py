# SPDX-License-Identifier: Apache-2.0
"""Use cases on queues (contract 6)."""

from collections.abc import Callable

from zq.broker.encryption import Sealing
from zq.broker.markers import Markers
from zq.broker.metadata import ENCRYPTS, MetadataSchema, shown_defaults
from zq.broker.resources import READ_AHEAD, MetadataResource
from zq.broker.rules import RulesCache
from zq.clock import Clock
from zq.errors import QueueNotFound
from zq.limits import Limits
from zq.model import Queue, QueueRef
from zq.storage.api import Storage
from zq.storage.capabilities import Missing


class Queues(MetadataResource[QueueRef, Queue]):
    """What a caller can do with queues."""

    def __init__(
        self, storage: Storage, clock: Clock, limits: Limits, rules_cache: RulesCache, sealing: Sealing
    ) -> None:
        history = storage.history
        unbuilt = {"_history_ttl": history.sentence} if isinstance(history, Missing) else {}
        if not sealing.enabled:
            unbuilt[ENCRYPTS] = "this server does not encrypt messages, for it has no message_encryption_key_file."
        schema = MetadataSchema("queue", limits, shown_defaults(limits), rules_cache.default_ttls.of, unbuilt)
        markers = Markers(storage.documents, clock)
        super().__init__(storage.queues, schema, markers, clock, limits, rules_cache.forget, QueueNotFound)
        self._queues = storage.queues

    def count(self, project: str, visible: Callable[[str], bool] | None = None) -> int:
        """How many queues the project has; of those that are ``visible``, as many as one request may look at."""
        if visible is None:
            return self._queues.count(project)
        most, marker, count = self._limits.max_metadata_walk, "", 0
        while most > 0:
            page = self._queues.list(project, marker, min(most, READ_AHEAD))
            count += sum(visible(queue.ref.name) for queue in page.items)
            most -= len(page.items)
            if page.next is None:
                break
            marker = page.next
        return count
