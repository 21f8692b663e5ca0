# SPDX-License-Identifier: Apache-2.0
"""Floors of queues: the sequences up to which messages, history entries and idempotency keys are removed.

A *removal* is a purge or a deletion of a queue. It does not delete documents; it updates the queue's document:

- ``m0``: the floor of the messages
- ``h0``: the floor of the history entries and idempotency keys, set by deletions only
- ``g`` and, for deletions, ``g1``: documents up to these sequences are still to be deleted by ``expiry``

A document at or below its floor is invisible to all operations. A removal therefore takes effect atomically.

**Reads.** An operation reads messages and then the queue's document, usually in the same command, and ignores messages
at or below the floor. Because the floor is read last, it includes every removal that preceded the read of the messages.
In a transaction, both reads use the same snapshot.

**Blind writes.** An operation that updates or deletes messages without reading them sends a guard first: a filter that
raises an error while ``g`` is present. After this error, the operation is repeated in a transaction.

**Conflicts.** Some transactions must not commit after a removal that their snapshot does not include: moves, creation
of history entries, and publications of a commit's messages. The floors do not prevent this. The transaction and the
removal therefore both write the queue's history counter (``conflict_with_removals``). If they run concurrently, MongoDB
aborts one of them, and it is repeated. The queue's document is not suitable for this purpose, because all posts write
it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from bson.timestamp import Timestamp

from zq.model import UNBOUNDED
from zq.storage.mongodb import layout
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.layout import BsonDocument, QueueKey
from zq.storage.mongodb.unions import FLOORS, find_with

# If a queue has at most this number of sequences above the floor, ``search`` switches to the index by sequence.
FEW_SEQUENCES: Final = 1000


def floor_of(counter: Mapping[str, Any]) -> int:
    """Return the sequence up to which messages have been removed: ``m0``, or ``g`` in documents of version 0.1.0."""
    return max(int(counter.get("m0", 0)), int(counter.get("g", 0)))


def history_floor_of(counter: Mapping[str, Any]) -> int:
    """Return the sequence up to which the queue's history entries and idempotency keys are removed."""
    return max(int(counter.get("h0", 0)), int(counter.get("g1", 0)))


def above(conditions: Mapping[str, Any], floor: int) -> BsonDocument:
    """Return ``conditions`` with the additional condition that a document's sequence is above ``floor``."""
    if not floor:
        return dict(conditions)
    bounds = dict(conditions.get("k", {}))
    return {**conditions, "k": {**bounds, "$gt": max(floor, bounds.get("$gt", 0))}}


def counters_of(client: StoreClient, keys: Iterable[QueueKey]) -> BsonDocument:
    """Return a filter that matches the queue documents of the given queues."""
    named = {key.counter: key.shard for key in keys}
    return {"_id": {"$in": list(named)}, **client.shards(named.values())}


def _guard(key: QueueKey) -> BsonDocument:
    """Return a filter that matches nothing, but raises ``RemovalPending`` if the queue has pending deletes."""
    pending = {"$ne": [{"$type": "$g"}, "missing"]}
    fails = {"$eq": [{"$toInt": "$_id"}, 0]}
    return {"_id": key.counter, "s": key.shard, "$expr": {"$cond": [pending, fails, False]}}


def find_pending(client: StoreClient, project: str | None = None) -> Mapping[str, BsonDocument]:
    """Return the documents of all queues with pending deletes, as a mapping from shard key to document.

    If ``project`` is not None, return only documents of queues of this project.
    """
    prefix = "q" if project is None else "q" + layout.project_prefix(project)
    end = "r" if project is None else layout.after(prefix)
    noted = {"g": {"$exists": True}, "_id": {"$gt": prefix, "$lt": end}}
    return {one["s"]: one for one in client.find(noted, hint=layout.PENDING_DELETES, fields=FLOORS)}


def below(kind: str, counters: Mapping[str, BsonDocument]) -> list[BsonDocument]:
    """Return, for each queue, a filter that matches the documents that are invisible but not yet deleted.

    ``kind`` is "m" for messages, "h" for history entries, or "o" for idempotency keys.
    """
    bound = "$lt" if kind == "o" else "$lte"
    floor = floor_of if kind == "m" else history_floor_of
    return [{"q": kind + shard, "k": {bound: floor(counter)}} for shard, counter in counters.items()]


def guarded_delete(key: QueueKey, conditions: BsonDocument, hint: str = "_id_") -> Sequence[BsonDocument]:
    """Return statements that delete the matching documents.

    If the queue has pending deletes, the statements raise ``RemovalPending`` and delete nothing.
    """
    return [{"q": _guard(key), "limit": 1, "hint": "_id_"}, {"q": conditions, "limit": 0, "hint": hint}]


def guarded_update(key: QueueKey) -> BsonDocument:
    """Return an update statement that raises ``RemovalPending`` if the queue has pending deletes.

    The statement must precede the updates that it protects.
    """
    return {"q": _guard(key), "u": {"$unset": {"e": ""}}, "hint": "_id_"}


def conflict_with_removals(key: QueueKey) -> BsonDocument:
    """Return an update statement that makes transactions conflict with purges and deletions of the queue."""
    return {"q": {"_id": key.history_counter, "s": key.shard}, "u": {"$inc": {"v": 1}}, "upsert": True, "hint": "_id_"}


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
    committed: bool | Timestamp = False,
    max_bytes: int = UNBOUNDED,
    session: Session | None = None,
    in_same_command: bool = True,
    floor_of: Callable[[Mapping[str, Any]], int] = floor_of,
) -> tuple[list[BsonDocument], BsonDocument]:
    """Return the first matching documents that are not removed, and the queue's document.

    ``fields`` must include ``k``. If ``in_same_command`` is False, a second command reads the queue's document, but
    only if the search has found documents.
    """
    floor = 0
    named = counters_of(client, [key])
    while True:
        bounded = above(conditions, floor)
        options: Any = {"limit": limit, "sort": sort, "fields": fields, "skip": skip, "committed": committed}
        options |= {"max_bytes": max_bytes, "session": session, "hint": hint}
        if in_same_command:
            found, counters = find_with(client, named, bounded, **options)
        else:
            found = client.find(bounded, **options)
            counters = client.find(named, session=session) if found else []
        counter = counters[0] if counters else {}
        known, floor = floor, floor_of(counter)
        if all(one["k"] > floor for one in found):
            # If a message's available-at changes during the search, the index may return the message twice.
            return list({one["k"]: one for one in found}.values()), counter
        sequences = int(counter.get("k1", 0)) - floor
        if not sequences:
            return [], counter
        if sequences <= FEW_SEQUENCES and hint == layout.CLAIMS and known < floor:
            hint = layout.OBSERVERS
        skip, in_same_command = 0, True


def find_named(
    client: StoreClient,
    keys: Sequence[QueueKey],
    conditions: Mapping[str, Any],
    *,
    fields: Mapping[str, Any] | None = None,
    session: Session | None = None,
) -> tuple[list[BsonDocument], list[BsonDocument]]:
    """Return the matching documents, including removed ones, followed by the documents of the queues in ``keys``.

    ``conditions`` must list the ``_id`` of each wanted document. A single ``find`` reads all documents in the order of
    ``_id``. The documents of queues have the highest ``_id``, so they are read last.
    """
    counters = counters_of(client, keys)["_id"]["$in"]
    rest = {field: condition for field, condition in conditions.items() if field not in ("_id", "s")}
    where = {"_id": {"$in": [*conditions["_id"]["$in"], *counters]}, "$or": [rest, {"_id": {"$in": counters}}]}
    if "s" in conditions:
        where["s"] = conditions["s"]
    read = {**fields, **FLOORS} if fields else None
    found = client.find(where, fields=read, hint="_id_", session=session)
    return [one for one in found if one["_id"] not in counters], [one for one in found if one["_id"] in counters]


def find_visible(
    client: StoreClient,
    keys: Sequence[QueueKey],
    conditions: Mapping[str, Any],
    *,
    hint: str = "",
    fields: Mapping[str, Any] | None = None,
    session: Session | None = None,
    floor_of: Callable[[Mapping[str, Any]], int] = floor_of,
) -> list[BsonDocument]:
    """Return all matching documents that no purge or deletion of a queue has removed.

    With the hint ``_id_``, ``conditions`` must list the ``_id`` of each wanted document.
    """
    projection = {"q": 1, "k": 1, **fields} if fields else None
    if hint == "_id_":
        found, counters = find_named(client, keys, conditions, fields=projection, session=session)
    else:
        queue_filter = counters_of(client, keys)
        found, counters = find_with(client, queue_filter, conditions, hint=hint, fields=projection, session=session)
    floors = {counter["_id"][1:]: floor_of(counter) for counter in counters}
    return [one for one in found if one["k"] > floors.get(one["q"][1:], 0)]
