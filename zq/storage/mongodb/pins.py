# SPDX-License-Identifier: Apache-2.0
"""Pins: what the claims of a commit hold is kept for it, so that nothing lapses until it is done or given up.

A pinned message is under a claim that no caller can name and that does not end: ``c.i`` is binary, and ``c.e``, ``d``
and ``e`` lie far ahead. So every verb takes it for claimed and none can touch it, but for purge and bulk deletion.
``y`` keeps what was there, ``c``, ``d`` and ``e``, and says for whom: ``p`` the producer, ``i`` the attempt of its
commit.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final

from bson.datetime_ms import DatetimeMS

from zq.errors import ClaimLapsed
from zq.model import Held, Outcome
from zq.storage.mongodb import layout
from zq.storage.mongodb.finishing import Ending, finish
from zq.storage.mongodb.holders import held, pinned
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Port, Session
from zq.storage.mongodb.producers import DECIDED

FAR: Final = 7_258_118_400_000
"""The year 2200."""
GROUP: Final = 50
"""Claims whose messages one command touches."""
CHUNK: Final = 1000
CAPACITY: Final = 4 << 20
"""Messages, and their bytes, that one transaction changes."""
RECORDED: Final = 100
"""Messages that one transaction turns into records, bodies included, within a verb's time."""
UNPINNING: Final[list[Document]] = [{"$set": {"c": "$y.c", "d": "$y.d", "e": "$y.e"}}, {"$unset": "y"}]

Holdings = Mapping[Held, Sequence[Document]]
"""What claims hold: of each message ``_id``, ``s``, ``k`` and ``size``, its bytes."""
WHAT: Final[Document] = {"s": 1, "k": 1, "size": {"$bsonSize": "$$ROOT"}}


def look(port: Port, key: QueueKey, claim: str, now: int, session: Session | None = None) -> list[Document]:
    """What the claim holds, for those who only look: also what commits have pinned that are not decided yet."""
    spellings = {"$in": [layout.text(claim), pinned(claim)]}
    found = port.find({**held(port, key, claim, now), "c.i": spellings}, hint=layout.HELD, session=session)
    makers = {message["y"]["p"] for message in found if "y" in message}
    if not makers:
        return found
    named: Document = {"_id": {"$in": list(makers)}, "state": DECIDED}
    if port.sharded:
        named["s"] = {"$in": [maker[1:] for maker in makers]}
    decided = {record["attempt"] for record in port.find(named, fields={"attempt": 1}, session=session)}
    return [message for message in found if message.get("y", {}).get("i") not in decided]


class Pins:
    """What commits do to the messages of claims."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def holdings(self, claims: Sequence[Held], now: int, session: Session) -> Holdings:
        """What the claims hold. Raises ``ClaimLapsed`` if one of them holds nothing."""
        holdings = {}
        for claim in claims:
            live = held(self._port, layout.key(claim.queue), claim.claim, now)
            holdings[claim] = self._port.find(live, fields=WHAT, hint=layout.HELD, session=session)
            if not holdings[claim]:
                raise _lapsed(claim)
        return holdings

    def finish_small(self, holdings: Holdings, now: int, session: Session) -> None:
        """Delete what was found in this transaction."""
        together: defaultdict[tuple[QueueKey, int], list[Document]] = defaultdict(list)
        for claim, found in holdings.items():
            together[layout.key(claim.queue), claim.history].extend(found)
        for (key, history), found in together.items():
            places = [message["_id"] for message in sorted(found, key=lambda message: int(message["k"]))]
            finish(self._port, session, key, places, Ending(Outcome.DELETED, now, history))

    def parts(self, holdings: Holdings) -> Iterator[Sequence[tuple[Held, Document]]]:
        """What is to be pinned, as much at a time as one transaction may hold."""
        chosen: list[tuple[Held, Document]] = []
        weight = 0
        for claim, found in holdings.items():
            for message in found:
                if chosen and (len(chosen) == CHUNK or weight + message["size"] > CAPACITY):
                    yield chosen
                    chosen, weight = [], 0
                chosen.append((claim, message))
                weight += message["size"]
        if chosen:
            yield chosen

    def pin(self, messages: Sequence[tuple[Held, Document]], record: Document, now: int, session: Session) -> None:
        """Pin them for the commit under way. Raises ``ClaimLapsed`` if a claim does not hold one of them any more."""
        named: Document = {"_id": {"$in": [message["_id"] for _, message in messages]}}
        if self._port.sharded:
            named["s"] = {"$in": list({message["s"] for _, message in messages})}
        found = {message["_id"]: message for message in self._port.find(named, hint="_id_", session=session)}
        for claim, message in messages:
            if not _holds(claim, found.get(message["_id"], {}), now):
                raise _lapsed(claim)
        # In a transaction, MongoDB takes four times as long for updates that change indexes as for this.
        self._port.delete_all(named, session=session)
        self._port.insert([_pinned(message, record) for message in found.values()], session)

    def unpin(self, claims: Sequence[Held], attempt: str) -> None:
        """Give back what the attempt has pinned, as it was."""
        for start in range(0, len(claims), GROUP):
            kept = [self._kept(claim, attempt) for claim in claims[start : start + GROUP]]
            with self._port.verb():
                self._port.update([{"q": one, "u": UNPINNING, "multi": True, "hint": layout.HELD} for one in kept])

    def finish(self, claims: Sequence[Held], attempt: str, most: int, now: int, session: Session) -> int:
        """Delete up to ``most`` messages that the attempt has pinned; with how many of the claims it is done."""
        first = claims[0]
        group = list(takewhile(lambda one: (one.queue, one.history) == (first.queue, first.history), claims[:GROUP]))
        limit = min(most, RECORDED) if first.history else most
        spellings = {"$in": [pinned(claim.claim) for claim in group]}
        kept = self._port.where(layout.key(first.queue), **{"c.i": spellings, "y.i": attempt})
        found = self._port.find(kept, limit=limit, fields={"k": 1}, hint=layout.HELD, session=session)
        places = [message["_id"] for message in sorted(found, key=lambda message: int(message["k"]))]
        ending = Ending(Outcome.DELETED, now, first.history)
        finish(self._port, session, layout.key(first.queue), places, ending, first=UNPINNING)
        return len(group) if len(found) < limit else 0

    def _kept(self, claim: Held, attempt: str) -> Document:
        return self._port.where(layout.key(claim.queue), **{"c.i": pinned(claim.claim), "y.i": attempt})


def _holds(claim: Held, found: Document, now: int) -> bool:
    """Whether the live claim holds this message."""
    terms = found.get("c", {})
    return bool(
        found
        and found["q"] == layout.key(claim.queue).messages
        and terms.get("i") == layout.text(claim.claim)
        and terms["e"] > now
        and int(found["e"]) > now
    )


def _pinned(found: Document, record: Document) -> Document:
    """What becomes of a held message."""
    former = {"p": record["_id"], "i": record["attempt"], "c": found["c"], "d": found["d"], "e": found["e"]}
    terms = {**found["c"], "i": pinned(layout.original(found["c"]["i"])), "e": FAR}
    return {**found, "y": former, "c": terms, "d": FAR, "e": DatetimeMS(FAR)}


def _lapsed(claim: Held) -> ClaimLapsed:
    return ClaimLapsed(f"The claim {claim.claim} of queue {claim.queue.name} is not live; nothing was committed.")
