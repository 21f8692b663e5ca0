# SPDX-License-Identifier: Apache-2.0
"""Claims under a name that the caller chose: one at a time, however many callers and processes want to make it.

All of them write the name's document, in the transaction that takes the messages; so the second one finds what the
first one took.
"""

import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from bson.datetime_ms import DatetimeMS
from msgspec import Struct

from zq.errors import Unavailable
from zq.model import Claim, Fence
from zq.storage.mongodb import fences, layout
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.pins import look
from zq.storage.mongodb.port import LONGEST_PAUSE, Forsaken, Port, Session
from zq.storage.mongodb.taking import MAX_LOOKS, Announce, Taker, Wish, dead_and_living

REMEMBERED: Final = 3_600_000
"""Milliseconds after its last use for which a name's document is kept; nothing rests on it."""


class Found(Struct, frozen=True):
    """What an attempt met: a living claim of the name (``held``), else what it took, else maybe dead letters only."""

    held: Sequence[Document] = ()
    taken: Sequence[Document] = ()
    buried: bool = False
    lapsed: int = 0


class NamedClaim:
    """One caller's way to a claim of a name."""

    def __init__(self, port: Port, taker: Taker, key: QueueKey, wish: Wish, fence: Fence | None) -> None:
        assert wish.lease is not None
        self._port = port
        self._taker = taker
        self._key = key
        self._wish = wish
        self._lease = wish.lease
        self._fence = fence

    def make(self, announce: Announce) -> tuple[Claim | None, bool]:
        """The claim, and whether it lived before."""
        now, collided = self._wish.now, False
        for _ in range(MAX_LOOKS):
            ready = self._wish.share(self._taker.search(self._wish.limit, now, self._wish.most_bytes))
            try:
                found = self._attempt(ready)
            except Forsaken:  # another process was at the messages, or at the name
                collided = True
                self._taker.front.collide()
                time.sleep(random.uniform(0, LONGEST_PAUSE))
                continue
            if found.buried and self._wish.dead_letters:
                announce(self._wish.dead_letters.queue)
            if found.held:
                return layout.claim(self._key, found.held, now), True
            if found.taken:
                messages = [layout.message(self._key, one, now) for one in found.taken]
                return Claim(self._lease.claim, self._lease.ttl, now / 1000, messages, found.lapsed), False
            collided = False
            if not found.buried:
                break
        if collided:
            raise Unavailable("Too many others are at these messages. Try again later.")
        return None, False

    def _attempt(self, ready: Sequence[Document]) -> Found:
        if not ready and not self._fence:  # nothing to write: whoever waits asks again and again
            return self._take(ready)
        return self._port.transaction(partial(self._take, ready), stubborn=False)

    def _take(self, ready: Sequence[Document], session: Session | None = None) -> Found:
        """Look for a living claim, else take what was found ready; only that needs a transaction."""
        if self._fence and session:
            fences.check(self._port, session, self._key.ref.project, self._fence)
        if session:
            self._touch(session)
        now = self._wish.now
        mine = look(self._port, self._key, self._lease.claim, now, session)
        if mine or not ready or not session:
            return Found(held=mine)
        dead, share = dead_and_living(ready, self._wish.dead_letters)
        if dead and self._wish.dead_letters:
            self._taker.bury(dead, self._wish.dead_letters, now, session)
        if share:
            statement = self._taker.holding(self._lease, share, now, self._wish.redelivery)
            if self._port.update([statement], session) != len(share):
                raise Forsaken
        lapsed = sum(map(layout.names_claim, share))
        return Found(taken=[self._as_held(one) for one in share], buried=bool(dead), lapsed=lapsed)

    def _as_held(self, found: Document) -> Document:
        copy = dict(found)  # the transaction may be run again with what was found
        layout.put_under(copy, self._lease, self._wish.now, self._wish.redelivery)
        return copy

    def _touch(self, session: Session) -> None:
        """Meet everybody else who makes a claim of this name."""
        name = {"_id": self._key.named("n", self._lease.claim), "s": self._key.shard}
        expiry = {"$set": {"e": DatetimeMS(self._wish.now + REMEMBERED)}, "$inc": {"v": 1}}
        self._port.update([{"q": name, "u": expiry, "upsert": True}], session)
