# SPDX-License-Identifier: Apache-2.0
"""Dead letters: messages that were handed out too often move to another queue, in one transaction."""

from collections.abc import Sequence

from bson.datetime_ms import DatetimeMS

from zq.model import DeadLetters
from zq.storage.mongodb import layout
from zq.storage.mongodb.counting import Entry, advance
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Forsaken, Port, Session

REASON = "max_claim_count"


class Burial:
    """Moves dead letters."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def bury(self, source: QueueKey, dead: Sequence[Document], terms: DeadLetters, now: int) -> bool:
        """Move all that were found dead, or none if one of them has changed since; whether they moved."""
        target = layout.key(terms.queue)
        unchanged = self._port.where(
            source,
            _id={"$in": [found["_id"] for found in dead]},
            d={"$lte": now},
            e={"$gt": DatetimeMS(now)},
            **{"c.n": {"$gte": terms.max_claims}} if terms.max_claims > 0 else {},
        )

        def work(session: Session) -> None:
            if self._port.delete_all(unchanged, session=session) != len(dead):
                raise Forsaken
            place = advance(self._port, session, {target: Entry(len(dead), now)})[target]
            letters = [
                _letter(source, target, found, place.sequence + at, place.available, terms, now)
                for at, found in enumerate(dead)
            ]
            self._port.insert(letters, session)

        try:
            self._port.transaction(work)
        except Forsaken:
            return False
        return True


def _letter(
    source: QueueKey, target: QueueKey, found: Document, sequence: int, available: int, terms: DeadLetters, now: int
) -> Document:
    """What a message becomes in the other queue: ready, unclaimed, its life from now on."""
    ttl = found["t"] if terms.ttl is None else terms.ttl
    letter = {
        **found,
        "s": target.shard,
        "q": target.messages,
        "k": sequence,
        "d": available,
        "t": ttl,
        "e": DatetimeMS(now + ttl * 1000),
        "o": {"q": source.shard, "n": found.get("c", layout.NO_CLAIM)["n"]},
        "r": REASON,
    }
    letter.pop("c", None)
    return letter
