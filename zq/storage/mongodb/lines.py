# SPDX-License-Identifier: Apache-2.0
"""The lines of groups in a grouped queue, and the entry of each line in the index of claims (decision 0129).

``line_claimer`` makes claims along the lines. A message names its line (``h1``). So only verbs that put messages into a
queue need to know its kind, and these write the queue's document in the same transaction. Verbs that change messages
without a transaction are bound to messages in no line.

Every verb that adds a message to a line, removes it or changes its available-at writes the entry of the line in the
same transaction. If two such transactions conflict, one is run again and finds the line as the other one has left it.

An entry may be too early, never too late: its moment is not after the moment at which a message of the line is ready
next. A claim that comes too early puts the entry off. An entry is not later than the end of its head, so expiry needs
no step here, whatever removes the expired messages. The entry does not expire before a message of its line (``e``).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Final, NamedTuple

from bson.datetime_ms import DatetimeMS

from zq.storage.mongodb import layout
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.floors import above, counters_of, floor_of, search
from zq.storage.mongodb.layout import FAIR, ORDERED, BsonDocument, QueueKey
from zq.storage.mongodb.unions import aggregate_with

# The orders of lines, by the index that has them.
PLACES: Final[Mapping[str, Mapping[str, int]]] = {ORDERED: {"k": 1}, FAIR: {"d": 1, "k": 1}}
# Messages that a search for the head of a line reads, since the first ones may have expired.
FEW: Final = 8


class Head(NamedTuple):
    """The first living message of a line: when it is available, its sequence, and its expiry."""

    available: int
    sequence: int
    expires: int


def order_of(line: str) -> str:
    """Return the index that has the line in order."""
    return FAIR if line[0] == FAIR[0] else ORDERED


def head_of(found: Mapping[str, Any]) -> Head:
    return Head(int(found["d"]), int(found["k"]), int(found["e"]))


def join(client: StoreClient, session: Session, documents: Iterable[BsonDocument], floors: Mapping[str, int]) -> None:
    """Let new messages join their lines, behind messages of lower sequence.

    ``floors``: the floors of their queues, by shard key. Call it before the messages are inserted: then it conflicts
    less often with claims.
    """
    by_line: defaultdict[tuple[str, str], list[Head]] = defaultdict(list)
    for one in documents:
        if "h1" in one:
            by_line[one["s"], one["h1"]].append(head_of(one))
    if by_line:
        client.update([_joining(*of, its, floors[of[0]]) for of, its in sorted(by_line.items())], session)


def update_entries(
    client: StoreClient, session: Session, key: QueueKey, changed: Iterable[Mapping[str, Any]], now: int, until: int = 0
) -> None:
    """Place the entries of lines after these messages, given as they were found, have changed.

    ``until``: the latest expiry of one of them after the change. If an ordered line has a ready head, waiting consumers
    are notified after the commit.
    """
    names = sorted({one["h1"] for one in changed if "h1" in one})
    if names:
        heads = _heads(client, session, key, names, now)
        write_entries(client, session, key, heads, now, until)
        is_ready = any(head and (head.available <= now or now == BEFORE_ALL) for head in heads.values())
        if is_ready and order_of(names[0]) == ORDERED:
            client.made_ready(session, key.ref)


def write_entries(
    client: StoreClient, session: Session, key: QueueKey, heads: Mapping[str, Head | None], now: int, until: int = 0
) -> None:
    """Write the entries of lines with these heads, and delete the entry of a line without a head."""
    placed = [_placing(key, line, head, now, until) for line, head in heads.items() if head is not None]
    empty = [_entry(key.shard, line)["_id"] for line, head in heads.items() if head is None]
    if placed:
        client.update(placed, session)
    if empty:
        client.delete_all({"_id": {"$in": empty}, "s": key.shard}, session=session)


def replace_up_to(client: StoreClient, key: QueueKey, sequence: int, most: int) -> int:
    """Place the entries for messages up to this sequence, which are deleted, and return their number."""
    due = {**client.where(key, k={"$lte": sequence}), "q": key.entries}
    found = client.find(due, limit=min(most, AT_ONCE), sort={"k": 1}, hint=layout.OBSERVERS, fields={"j": 1})
    if found:
        stood = [{"h1": one["j"]} for one in found]
        client.transaction(lambda session: update_entries(client, session, key, stood, BEFORE_ALL))
    return len(found)


def ready(client: StoreClient, key: QueueKey, most: int, now: int, floor: int) -> int:
    """Count the messages of ordered lines that a claim would find, up to ``most``."""
    due = above({**client.where(key, d={"$lte": now}), "q": key.entries}, floor)
    count = 0
    for entry in client.find(due, limit=most, sort={"d": 1, "k": 1}, hint=layout.CLAIMS, fields={"_id": 0, "j": 1}):
        living = above(client.where(key, h1=entry["j"], e={"$gt": DatetimeMS(now)}), floor)
        fields = {"_id": 0, "d": 1}
        line = client.find(living, limit=most - count, sort=PLACES[ORDERED], hint=ORDERED, fields=fields)
        count += sum(1 for _ in takewhile(lambda one: int(one["d"]) <= now, line))
        if count == most:
            break
    return count


# Entries that one transaction places.
AT_ONCE: Final = 500
# A moment before every available-at and expiry: entries have the moment of their heads.
BEFORE_ALL: Final = 0


def _heads(
    client: StoreClient, session: Session, key: QueueKey, names: Sequence[str], now: int
) -> dict[str, Head | None]:
    """Find the heads of lines, which all have the same order."""
    if client.sharded or len(names) == 1:
        return {line: _head(client, session, key, line, now) for line in names}
    stages, beside = first_stages(key, names), counters_of(client, [key])
    found, counters = aggregate_with(client, beside, stages, order_of(names[0]), session=session)
    firsts = {one["_id"]: head_of(one) for one in found}
    floor = floor_of(counters[0]) if counters else 0
    return {
        line: _head(client, session, key, line, now)
        if line in firsts and (firsts[line].expires <= now or firsts[line].sequence <= floor)
        else firsts.get(line)
        for line in names
    }


def first_stages(key: QueueKey, names: Sequence[str]) -> list[BsonDocument]:
    """Return the stages that find the first message of each line, living or not.

    MongoDB reads one index key for each line if the stages name only fields of the index. So they are not for a
    cluster, where a filter names the shard.
    """
    firsts = {field: {"$first": f"${field}"} for field in ("d", "k", "e")}
    return [
        {"$match": {"q": key.messages, "h1": {"$in": list(names)}}},
        {"$sort": {"h1": 1, **PLACES[order_of(names[0])]}},
        {"$group": {"_id": "$h1", **firsts}},
    ]


def _head(client: StoreClient, session: Session, key: QueueKey, line: str, now: int) -> Head | None:
    """Find the line's head; None if no message lives. If many have expired, the next claim finds it."""
    order = order_of(line)
    some, _ = search(
        client,
        key,
        client.where(key, h1=line),
        limit=FEW,
        sort=PLACES[order],
        hint=order,
        fields={"_id": 0, "d": 1, "k": 1, "e": 1},
        session=session,
    )
    return first_of([head_of(one) for one in some], now, is_all=len(some) < FEW)


def first_of(heads: Sequence[Head], now: int, *, is_all: bool) -> Head | None:
    """Return the first head that lives; if none does and these are not all, the place from which claims search."""
    living = next((head for head in heads if head.expires > now), None)
    if living is None and not is_all:
        return heads[-1]._replace(available=now)
    return living


def _entry(shard: str, line: str) -> BsonDocument:
    """Return the filter that finds or creates a line's entry."""
    return {"_id": f"t{len(shard)}:{shard}/{line}", "s": shard}


def _joining(shard: str, line: str, joined: Sequence[Head], floor: int) -> BsonDocument:
    """Return the statement that creates the line's entry, or keeps one for a message above the floor.

    The entry of a fair line becomes earlier if a new message is ready earlier.
    """
    is_fair = order_of(line) == FAIR
    first = min(joined) if is_fair else min(joined, key=lambda one: one.sequence)
    moment = min(first.available, first.expires)
    until = DatetimeMS(max(one.expires for one in joined))
    made = {"q": "t" + shard, "j": line, "d": moment, "k": first.sequence}
    change: BsonDocument | list[BsonDocument] = {"$setOnInsert": made, "$max": {"e": until}, "$inc": {"v": 1}}
    if is_fair or floor:
        stands: BsonDocument = {"$gt": ["$k", floor]}  # a missing one is less
        if is_fair:
            stands = {"$and": [stands, {"$lte": ["$d", moment]}]}
        sooner = {field: {"$cond": [stands, f"${field}", made[field]]} for field in "dk"}
        change = [{"$set": {**made, **sooner, "e": {"$max": ["$e", until]}, "v": WRITTEN}}]
    return {"q": _entry(shard, line), "u": change, "upsert": True}


def _placing(key: QueueKey, line: str, head: Head, now: int, until: int) -> BsonDocument:
    """Return the statement that gives the line's entry this head. The line keeps its turn while the head is ready."""
    end = DatetimeMS(max(head.expires, until))
    made = {"q": key.entries, "j": line, "d": min(head.available, head.expires), "k": head.sequence}
    change: BsonDocument | list[BsonDocument] = {"$set": made, "$max": {"e": end}, "$inc": {"v": 1}}
    if head.available <= now:
        turn = {"$cond": [{"$eq": ["$k", head.sequence]}, {"$min": ["$d", now]}, now]}
        change = [{"$set": {**made, "d": turn, "e": {"$max": ["$e", end]}, "v": WRITTEN}}]
    return {"q": _entry(key.shard, line), "u": change, "upsert": True}


# A change that lets two writes conflict even if the entry stays where it was.
WRITTEN: Final[BsonDocument] = {"$add": [{"$ifNull": ["$v", 0]}, 1]}
