# SPDX-License-Identifier: Apache-2.0
"""Use cases for a subscription's deliveries: list, delete, redrive, and send a test message."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from zq.clock import Clock
from zq.core.encryption import Sealing
from zq.core.values import ReadResult
from zq.errors import MessageUnreadable, NotAgreed, SubscriptionNotFound
from zq.model import ListFilter, Message, Move, Page, QueueRef, new_ids
from zq.model.limits import DEFAULT_BATCH, DEFAULT_PAGE, MAX_BATCH, MAX_IDS, Limits, check_count, check_range
from zq.storage.api import Storage
from zq.subscriptions.documents import SubscriptionDocuments
from zq.subscriptions.model import Notice, Source, Subscription
from zq.subscriptions.notices import decode_notice, decrypt_notice, make_drafts
from zq.subscriptions.policy import SubscriptionPolicy
from zq.wire.answers import RedriveResult

# Maximum number of deliveries that a redrive moves per store call.
_CHUNK: Final = 100
# Body of a test message, and its ttl in seconds.
_TEST: Final = b'{"test":true}'
_TEST_TTL: Final = 3600


class Delivery(Struct, frozen=True):
    """A pending or dead-lettered delivery. ``body`` is None for a confirmation request or an unreadable message."""

    stored: Message
    notice: Notice
    body: bytes | None


class Deliveries:
    """The use cases of a subscription's deliveries."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        subscriptions: SubscriptionDocuments,
        policy: SubscriptionPolicy,
        sealing: Sealing,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._limits = limits
        self._subscriptions = subscriptions
        self._policy = policy
        self._sealing = sealing

    def list(
        self, source: Source, id: str, marker: int, limit: int | None, pending: bool
    ) -> ReadResult[Page[Delivery]]:
        """Return a page of pending or dead-lettered deliveries, oldest first.

        Raises ``Invalid`` if the limit is out of range.
        """
        size = DEFAULT_PAGE if limit is None else check_range("limit", limit, 1, self._limits.max_messages_per_page)
        one, now = self._get_subscription(source, id), self._clock.now()
        queue, chosen = source.dead_letter_queue(id), ListFilter()
        if pending:
            queue, chosen = source.delivery_queue(one), ListFilter(claimed=True, delayed=True)
        max_bytes = self._limits.max_answer_bytes
        page = self._storage.messages.list(queue, marker, size, chosen, now, max_bytes=max_bytes)
        return ReadResult(Page([self._make_delivery(source.project, each) for each in page.items], page.next), now)

    def delete(self, source: Source, id: str, ids: Sequence[str]) -> None:
        """Delete the dead-lettered deliveries with the given ids, or all of them if ``ids`` is empty."""
        dead = self._dead_letter_queue(source, id)
        if ids:
            check_count("ids", len(ids), MAX_IDS)
            self._storage.messages.delete(dead, ids, self._clock.now())
        else:
            self._storage.queues.purge(dead)

    def redrive(self, source: Source, id: str, limit: int | None) -> RedriveResult:
        """Move up to ``limit`` dead-lettered deliveries back to the delivery queue, oldest first."""
        limit = DEFAULT_BATCH if limit is None else check_range("limit", limit, 1, MAX_BATCH)
        dead, pending = self._dead_letter_queue(source, id), source.worker_queue(id)
        moved = marker = 0
        while moved < limit:
            now = self._clock.now()
            page = self._storage.messages.list(dead, marker, min(_CHUNK, limit - moved), ListFilter(), now)
            if page.next is None:
                break
            moves = [Move(each.id, pending.name) for each in page.items]
            moved += len(self._storage.messages.move(dead, moves, now))
            marker = int(page.next)
        return RedriveResult(moved, self._storage.queues.ready(dead, MAX_BATCH, self._clock.now()).count)

    def test(self, source: Source, id: str) -> str:
        """Queue a test message, and return its id. Raises ``NotAgreed`` if the subscription is not active."""
        one, now = self._get_subscription(source, id), self._clock.now()
        if one.confirmed is None or not one.is_sent_to(self._policy.confirm):
            raise NotAgreed()
        message = new_ids(1, now)[0]
        notice = Notice(message, source.kind, source.name, _TEST, _TEST_TTL, generation=one.confirmed)
        self._storage.messages.post(source.delivery_queue(one), make_drafts([notice], _TEST_TTL, now), now)
        return message

    def _dead_letter_queue(self, source: Source, id: str) -> QueueRef:
        self._get_subscription(source, id)
        return source.dead_letter_queue(id)

    def _get_subscription(self, source: Source, id: str) -> Subscription:
        found = self._subscriptions.get(source).find(id)
        if found is None:
            raise SubscriptionNotFound()
        return found

    def _make_delivery(self, project: str, stored: Message) -> Delivery:
        notice = decode_notice(stored.body)
        try:
            body = None if notice.confirmation else decrypt_notice(self._sealing, project, notice).body
        except MessageUnreadable:
            body = None
        return Delivery(stored, notice, body)
