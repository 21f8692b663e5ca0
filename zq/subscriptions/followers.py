# SPDX-License-Identifier: Apache-2.0
"""Adapter through which the core reports posts, deletions and project removals to subscriptions."""

from collections.abc import Sequence
from typing import Final

from zq.clock import Clock
from zq.core.followers import Followers
from zq.core.metadata import Metadata
from zq.core.rules import Rules
from zq.model import Copies, Draft, QueueRef, Seconds
from zq.storage.api import Storage
from zq.subscriptions.documents import SubscriptionDocuments
from zq.subscriptions.model import Notice, Source
from zq.subscriptions.notices import drafts_of

# Maximum number of deliveries in a chain in which each delivery causes the next post. Longer chains count as loops.
MAX_HOPS: Final = 5
# Number of sources whose subscriptions are deleted in one step of a project removal.
SOURCES_AT_ONCE: Final = 20


class Subscribers(Followers):
    """The subscribers of queues and topics. ``keep``: the retention of undelivered notices in seconds."""

    def __init__(self, storage: Storage, clock: Clock, keep: int) -> None:
        self._documents = SubscriptionDocuments(storage, clock)
        self._keep = keep

    def mark(self, queue: QueueRef) -> Metadata:
        return self._documents.mark_of_queue(queue)

    def copies(self, queue: QueueRef, drafts: Sequence[Draft], rules: Rules, now: Seconds, hops: int) -> Copies | None:
        """Return a notice of each message, or None if the post results from ``MAX_HOPS`` chained deliveries."""
        if hops >= MAX_HOPS:
            return None
        is_delayed = bool(rules.default_message_delay)
        notices = [
            Notice(each.id, "queue", queue.name, each.body, each.ttl, delay, rules.subscribed, hops=hops)
            for each in drafts
            for delay in [each.delay if is_delayed else None]
        ]
        return Copies(Source(queue.project, "queue", queue.name).notices, drafts_of(notices, self._keep, now))

    def end(self, kind: str, project: str, name: str) -> None:
        self._documents.end(Source(project, kind, name))

    def remove(self, project: str) -> bool:
        return self._documents.end_some(project, SOURCES_AT_ONCE)
