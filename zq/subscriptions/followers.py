# SPDX-License-Identifier: Apache-2.0
"""The core's interface to subscriptions: posts create notices, and deletions end subscriptions."""

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
from zq.subscriptions.notices import make_drafts

# Maximum number of deliveries in a row that each caused the next post. A longer chain is treated as a loop.
MAX_HOPS: Final = 5
# Number of sources whose subscriptions are deleted in one step of a project removal.
SOURCES_AT_ONCE: Final = 20


class Subscribers(Followers):
    """The subscribers of queues and topics. ``keep`` is the retention of undelivered notices in seconds."""

    def __init__(self, storage: Storage, clock: Clock, keep: int) -> None:
        self._documents = SubscriptionDocuments(storage, clock)
        self._keep = keep

    def mark(self, queue: QueueRef) -> Metadata:
        return self._documents.get_queue_mark(queue)

    def copies(self, queue: QueueRef, drafts: Sequence[Draft], rules: Rules, now: Seconds, hops: int) -> Copies | None:
        """Return one notice for each message, to be stored together with the post.

        ``hops`` is the number of deliveries that the messages have passed already. If it is ``MAX_HOPS`` or more,
        return None, because the subscriptions probably form a loop.
        """
        if hops >= MAX_HOPS:
            return None
        is_delayed = bool(rules.default_message_delay)
        notices = [
            Notice(
                each.id,
                "queue",
                queue.name,
                each.body,
                each.ttl,
                each.delay if is_delayed else None,
                rules.subscribed,
                hops=hops,
                attributes=each.attributes,
            )
            for each in drafts
        ]
        return Copies(Source(queue.project, "queue", queue.name).notices, make_drafts(notices, self._keep, now))

    def end(self, kind: str, project: str, name: str) -> None:
        self._documents.delete_all(Source(project, kind, name))

    def remove(self, project: str) -> bool:
        return self._documents.delete_some(project, SOURCES_AT_ONCE)
