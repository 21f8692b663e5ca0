# SPDX-License-Identifier: Apache-2.0
"""Subscribers as the core sees them: followers of queues and topics."""

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

# A message that was posted by this many deliveries in a chain is not delivered any further.
MAX_HOPS: Final = 5
# Sources whose subscriptions one step of a project's removal deletes.
SOURCES_AT_ONCE: Final = 20


class Subscribers(Followers):
    """The subscribers of queues and topics. ``keep``: seconds for which an undelivered notice is stored."""

    def __init__(self, storage: Storage, clock: Clock, keep: int) -> None:
        self._documents = SubscriptionDocuments(storage, clock)
        self._keep = keep

    def mark(self, queue: QueueRef) -> Metadata:
        return self._documents.mark_of_queue(queue)

    def copies(self, queue: QueueRef, drafts: Sequence[Draft], rules: Rules, now: Seconds, hops: int) -> Copies | None:
        """Return a notice of each message, to be fanned out later; None if the post came by too many deliveries."""
        if hops >= MAX_HOPS:
            return None
        is_delayed = bool(rules.default_delay)
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
