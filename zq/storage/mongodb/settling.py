# SPDX-License-Identifier: Apache-2.0
"""Settling claims: one transaction for all that becomes of the messages.

Where it is only deleting and releasing, the claim is first believed to hold what was named; then counts tell all. What
needs more, or found itself wrong, goes with all others of this process that do: two that leave records in one queue, or
move into one, would meet at its counter.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final

from bson.datetime_ms import DatetimeMS
from bson.errors import BSONError
from msgspec import Struct
from pymongo.errors import OperationFailure, PyMongoError

from zq.errors import Fenced, Unavailable, ZqError
from zq.model import Fence, Once, Outcome, Release, Settled, Settlement
from zq.storage.mongodb import fences, layout
from zq.storage.mongodb.combine import LINGER, Combiner
from zq.storage.mongodb.finishing import Ending, finish
from zq.storage.mongodb.holders import held, no_claim, under
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.moving import counters, move
from zq.storage.mongodb.once import Attempt, recall, remember
from zq.storage.mongodb.port import Forsaken, Port, Session

TOGETHER: Final = 256
"""Messages that one transaction settles."""
AT_LEAST: Final = 10
"""Messages for which a settlement counts at least: it may not name what it settles."""


class Order(Struct, frozen=True):
    """A settlement of one claim at its moment, and on what conditions."""

    key: QueueKey
    claim: str
    settlement: Settlement
    now: int
    once: Once | None
    fence: Fence | None

    @property
    def is_plain(self) -> bool:
        """Whether counts tell everything."""
        asked = self.settlement
        return not (asked.move or asked.history or self.once or self.fence or (asked.rest and self.names))

    @property
    def names(self) -> Sequence[str]:
        """The messages that are named, in order."""
        asked = self.settlement
        return [*asked.delete, *(one.id for one in asked.release), *(one.id for one in asked.move)]

    @property
    def attempts(self) -> Sequence[Attempt]:
        """One, if it has a key."""
        return [Attempt(self.key, self.once, self.now)] if self.once else []

    @property
    def places(self) -> Sequence[str]:
        """What no two orders of a transaction may have in common: the claim and the key."""
        return [self.key.named("n", self.claim), *(attempt.place for attempt in self.attempts)]

    def place(self, message: str) -> str:
        """The message's ``_id``."""
        return self.key.project + layout.text(message)


class Share:
    """What an order means for what its claim holds."""

    def __init__(self, order: Order, held: Sequence[Document]) -> None:
        asked, place = order.settlement, order.place
        found = {one["_id"]: one for one in held}
        named = {place(one) for one in order.names}
        self.order = order
        self.held = held
        self.going = [place(one) for one in asked.delete if place(one) in found]
        if asked.rest:
            self.going += [one for one in found if one not in named]
        self.released = [one for one in asked.release if place(one.id) in found]
        self.moved = [(found[place(one.id)], one) for one in asked.move if place(one.id) in found]
        buried = sum(bool(way.reason) for _, way in self.moved)
        lost = [one for one in order.names if place(one) not in found]
        self.settled = Settled(len(self.going), len(self.released), len(self.moved) - buried, buried, lost)

    @property
    def answer(self) -> Settled | ZqError:
        return self.settled if self.held else no_claim()

    @property
    def last(self) -> int:
        """The highest sequence that the claim held."""
        return max(int(one["k"]) for one in self.held)


class Settler:
    """Settles claims, for all threads of a process."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._lines: defaultdict[str, Combiner[Order, Settled]] = defaultdict(
            lambda: Combiner(self._serve, _weight, TOGETHER, port.timeout, LINGER)
        )

    def settle(self, order: Order) -> Settled:
        """Return when it is done. Raises as the verb does."""
        if order.is_plain:
            try:
                return self._port.transaction(partial(self._presume, order))
            except Forsaken:
                pass
        return self._lines[order.key.shard if self._port.sharded else ""].ask(order)

    def _presume(self, order: Order, session: Session) -> Settled:
        """Settle what was named; raises ``Forsaken`` if the claim does not hold all of it."""
        asked = order.settlement
        if asked.rest:
            everything = held(self._port, order.key, order.claim, order.now)
            gone = self._port.delete_all(everything, hint=layout.HELD, session=session)
            if not gone:
                raise no_claim()
            return Settled(gone)
        holding = {**under(order.claim, order.now), "e": {"$gt": DatetimeMS(order.now)}}
        places = [order.place(one) for one in asked.delete]
        finish(self._port, session, order.key, places, Ending(Outcome.DELETED, order.now, 0), holding)
        releases = self._releasing(order.key, asked.release, order.now, holding)
        if releases and self._port.update(releases, session) != len(asked.release):
            raise Forsaken
        return Settled(deleted=len(asked.delete), released=len(asked.release))

    def _serve(self, orders: Sequence[Order]) -> Sequence[Settled | Exception]:
        places = [place for order in orders for place in order.places]
        if len(set(places)) == len(places):
            try:
                return self._together(orders)
            except (OperationFailure, BSONError, OverflowError) as failure:
                if len(orders) == 1:
                    return [failure]
        return [self._alone(order) for order in orders]

    def _alone(self, order: Order) -> Settled | Exception:
        try:
            return self._together([order])[0]
        except (Unavailable, PyMongoError, BSONError, OverflowError) as failure:
            return failure

    def _together(self, orders: Sequence[Order]) -> Sequence[Settled | Exception]:
        met = [counters(order.key, order.settlement.move, order.settlement.history) for order in orders]
        with self._port.turns.at(set().union(*met)):
            return self._port.transaction(partial(self._settle, orders))

    def _settle(self, orders: Sequence[Order], session: Session) -> Sequence[Settled | Exception]:
        """Settle what each claim holds of what was named."""
        now = max(order.now for order in orders)  # side by side is as if all had read the latest clock
        refusals = self._refusals(orders, session)
        admitted = [order for order, refusal in zip(orders, refusals, strict=True) if refusal is None]
        shares = self._shares(admitted, now, session)
        self._carry_out([share for share in shares if share.held], now, session)
        known = [
            (attempt, share.settled, share.last) for share in shares if share.held for attempt in share.order.attempts
        ]
        if known:
            remember(self._port, session, known)
        done = iter(shares)
        return [next(done).answer if refusal is None else refusal for refusal in refusals]

    def _refusals(self, orders: Sequence[Order], session: Session) -> Sequence[ZqError | None]:
        """What is known already, or fenced."""
        known = recall(self._port, session, [one for order in orders for one in order.attempts], Settled)
        refusals: list[ZqError | None] = []
        for order in orders:
            refusal: ZqError | None = next((known[one.place] for one in order.attempts if one.place in known), None)
            if refusal is None and order.fence:
                try:
                    fences.check(self._port, session, order.key.ref.project, order.fence)
                except Fenced as fenced:
                    refusal = fenced
            refusals.append(refusal)
        return refusals

    def _shares(self, orders: Sequence[Order], now: int, session: Session) -> Sequence[Share]:
        """What each claim holds, in sequence; whole documents if some are to move."""
        if not orders:
            return []
        conditions: Document = {
            "q": {"$in": [order.key.messages for order in orders]},
            "c.i": {"$in": [layout.text(order.claim) for order in orders]},
            "c.e": {"$gt": now},
            "e": {"$gt": DatetimeMS(now)},
        }
        if self._port.sharded:
            conditions["s"] = {"$in": [order.key.shard for order in orders]}
        fields = None if any(order.settlement.move for order in orders) else {"q": 1, "k": 1, "c.i": 1}
        found = self._port.find(conditions, fields=fields, hint=layout.HELD, session=session)
        by_claim: defaultdict[tuple[str, str], list[Document]] = defaultdict(list)
        for one in sorted(found, key=lambda one: int(one["k"])):
            by_claim[one["q"], one["c"]["i"]].append(one)
        return [Share(order, by_claim[order.key.messages, layout.text(order.claim)]) for order in orders]

    def _carry_out(self, shares: Sequence[Share], now: int, session: Session) -> None:
        """Do what is to be done, queue by queue; after the search in this transaction no conditions are needed."""
        by_queue: defaultdict[tuple[QueueKey, int], list[Share]] = defaultdict(list)
        for share in shares:
            by_queue[share.order.key, share.order.settlement.history].append(share)
        releases = [self._releasing(share.order.key, share.released, now) for share in shares if share.released]
        if releases:
            self._port.update([statement for some in releases for statement in some], session)
        for (key, history), its in sorted(by_queue.items(), key=lambda item: item[0][0].shard):
            going = [place for share in its for place in share.going]
            finish(self._port, session, key, going, Ending(Outcome.DELETED, now, history))
            move(self._port, session, key, [one for share in its for one in share.moved], now, history)

    def _releasing(
        self, key: QueueKey, releases: Sequence[Release], now: int, conditions: Document | None = None
    ) -> Sequence[Document]:
        """The statements that give these back, one for each delay."""
        by_delay: defaultdict[int | None, list[str]] = defaultdict(list)
        for release in releases:
            by_delay[release.delay].append(key.project + layout.text(release.id))
        return [
            {
                "q": self._port.where(key, _id={"$in": places}, **(conditions or {})),
                "u": layout.releasing(now, delay),
                "multi": True,
                "hint": "_id_",
            }
            for delay, places in by_delay.items()
        ]


def _weight(order: Order) -> int:
    return max(AT_LEAST, len(order.names))
