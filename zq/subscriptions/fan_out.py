# SPDX-License-Identifier: Apache-2.0
"""Creation of notices, and fan-out of notices and topic messages to the delivery queues of subscriptions.

The fan-out of a project's topic log has three steps:

1. Read the cursor, and then the subscriptions.
2. Store deliveries of the messages after the cursor.
3. Move the cursor past these messages by compare-and-set.

Each change of subscriptions gives the cursor a new version. If subscriptions change during these steps, the cursor does
not move, and the messages are processed again.
"""

import logging
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from zq.clock import Clock
from zq.core.followers import Followers
from zq.core.metadata import Metadata
from zq.core.rules import Rules
from zq.core.tails import ALL
from zq.model import Claim, Copies, Draft, QueueRef, Seconds, Settlement
from zq.model.hidden import HIDDEN
from zq.model.topics import Batch, Pattern
from zq.storage.api import Storage
from zq.subscriptions.documents import KIND, Cursors, SubscriptionDocuments
from zq.subscriptions.model import Notice, Source, SubscriptionSet, is_notice_queue, make_log_ref, parse_delivery_queue
from zq.subscriptions.notices import decode_notice, make_drafts
from zq.subscriptions.policy import SubscriptionPolicy

LOG = logging.getLogger(__name__)
# Maximum number of documents per page, and of log entries per step.
BATCH: Final = 100
# Prefix of the names of topics' subscription documents.
TOPIC_PREFIX: Final = "topic/"
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
        """Return one notice for each message, to be stored atomically with the post.

        ``hops`` is the number of subscriptions that the messages have passed through. If it is ``MAX_HOPS`` or more,
        return None, because the messages probably loop.
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


class FollowResult(Struct, frozen=True):
    """The result of one fan-out step of a topic log. If ``has_more`` is true, the log has more messages."""

    pending: Sequence[QueueRef]
    has_more: bool


class FanOut:
    """Fan-out of queue notices and topic messages to the delivery queues of subscriptions."""

    def __init__(
        self, storage: Storage, clock: Clock, subscriptions: SubscriptionDocuments, policy: SubscriptionPolicy
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._subscriptions = subscriptions
        self._policy = policy
        self._cursors = Cursors(storage, clock)

    def list_work(self, project: str) -> Sequence[QueueRef]:
        """Return the queues of a project that may contain notices or deliveries, for a delivery worker's schedule.

        If the project has topic subscribers, the result includes a placeholder for its topic log (``make_log_ref``).
        """
        return [*self._queues(project), *([make_log_ref(project)] if self._cursors.get(project) else [])]

    def _queues(self, project: str) -> Sequence[QueueRef]:
        found, after = [], HIDDEN
        while True:
            page = self._storage.queues.list(project, after, 100)
            found += [each.ref for each in page.items if is_notice_queue(each.ref) or parse_delivery_queue(each.ref)]
            if page.next is None or len(page.items) < 100:
                return found
            after = page.next

    def fan_out(self, notices: QueueRef, claim: Claim) -> Sequence[QueueRef]:
        """Copy the claimed notices to the delivery queues of subscriptions, and delete the notices."""
        now = self._clock.now()
        known: dict[Source, SubscriptionSet] = {}
        pending: dict[QueueRef, list[Notice]] = {}
        for message in claim.messages:
            notice = decode_notice(message.body)
            source = Source(notices.project, notice.kind, notice.name)
            known[source] = known.get(source) or self._subscriptions.get(source)
            for each in known[source].items:
                if each.receives(notice, self._policy.confirm):
                    pending.setdefault(source.delivery_queue(each), []).append(notice)
        for queue, its in pending.items():
            self._storage.messages.post(queue, make_drafts(its, self._policy.keep, now), now)
        # If the process is killed here, the fan-out is repeated, and subscribers get duplicates with the same ids.
        self._storage.claims.settle(notices, claim.id, Settlement(rest=True), self._clock.now())
        return list(pending)

    def follow(self, project: str) -> FollowResult | None:
        """Copy the next topic messages to delivery queues, and move the cursor.

        Return None if the project's topics have no subscribers.
        """
        now, cursor = self._clock.now(), self._cursors.get(project)
        if cursor is None:
            return None
        topics = self._subscribed(project)
        if not topics:
            return None if self._cursors.remove(project, cursor.version) else FollowResult([], True)
        position = int(cursor.value)
        pattern = Pattern(next(iter(topics))) if len(topics) == 1 else ALL
        read = self._storage.topics.read(project, position, BATCH, pattern)
        if read.dropped > position:
            LOG.warning("Topic messages of project %s were trimmed before they were delivered.", project)
        pending: dict[QueueRef, list[Notice]] = {}
        for batch in read.batches:
            self._add(project, batch, position, topics.get(batch.topic, SubscriptionSet()), pending, now)
        for queue, its in pending.items():
            self._storage.messages.post(queue, make_drafts(its, self._policy.keep, now), now)
        if read.position == position:
            return FollowResult(list(pending), read.more)
        moved = self._cursors.move(project, read.position, cursor.version)
        return FollowResult(list(pending), read.more or not moved)

    def _add(
        self,
        project: str,
        batch: Batch,
        after: int,
        all: SubscriptionSet,
        pending: dict[QueueRef, list[Notice]],
        now: Seconds,
    ) -> None:
        source = Source(project, "topic", batch.topic)
        for message in batch.messages(after, now) if all.has_active else ():
            entry, sequence = message.entry, message.sequence
            id = f"{sequence}-{int(message.created * 1000):x}"  # the same id if the fan-out is repeated
            notice = Notice(
                id,
                "topic",
                batch.topic,
                entry.body,
                entry.ttl,
                generation=sequence,
                hops=entry.hops,
                seal=entry.seal,
                attributes=entry.attributes,
            )
            for each in all.items if entry.hops < MAX_HOPS else ():
                if each.receives(notice, self._policy.confirm):
                    pending.setdefault(source.delivery_queue(each), []).append(notice)

    def _subscribed(self, project: str) -> dict[str, SubscriptionSet]:
        found: dict[str, SubscriptionSet] = {}
        after = ""
        while True:
            page = self._storage.documents.list(project, KIND, TOPIC_PREFIX, after, BATCH, self._clock.now())
            for document in page.items:
                name = document.ref.name.removeprefix(TOPIC_PREFIX)
                if (all := self._subscriptions.get(Source(project, "topic", name))).items:
                    found[name] = all
            if page.next is None or len(page.items) < BATCH:
                return found
            after = page.next
