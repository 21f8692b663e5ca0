# SPDX-License-Identifier: Apache-2.0
"""Claims of the MongoDB store. A claim is nothing but what its messages say of it."""

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
from zq.storage.mongodb import fences, layout
from zq.storage.mongodb.holders import every_held, no_claim
from zq.storage.mongodb.naming import NamedClaim
from zq.storage.mongodb.pins import look
from zq.storage.mongodb.port import Port, Session
from zq.storage.mongodb.settling import Order, Settler
from zq.storage.mongodb.takers import Takers
from zq.storage.mongodb.taking import Announce, Wish


class ClaimController:
    """``zq.storage.api.ClaimController`` on MongoDB."""

    def __init__(self, port: Port, takers: Takers, announce: Announce) -> None:
        self._port = port
        self._takers = takers
        self._announce = announce
        self._settler = Settler(port)

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
        moment, key = layout.ms(now), layout.key(queue)
        with self._port.verb():
            wish = Wish(limit, moment, lease, dead_letters, redelivery, most_bytes=most_bytes)
            taken = self._takers.of(key).take(wish)
        messages = [layout.message(key, document, moment) for document in taken]
        return Claim(lease.claim, lease.ttl, now, messages, wish.lapsed) if messages else None

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
        wish = Wish(limit, layout.ms(now), lease, dead_letters, redelivery, most_bytes=most_bytes)
        key = layout.key(queue)
        with self._port.verb():
            return NamedClaim(self._port, self._takers.of(key), key, wish, fence).make(self._announce)

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        moment, key = layout.ms(now), layout.key(queue)
        with self._port.verb():
            found = look(self._port, key, claim, moment)
        if not found:
            raise no_claim()
        return layout.claim(key, found, moment)

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, fence: Fence | None = None) -> None:
        moment, key = layout.ms(now), layout.key(queue)
        step = layout.holding(lease, moment, anew=True)
        statement = every_held(self._port, key, lease.claim, moment, step)

        def work(session: Session | None = None) -> int:
            if fence is not None and session is not None:
                fences.check(self._port, session, queue.project, fence)
            return self._port.update([statement], session)

        with self._port.verb():
            if not (work() if fence is None else self._port.transaction(work)):
                raise no_claim()

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        moment, key = layout.ms(now), layout.key(queue)
        statement = every_held(self._port, key, claim, moment, layout.releasing(moment, delay))
        with self._port.verb():
            if self._port.update([statement]):
                self._takers.lower(key)
                self._announce(queue)

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        once: Once | None = None,
        fence: Fence | None = None,
    ) -> Settled:
        key = layout.key(queue)
        with self._port.verb():
            settled = self._settler.settle(Order(key, claim, settlement, layout.ms(now), once, fence))
        if settled.released:
            self._takers.lower(key)
        for name in {*([queue.name] if settled.released else []), *(way.to for way in settlement.move)}:
            self._announce(queue._replace(name=name))
        return settled
