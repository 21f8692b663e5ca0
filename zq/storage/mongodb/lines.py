# SPDX-License-Identifier: Apache-2.0
"""The lines in which messages of one group stand in a grouped queue, and the entry that each line has in the index of
claims (decision 0129). How claims walk along them is in ``line_claimer``.

A message says itself in which line it stands (``h1``), so nobody has to know what kind its queue is but who puts
messages into it, and that one writes the queue's document in the same transaction. Verbs that change messages without
a transaction are bound to messages in no line.

Whatever adds a message to a line, removes it or changes when it is available writes the line's entry in the same
transaction. Of two such transactions the second meets the first one's write and is run again, so that each finds the
line as the one before has left it.

An entry may be too early, never too late: its moment is not after that at which something in its line is ready next.
A claim that comes too early finds so and puts it off. So expiry needs no step here, whoever removes what has expired:
no entry is later than the end of its head. Nor does an entry end before a message of its line: ``e`` is as late.
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
# Messages that are read for the head of a line: more than one, since some may have expired.
FEW: Final = 8


class Head(NamedTuple):
    """The first living message of a line: when it is available, its sequence, and its expiry."""

    available: int
    sequence: int
    expires: int


def order_of(line: str) -> str:
    """The index that has the line in order."""
    return FAIR if line[0] == FAIR[0] else ORDERED


def head_of(found: Mapping[str, Any]) -> Head:
    return Head(int(found["d"]), int(found["k"]), int(found["e"]))


def join(client: StoreClient, session: Session, documents: Iterable[BsonDocument], floors: Mapping[str, int]) -> None:
    """Let new messages join their lines, behind those of lower sequence. ``floors``: of their queues, by shard key.

    Call it before the messages are inserted: then claims are less often in its way.
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
    """Place the entries of the lines in which these messages stood, as they were found, after they were changed.

    ``until``: the latest expiry that one of them got by the change. If an ordered line has a head that is ready, those
    who wait are notified after the commit.
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
    """Write the entries of lines that have these heads; a line without one has no entry."""
    placed = [_placing(key, line, head, now, until) for line, head in heads.items() if head is not None]
    empty = [_entry(key.shard, line)["_id"] for line, head in heads.items() if head is None]
    if placed:
        client.update(placed, session)
    if empty:
        client.delete_all({"_id": {"$in": empty}, "s": key.shard}, session=session)


def replace_up_to(client: StoreClient, key: QueueKey, sequence: int, most: int) -> int:
    """Place entries that are about messages up to this sequence, which are gone; how many were found."""
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
# A moment by which nothing is available and nothing has expired: entries stand where their heads are.
BEFORE_ALL: Final = 0


def _heads(
    client: StoreClient, session: Session, key: QueueKey, names: Sequence[str], now: int
) -> dict[str, Head | None]:
    """The heads of lines, all of one order."""
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
    """What finds the first of each of these lines, living or not. MongoDB reads one key of the index for each, as long
    as nothing but the index's fields is asked for: so not on a cluster, where a filter says the shard."""
    firsts = {field: {"$first": f"${field}"} for field in ("d", "k", "e")}
    return [
        {"$match": {"q": key.messages, "h1": {"$in": list(names)}}},
        {"$sort": {"h1": 1, **PLACES[order_of(names[0])]}},
        {"$group": {"_id": "$h1", **firsts}},
    ]


def _head(client: StoreClient, session: Session, key: QueueKey, line: str, now: int) -> Head | None:
    """The line's head; None if nothing lives in it. Where much has expired, claims are to look for it."""
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
    """The first of them that lives; if none does and these are not all, one that claims are to look for."""
    living = next((head for head in heads if head.expires > now), None)
    if living is None and not is_all:
        return heads[-1]._replace(available=now)
    return living


def _entry(shard: str, line: str) -> BsonDocument:
    """The filter that finds a line's entry, or makes it."""
    return {"_id": f"t{len(shard)}:{shard}/{line}", "s": shard}


def _joining(shard: str, line: str, joined: Sequence[Head], floor: int) -> BsonDocument:
    """Return the statement that makes the line's entry, or keeps one that is about a message above the floor. A fair
    line gets its entry sooner if a new message is ready sooner."""
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
    """The statement that gives the line's entry this head. While it is the same and is ready, the line keeps its
    turn."""
    end = DatetimeMS(max(head.expires, until))
    made = {"q": key.entries, "j": line, "d": min(head.available, head.expires), "k": head.sequence}
    change: BsonDocument | list[BsonDocument] = {"$set": made, "$max": {"e": end}, "$inc": {"v": 1}}
    if head.available <= now:
        turn = {"$cond": [{"$eq": ["$k", head.sequence]}, {"$min": ["$d", now]}, now]}
        change = [{"$set": {**made, "d": turn, "e": {"$max": ["$e", end]}, "v": WRITTEN}}]
    return {"q": _entry(key.shard, line), "u": change, "upsert": True}


# What lets two writes meet, though an entry stays where it was.
WRITTEN: Final[BsonDocument] = {"$add": [{"$ifNull": ["$v", 0]}, 1]}
