# SPDX-License-Identifier: Apache-2.0
"""Reservations of claimed messages for a commit.

A large commit reserves the messages of its claims. Until the commit is complete or aborted, these claims do not lapse
and these messages do not expire.

A reserved message has a special claim: ``c.i`` is binary, so that no caller can name the claim, and ``c.e``, ``d`` and
``e`` are in the far future. All operations therefore treat the message as claimed. Only a purge, a deletion of the
queue or a deletion regardless of claims can remove it. The field ``y`` stores the former values of ``c``, ``d`` and
``e``, the ``_id`` of the producer (``p``), and the attempt of its commit (``i``).
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Final

from bson.datetime_ms import DatetimeMS

from zq.errors import ClaimLapsed
from zq.model import ClaimRef, Outcome
from zq.storage.mongodb import groups, layout
from zq.storage.mongodb.changes import FinishTerms, finish, held_filter, reserved_id
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.floors import conflict_with_removals, counters_of, find_visible, floor_of
from zq.storage.mongodb.layout import UNGROUPED_FILTER, BsonDocument, QueueKey
from zq.storage.mongodb.producers import DECIDED
from zq.storage.mongodb.unions import FLOORS, find_with

# The year 2200.
FAR_FUTURE: Final = 7_258_118_400_000
# Maximum number of claims whose messages one command changes.
CLAIMS_AT_ONCE: Final = 50
# Maximum number of messages that one transaction changes.
MESSAGES_AT_ONCE: Final = 1000
# Maximum size of the messages that one transaction changes, in bytes.
BYTES_AT_ONCE: Final = 4 << 20
# Maximum number of messages that one transaction turns into history entries, so that it meets the deadline.
ENTRIES_AT_ONCE: Final = 100
UNRESERVE: Final[list[BsonDocument]] = [{"$set": {"c": "$y.c", "d": "$y.d", "e": "$y.e"}}, {"$unset": "y"}]

# The messages of each claim. The documents have the fields ``_id``, ``s``, ``k``, ``h1``, and ``size`` in bytes.
Holdings = Mapping[ClaimRef, Sequence[BsonDocument]]
FIELDS: Final[BsonDocument] = {"s": 1, "k": 1, "h1": 1, "size": {"$bsonSize": "$$ROOT"}}


def find_visible_held(
    client: StoreClient, key: QueueKey, claim: str, now: int, session: Session | None = None
) -> list[BsonDocument]:
    """Return a claim's messages as clients see them, including messages that an undecided commit has reserved."""
    spellings = {"$in": [layout.encode_text(claim), reserved_id(claim)]}
    held = {**held_filter(client, key, claim, now), "c.i": spellings}
    found = find_visible(client, [key], held, hint=layout.HELD, session=session)
    producers_ids = {message["y"]["p"] for message in found if "y" in message}
    if not producers_ids:
        return found
    shards = client.shards(producer_id[1:] for producer_id in producers_ids)
    named = {"_id": {"$in": list(producers_ids)}, "state": DECIDED, **shards}
    decided = {record["attempt"] for record in client.find(named, fields={"attempt": 1}, session=session)}
    return [message for message in found if message.get("y", {}).get("i") not in decided]


class Reservations:
    """The component that reserves claimed messages for commits, and later finishes or releases these messages."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    def find_holdings(self, claims: Sequence[ClaimRef], now: int, session: Session) -> Holdings:
        """Return the messages that each claim holds. Raises ``ClaimLapsed`` if a claim holds no messages."""
        holdings = {}
        for claim in claims:
            key = layout.key(claim.queue)
            live = held_filter(self._client, key, claim.claim, now)
            holdings[claim] = find_visible(self._client, [key], live, fields=FIELDS, hint=layout.HELD, session=session)
            if not holdings[claim]:
                raise ClaimLapsed.of(claim.claim)
        return holdings

    def finish_small(self, holdings: Holdings, now: int, session: Session) -> None:
        """Delete the messages of a small commit, or turn them into history entries.

        If a queue is purged or deleted at the same time, MongoDB aborts one of the two transactions.
        """
        together: defaultdict[tuple[QueueKey, int], list[BsonDocument]] = defaultdict(list)
        for claim, found in holdings.items():
            together[layout.key(claim.queue), claim.history].extend(found)
        for (key, history), found in together.items():
            if not history:  # with history, the reservation of positions causes the conflict
                self._client.update([conflict_with_removals(key)], session)
            doc_ids = [message["_id"] for message in sorted(found, key=lambda message: int(message["k"]))]
            finish(self._client, session, key, doc_ids, FinishTerms(Outcome.DELETED, now, history))
            groups.update_entries(self._client, session, key, found, now)

    def parts(self, holdings: Holdings) -> Iterator[Sequence[tuple[ClaimRef, BsonDocument]]]:
        """Split the messages to reserve into lists that each fit into one transaction."""
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
        """Reserve messages for the commit in ``record``. Raises ``ClaimLapsed`` if a claim no longer holds them."""
        keys = list(dict.fromkeys(layout.key(claim.queue) for claim, _ in messages))
        shards = self._client.shards(key.shard for key in keys)
        named = {"_id": {"$in": [message["_id"] for _, message in messages]}, **shards}
        there = find_visible(self._client, keys, named, hint="_id_", session=session)
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
            groups.update_entries(self._client, session, key, its, now)

    def check_removals(self, holdings: Holdings, session: Session) -> None:
        """Raise ``ClaimLapsed`` if a purge or deletion of a queue has removed one of the messages.

        If a queue is purged or deleted at the same time, MongoDB aborts one of the two transactions.
        """
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
        """Cancel the reservation of all messages of these claims that the commit attempt has reserved.

        The messages return to the state before the reservation.
        """
        for start in range(0, len(claims), CLAIMS_AT_ONCE):
            some = claims[start : start + CLAIMS_AT_ONCE]
            kept = [{**self._kept(claim, attempt), **UNGROUPED_FILTER} for claim in some]
            with self._client.verb():
                self._client.update([{"q": one, "u": UNRESERVE, "multi": True, "hint": layout.HELD} for one in kept])
        for claim in claims:
            while self._unreserve_in_groups(claim, attempt):
                pass

    def finish(self, claims: Sequence[ClaimRef], attempt: str, max_messages: int, now: int, session: Session) -> int:
        """Delete up to ``max_messages`` reserved messages, or turn them into history entries.

        ``claims`` are the claims of the commit attempt that are not completed yet. One call processes the first claim,
        and the claims directly after it that have the same queue and history retention. Return the number of completed
        claims, which come first in ``claims``. If the result is 0, call this method again with the same claims.
        """
        first = claims[0]
        group = list(
            takewhile(lambda one: (one.queue, one.history) == (first.queue, first.history), claims[:CLAIMS_AT_ONCE])
        )
        limit = min(max_messages, ENTRIES_AT_ONCE) if first.history else max_messages
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
        ending = FinishTerms(Outcome.DELETED, now, first.history)
        finish(self._client, session, key, [message["_id"] for message in there], ending, first=UNRESERVE)
        groups.update_entries(self._client, session, key, there, now)
        return len(group) if len(found) < limit else 0

    def _unreserve_in_groups(self, claim: ClaimRef, attempt: str) -> int:
        """Restore up to ``ENTRIES_AT_ONCE`` reserved messages of message groups, and return the number of messages."""
        key, kept = layout.key(claim.queue), self._kept(claim, attempt)

        def work(session: Session) -> int:
            found = self._client.find(
                kept, limit=ENTRIES_AT_ONCE, fields={"h1": 1, "y": 1}, hint=layout.HELD, session=session
            )
            named = self._client.where(key, _id={"$in": [message["_id"] for message in found]})
            if found:
                self._client.update([{"q": named, "u": UNRESERVE, "multi": True, "hint": "_id_"}], session)
                until = max(int(message["y"]["e"]) for message in found)
                groups.update_entries(self._client, session, key, found, groups.BEFORE_ALL, until)
            return len(found)

        with self._client.verb():
            return self._client.transaction(work) if self._client.find(kept, limit=1, hint=layout.HELD) else 0

    def _kept(self, claim: ClaimRef, attempt: str) -> BsonDocument:
        return self._client.where(layout.key(claim.queue), **{"c.i": reserved_id(claim.claim), "y.i": attempt})


def _holds(claim: ClaimRef, found: BsonDocument, now: int) -> bool:
    terms = found.get("c", {})
    return bool(
        found
        and found["q"] == layout.key(claim.queue).messages
        and terms.get("i") == layout.encode_text(claim.claim)
        and terms["e"] > now
        and int(found["e"]) > now
    )


def _reserved(found: BsonDocument, record: BsonDocument) -> BsonDocument:
    former = {"p": record["_id"], "i": record["attempt"], "c": found["c"], "d": found["d"], "e": found["e"]}
    terms = {**found["c"], "i": reserved_id(layout.decode_text(found["c"]["i"])), "e": FAR_FUTURE}
    return {**found, "y": former, "c": terms, "d": FAR_FUTURE, "e": DatetimeMS(FAR_FUTURE)}
