# SPDX-License-Identifier: Apache-2.0
"""Use cases on claims (contract 8)."""

from msgspec import UNSET

from zq import wire
from zq.broker.metadata import Book
from zq.clock import Clock
from zq.limits import MIN_TTL, Limits, within
from zq.model import Claim, Lease, QueueRef, Seconds, new_ids
from zq.storage.api import Storage

DEFAULT_CLAIM = 10


class Claims:
    """What a caller can do with claims."""

    def __init__(self, storage: Storage, clock: Clock, limits: Limits, book: Book) -> None:
        self._queues = storage.queues
        self._claims = storage.claims
        self._clock = clock
        self._limits = limits
        self._book = book

    def create(self, queue: QueueRef, terms: wire.ClaimTerms, limit: int | None) -> tuple[Claim | None, Seconds]:
        """Claim up to ``limit`` messages; None if there is nothing to claim. With the moment."""
        limits = self._limits
        size = DEFAULT_CLAIM if limit is None else within("limit", limit, 1, limits.max_messages_per_claim_or_pop)
        ttl, grace = self._ttl(terms), self._grace(terms)
        within("grace", grace, MIN_TTL, limits.max_claim_grace)
        now = self._clock.now()
        stored = self._queues.get(queue)
        if stored is None:
            return None, now
        dead_letters = self._book.rules(stored.metadata).dead_letters(queue)
        (claim,) = new_ids(1, now)
        return self._claims.create(queue, Lease(claim, ttl, grace), size, now, dead_letters), now

    def get(self, queue: QueueRef, claim: str) -> tuple[Claim, Seconds]:
        """A live claim, and the moment it was seen. Raises ``ClaimNotFound``."""
        now = self._clock.now()
        return self._claims.get(queue, claim, now), now

    def renew(self, queue: QueueRef, claim: str, terms: wire.ClaimTerms) -> None:
        """Start a live claim anew; omitted terms are the server's defaults (contract 8.3). Raises ``ClaimNotFound``."""
        grace = min(max(0, self._grace(terms)), self._limits.max_claim_grace)  # no refusal here, just no overflow
        lease = Lease(claim, self._ttl(terms), grace)
        self._claims.renew(queue, lease, self._clock.now())

    def release(self, queue: QueueRef, claim: str) -> None:
        """Give back what the claim holds; an unknown claim is fine."""
        self._claims.release(queue, claim, self._clock.now())

    def _ttl(self, terms: wire.ClaimTerms) -> int:
        if terms.ttl is UNSET:
            return self._limits.default_claim_ttl
        return within("ttl", terms.ttl, MIN_TTL, self._limits.max_claim_ttl)

    def _grace(self, terms: wire.ClaimTerms) -> int:
        return self._limits.default_claim_grace if terms.grace is UNSET else terms.grace
