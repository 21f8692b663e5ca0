# SPDX-License-Identifier: Apache-2.0
"""Use cases that end work on messages: settle a claim, and bring dead letters back (extensions 3, 4)."""

from collections.abc import Sequence

from msgspec import UNSET

from zq.broker.metadata import Book
from zq.broker.watch import Watch
from zq.clock import Clock
from zq.errors import Invalid, Repeated
from zq.limits import (
    DEFAULT_BATCH,
    MAX_BATCH,
    MAX_REASON,
    MIN_DELAY,
    MIN_TTL,
    Limits,
    count_within,
    each_once,
    queue_name,
    within,
)
from zq.model import Fence, Message, Move, Once, Outcome, QueueRef, Release, Settled, Settlement, View
from zq.storage.api import Storage
from zq.wire import checksum, settling

CHUNK = 100
"""Messages that a redrive moves at a time."""


class Settling:
    """What a caller can do with messages when the work on them is done, or has failed."""

    def __init__(
        self, storage: Storage, clock: Clock, limits: Limits, book: Book, checksum: bool, watch: Watch
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._limits = limits
        self._book = book
        self._checksum = checksum
        self._watch = watch

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        terms: settling.Terms,
        once: Once | None = None,
        fence: Fence | None = None,
    ) -> tuple[Settled, bool]:
        """End the claim's work on the named messages; whether that was done before under ``once``.

        Raises ``Invalid``, ``ClaimNotFound``, ``KeyReused``, ``Fenced``; then nothing has changed.
        """
        self._check(terms)
        rules = self._book.recent(queue)
        if terms.bury and not rules.dead_letter_queue:
            raise Invalid("bury: the queue has no _dead_letter_queue.")
        moves = [self._move(queue.project, move) for move in terms.move]
        buried = (rules.dead_letter_queue, rules.dead_letter_ttl)
        settlement = Settlement(
            delete=() if isinstance(terms.delete, str) else terms.delete,
            rest=terms.delete == "*",
            release=[Release(given.id, None if given.delay is UNSET else given.delay) for given in terms.release],
            move=moves + [Move(given.id, *buried, reason=given.reason) for given in terms.bury],
            history=rules.history_ttl,
        )
        try:
            settled = self._storage.claims.settle(queue, claim, settlement, self._clock.now(), once, fence)
        except Repeated as first:
            return first.answer, True
        self._watch.finished(Outcome.DELETED, settled.deleted)
        self._watch.finished(Outcome.MOVED, settled.moved)
        self._watch.finished(Outcome.DEAD_LETTERED, settled.buried)
        return settled, False

    def redrive(self, queue: QueueRef, terms: settling.Redrive) -> tuple[int, int]:
        """Move ready messages to where they came from, or to ``terms.to``: how many went, and how many are ready still.

        Up to ``MAX_BATCH`` are counted. Raises ``Invalid``, if nothing was moved.
        """
        limit = DEFAULT_BATCH if terms.limit is UNSET else within("limit", terms.limit, 1, MAX_BATCH)
        to = None if terms.to is UNSET else queue_name("to", terms.to)
        if to == queue.name:
            raise Invalid("to must name another queue than the one that is redriven.")
        history = self._book.recent(queue).history_ttl
        moved = marker = 0
        while moved < limit:
            now = self._clock.now()
            page = self._storage.messages.list(queue, marker, min(CHUNK, limit - moved), View(), now)
            moves = self._moves(queue.project, page.items, to)
            if page.items and not moves and not moved:
                raise Invalid("to is missing: a message of the queue is no dead letter and has no queue to go back to.")
            moved += len(self._storage.messages.move(queue, moves, now, history)) if moves else 0
            if page.next is None or len(moves) < len(page.items):
                break
            marker = int(page.next)
        self._watch.finished(Outcome.MOVED, moved)
        return moved, self._storage.queues.ready(queue, MAX_BATCH, self._clock.now())

    def _moves(self, project: str, messages: Sequence[Message], to: str | None) -> list[Move]:
        """The way of each message, up to the first that has nowhere to go."""
        moves = []
        for message in messages:
            target = to or message.origin
            if not target:
                break
            rules = self._book.recent(QueueRef(project, target))
            moves.append(Move(message.id, target, delay=rules.default_delay))
        return moves

    def _check(self, terms: settling.Terms) -> None:
        """Refuse what is wrong whatever the queues' rules are."""
        limits, fields = self._limits, "delete, release, move and bury"
        ids = [] if isinstance(terms.delete, str) else list(terms.delete)
        ids += [released.id for released in terms.release]
        ids += [moved.id for moved in terms.move]
        ids += [buried.id for buried in terms.bury]
        if terms.delete != "*" or ids:
            count_within(fields, len(ids), limits.max_messages_per_claim_or_pop)
        each_once(fields, ids)
        for delay in [*(released.delay for released in terms.release), *(moved.delay for moved in terms.move)]:
            if delay is not UNSET:
                within("delay", delay, MIN_DELAY, limits.max_message_delay)
        for move in terms.move:
            queue_name("queue", move.queue)
            if move.ttl is not UNSET:
                within("ttl", move.ttl, MIN_TTL, limits.max_message_ttl)
        for buried in terms.bury:
            if not 1 <= len(buried.reason) <= MAX_REASON:
                raise Invalid(f"reason must be 1 to {MAX_REASON} characters; it has {len(buried.reason)}.")

    def _move(self, project: str, given: settling.Moved) -> Move:
        rules = self._book.recent(QueueRef(project, given.queue))
        body = None if given.body is UNSET else bytes(given.body)
        if body is not None and len(body) > rules.max_post_size:
            raise Invalid(f"body must be at most {rules.max_post_size} bytes in {given.queue}; it is {len(body)}.")
        return Move(
            id=given.id,
            to=given.queue,
            ttl=None if given.ttl is UNSET else given.ttl,
            delay=rules.default_delay if given.delay is UNSET else given.delay,
            body=body,
            checksum=checksum(body) if body is not None and self._checksum else "",
        )
