# SPDX-License-Identifier: Apache-2.0
"""Claims in Redis. A claim is what its messages' records say of it, and a list of these messages."""

from collections.abc import Sequence
from struct import Struct as Packing
from typing import Final

from zq.model import (
    AT_ONCE,
    UNBOUNDED,
    Claim,
    DeadLetters,
    Fence,
    Lease,
    Once,
    QueueRef,
    Redelivery,
    Seconds,
    Settled,
    Settlement,
)
from zq.storage.redis import layout, refusals, scripts, ways
from zq.storage.redis.refusals import checked
from zq.storage.redis.store import BURIAL, Store

MAX_LOOKS = 64
"""How often a claim looks again because all that it met had expired or were dead letters."""
AGAIN, LIVED = 1, 2
TOLD: Final = Packing(">BII")
"""Front of a claim's reply: whether to look again, how many messages had lapsed, how many expired ones went."""
NO_FENCE = Fence("", 0)


class ClaimController:
    """``zq.storage.api.ClaimController`` on Redis."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(
        self,
        queue: QueueRef,
        lease: Lease,
        limit: int,
        now: Seconds,
        dead_letters: DeadLetters | None = None,
        redelivery: Redelivery = AT_ONCE,
        most_bytes: int = UNBOUNDED,
    ) -> Claim | None:
        terms = _terms(lease, (limit, most_bytes), now, redelivery, None)
        return self._claim(queue, terms, [], now, dead_letters)[0]

    def create_named(
        self,
        queue: QueueRef,
        lease: Lease,
        limit: int,
        now: Seconds,
        dead_letters: DeadLetters | None = None,
        redelivery: Redelivery = AT_ONCE,
        fence: Fence | None = None,
        most_bytes: int = UNBOUNDED,
    ) -> tuple[Claim | None, bool]:
        terms = _terms(lease, (limit, most_bytes), now, redelivery, fence or NO_FENCE)
        return self._claim(queue, terms, [layout.keys(queue).fences], now, dead_letters)

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
        once: Once | None = None,
        fence: Fence | None = None,
    ) -> Settled:
        moment, keys = layout.ms(now), layout.keys(queue)
        known = ways.announced(self._store, queue.project, settlement.move, moment)
        terms = [b"%d" % moment, layout.text(claim), keys.full, *_fence(fence or NO_FENCE)]
        terms += self._store.answers(queue, once, moment)[1] if once else [b"", b"", b"0"]
        history = self._store.history(queue, settlement.history, moment)
        more = [keys.fences, keys.answers, *history, *known.blocks]
        terms += _named(settlement, len(known.targets)) + known.terms
        reply = checked(self._store.run(scripts.SETTLE, queue, *terms, more=more), once, refusals.settled)
        return refusals.settled(ways.arrived(self._store, known.targets, reply, moment))

    def _claim(
        self,
        queue: QueueRef,
        terms: Sequence[bytes],
        more: list[layout.Block],
        now: Seconds,
        dead_letters: DeadLetters | None,
    ) -> tuple[Claim | None, bool]:
        """The claim, and whether it lived already."""
        moment = layout.ms(now)
        targets: list[QueueRef] = []
        if dead_letters is not None:
            targets.append(dead_letters.queue)
            life = -1 if dead_letters.ttl is None else dead_letters.ttl
            rule = dead_letters.history, dead_letters.max_claims, life
            terms = [*terms, layout.full(queue), *(b"%d" % number for number in rule), layout.full(dead_letters.queue)]
            history = self._store.history(queue, dead_letters.history, moment)
            more = [*more, *history, layout.keys(dead_letters.queue).target]
            self._store.expect(dead_letters.queue, moment + BURIAL, moment)
        for _ in range(MAX_LOOKS):
            blob = checked(self._store.run(scripts.CLAIM, queue, *terms, more=more))
            again, lapsed, expired = TOLD.unpack_from(blob)
            self._store.removals.add("read", expired)
            rest = blob[TOLD.size :]
            held = ways.arrived(self._store, targets, rest, moment) if targets else rest[layout.MOMENT.size :]
            if again != AGAIN:
                break
        return (_read(held, moment, lapsed) if held else None), again == LIVED


def _terms(
    lease: Lease, most: tuple[int, int], now: Seconds, redelivery: Redelivery, fence: Fence | None
) -> list[bytes]:
    """What the claim script reads first. ``most``: messages, and bytes of bodies. With a fence, be it ``NO_FENCE``, the
    claim is a named one."""
    numbers = *most, lease.ttl, lease.grace, redelivery.delay, redelivery.cap, redelivery.exponential
    terms = [b"%d" % layout.ms(now), layout.text(lease.claim), *(b"%d" % number for number in numbers)]
    return [*terms, b"0"] if fence is None else [*terms, b"1", *_fence(fence)]


def _fence(fence: Fence) -> tuple[bytes, bytes]:
    return layout.text(fence.name), b"%d" % fence.epoch


def _delay(delay: int | None) -> bytes:
    return b"-1" if delay is None else b"%d" % delay


def _named(settlement: Settlement, targets: int) -> list[bytes]:
    """What a settlement names, but for its moves."""
    counts = len(settlement.delete), len(settlement.release), targets
    terms = [b"%d" % number for number in (settlement.history, settlement.rest, *counts)]
    terms += [layout.text(id) for id in settlement.delete]
    return terms + [part for release in settlement.release for part in (layout.text(release.id), _delay(release.delay))]


def _read(blob: bytes, moment: int, lapsed: int = 0) -> Claim:
    """The claim whose messages stand in a reply."""
    first, lease, start, _ = layout.message(blob, 0, moment)
    return Claim(first.claim, lease, start / 1000, layout.messages(blob, 0, moment), lapsed)
