# SPDX-License-Identifier: Apache-2.0
"""Claims in Redis. A claim is what its messages' records say of it, and a list of these messages."""

from zq.errors import ClaimNotFound
from zq.model import Claim, DeadLetters, Lease, QueueRef, Seconds
from zq.storage.redis import layout, scripts
from zq.storage.redis.store import Store

MAX_LOOKS = 64
"""How often a claim looks again because all that it met had expired or were dead letters."""
BURIAL = 60_000
"""Milliseconds after which a dead letter queue is looked at, in case a server died between burying and saying so."""


class ClaimController:
    """``zq.storage.api.ClaimController`` on Redis."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(
        self, queue: QueueRef, lease: Lease, limit: int, now: Seconds, dead_letters: DeadLetters | None = None
    ) -> Claim | None:
        moment = layout.ms(now)
        terms = [b"%d" % moment, layout.text(lease.claim), b"%d" % limit, b"%d" % lease.ttl, b"%d" % lease.grace]
        other = None
        if dead_letters is not None:
            other = dead_letters.queue
            life = -1 if dead_letters.ttl is None else dead_letters.ttl
            terms += [layout.text(queue.name), b"%d" % dead_letters.max_claims, layout.text(other.name), b"%d" % life]
            self._store.expect(other, moment + BURIAL, moment)
        for _ in range(MAX_LOOKS):
            blob = self._store.run(scripts.CLAIM, queue, *terms, other=other)
            earliest = int.from_bytes(blob[1:9])
            if other is not None and earliest:
                self._store.expect(other, earliest, moment)
            if blob[0] == 0:
                break
        held = layout.messages(blob, 9, moment)
        return Claim(lease.claim, lease.ttl, now, held) if held else None

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        moment = layout.ms(now)
        blob = self._store.run(scripts.CLAIM_GET, queue, b"%d" % moment, layout.text(claim))
        if not blob:
            raise ClaimNotFound("There is no live claim of this id in the queue.")
        _, lease, start, _ = layout.message(blob, 0, moment)
        return Claim(claim, lease, start / 1000, layout.messages(blob, 0, moment))

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds) -> None:
        terms = b"%d" % layout.ms(now), layout.text(lease.claim), b"%d" % lease.ttl, b"%d" % lease.grace
        if not self._store.run(scripts.RENEW, queue, *terms):
            raise ClaimNotFound("There is no live claim of this id in the queue.")

    def release(self, queue: QueueRef, claim: str, now: Seconds) -> None:
        self._store.run(scripts.RELEASE, queue, b"%d" % layout.ms(now), layout.text(claim))
