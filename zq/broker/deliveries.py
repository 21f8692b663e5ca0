# SPDX-License-Identifier: Apache-2.0
"""Use cases on deliveries that were given up: see them, have them tried again, and drop them."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from zq.broker.encryption import Sealing
from zq.broker.redriving import Redriven
from zq.broker.subscription_documents import SubscriptionDocuments
from zq.broker.values import Seen
from zq.clock import Clock
from zq.errors import MessageUnreadable, SubscriptionNotFound
from zq.limits import DEFAULT_BATCH, DEFAULT_PAGE, MAX_BATCH, MAX_IDS, Limits, count_within, within
from zq.model import ListFilter, Message, Move, Page, QueueRef
from zq.model.subscriptions import Notice, Source
from zq.storage.api import Storage
from zq.wire.subscriptions import notice_of

# How many are moved in one step.
_CHUNK: Final = 100


class DeadDelivery(Struct, frozen=True):
    """``stored`` as it lies among what was given up, with the reason and the number of attempts; ``body``: the
    message's, None where it cannot be opened."""

    stored: Message
    notice: Notice
    body: bytes | None


class DeadDeliveries:
    """What a caller can do with what could not be delivered to a subscription.

    Each raises ``SubscriptionNotFound`` where there is none of the id.
    """

    def __init__(
        self, storage: Storage, clock: Clock, limits: Limits, subscribed: SubscriptionDocuments, sealing: Sealing
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._limits = limits
        self._subscribed = subscribed
        self._sealing = sealing

    def list(self, source: Source, id: str, marker: int, limit: int | None) -> Seen[Page[DeadDelivery]]:
        """A page of them, the first that was given up first. Raises ``Invalid``."""
        size = DEFAULT_PAGE if limit is None else within("limit", limit, 1, self._limits.max_messages_per_page)
        dead, now = self._dead(source, id), self._clock.now()
        most = self._limits.max_answer_bytes
        page = self._storage.messages.list(dead, marker, size, ListFilter(), now, most_bytes=most)
        return Seen(Page([self._seen(source.project, each) for each in page.items], page.next), now)

    def delete(self, source: Source, id: str, ids: Sequence[str]) -> None:
        """Drop these, or all if none are named. Raises ``Invalid``."""
        dead = self._dead(source, id)
        if ids:
            count_within("ids", len(ids), MAX_IDS)
            self._storage.messages.delete(dead, ids, self._clock.now())
        else:
            self._storage.queues.purge(dead)

    def redrive(self, source: Source, id: str, limit: int | None) -> Redriven:
        """Have so many tried again, the first first: each with all attempts anew. Raises ``Invalid``."""
        most = DEFAULT_BATCH if limit is None else within("limit", limit, 1, MAX_BATCH)
        dead, pending = self._dead(source, id), source.pending(id)
        moved = marker = 0
        while moved < most:
            now = self._clock.now()
            page = self._storage.messages.list(dead, marker, min(_CHUNK, most - moved), ListFilter(), now)
            if page.next is None:
                break
            moves = [Move(each.id, pending.name) for each in page.items]
            moved += len(self._storage.messages.move(dead, moves, now))
            marker = int(page.next)
        return Redriven(moved, self._storage.queues.ready(dead, MAX_BATCH, self._clock.now()).count)

    def _dead(self, source: Source, id: str) -> QueueRef:
        if self._subscribed.of(source).at(id) is None:
            raise SubscriptionNotFound()
        return source.dead(id)

    def _seen(self, project: str, stored: Message) -> DeadDelivery:
        notice = notice_of(stored.body)
        try:
            body = None if notice.confirmation else self._sealing.opened_notice(project, notice).body
        except MessageUnreadable:
            body = None
        return DeadDelivery(stored, notice, body)
