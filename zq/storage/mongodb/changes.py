# SPDX-License-Identifier: Apache-2.0
"""Changes that several storage operations share: finishing and moving messages, and checks of fences.

**Finishing.** A message finishes when it is deleted, popped or moved. In a queue with history, a finished message
becomes a history entry. In any other queue, the document of a deleted or popped message is deleted. The queue's history
counter assigns the entry's position and time in the same transaction. Entries therefore become visible in the order of
their positions, and a listing does not skip any. The history counter is not part of the queue's document, so operations
that finish messages do not wait for posts.

**Fences.** A fence issues epochs, which are fencing tokens. It is a document with the last issued epoch and the time at
which it was issued (``advanced``). A transaction that is protected by a fence reads and writes this document. If
another server issues an epoch at the same time, the transaction either reads the new epoch or commits before the new
epoch is issued.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from pymongo.errors import DuplicateKeyError

from zq.errors import Fenced
from zq.model import Fence, Move, Outcome
from zq.storage.mongodb import groups, layout
from zq.storage.mongodb.client import Session, StoreClient, TransactionAborted
from zq.storage.mongodb.commands import RemovalPending
from zq.storage.mongodb.counters import Arrivals, advance
from zq.storage.mongodb.floors import conflict_with_removals, find_visible, guarded_update
from zq.storage.mongodb.layout import CLAIM_FIELDS, UNGROUPED_FILTER, BsonDocument, QueueKey


def held_filter(client: StoreClient, key: QueueKey, claim: str, now: int) -> BsonDocument:
    """Return a filter that matches the unexpired messages of a claim. If the claim has expired, nothing matches."""
    return client.where(key, **held_condition(claim, now), e={"$gt": DatetimeMS(now)})


def held_condition(claim: str, now: int) -> BsonDocument:
    """Return the condition that the claim holds a message and has not expired at ``now``."""
    return {"c.i": layout.encode_text(claim), "c.e": {"$gt": now}}


def reserved_id(claim: str) -> Binary:
    """Return the claim id that messages store while a commit reserves them. No client can send this binary id."""
    return Binary(layout.encode_text(claim).encode())


def update_held(client: StoreClient, key: QueueKey, claim: str, now: int, step: list[BsonDocument]) -> int:
    """Apply the update ``step`` to a claim's messages without a transaction, and return their number.

    Messages with a group are not updated. If the queue has a pending purge or deletion, no message is updated. If the
    result is 0, the caller must therefore repeat the update with ``update_in_transaction``.
    """
    held = {**held_filter(client, key, claim, now), **UNGROUPED_FILTER}
    try:
        return client.update([guarded_update(key), {"q": held, "u": step, "multi": True, "hint": layout.HELD}])
    except RemovalPending:
        return 0


def update_in_transaction(
    client: StoreClient,
    key: QueueKey,
    claim: str,
    now: int,
    step: list[BsonDocument],
    until: int = 0,
    fence: Fence | None = None,
) -> int:
    """Apply the update ``step`` to all messages of a claim in one transaction, and return their number.

    ``until`` is the latest expiry of the messages after the update, in milliseconds. It is 0 if the update does not
    change the expiry of any message. Raises ``Fenced`` if the epoch of ``fence`` is not the last issued epoch.
    """
    held = held_filter(client, key, claim, now)

    def work(session: Session) -> int:
        if fence is not None:
            check_fence(client, session, key.ref.project, fence)
        found = find_visible(client, [key], held, fields={"h1": 1}, hint=layout.HELD, session=session)
        named = client.where(key, _id={"$in": [one["_id"] for one in found]})
        if found:
            client.update([{"q": named, "u": step, "multi": True, "hint": "_id_"}], session)
            groups.update_entries(client, session, key, found, now, until)
        return len(found)

    if fence is None and not client.find(held, limit=1, fields={"_id": 1}, hint=layout.HELD):
        return 0
    return client.transaction(work)


# Maximum number of messages that one update turns into history entries.
MESSAGES_AT_ONCE: Final = 256


class FinishTerms(NamedTuple):
    """The parameters of ``finish``. ``now`` is in milliseconds, and ``history`` in seconds (0 = no history entries)."""

    outcome: Outcome
    now: int
    history: int


def finish(
    client: StoreClient,
    session: Session,
    key: QueueKey,
    doc_ids: Sequence[str],
    ending: FinishTerms,
    conditions: Mapping[str, object] | None = None,
    first: Sequence[BsonDocument] = (),
) -> None:
    """Delete messages, or turn them into history entries in the order of ``doc_ids``.

    Args:
        doc_ids: The ``_id`` of each message, without duplicates.
        conditions: Conditions that every message must meet. They are required if the transaction has not read the
            messages.
        first: Update steps that precede the conversion to a history entry.

    Raises ``TransactionAborted`` if a message is not in the queue or does not meet ``conditions``.
    """
    where = [
        client.where(key, _id={"$in": list(doc_ids[start : start + MESSAGES_AT_ONCE])}, **(conditions or {}))
        for start in range(0, len(doc_ids), MESSAGES_AT_ONCE)
    ]
    if not doc_ids:
        return
    if ending.history:
        position, finished = _position(client, session, key, len(doc_ids), ending.now)
        steps = [
            [*first, *_history_update(key, one["_id"]["$in"], position + at * MESSAGES_AT_ONCE, finished, ending)]
            for at, one in enumerate(where)
        ]
        updates = [{"q": one, "u": step, "multi": True, "hint": "_id_"} for one, step in zip(where, steps, strict=True)]
        gone = client.update(updates, session)
    else:
        gone = client.delete([{"q": one, "limit": 0, "hint": "_id_"} for one in where], session)
    if gone != len(doc_ids):
        raise TransactionAborted


def insert_history_copies(
    client: StoreClient,
    session: Session,
    key: QueueKey,
    found: Sequence[tuple[BsonDocument, Outcome]],
    now: int,
    history: int,
) -> None:
    """Insert history entries for messages that have moved to other queues."""
    position, finished = _position(client, session, key, len(found), now)
    copies = []
    for at, (message, outcome) in enumerate(found, position):
        copy = {
            **message,
            "_id": f"{key.history_entries}/{at}",
            "i": message["_id"],
            "q": key.history_entries,
            "p": at,
            "f": finished,
            "x": outcome.value,
            "z": message["e"],
            "e": DatetimeMS(finished + history * 1000),
        }
        copy.pop("h1", None)
        if "c" in copy:
            copy["c"] = {field: copy["c"][field] for field in ("n", "f") if field in copy["c"]}
        copies.append(copy)
    client.insert(copies, session)


def _history_update(
    key: QueueKey, doc_ids: Sequence[str], position: int, finished: int, ending: FinishTerms
) -> list[BsonDocument]:
    record: BsonDocument = {
        "q": {"$literal": key.history_entries},
        "p": {"$add": [position, {"$indexOfArray": [{"$literal": doc_ids}, "$_id"]}]},
        "f": finished,
        "x": ending.outcome.value,
        "z": {"$ifNull": ["$y.e", "$e"]},  # ``y`` has the values from before a commit reserved the message
        "d": {"$ifNull": ["$y.d", "$d"]},
        "e": DatetimeMS(finished + ending.history * 1000),
    }
    return [{"$set": record}, {"$unset": [*CLAIM_FIELDS, "y", "h1"]}]


def _position(client: StoreClient, session: Session, key: QueueKey, number: int, now: int) -> tuple[int, int]:
    """Reserve ``number`` history positions, and return the first position and the time of finishing in milliseconds."""
    step = [
        {"$set": {"p1": {"$add": [{"$ifNull": ["$p1", 0]}, number]}, "f1": {"$max": ["$f1", now]}}},
        {"$unset": "e"},
    ]
    command: BsonDocument = {
        "query": {"_id": key.history_counter, "s": key.shard},
        "update": step,
        "upsert": True,
        "new": True,
    }
    counter = client.modify(command, session) or {}
    return counter["p1"] - number + 1, counter["f1"]


# A message's complete document before the move, and the requested move.
MovedMessage = tuple[BsonDocument, Move]


def counter_ids(source: QueueKey, moves: Iterable[Move], history: int) -> set[str]:
    """Return the ``_id`` of each document with queue counters that a settlement or a move writes."""
    targets = {layout.key(source.ref._replace(name=each.to)).counter for each in moves}
    return {*targets, source.history_counter} if targets or history else set()


def move(
    client: StoreClient, session: Session, source: QueueKey, moved: Sequence[MovedMessage], now: int, history: int = 0
) -> None:
    """Move messages to other queues, in order.

    Raises ``TransactionAborted`` if a message has changed since the caller read it, and ``QueueNotFound`` if a missing
    target must not be created.
    """
    if not moved:
        return
    arrivals, floors = _arrivals(client, session, source, moved, now)
    unchanged = [_unchanged_filter(client, source, found) for found, _ in moved]
    conflict = conflict_with_removals(source)
    if client.sharded:  # an update cannot move a document to another shard
        client.update([conflict], session)
        gone = client.delete([{"q": one, "limit": 1, "hint": "_id_"} for one in unchanged], session)
        client.insert(arrivals, session)
    else:
        statements = zip(unchanged, arrivals, strict=True)
        moving = [{"q": one, "u": arrival, "hint": "_id_"} for one, arrival in statements]
        gone = client.update([conflict, *moving], session) - 1
    if gone != len(moved):
        raise TransactionAborted
    groups.add_to_entries(client, session, arrivals, floors)
    groups.update_entries(client, session, source, [found for found, _ in moved], now)
    if history:
        finished = [(found, Outcome.DEAD_LETTERED if each.reason else Outcome.MOVED) for found, each in moved]
        insert_history_copies(client, session, source, finished, now, history)


def _arrivals(
    client: StoreClient, session: Session, source: QueueKey, moved: Sequence[MovedMessage], now: int
) -> tuple[Sequence[BsonDocument], Mapping[str, int]]:
    """Reserve sequences in the target queues, and return the documents to insert there."""
    targets = {each.to: layout.key(source.ref._replace(name=each.to)) for _, each in moved}
    by_target: defaultdict[str, list[MovedMessage]] = defaultdict(list)
    for found, each in moved:
        by_target[each.to].append((found, each))
    entering = {targets[name]: _sum_arrivals(some, now) for name, some in by_target.items()}
    ranges = advance(client, session, entering)
    next_sequence = {name: ranges[target].sequence for name, target in targets.items()}
    arrivals = []
    for found, each in moved:
        target = targets[each.to]
        available = now + each.delay * 1000 if each.delay else ranges[target].available
        position = {"s": target.shard, "q": target.messages, "k": next_sequence[each.to], "d": available}
        group = layout.group_fields(ranges[target].grouping, layout.decode_text(found.get("h", "")))
        arrivals.append({**_moved_document(source, found, each, now), **position, **group})
        next_sequence[each.to] += 1
    return arrivals, {target.shard: ranges[target].floor for target in targets.values()}


def _sum_arrivals(moved: Sequence[MovedMessage], now: int) -> Arrivals:
    fresh = None if all(each.delay for _, each in moved) else now
    grown = sum(len(each.body) - len(found["b"]) for found, each in moved if each.body is not None)
    return Arrivals(len(moved), fresh, bytes=grown, may_create=all(each.may_create for _, each in moved))


def _moved_document(source: QueueKey, found: BsonDocument, each: Move, now: int) -> BsonDocument:
    made = {field: value for field, value in found.items() if field not in ("c", "o", "r", "h1")}
    made["t"] = found["t"] if each.ttl is None else each.ttl
    made["e"] = DatetimeMS(now + made["t"] * 1000)
    if each.reason:
        made["o"] = {"q": source.shard, "n": layout.claim_count(found)}
        if first := layout.first_claim_time(found):
            made["o"]["f"] = first
        made["r"] = layout.encode_text(each.reason)
    elif not each.keeps_age:
        made["a"] = now
    if each.body is not None:
        made["b"] = each.body
        made.pop("m", None)
        if each.checksum:
            made["m"] = layout.encode_text(each.checksum)
    return made


def _unchanged_filter(client: StoreClient, source: QueueKey, found: BsonDocument) -> BsonDocument:
    claimed = {"c.n": found["c"]["n"]} if "c" in found else {}
    return client.where(source, _id=found["_id"], k=found["k"], d=found["d"], e=found["e"], **claimed)


def advance_fence(client: StoreClient, project: str, name: str, now: int) -> int:
    """Issue and return the next epoch (fencing token) of a fence. The first epoch is 1."""
    command: BsonDocument = {
        "query": fence_identity(project, name),
        "update": {"$inc": {"epoch": 1}, "$set": {"advanced": now}},
        "upsert": True,
        "new": True,
    }
    while True:
        try:
            fence = client.modify(command) or {}
        except DuplicateKeyError:  # another process created the fence at the same time
            continue
        return int(fence["epoch"])


def check_fence(client: StoreClient, session: Session, project: str, fence: Fence) -> None:
    """Raise ``Fenced`` if the epoch of ``fence`` is not the last issued epoch."""
    # If no epoch was issued, the check creates the document with epoch 0, so that issuing epoch 1 conflicts with it.
    touched = {"$set": {"epoch": {"$ifNull": ["$epoch", 0]}, "checks": {"$add": [{"$ifNull": ["$checks", 0]}, 1]}}}
    command: BsonDocument = {
        "query": fence_identity(project, fence.name),
        "update": [touched],
        "upsert": True,
        "new": True,
    }
    found = client.modify(command, session) or {}
    if found["epoch"] != fence.epoch:
        raise Fenced


def fence_identity(project: str, name: str) -> BsonDocument:
    shard = layout.project_prefix(project) + layout.encode_text(name)
    return {"_id": "f" + shard, "s": shard}
