# SPDX-License-Identifier: Apache-2.0
"""Reservations: what the claims of a commit hold is kept for it, so that nothing lapses until it is done or given up.

A reserved message is under a claim that no caller can name and that does not end: ``c.i`` is binary, and ``c.e``, ``d``
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
from zq.model import ClaimRef, Outcome
from zq.storage.mongodb import layout, lines
from zq.storage.mongodb.changes import Ending, finish, held_filter, reserved_id
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.floors import conflict_with_removals, counters_of, find_there, floor_of
from zq.storage.mongodb.layout import IN_NO_LINE, BsonDocument, QueueKey
from zq.storage.mongodb.producers import DECIDED
from zq.storage.mongodb.unions import FLOORS, find_with

# The year 2200.
FAR: Final = 7_258_118_400_000
# Claims whose messages one command touches.
CLAIMS_AT_ONCE: Final = 50
# Messages that one transaction changes.
MESSAGES_AT_ONCE: Final = 1000
# Bytes of messages that one transaction changes.
BYTES_AT_ONCE: Final = 4 << 20
# Messages that one transaction turns into history entries, bodies included, within a verb's time.
ENTRIES_AT_ONCE: Final = 100
UNRESERVE: Final[list[BsonDocument]] = [{"$set": {"c": "$y.c", "d": "$y.d", "e": "$y.e"}}, {"$unset": "y"}]

# Messages of claims, each with ``_id``, ``s``, ``k``, ``h1`` and ``size`` in bytes.
Holdings = Mapping[ClaimRef, Sequence[BsonDocument]]
FIELDS: Final[BsonDocument] = {"s": 1, "k": 1, "h1": 1, "size": {"$bsonSize": "$$ROOT"}}


def visible_held(
    client: StoreClient, key: QueueKey, claim: str, now: int, session: Session | None = None
) -> list[BsonDocument]:
    """Return what the claim holds for observers: also what commits have reserved that are not decided yet."""
    spellings = {"$in": [layout.text(claim), reserved_id(claim)]}
    held = {**held_filter(client, key, claim, now), "c.i": spellings}
    found = find_there(client, [key], held, hint=layout.HELD, session=session)
    producers_ids = {message["y"]["p"] for message in found if "y" in message}
    if not producers_ids:
        return found
    shards = client.shards(producer_id[1:] for producer_id in producers_ids)
    named = {"_id": {"$in": list(producers_ids)}, "state": DECIDED, **shards}
    decided = {record["attempt"] for record in client.find(named, fields={"attempt": 1}, session=session)}
    return [message for message in found if message.get("y", {}).get("i") not in decided]


class Reservations:
    """The reservation and release of claimed messages for commits."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    def holdings(self, claims: Sequence[ClaimRef], now: int, session: Session) -> Holdings:
        """Return the messages of the claims. Raises ``ClaimLapsed`` if a claim has none."""
        holdings = {}
        for claim in claims:
            key = layout.key(claim.queue)
            live = held_filter(self._client, key, claim.claim, now)
            holdings[claim] = find_there(self._client, [key], live, fields=FIELDS, hint=layout.HELD, session=session)
            if not holdings[claim]:
                raise ClaimLapsed.of(claim.claim)
        return holdings

    def finish_small(self, holdings: Holdings, now: int, session: Session) -> None:
        """Delete the messages that were found in this transaction. Conflict with removals of their queues."""
        together: defaultdict[tuple[QueueKey, int], list[BsonDocument]] = defaultdict(list)
        for claim, found in holdings.items():
            together[layout.key(claim.queue), claim.history].extend(found)
        for (key, history), found in together.items():
            if not history:  # history entries conflict by their positions
                self._client.update([conflict_with_removals(key)], session)
            doc_ids = [message["_id"] for message in sorted(found, key=lambda message: int(message["k"]))]
            finish(self._client, session, key, doc_ids, Ending(Outcome.DELETED, now, history))
            lines.update_entries(self._client, session, key, found, now)

    def parts(self, holdings: Holdings) -> Iterator[Sequence[tuple[ClaimRef, BsonDocument]]]:
        """Yield the messages to reserve, in parts that fit into one transaction."""
        chosen: list[tuple[ClaimRef, BsonDocument]] = []
        weight = 0
        for claim, found in holdings.items():
            for message in found:
                if chosen and (len(chosen) == MESSAGES_AT_ONCE or weight + message["size"] > BYTES_AT_ONCE):
                    yield chosen
                    chosen, weight = [], 0
                chosen.append((claim, message))
                weight += message["size"]
        if chosen:
            yield chosen

    def reserve(
        self, messages: Sequence[tuple[ClaimRef, BsonDocument]], record: BsonDocument, now: int, session: Session
    ) -> None:
        """Reserve them for the commit under way. Raises ``ClaimLapsed`` if a claim has lost one of them."""
        keys = list(dict.fromkeys(layout.key(claim.queue) for claim, _ in messages))
        shards = self._client.shards(key.shard for key in keys)
        named = {"_id": {"$in": [message["_id"] for _, message in messages]}, **shards}
        there = find_there(self._client, keys, named, hint="_id_", session=session)
        found = {message["_id"]: message for message in there}
        for claim, message in messages:
            if not _holds(claim, found.get(message["_id"], {}), now):
                raise ClaimLapsed.of(claim.claim)
        # In a transaction, MongoDB takes four times as long to update indexed fields as to delete and insert.
        self._client.delete_all(named, session=session)
        self._client.insert([_reserved(message, record) for message in found.values()], session)
        by_queue: defaultdict[QueueKey, list[BsonDocument]] = defaultdict(list)
        for message in found.values():
            by_queue[layout.key(layout.queue_of(message["s"]))].append(message)
        for key, its in by_queue.items():
            lines.update_entries(self._client, session, key, its, now)

    def check_removals(self, holdings: Holdings, session: Session) -> None:
        """Raise ``ClaimLapsed`` if a purge or deletion has removed a held message. Conflict with later removals."""
        keys = list(dict.fromkeys(layout.key(claim.queue) for claim in holdings))
        if not keys:
            return
        self._client.update([conflict_with_removals(key) for key in keys], session)
        counters = self._client.find(counters_of(self._client, keys), fields=FLOORS, session=session)
        floors = {counter["_id"]: floor_of(counter) for counter in counters}
        for claim, found in holdings.items():
            floor = floors.get(layout.key(claim.queue).counter, 0)
            if any(message["k"] <= floor for message in found):
                raise ClaimLapsed.of(claim.claim)

    def unreserve(self, claims: Sequence[ClaimRef], attempt: str) -> None:
        """Release all messages that the attempt has reserved, in their former state."""
        for start in range(0, len(claims), CLAIMS_AT_ONCE):
            some = claims[start : start + CLAIMS_AT_ONCE]
            kept = [{**self._kept(claim, attempt), **IN_NO_LINE} for claim in some]
            with self._client.verb():
                self._client.update([{"q": one, "u": UNRESERVE, "multi": True, "hint": layout.HELD} for one in kept])
        for claim in claims:
            while self._unreserve_in_lines(claim, attempt):
                pass

    def finish(self, claims: Sequence[ClaimRef], attempt: str, most: int, now: int, session: Session) -> int:
        """Delete up to ``most`` messages that the attempt has reserved. Return the number of claims that are done."""
        first = claims[0]
        group = list(
            takewhile(lambda one: (one.queue, one.history) == (first.queue, first.history), claims[:CLAIMS_AT_ONCE])
        )
        limit = min(most, ENTRIES_AT_ONCE) if first.history else most
        spellings = {"$in": [reserved_id(claim.claim) for claim in group]}
        key = layout.key(first.queue)
        kept = self._client.where(key, **{"c.i": spellings, "y.i": attempt})
        found, counters = find_with(
            self._client,
            counters_of(self._client, [key]),
            kept,
            limit=limit,
            fields={"k": 1, "h1": 1},
            hint=layout.HELD,
            session=session,
        )
        floor = floor_of(counters[0]) if counters else 0
        if purged := [message["_id"] for message in found if message["k"] <= floor]:
            self._client.delete_all(self._client.where(key, _id={"$in": purged}), session=session)
        there = sorted((message for message in found if message["k"] > floor), key=lambda message: int(message["k"]))
        ending = Ending(Outcome.DELETED, now, first.history)
        finish(self._client, session, key, [message["_id"] for message in there], ending, first=UNRESERVE)
        lines.update_entries(self._client, session, key, there, now)
        return len(group) if len(found) < limit else 0

    def _unreserve_in_lines(self, claim: ClaimRef, attempt: str) -> int:
        """Release some reserved messages of the claim in lines; return their number."""
        key, kept = layout.key(claim.queue), self._kept(claim, attempt)

        def work(session: Session) -> int:
            found = self._client.find(
                kept, limit=ENTRIES_AT_ONCE, fields={"h1": 1, "y": 1}, hint=layout.HELD, session=session
            )
            named = self._client.where(key, _id={"$in": [message["_id"] for message in found]})
            if found:
                self._client.update([{"q": named, "u": UNRESERVE, "multi": True, "hint": "_id_"}], session)
                until = max(int(message["y"]["e"]) for message in found)
                lines.update_entries(self._client, session, key, found, lines.BEFORE_ALL, until)
            return len(found)

        with self._client.verb():
            return self._client.transaction(work) if self._client.find(kept, limit=1, hint=layout.HELD) else 0

    def _kept(self, claim: ClaimRef, attempt: str) -> BsonDocument:
        return self._client.where(layout.key(claim.queue), **{"c.i": reserved_id(claim.claim), "y.i": attempt})


def _holds(claim: ClaimRef, found: BsonDocument, now: int) -> bool:
    """Return whether the live claim holds this message."""
    terms = found.get("c", {})
    return bool(
        found
        and found["q"] == layout.key(claim.queue).messages
        and terms.get("i") == layout.text(claim.claim)
        and terms["e"] > now
        and int(found["e"]) > now
    )


def _reserved(found: BsonDocument, record: BsonDocument) -> BsonDocument:
    """Return the reserved form of a claimed message."""
    former = {"p": record["_id"], "i": record["attempt"], "c": found["c"], "d": found["d"], "e": found["e"]}
    terms = {**found["c"], "i": reserved_id(layout.original(found["c"]["i"])), "e": FAR}
    return {**found, "y": former, "c": terms, "d": FAR, "e": DatetimeMS(FAR)}
