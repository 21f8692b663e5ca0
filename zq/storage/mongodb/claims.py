# SPDX-License-Identifier: Apache-2.0
"""Claims of the MongoDB store. A claim is nothing but what its messages say of it."""

from bson.datetime_ms import DatetimeMS

from zq.errors import ClaimNotFound
from zq.model import Claim, DeadLetters, Lease, QueueRef, Seconds
from zq.storage.mongodb import layout
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Port
from zq.storage.mongodb.takers import Takers
from zq.storage.mongodb.taking import Wish


class ClaimController:
    """``zq.storage.api.ClaimController`` on MongoDB."""

    def __init__(self, port: Port, takers: Takers) -> None:
        self._port = port
        self._takers = takers

    def create(
        self, queue: QueueRef, lease: Lease, limit: int, now: Seconds, dead_letters: DeadLetters | None = None
    ) -> Claim | None:
        moment, key = layout.ms(now), layout.key(queue)
        with self._port.verb():
            taken = self._takers.of(key).take(Wish(limit, moment, lease, dead_letters))
        messages = [layout.message(key, document, moment) for document in taken]
        return Claim(lease.claim, lease.ttl, now, messages) if messages else None

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        moment, key = layout.ms(now), layout.key(queue)
        with self._port.verb():
            held = self._port.find(self._held(key, claim, moment), hint=layout.HELD)
        if not held:
            raise _unknown()
        held.sort(key=lambda document: int(document["k"]))
        terms = held[0]["c"]
        return Claim(claim, terms["t"], terms["s"] / 1000, [layout.message(key, found, moment) for found in held])

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds) -> None:
        moment, key = layout.ms(now), layout.key(queue)
        held, step = self._held(key, lease.claim, moment), layout.holding(lease, moment, anew=True)
        with self._port.verb():
            if not self._port.update([{"q": held, "u": step, "multi": True, "hint": layout.HELD}]):
                raise _unknown()

    def release(self, queue: QueueRef, claim: str, now: Seconds) -> None:
        key = layout.key(queue)
        held = self._held(key, claim, layout.ms(now))
        with self._port.verb():
            if self._port.update([{"q": held, "u": layout.RELEASING, "multi": True, "hint": layout.HELD}]):
                self._takers.lower(key)

    def _held(self, key: QueueKey, claim: str, now: int) -> Document:
        conditions = {"c.i": layout.text(claim), "c.e": {"$gt": now}, "e": {"$gt": DatetimeMS(now)}}
        return self._port.where(key, **conditions)


def _unknown() -> ClaimNotFound:
    return ClaimNotFound("There is no live claim of this id in the queue.")
