# SPDX-License-Identifier: Apache-2.0
"""Use cases on claims (contract 8)."""

from msgspec import UNSET

from zq import wire
from zq.broker.metadata import Book
from zq.broker.watch import Watch
from zq.clock import Clock
from zq.limits import MIN_DELAY, MIN_TTL, Limits, claim_name, within
from zq.model import Claim, Fence, Lease, QueueRef, Seconds, new_ids
from zq.storage.api import Storage

DEFAULT_CLAIM = 10


class Claims:
    """What a caller can do with claims."""

    def __init__(self, storage: Storage, clock: Clock, limits: Limits, book: Book, watch: Watch) -> None:
        self._queues = storage.queues
        self._claims = storage.claims
        self._clock = clock
        self._limits = limits
        self._book = book
        self._watch = watch

    def create(self, queue: QueueRef, terms: wire.ClaimTerms, limit: int | None) -> tuple[Claim | None, Seconds]:
        """Claim up to ``limit`` messages, or as many as an answer carries; None if there are none. With the moment."""
        now = self._clock.now()
        (claim,) = new_ids(1, now)
        lease, size = self._lease(claim, terms), self._size(limit)
        stored = self._queues.get(queue)
        if stored is None:
            return None, now
        rules = self._book.rules(stored.metadata)
        most_bytes = self._limits.max_answer_bytes
        made = self._claims.create(queue, lease, size, now, rules.dead_letters(queue), rules.redelivery, most_bytes)
        if made is not None:
            self._watch.claimed(made, now)
        return made, now

    def create_named(
        self, queue: QueueRef, name: str, terms: wire.ClaimTerms, limit: int | None, fence: Fence | None
    ) -> tuple[Claim | None, bool, Seconds]:
        """The live claim of this name as it is, and True; else a new one, if there is anything to claim; the moment."""
        lease, size = self._lease(claim_name(name), terms), self._size(limit)
        now = self._clock.now()
        stored = self._queues.get(queue)
        rules = self._book.rules(stored.metadata if stored else b"{}")
        claim, was_there = self._claims.create_named(
            queue,
            lease,
            size,
            now,
            rules.dead_letters(queue),
            rules.redelivery,
            fence,
            self._limits.max_answer_bytes,
        )
        if claim is not None and not was_there:
            self._watch.claimed(claim, now)
        return claim, was_there, now

    def get(self, queue: QueueRef, claim: str) -> tuple[Claim, Seconds]:
        """A live claim, and the moment it was seen. Raises ``ClaimNotFound``."""
        now = self._clock.now()
        return self._claims.get(queue, claim, now), now

    def renew(self, queue: QueueRef, claim: str, terms: wire.ClaimTerms, fence: Fence | None) -> None:
        """Start a live claim anew; omitted terms are the server's defaults (contract 8.3).

        Raises ``ClaimNotFound``, ``Fenced``.
        """
        grace = min(max(0, self._grace(terms)), self._limits.max_claim_grace)  # no refusal here, just no overflow
        lease = Lease(claim, self._ttl(terms), grace)
        self._claims.renew(queue, lease, self._clock.now(), fence)

    def release(self, queue: QueueRef, claim: str, delay: int | None) -> None:
        """Give back what the claim holds after ``delay`` seconds, as ``Release`` has it; an unknown claim is fine."""
        if delay is not None:
            within("delay", delay, MIN_DELAY, self._limits.max_message_delay)
        self._claims.release(queue, claim, self._clock.now(), delay)

    def _lease(self, claim: str, terms: wire.ClaimTerms) -> Lease:
        ttl, grace = self._ttl(terms), self._grace(terms)
        return Lease(claim, ttl, within("grace", grace, MIN_TTL, self._limits.max_claim_grace))

    def _size(self, limit: int | None) -> int:
        if limit is None:
            return DEFAULT_CLAIM
        return within("limit", limit, 1, self._limits.max_messages_per_claim_or_pop)

    def _ttl(self, terms: wire.ClaimTerms) -> int:
        if terms.ttl is UNSET:
            return self._limits.default_claim_ttl
        return within("ttl", terms.ttl, MIN_TTL, self._limits.max_claim_ttl)

    def _grace(self, terms: wire.ClaimTerms) -> int:
        return self._limits.default_claim_grace if terms.grace is UNSET else terms.grace
