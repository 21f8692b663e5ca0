# SPDX-License-Identifier: Apache-2.0
"""Takes ready messages from the front of a queue, for claims and pops.

All that wait in this process for one queue go together: one search for all of them, bodies included, one update for the
claims among them, one transaction for the pops. Every write repeats the conditions, so that of two processes that found
the same message one gets it; the other one looks again, further back.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from bson.datetime_ms import DatetimeMS
from msgspec import Struct

from zq.model import AT_ONCE, UNBOUNDED, DeadLetters, Lease, Move, Outcome, QueueRef, Redelivery, portion
from zq.storage.mongodb import layout
from zq.storage.mongodb.combine import Combiner
from zq.storage.mongodb.finishing import Ending, finish
from zq.storage.mongodb.front import Front
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.moving import counters, move
from zq.storage.mongodb.port import Forsaken, Port, Session

GROUP: Final = 256
"""Messages that one search is to find for all who wait."""
STEPS_PER_MESSAGE: Final = 4
EXTRA_STEPS: Final = 1024
MAX_LOOKS: Final = 64
"""How often one call looks again because all that it met were dead letters or went to others."""
BY_PLACE: Final = {"d": 1, "k": 1}
BY_ID: Final = "_id_"
REASON: Final = "max_claim_count"
Announce = Callable[[QueueRef], None]


class Wish(Struct):
    """What one caller wants; no ``lease`` = to pop, leaving ``history``. ``taken`` is what it got, ``lapsed``
    how many of these from claims that had lapsed."""

    limit: int
    now: int
    lease: Lease | None = None
    dead_letters: DeadLetters | None = None
    redelivery: Redelivery = AT_ONCE
    history: int = 0
    most_bytes: int = UNBOUNDED
    taken: list[Document] = []
    lapsed: int = 0

    def share(self, ready: Sequence[Document]) -> list[Document]:
        """What it gets of what was found."""
        return list(portion(ready[: self.limit], self.most_bytes, body_of))


class Taker:
    """Takes messages of one queue, for all threads of this process."""

    def __init__(self, port: Port, key: QueueKey, announce: Announce) -> None:
        self._port = port
        self._key = key
        self._announce = announce
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
            most_bytes = sum(wish.most_bytes for wish in open_wishes)
            ready = self.search(sum(wish.limit for wish in open_wishes), now, most_bytes)
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
            share = wish.share(ready)
            ready = ready[len(share) :]
            if wish.lease is None:
                pops.append((wish, share))
            else:
                claims.append((wish, self._without_dead_letters(wish, share)))
        self._hold([(wish, share) for wish, share in claims if share])
        self._remove([(wish, share) for wish, share in pops if share])

    def search(self, want: int, now: int, most_bytes: int) -> list[Document]:
        """Up to ``want`` living messages from the front, or so many that their bodies have ``most_bytes``; expired ones
        that it meets are removed."""
        head, skip, token = self.front.look(want)
        ready = self._ready(head, now, want, most_bytes, skip)
        if (head or skip) and len(ready) < want and sum(map(len, map(body_of, ready))) < most_bytes:
            head, skip, token = 0, 0, self.front.lower()
            ready = self._ready(head, now, want, most_bytes)
        if any(int(found["e"]) <= now for found in ready):
            self._clear(head, now, want)
            ready = [found for found in self._ready(head, now, want, most_bytes) if int(found["e"]) > now]
            skip = 0
        if ready and not skip:
            self.front.found(ready[0]["d"], token, searched_all=not head)
        return ready

    def _ready(self, head: int, now: int, want: int, most_bytes: int, skip: int = 0) -> list[Document]:
        where = self._port.where(self._key, d={"$gte": head, "$lte": now})
        return self._port.find(where, limit=want, sort=BY_PLACE, hint=layout.CLAIMS, skip=skip, most_bytes=most_bytes)

    def _clear(self, head: int, now: int, want: int) -> None:
        """Remove the expired among a bounded number of entries; what lies behind is for the next call."""
        where = self._port.where(self._key, d={"$gte": head, "$lte": now})
        steps = STEPS_PER_MESSAGE * want + EXTRA_STEPS
        fields = {"_id": 0, "k": 1, "d": 1, "e": 1}
        met = self._port.find(where, limit=steps, sort=BY_PLACE, hint=layout.CLAIMS, fields=fields)
        gone = [entry["k"] for entry in met if int(entry["e"]) <= now]
        expired = self._port.where(self._key, k={"$in": gone}, e={"$lte": DatetimeMS(now)})
        self._port.removals.add("read", self._port.delete_all(expired, hint=layout.OBSERVERS, durable=False))

    def _without_dead_letters(self, wish: Wish, share: list[Document]) -> list[Document]:
        """Move those that were handed out too often; the others."""
        dead, living = dead_and_living(share, wish.dead_letters)
        if dead and wish.dead_letters is not None:
            terms = wish.dead_letters
            try:
                with self._port.turns.at(counters(self._key, [_way(terms)], terms.history)):
                    self._port.transaction(partial(self.bury, dead, terms, wish.now))
                self._announce(terms.queue)
            except Forsaken:
                self.front.collide()
        return living

    def bury(self, dead: Sequence[Document], terms: DeadLetters, now: int, session: Session) -> None:
        """Move dead letters; raises ``Forsaken`` if one of them has changed since it was found."""
        move(self._port, session, self._key, [(found, _way(terms)) for found in dead], now, terms.history)

    def _hold(self, claims: Sequence[tuple[Wish, list[Document]]]) -> None:
        """Put each share under its claim, in one update."""
        updates: list[Document] = []
        for wish, share in claims:
            assert wish.lease is not None
            updates.append(self.holding(wish.lease, share, wish.now, wish.redelivery))
        if not updates:
            return
        all_held = self._port.update(updates) == sum(len(share) for _, share in claims)
        if not all_held:
            self.front.collide()
        for wish, share in claims:
            assert wish.lease is not None
            lapsed = {found["_id"] for found in share if layout.names_claim(found)}
            for found in share:
                layout.put_under(found, wish.lease, wish.now, wish.redelivery)
            wish.taken = share if all_held else self._really_held(wish.lease, share)
            wish.lapsed = sum(found["_id"] in lapsed for found in wish.taken)

    def holding(self, lease: Lease, share: Sequence[Document], now: int, redelivery: Redelivery) -> Document:
        """The statement that puts what is still ready of a share under a claim."""
        update = layout.holding(lease, now, redelivery)
        return {"q": self._port.where(self._key, **_still_ready(share, now)), "u": update, "multi": True, "hint": BY_ID}

    def _really_held(self, lease: Lease, share: Sequence[Document]) -> list[Document]:
        """Those of the share that the claim got."""
        ids = [found["_id"] for found in share]
        mine = {"_id": {"$in": ids}, "c.i": layout.text(lease.claim), "c.e": share[0]["c"]["e"]}
        held = {found["_id"] for found in self._port.find(self._port.where(self._key, **mine), fields={"_id": 1})}
        return [found for found in share if found["_id"] in held]

    def _remove(self, pops: Sequence[tuple[Wish, list[Document]]]) -> None:
        """Remove all shares, or none if another process has touched one of them."""
        if not pops:
            return
        recorded = [self._key.finishing] if any(wish.history for wish, _ in pops) else []
        try:
            with self._port.turns.at(recorded):
                self._port.transaction(partial(self._remove_all, pops), stubborn=False)
        except Forsaken:
            self.front.collide()
            return
        for wish, share in pops:
            wish.taken = share

    def _remove_all(self, pops: Sequence[tuple[Wish, list[Document]]], session: Session) -> None:
        for history in {wish.history for wish, _ in pops}:
            shares = [found for wish, share in pops if wish.history == history for found in share]
            now = pops[0][0].now
            places = [found["_id"] for found in shares]
            ending = Ending(Outcome.POPPED, now, history)
            finish(self._port, session, self._key, places, ending, _ready(now))


def body_of(found: Document) -> bytes:
    """The body of a message, or of a record."""
    body: bytes = found["b"]
    return body


def dead_and_living(share: Sequence[Document], terms: DeadLetters | None) -> tuple[list[Document], list[Document]]:
    """Those that were handed out too often, and the others."""
    limit = math.inf if terms is None else terms.max_claims
    dead = [found for found in share if found.get("c", layout.NO_CLAIM)["n"] >= limit]
    return dead, [found for found in share if found.get("c", layout.NO_CLAIM)["n"] < limit]


def _way(terms: DeadLetters) -> Move:
    """A dead letter's."""
    return Move("", terms.queue.name, terms.ttl, reason=REASON)


def _ready(now: int) -> Document:
    """What makes a message of a queue ready."""
    return {"d": {"$lte": now}, "e": {"$gt": DatetimeMS(now)}}


def _still_ready(share: Sequence[Document], now: int) -> Document:
    return {"_id": {"$in": [found["_id"] for found in share]}, **_ready(now)}
