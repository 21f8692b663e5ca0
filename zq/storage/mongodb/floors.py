# SPDX-License-Identifier: Apache-2.0
"""Floors of queues: the sequences up to which purges and deletions have removed messages, history entries and keys.

A purge or deletion is one update of the queue's document. It sets the floors ``m0`` (messages) and, if it is a
deletion, ``h0`` (history entries and idempotency keys), and ``g``, which says that documents below the floors are still
to be deleted: see ``expiry``. Every verb leaves out what is below a floor, so all observers see the removal at once.

A verb reads the queue's document behind the messages, in the same command. A decision that this document does not show
comes after everything that the verb has read; one that it shows hides all messages that it concerns. A verb of a
transaction reads both of one snapshot. Verbs that update messages without reading them carry a guard, a filter that
raises an error while ``g`` is there; then they are done in a transaction.

A transaction whose snapshot is older than the decision must not commit after it if its effect is visible in places that
the floors do not cover: moved messages, history entries, messages that a commit publishes. So the transaction writes
the counter of finishing of the messages' queue, and so does the transaction of the decision
(``conflict_with_removals``): one of the two is run again. The queue's document would not do, because posts write it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from zq.model import UNBOUNDED
from zq.storage.mongodb import layout
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.layout import BsonDocument, QueueKey
from zq.storage.mongodb.unions import FLOORS, find_with

# Number of sequences above the floor that are searched in the order of sequences.
FEW_SEQUENCES: Final = 1000


def floor_of(counter: Mapping[str, Any]) -> int:
    """Return the floor of the messages. Version 0.1.0 has written ``g`` alone."""
    return max(int(counter.get("m0", 0)), int(counter.get("g", 0)))


def finished_floor_of(counter: Mapping[str, Any]) -> int:
    """Return the floor of the history entries."""
    return max(int(counter.get("h0", 0)), int(counter.get("g1", 0)))


def above(conditions: Mapping[str, Any], floor: int) -> BsonDocument:
    """Return the filter with a lower bound on sequences."""
    if not floor:
        return dict(conditions)
    bounds = dict(conditions.get("k", {}))
    return {**conditions, "k": {**bounds, "$gt": max(floor, bounds.get("$gt", 0))}}


def counters_of(client: StoreClient, keys: Iterable[QueueKey]) -> BsonDocument:
    """Return the filter that finds the documents of queues."""
    named = {key.counter: key.shard for key in keys}
    return {"_id": {"$in": list(named)}, **client.shards(named.values())}


def _guard(key: QueueKey) -> BsonDocument:
    """Return a filter that fits nothing, and raises an error if the queue has documents below its floors."""
    pending = {"$ne": [{"$type": "$g"}, "missing"]}
    fails = {"$eq": [{"$toInt": "$_id"}, 0]}
    return {"_id": key.counter, "s": key.shard, "$expr": {"$cond": [pending, fails, False]}}


def pending(client: StoreClient, project: str | None = None) -> Mapping[str, BsonDocument]:
    """Return the documents of the queues that have messages below their floors, by shard key.

    ``project``: of this project only.
    """
    prefix = "q" if project is None else "q" + layout.project_prefix(project)
    end = "r" if project is None else layout.after(prefix)
    noted = {"g": {"$exists": True}, "_id": {"$gt": prefix, "$lt": end}}
    return {one["s"]: one for one in client.find(noted, hint=layout.PENDING_DELETES, fields=FLOORS)}


def below(kind: str, counters: Mapping[str, BsonDocument]) -> list[BsonDocument]:
    """Return filters on documents below the floors of queues: messages ("m"), history entries ("h") or keys ("o")."""
    bound = "$lt" if kind == "o" else "$lte"
    floor = floor_of if kind == "m" else finished_floor_of
    return [{"q": kind + shard, "k": {bound: floor(counter)}} for shard, counter in counters.items()]


def guarded_delete(key: QueueKey, conditions: BsonDocument, hint: str = "_id_") -> Sequence[BsonDocument]:
    """Return the statements that delete the documents that fit, or raise ``RemovalPending``."""
    return [{"q": _guard(key), "limit": 1, "hint": "_id_"}, {"q": conditions, "limit": 0, "hint": hint}]


def guarded_update(key: QueueKey) -> BsonDocument:
    """Return the statement that raises ``RemovalPending`` in front of other updates."""
    return {"q": _guard(key), "u": {"$unset": {"e": ""}}, "hint": "_id_"}


def conflict_with_removals(key: QueueKey) -> BsonDocument:
    """Return the statement by which a transaction conflicts with removals, and with others that have the statement."""
    return {"q": {"_id": key.finishing, "s": key.shard}, "u": {"$inc": {"v": 1}}, "upsert": True, "hint": "_id_"}


def search(
    client: StoreClient,
    key: QueueKey,
    conditions: Mapping[str, Any],
    *,
    limit: int,
    sort: Mapping[str, int],
    hint: str,
    fields: Mapping[str, int] | None = None,
    skip: int = 0,
    committed: bool = False,
    most_bytes: int = UNBOUNDED,
    session: Session | None = None,
    beside: bool = True,
    floor_of: Callable[[Mapping[str, Any]], int] = floor_of,
) -> tuple[list[BsonDocument], BsonDocument]:
    """Return the first documents that fit, none below the floor, and the queue's document as it was read behind them.

    The queue's document is empty if there is none. ``beside`` False: it is read by a command of its own, and not at all
    if no document fits. ``fields`` must have ``k``.
    """
    floor = 0
    named = counters_of(client, [key])
    while True:
        bounded = above(conditions, floor)
        asked: Any = {"limit": limit, "sort": sort, "fields": fields, "skip": skip, "committed": committed}
        asked |= {"most_bytes": most_bytes, "session": session, "hint": hint}
        if beside:
            found, counters = find_with(client, named, bounded, **asked)
        else:
            found = client.find(bounded, **asked)
            counters = client.find(named, session=session) if found else []
        counter = counters[0] if counters else {}
        known, floor = floor, floor_of(counter)
        if all(one["k"] > floor for one in found):
            return found, counter
        sequences = int(counter.get("k1", 0)) - floor
        if not sequences:
            return [], counter
        if sequences <= FEW_SEQUENCES and hint == layout.CLAIMS and known < floor:
            hint = layout.OBSERVERS
        skip, beside = 0, True


def find_named(
    client: StoreClient,
    keys: Sequence[QueueKey],
    conditions: Mapping[str, Any],
    *,
    fields: Mapping[str, Any] | None = None,
    session: Session | None = None,
) -> tuple[list[BsonDocument], list[BsonDocument]]:
    """Return all documents that fit, whose ``_id`` the conditions list, and then the documents of these queues.

    One find reads both, the queues' documents last: their ``_id`` is the larger one.
    """
    counters = counters_of(client, keys)["_id"]["$in"]
    rest = {field: condition for field, condition in conditions.items() if field not in ("_id", "s")}
    where = {"_id": {"$in": [*conditions["_id"]["$in"], *counters]}, "$or": [rest, {"_id": {"$in": counters}}]}
    if "s" in conditions:
        where["s"] = conditions["s"]
    read = {**fields, **FLOORS} if fields else None
    found = client.find(where, fields=read, hint="_id_", session=session)
    return [one for one in found if one["_id"] not in counters], [one for one in found if one["_id"] in counters]


def find_there(
    client: StoreClient,
    keys: Sequence[QueueKey],
    conditions: Mapping[str, Any],
    *,
    hint: str = "",
    fields: Mapping[str, Any] | None = None,
    session: Session | None = None,
    floor_of: Callable[[Mapping[str, Any]], int] = floor_of,
) -> list[BsonDocument]:
    """Return all documents that fit, but those of these queues that are below the floors."""
    asked = {"q": 1, "k": 1, **fields} if fields else None
    if hint == "_id_":
        found, counters = find_named(client, keys, conditions, fields=asked, session=session)
    else:
        beside = counters_of(client, keys)
        found, counters = find_with(client, beside, conditions, hint=hint, fields=asked, session=session)
    floors = {counter["_id"][1:]: floor_of(counter) for counter in counters}
    return [one for one in found if one["k"] > floors.get(one["q"][1:], 0)]
