# SPDX-License-Identifier: Apache-2.0
"""Takes ready messages from the front of a queue, for claims and pops.

All that wait in this process for one queue go together: one search for all of them, bodies included, one update for the
claims among them, one transaction for the pops. Every write repeats the conditions, so that of two processes that found
the same message one gets it; the other one looks again, further back.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from bson.datetime_ms import DatetimeMS
from msgspec import Struct

from zq.model import DeadLetters, Lease
from zq.storage.mongodb import layout
from zq.storage.mongodb.burying import Burial
from zq.storage.mongodb.combine import Combiner
from zq.storage.mongodb.front import Front
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Forsaken, Port, Session

GROUP: Final = 256
"""Messages that one search is to find for all who wait."""
STEPS_PER_MESSAGE: Final = 4
EXTRA_STEPS: Final = 1024
MAX_LOOKS: Final = 64
"""How often one call looks again because all that it met were dead letters or went to others."""
BY_PLACE: Final = {"d": 1, "k": 1}
BY_ID: Final = "_id_"


class Wish(Struct):
    """What one caller wants; no ``lease`` = to pop. ``taken`` is what it got."""

    limit: int
    now: int
    lease: Lease | None = None
    dead_letters: DeadLetters | None = None
    taken: list[Document] = []


class Taker:
    """Takes messages of one queue, for all threads of this process."""

    def __init__(self, port: Port, key: QueueKey) -> None:
        self._port = port
        self._key = key
        self._burial = Burial(port)
        self.front = Front()
        self.line = Combiner[Wish, list[Document]](self._serve, lambda wish: wish.limit, GROUP, port.timeout)

    def take(self, wish: Wish) -> list[Document]:
        """Up to ``limit`` messages in the order of (available, sequence): as held, or as they were when popped."""
        return self.line.ask(wish)

    def _serve(self, wishes: Sequence[Wish]) -> Sequence[list[Document]]:
        open_wishes = list(wishes)
        now = max(wish.now for wish in wishes)
        for wish in wishes:
            wish.now = now  # side by side is as if all had read the latest clock
        for _ in range(MAX_LOOKS):
            ready = self._search(sum(wish.limit for wish in open_wishes), now)
            if not ready:
                break
            self._deal(open_wishes, ready)
            open_wishes = [wish for wish in open_wishes if not wish.taken]
            if not open_wishes:
                break
        return [wish.taken for wish in wishes]

    def _deal(self, wishes: Sequence[Wish], ready: list[Document]) -> None:
        """Try to take what was found, first come, first served."""
        claims: list[tuple[Wish, list[Document]]] = []
        pops: list[tuple[Wish, list[Document]]] = []
        for wish in wishes:
            share, ready = ready[: wish.limit], ready[wish.limit :]
            if wish.lease is None:
                pops.append((wish, share))
            else:
                claims.append((wish, self._without_dead_letters(wish, share)))
        self._hold([(wish, share) for wish, share in claims if share])
        self._remove([(wish, share) for wish, share in pops if share])

    def _search(self, want: int, now: int) -> list[Document]:
        """Up to ``want`` living messages from the front; expired ones that it meets are removed."""
        head, skip, token = self.front.look(want)
        ready = self._ready(head, now, want, skip)
        if len(ready) < want and (head or skip):
            head, skip, token = 0, 0, self.front.lower()
            ready = self._ready(head, now, want, 0)
        if any(int(found["e"]) <= now for found in ready):
            self._clear(head, now, want)
            ready = [found for found in self._ready(head, now, want, 0) if int(found["e"]) > now]
            skip = 0
        if ready and not skip:
            self.front.found(ready[0]["d"], token, searched_all=not head)
        return ready

    def _ready(self, head: int, now: int, want: int, skip: int) -> list[Document]:
        where = self._port.where(self._key, d={"$gte": head, "$lte": now})
        return self._port.find(where, limit=want, sort=BY_PLACE, hint=layout.CLAIMS, skip=skip)

    def _clear(self, head: int, now: int, want: int) -> None:
        """Remove the expired among a bounded number of entries; what lies behind is for the next call."""
        where = self._port.where(self._key, d={"$gte": head, "$lte": now})
        steps = STEPS_PER_MESSAGE * want + EXTRA_STEPS
        fields = {"_id": 0, "k": 1, "d": 1, "e": 1}
        met = self._port.find(where, limit=steps, sort=BY_PLACE, hint=layout.CLAIMS, fields=fields)
        gone = [entry["k"] for entry in met if int(entry["e"]) <= now]
        expired = self._port.where(self._key, k={"$in": gone}, e={"$lte": DatetimeMS(now)})
        self._port.delete_all(expired, hint=layout.OBSERVERS, durable=False)

    def _without_dead_letters(self, wish: Wish, share: list[Document]) -> list[Document]:
        """Move those that were handed out too often; the others."""
        terms = wish.dead_letters
        if terms is None:
            return share
        dead = [found for found in share if found.get("c", layout.NO_CLAIM)["n"] >= terms.max_claims]
        if dead:
            if not self._burial.bury(self._key, dead, terms, wish.now):
                self.front.collide()
            share = [found for found in share if found not in dead]
        return share

    def _hold(self, claims: Sequence[tuple[Wish, list[Document]]]) -> None:
        """Put each share under its claim, in one update."""
        updates: list[Document] = []
        for wish, share in claims:
            assert wish.lease is not None
            update = layout.holding(wish.lease, wish.now)
            updates.append({"q": self._still_ready(share, wish.now), "u": update, "multi": True, "hint": BY_ID})
        if not updates:
            return
        all_held = self._port.update(updates) == sum(len(share) for _, share in claims)
        if not all_held:
            self.front.collide()
        for wish, share in claims:
            assert wish.lease is not None
            for found in share:
                layout.put_under(found, wish.lease, wish.now)
            wish.taken = share if all_held else self._really_held(wish.lease, share)

    def _really_held(self, lease: Lease, share: Sequence[Document]) -> list[Document]:
        """Those of the share that the claim got."""
        ids = [found["_id"] for found in share]
        mine = {"_id": {"$in": ids}, "c.i": layout.text(lease.claim), "c.e": share[0]["c"]["e"]}
        held = {found["_id"] for found in self._port.find(self._port.where(self._key, **mine), fields={"_id": 1})}
        return [found for found in share if found["_id"] in held]

    def _remove(self, pops: Sequence[tuple[Wish, list[Document]]]) -> None:
        """Remove all shares, or none if another process has touched one of them."""
        shares = [found for _, share in pops for found in share]
        if not shares:
            return
        try:
            self._port.transaction(partial(self._remove_all, shares, pops[0][0].now), stubborn=False)
        except Forsaken:
            self.front.collide()
            return
        for wish, share in pops:
            wish.taken = share

    def _remove_all(self, shares: Sequence[Document], now: int, session: Session) -> None:
        if self._port.delete_all(self._still_ready(shares, now), session=session) != len(shares):
            raise Forsaken

    def _still_ready(self, share: Sequence[Document], now: int) -> Document:
        ids = [found["_id"] for found in share]
        conditions = {"_id": {"$in": ids}, "d": {"$lte": now}, "e": {"$gt": DatetimeMS(now)}}
        return self._port.where(self._key, **conditions)
