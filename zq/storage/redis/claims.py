# SPDX-License-Identifier: Apache-2.0
"""Claims in Redis. A claim is what its messages' states say of it, and a list of these messages."""

from struct import Struct as Packing
from typing import Final

from zq.model import (
    MAX_LOOKS,
    Claim,
    Claimed,
    ClaimRequest,
    Fence,
    IdempotencyKey,
    Lease,
    QueueRef,
    Seconds,
    Settled,
    Settlement,
)
from zq.storage.redis import layout, scripts
from zq.storage.redis.store import Store, checked, plan_moves, schedule_arrivals, unpack_settled

# Outcomes of a claim, as its script returns them.
CLAIMED, AGAIN, EXISTING, OTHER = range(4)
# Front of a claim's reply: outcome, how many messages had lapsed, how many expired ones went, length of the spent ids.
FRONT: Final = Packing(">BIII")
NO_FENCE: Final = Fence("", 0)


class ClaimController:
    """``zq.storage.api.ClaimController`` on Redis."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> Claimed:
        moment, keys = layout.ms(now), layout.keys(queue)
        terms = _request_terms(request, keys.name, moment)
        for _ in range(MAX_LOOKS):
            blob = checked(self._store.run(scripts.CLAIM, queue, *terms, more=[keys.fences]))
            if blob[0] == OTHER:
                return Claimed(metadata=blob[1:])
            outcome, lapsed, expired, size = FRONT.unpack_from(blob)
            self._store.removals.add("read", expired)
            if outcome != AGAIN:
                break
        spent = layout.ids(blob[FRONT.size : FRONT.size + size])
        messages = blob[FRONT.size + size :]
        claim = _read(messages, moment, lapsed) if messages else None
        return Claimed(claim, outcome == EXISTING, spent or [])

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        moment = layout.ms(now)
        blob = self._store.run(scripts.CLAIM_GET, queue, b"%d" % moment, layout.text(claim))
        return _read(checked(blob or [b"unclaimed"]), moment)

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, fence: Fence | None = None) -> None:
        terms = b"%d" % layout.ms(now), layout.text(lease.claim), b"%d" % lease.ttl, b"%d" % lease.grace
        more = [layout.keys(queue).fences] if fence else []
        checked(self._store.run(scripts.RENEW, queue, *terms, *_fence(fence or NO_FENCE), more=more))

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        terms = b"%d" % layout.ms(now), layout.text(claim), layout.keys(queue).full, _delay(delay)
        self._store.run(scripts.RELEASE, queue, *terms)

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        idempotency_key: IdempotencyKey | None = None,
        fence: Fence | None = None,
    ) -> Settled:
        moment, keys = layout.ms(now), layout.keys(queue)
        plan = plan_moves(self._store, queue.project, settlement.move, moment)
        terms = [b"%d" % moment, layout.text(claim), keys.full, *_fence(fence or NO_FENCE)]
        terms += self._store.answers(queue, idempotency_key, moment)[1] if idempotency_key else [b"", b"", b"0"]
        history = self._store.history(queue, settlement.history, moment)
        more = [keys.fences, keys.answers, *history, *plan.blocks]
        terms += _named(settlement, len(plan.targets)) + plan.terms
        reply = checked(self._store.run(scripts.SETTLE, queue, *terms, more=more), idempotency_key, unpack_settled)
        return unpack_settled(schedule_arrivals(self._store, plan.targets, reply, moment))


def _request_terms(request: ClaimRequest, queue: bytes, moment: int) -> list[bytes]:
    """What the claim script reads."""
    lease, most = request.lease, -1 if request.max_claims is None else request.max_claims
    numbers = request.limit, request.most_bytes, lease.ttl, lease.grace, request.named
    terms = [b"%d" % moment, layout.text(lease.claim), *(b"%d" % number for number in numbers)]
    terms += [*_fence(request.fence or NO_FENCE), queue, request.expected or b"", b"%d" % most]
    return terms + [b"%d" % wait for wait in request.waits or (0,)]


def _fence(fence: Fence) -> tuple[bytes, bytes]:
    return layout.text(fence.name), b"%d" % fence.epoch


def _delay(delay: int | None) -> bytes:
    return b"-1" if delay is None else b"%d" % delay


def _named(settlement: Settlement, targets: int) -> list[bytes]:
    """What a settlement names, but for its moves."""
    counts = len(settlement.delete), len(settlement.release), targets
    terms = [b"%d" % number for number in (settlement.history, settlement.rest, *counts)]
    terms += [layout.packed(id) for id in settlement.delete]
    return terms + [
        part for release in settlement.release for part in (layout.packed(release.id), _delay(release.delay))
    ]


def _read(blob: bytes, moment: int, lapsed: int = 0) -> Claim:
    """The claim whose messages stand in a reply."""
    first, lease, start, _ = layout.message(blob, 0, moment)
    return Claim(first.claim, lease, start / 1000, layout.messages(blob, 0, moment), lapsed)
