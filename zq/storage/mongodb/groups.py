# SPDX-License-Identifier: Apache-2.0
"""The message groups of a grouped queue, and the entry of each group in the index ``claims`` (decision 0129).

In the code, ``group`` is the stored name of a group. Each message of the group stores this name (``h1``). Operations
that change messages without a transaction skip all grouped messages. The module ``group_claimer`` claims the grouped
messages.

**Entries.** The entry of a group stores the time from which claims consider the group. An operation that adds a message
to a group, removes it or changes its available-at time also writes the entry, in the same transaction. If two of these
transactions conflict, MongoDB aborts one transaction. The retried transaction reads the changes of the committed one.

**Invariants.**

- The time of an entry may be too early, but never too late. If a claim finds no ready message in the group, it sets a
  later time.
- The time of an entry is not after the expiry of the group's first message. The removal of expired messages therefore
  needs no update of the entry.
- The expiry of an entry (``e``) is never before the latest expiry of the group's messages.
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

# A mapping from index name to the sort order of messages in a group.
SORT_ORDERS: Final[Mapping[str, Mapping[str, int]]] = {ORDERED: {"k": 1}, FAIR: {"d": 1, "k": 1}}
# Number of messages that a search for the head of a group reads. Several are read because the first may have expired.
HEAD_SEARCH_LIMIT: Final = 8


class Head(NamedTuple):
    """The first unexpired message of a message group. Times are in milliseconds."""

    available: int
    sequence: int
    expires: int


def index_of(group: str) -> str:
    """Return the name of the MongoDB index that contains the messages of the group."""
    return FAIR if group[0] == FAIR[0] else ORDERED


def head_from(found: Mapping[str, Any]) -> Head:
    return Head(int(found["d"]), int(found["k"]), int(found["e"]))


def add_to_entries(
    client: StoreClient, session: Session, documents: Iterable[BsonDocument], floors: Mapping[str, int]
) -> None:
    """Update the entries of the message groups to which new messages belong.

    ``floors`` maps the shard key of each queue to the last sequence that a purge or deletion has removed. Call this
    function before the messages are inserted, because this order makes conflicts with claims less frequent.
    """
    by_group: defaultdict[tuple[str, str], list[Head]] = defaultdict(list)
    for one in documents:
        if "h1" in one:
            by_group[one["s"], one["h1"]].append(head_from(one))
    if by_group:
        client.update([_addition_statement(*of, its, floors[of[0]]) for of, its in sorted(by_group.items())], session)


def update_entries(
    client: StoreClient, session: Session, key: QueueKey, changed: Iterable[Mapping[str, Any]], now: int, until: int = 0
) -> None:
    """Rewrite the entries of message groups whose messages this transaction has changed or removed.

    ``changed`` contains the messages as they were before the change. ``until`` is the latest expiry of the messages
    after the change, in milliseconds. It is 0 if no expiry has changed.
    """
    names = sorted({one["h1"] for one in changed if "h1" in one})
    if names:
        heads = _heads(client, session, key, names, now)
        write_entries(client, session, key, heads, now, until)
        is_ready = any(head and (head.available <= now or now == BEFORE_ALL) for head in heads.values())
        if is_ready and index_of(names[0]) == ORDERED:
            client.made_ready(session, key.ref)


def write_entries(
    client: StoreClient, session: Session, key: QueueKey, heads: Mapping[str, Head | None], now: int, until: int = 0
) -> None:
    """Write the entries of message groups, and delete the entries of empty groups, whose head is None."""
    placed = [_head_statement(key, group, head, now, until) for group, head in heads.items() if head is not None]
    empty = [_entry(key.shard, group)["_id"] for group, head in heads.items() if head is None]
    if placed:
        client.update(placed, session)
    if empty:
        client.delete_all({"_id": {"$in": empty}, "s": key.shard}, session=session)


def rewrite_up_to(client: StoreClient, key: QueueKey, sequence: int, max_entries: int) -> int:
    """Recompute up to ``max_entries`` group entries that refer to deleted messages, and return the number of entries.

    The deleted messages are those with sequences up to ``sequence``.
    """
    due = {**client.where(key, k={"$lte": sequence}), "q": key.entries}
    found = client.find(
        due, limit=min(max_entries, MAX_REWRITES), sort={"k": 1}, hint=layout.OBSERVERS, fields={"j": 1}
    )
    if found:
        outdated = [{"h1": one["j"]} for one in found]
        client.transaction(lambda session: update_entries(client, session, key, outdated, BEFORE_ALL))
    return len(found)


def count_ready(client: StoreClient, key: QueueKey, max_count: int, now: int, floor: int) -> int:
    """Count the ready messages that a claim could take. Stop at ``max_count``.

    Ignore messages whose sequence is not above ``floor``.
    """
    due = above({**client.where(key, d={"$lte": now}), "q": key.entries}, floor)
    count = 0
    for entry in client.find(
        due, limit=max_count, sort={"d": 1, "k": 1}, hint=layout.CLAIMS, fields={"_id": 0, "j": 1}
    ):
        living = above(client.where(key, h1=entry["j"], e={"$gt": DatetimeMS(now)}), floor)
        fields = {"_id": 0, "d": 1}
        group = client.find(living, limit=max_count - count, sort=SORT_ORDERS[ORDERED], hint=ORDERED, fields=fields)
        count += sum(1 for _ in takewhile(lambda one: int(one["d"]) <= now, group))
        if count == max_count:
            break
    return count


# Maximum number of entries that one transaction rewrites.
MAX_REWRITES: Final = 500
# A time before every available-at and expiry. With it, entries get the available-at of their heads.
BEFORE_ALL: Final = 0


def _heads(
    client: StoreClient, session: Session, key: QueueKey, names: Sequence[str], now: int
) -> dict[str, Head | None]:
    """Return each group's first unexpired message. All groups must be in the same index."""
    if client.sharded or len(names) == 1:
        return {group: _head(client, session, key, group, now) for group in names}
    stages, queue_filter = first_stages(key, names), counters_of(client, [key])
    found, counters = aggregate_with(client, queue_filter, stages, index_of(names[0]), session=session)
    firsts = {one["_id"]: head_from(one) for one in found}
    floor = floor_of(counters[0]) if counters else 0
    return {
        group: _head(client, session, key, group, now)
        if group in firsts and (firsts[group].expires <= now or firsts[group].sequence <= floor)
        else firsts.get(group)
        for group in names
    }


def first_stages(key: QueueKey, names: Sequence[str]) -> list[BsonDocument]:
    """Return the pipeline stages that find the first message of each group, expired or not.

    MongoDB reads only one index key for each group. The stages are unsuitable for a sharded cluster, because filters
    there must include the shard key.
    """
    firsts = {field: {"$first": f"${field}"} for field in ("d", "k", "e")}
    return [
        {"$match": {"q": key.messages, "h1": {"$in": list(names)}}},
        {"$sort": {"h1": 1, **SORT_ORDERS[index_of(names[0])]}},
        {"$group": {"_id": "$h1", **firsts}},
    ]


def _head(client: StoreClient, session: Session, key: QueueKey, group: str, now: int) -> Head | None:
    order = index_of(group)
    some, _ = search(
        client,
        key,
        client.where(key, h1=group),
        limit=HEAD_SEARCH_LIMIT,
        sort=SORT_ORDERS[order],
        hint=order,
        fields={"_id": 0, "d": 1, "k": 1, "e": 1},
        session=session,
    )
    return first_unexpired([head_from(one) for one in some], now, is_all=len(some) < HEAD_SEARCH_LIMIT)


def first_unexpired(heads: Sequence[Head], now: int, *, is_all: bool) -> Head | None:
    """Return the first unexpired message of a group.

    If all of ``heads`` have expired but the group has more messages (not ``is_all``), return the last of ``heads`` as
    if it were ready, so that the next claim reads on.
    """
    living = next((head for head in heads if head.expires > now), None)
    if living is None and not is_all:
        return heads[-1]._replace(available=now)
    return living


def _entry(shard: str, group: str) -> BsonDocument:
    return {"_id": f"t{len(shard)}:{shard}/{group}", "s": shard}


def _addition_statement(shard: str, group: str, joined: Sequence[Head], floor: int) -> BsonDocument:
    """Return the statement that updates a group's entry after the messages ``joined`` were added to the group.

    The entry refers to the message of the group that becomes available next. The statement replaces this message by one
    of the added messages in two cases:

    - A purge or deletion has removed the message: its sequence is not above ``floor``.
    - The groups of the queue take turns (fair grouping), and an added message becomes available earlier.
    """
    is_fair = index_of(group) == FAIR
    first = min(joined) if is_fair else min(joined, key=lambda one: one.sequence)
    moment = min(first.available, first.expires)
    until = DatetimeMS(max(one.expires for one in joined))
    made = {"q": "t" + shard, "j": group, "d": moment, "k": first.sequence}
    change: BsonDocument | list[BsonDocument] = {"$setOnInsert": made, "$max": {"e": until}, "$inc": {"v": 1}}
    if is_fair or floor:
        is_current: BsonDocument = {"$gt": ["$k", floor]}  # a missing ``k`` compares as less
        if is_fair:
            is_current = {"$and": [is_current, {"$lte": ["$d", moment]}]}
        sooner = {field: {"$cond": [is_current, f"${field}", made[field]]} for field in "dk"}
        change = [{"$set": {**made, **sooner, "e": {"$max": ["$e", until]}, "v": VERSION_INCREMENT}}]
    return {"q": _entry(shard, group), "u": change, "upsert": True}


def _head_statement(key: QueueKey, group: str, head: Head, now: int, until: int) -> BsonDocument:
    """Return the statement that writes the entry of the group.

    If ``head`` is ready and unchanged, the group keeps its position among the groups.
    """
    end = DatetimeMS(max(head.expires, until))
    made = {"q": key.entries, "j": group, "d": min(head.available, head.expires), "k": head.sequence}
    change: BsonDocument | list[BsonDocument] = {"$set": made, "$max": {"e": end}, "$inc": {"v": 1}}
    if head.available <= now:
        turn = {"$cond": [{"$eq": ["$k", head.sequence]}, {"$min": ["$d", now]}, now]}
        change = [{"$set": {**made, "d": turn, "e": {"$max": ["$e", end]}, "v": VERSION_INCREMENT}}]
    return {"q": _entry(key.shard, group), "u": change, "upsert": True}


# An increment of ``v``, so that two writes conflict even if the entry keeps its message and time.
VERSION_INCREMENT: Final[BsonDocument] = {"$add": [{"$ifNull": ["$v", 0]}, 1]}
