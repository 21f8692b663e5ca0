# SPDX-License-Identifier: Apache-2.0
"""Use cases on deliveries: see those that wait and those that were given up, have these tried again, drop them, and
try a subscriber."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from zq.clock import Clock
from zq.core.encryption import Sealing
from zq.core.redriving import Redriven
from zq.core.subscriptions import Subscribing
from zq.core.values import Seen
from zq.errors import MessageUnreadable, NotAgreed, SubscriptionNotFound
from zq.limits import DEFAULT_BATCH, DEFAULT_PAGE, MAX_BATCH, MAX_IDS, Limits, count_within, within
from zq.model import Draft, ListFilter, Message, Move, Page, QueueRef, new_ids
from zq.model.subscriptions import Notice, Source, Subscription
from zq.storage.api import Storage
from zq.wire.subscriptions import notice_body, notice_of

# How many are moved in one step.
_CHUNK: Final = 100
# What a subscriber is tried with, and how many seconds it is tried for at most.
_TEST: Final = b'{"test":true}'
_TEST_TTL: Final = 3600


class Delivery(Struct, frozen=True):
    """``stored`` as it lies among what waits or was given up, with the number of attempts; ``body``: the message's,
    None where it cannot be opened."""

    stored: Message
    notice: Notice
    body: bytes | None


class Deliveries:
    """What a caller can do with what is to be delivered to a subscription, or could not be.

    Each raises ``SubscriptionNotFound`` where there is none of the id.
    """

    def __init__(
        self, storage: Storage, clock: Clock, limits: Limits, subscriptions: Subscribing, sealing: Sealing
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._limits = limits
        self._subscriptions = subscriptions
        self._sealing = sealing

    def list(self, source: Source, id: str, marker: int, limit: int | None, waiting: bool) -> Seen[Page[Delivery]]:
        """A page of what was given up, or of what is ``waiting``, the first first. Raises ``Invalid``."""
        size = DEFAULT_PAGE if limit is None else within("limit", limit, 1, self._limits.max_messages_per_page)
        one, now = self._at(source, id), self._clock.now()
        queue, chosen = source.dead(id), ListFilter()
        if waiting:
            queue, chosen = source.outgoing(one), ListFilter(claimed=True, delayed=True)
        most = self._limits.max_answer_bytes
        page = self._storage.messages.list(queue, marker, size, chosen, now, most_bytes=most)
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

    def test(self, source: Source, id: str) -> str:
        """Have ``_TEST`` delivered to this subscriber alone; its ``message_id``. Raises ``NotAgreed``."""
        one, now = self._at(source, id), self._clock.now()
        if one.confirmed is None or not self._subscriptions.is_sent_to(one):
            raise NotAgreed()
        message, draft = new_ids(2, now)
        notice = Notice(message, source.kind, source.name, _TEST, _TEST_TTL, generation=one.confirmed)
        drafts = [Draft(draft, notice_body(notice), _TEST_TTL, 0, "")]
        self._storage.messages.post(source.outgoing(one), drafts, now)
        return message

    def _dead(self, source: Source, id: str) -> QueueRef:
        self._at(source, id)
        return source.dead(id)

    def _at(self, source: Source, id: str) -> Subscription:
        found = self._subscriptions.of(source).at(id)
        if found is None:
            raise SubscriptionNotFound()
        return found

    def _seen(self, project: str, stored: Message) -> Delivery:
        notice = notice_of(stored.body)
        try:
            body = None if notice.confirmation else self._sealing.opened_notice(project, notice).body
        except MessageUnreadable:
            body = None
        return Delivery(stored, notice, body)
