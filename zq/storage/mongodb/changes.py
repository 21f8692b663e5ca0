# SPDX-License-Identifier: Apache-2.0
"""Changes that several verbs make in the caller's transaction: finish messages, move them, check a fence.

A message finishes by being deleted or, on a queue with history, by becoming a history entry. Positions and moments of
entries come from the queue's counter of finishing, in the same transaction, so that no reader can pass an entry that
appears later. Verbs that finish messages do not wait for posts.

A fence is a document with the last epoch and the moment at which it was issued (``advanced``). A check writes the
document, too, in the transaction that the fence protects. So an epoch that is issued meanwhile is either before that
transaction, which then finds it, or after it.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from pymongo.errors import DuplicateKeyError

from zq.errors import Fenced
from zq.model import Fence, Move, Outcome
from zq.storage.mongodb import layout, lines
from zq.storage.mongodb.client import Aborted, Session, StoreClient
from zq.storage.mongodb.commands import RemovalPending
from zq.storage.mongodb.counters import Arrivals, advance
from zq.storage.mongodb.floors import conflict_with_removals, find_there, guarded_update
from zq.storage.mongodb.layout import CLAIM_FIELDS, IN_NO_LINE, BsonDocument, QueueKey


def held_filter(client: StoreClient, key: QueueKey, claim: str, now: int) -> BsonDocument:
    """Return the filter on the messages that the claim holds, if it has not ended."""
    return client.where(key, **held_by(claim, now), e={"$gt": DatetimeMS(now)})


def held_by(claim: str, now: int) -> BsonDocument:
    """Return the condition that the claim holds a message."""
    return {"c.i": layout.text(claim), "c.e": {"$gt": now}}


def reserved_id(claim: str) -> Binary:
    """Return ``c.i`` of messages of the claim that a commit has reserved."""
    return Binary(layout.text(claim).encode())


def update_held(client: StoreClient, key: QueueKey, claim: str, now: int, step: list[BsonDocument]) -> int:
    """Update all messages in no line that the claim holds. Return their number; 0 if ``update_found`` is to look."""
    held = {**held_filter(client, key, claim, now), **IN_NO_LINE}
    try:
        return client.update([guarded_update(key), {"q": held, "u": step, "multi": True, "hint": layout.HELD}])
    except RemovalPending:
        return 0


def update_found(
    client: StoreClient,
    key: QueueKey,
    claim: str,
    now: int,
    step: list[BsonDocument],
    until: int = 0,
    fence: Fence | None = None,
) -> int:
    """Update all messages that the claim holds, in one transaction, and return their number.

    ``until`` is the latest expiry of one of them after the update. Raise ``Fenced`` if the fence has a later epoch.
    """
    held = held_filter(client, key, claim, now)

    def work(session: Session) -> int:
        if fence is not None:
            check_fence(client, session, key.ref.project, fence)
        found = find_there(client, [key], held, fields={"h1": 1}, hint=layout.HELD, session=session)
        named = client.where(key, _id={"$in": [one["_id"] for one in found]})
        if found:
            client.update([{"q": named, "u": step, "multi": True, "hint": "_id_"}], session)
            lines.update_entries(client, session, key, found, now, until)
        return len(found)

    if fence is None and not client.find(held, limit=1, fields={"_id": 1}, hint=layout.HELD):
        return 0
    return client.transaction(work)


# Messages that one update turns into history entries.
MESSAGES_AT_ONCE: Final = 256


class Ending(NamedTuple):
    """The outcome of messages and its moment (milliseconds); ``history``: seconds for which entries stay, 0 = none."""

    outcome: Outcome
    now: int
    history: int


def finish(
    client: StoreClient,
    session: Session,
    key: QueueKey,
    doc_ids: Sequence[str],
    ending: Ending,
    conditions: Mapping[str, object] | None = None,
    first: Sequence[BsonDocument] = (),
) -> None:
    """Finish the messages of these distinct ``_id`` in this order. Raise ``Aborted`` if not all of them fit.

    A message fits if it is in the queue and meets the ``conditions``; after a search in the same transaction no
    conditions are needed. ``first`` are the first stages of the update that makes a history entry: they remove fields
    that the entry must not have.
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
            [*first, *_recording(key, one["_id"]["$in"], position + at * MESSAGES_AT_ONCE, finished, ending)]
            for at, one in enumerate(where)
        ]
        updates = [{"q": one, "u": step, "multi": True, "hint": "_id_"} for one, step in zip(where, steps, strict=True)]
        gone = client.update(updates, session)
    else:
        gone = client.delete([{"q": one, "limit": 0, "hint": "_id_"} for one in where], session)
    if gone != len(doc_ids):
        raise Aborted


def leave_copies(
    client: StoreClient,
    session: Session,
    key: QueueKey,
    found: Sequence[tuple[BsonDocument, Outcome]],
    now: int,
    history: int,
) -> None:
    """Insert history entries of messages, as they were found, that have moved to other queues."""
    position, finished = _position(client, session, key, len(found), now)
    copies = []
    for at, (message, outcome) in enumerate(found, position):
        copy = {
            **message,
            "_id": f"{key.records}/{at}",
            "i": message["_id"],
            "q": key.records,
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


def _recording(
    key: QueueKey, doc_ids: Sequence[str], position: int, finished: int, ending: Ending
) -> list[BsonDocument]:
    """Return the update that makes history entries, with positions in the order of the ids."""
    record: BsonDocument = {
        "q": {"$literal": key.records},
        "p": {"$add": [position, {"$indexOfArray": [{"$literal": doc_ids}, "$_id"]}]},
        "f": finished,
        "x": ending.outcome.value,
        "z": {"$ifNull": ["$y.e", "$e"]},  # the values of before a commit reserved the message
        "d": {"$ifNull": ["$y.d", "$d"]},
        "e": DatetimeMS(finished + ending.history * 1000),
    }
    return [{"$set": record}, {"$unset": [*CLAIM_FIELDS, "y", "h1"]}]


def _position(client: StoreClient, session: Session, key: QueueKey, number: int, now: int) -> tuple[int, int]:
    """Take positions. Return the first one and the moment of finishing; later transactions get later ones."""
    step = [
        {"$set": {"p1": {"$add": [{"$ifNull": ["$p1", 0]}, number]}, "f1": {"$max": ["$f1", now]}}},
        {"$unset": "e"},
    ]
    command: BsonDocument = {
        "query": {"_id": key.finishing, "s": key.shard},
        "update": step,
        "upsert": True,
        "new": True,
    }
    counter = client.modify(command, session) or {}
    return counter["p1"] - number + 1, counter["f1"]


# The whole document of a message, as it was found, and its move.
MovedMessage = tuple[BsonDocument, Move]


def counters(source: QueueKey, moves: Iterable[Move], history: int) -> set[str]:
    """Return the ``_id`` of each counter that moves, or deletions with history, write."""
    targets = {layout.key(source.ref._replace(name=each.to)).counter for each in moves}
    return {*targets, source.finishing} if targets or history else set()


def move(
    client: StoreClient, session: Session, source: QueueKey, moved: Sequence[MovedMessage], now: int, history: int = 0
) -> None:
    """Move the messages, in this order. Raise ``Aborted`` if one of them has changed since it was found."""
    if not moved:
        return
    arrivals, floors = _arrivals(client, session, source, moved, now)
    unchanged = [_unchanged(client, source, found) for found, _ in moved]
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
        raise Aborted
    lines.join(client, session, arrivals, floors)
    lines.update_entries(client, session, source, [found for found, _ in moved], now)
    if history:
        finished = [(found, Outcome.DEAD_LETTERED if each.reason else Outcome.MOVED) for found, each in moved]
        leave_copies(client, session, source, finished, now, history)


def _arrivals(
    client: StoreClient, session: Session, source: QueueKey, moved: Sequence[MovedMessage], now: int
) -> tuple[Sequence[BsonDocument], Mapping[str, int]]:
    """Return what the messages become, each with the next sequence of its queue, and the floors of these queues."""
    targets = {each.to: layout.key(source.ref._replace(name=each.to)) for _, each in moved}
    by_target: defaultdict[str, list[MovedMessage]] = defaultdict(list)
    for found, each in moved:
        by_target[each.to].append((found, each))
    entering = {targets[name]: _entry(some, now) for name, some in by_target.items()}
    ranges = advance(client, session, entering)
    next_sequence = {name: ranges[target].sequence for name, target in targets.items()}
    arrivals = []
    for found, each in moved:
        target = targets[each.to]
        available = now + each.delay * 1000 if each.delay else ranges[target].available
        position = {"s": target.shard, "q": target.messages, "k": next_sequence[each.to], "d": available}
        line = layout.line_of(ranges[target].grouping, layout.original(found.get("h", "")))
        arrivals.append({**_anew(source, found, each, now), **position, **line})
        next_sequence[each.to] += 1
    return arrivals, {target.shard: ranges[target].floor for target in targets.values()}


def _entry(moved: Sequence[MovedMessage], now: int) -> Arrivals:
    """Return what the moves add to one queue. The project's usage grows by the difference of replaced bodies only."""
    fresh = None if all(each.delay for _, each in moved) else now
    grown = sum(len(each.body) - len(found["b"]) for found, each in moved if each.body is not None)
    return Arrivals(len(moved), fresh, bytes=grown)


def _anew(source: QueueKey, found: BsonDocument, each: Move, now: int) -> BsonDocument:
    """Return the message without its claim, with a ttl that begins now."""
    made = {field: value for field, value in found.items() if field not in ("c", "o", "r", "h1")}
    made["t"] = found["t"] if each.ttl is None else each.ttl
    made["e"] = DatetimeMS(now + made["t"] * 1000)
    if each.reason:
        made["o"] = {"q": source.shard, "n": layout.claim_count(found)}
        if first := layout.first_claimed(found):
            made["o"]["f"] = first
        made["r"] = layout.text(each.reason)
    elif not each.keeps_age:
        made["a"] = now
    if each.body is not None:
        made["b"] = each.body
        made.pop("m", None)
        if each.checksum:
            made["m"] = layout.text(each.checksum)
    return made


def _unchanged(client: StoreClient, source: QueueKey, found: BsonDocument) -> BsonDocument:
    """Return a filter that fits the message as long as it was not claimed, released or moved."""
    claimed = {"c.n": found["c"]["n"]} if "c" in found else {}
    return client.where(source, _id=found["_id"], k=found["k"], d=found["d"], e=found["e"], **claimed)


def advance_fence(client: StoreClient, project: str, name: str, now: int) -> int:
    """Issue the next epoch; the first is 1."""
    command: BsonDocument = {
        "query": _fence_identity(project, name),
        "update": {"$inc": {"epoch": 1}, "$set": {"advanced": now}},
        "upsert": True,
        "new": True,
    }
    while True:
        try:
            fence = client.modify(command) or {}
        except DuplicateKeyError:  # two processes created it at once
            continue
        return int(fence["epoch"])


def check_fence(client: StoreClient, session: Session, project: str, fence: Fence) -> None:
    """Raise ``Fenced`` unless the epoch is the last one issued, and still is when the transaction commits."""
    # Epoch 0: none was issued. The document is created, so that the first epoch conflicts with it.
    touched = {"$set": {"epoch": {"$ifNull": ["$epoch", 0]}, "checks": {"$add": [{"$ifNull": ["$checks", 0]}, 1]}}}
    command: BsonDocument = {
        "query": _fence_identity(project, fence.name),
        "update": [touched],
        "upsert": True,
        "new": True,
    }
    found = client.modify(command, session) or {}
    if found["epoch"] != fence.epoch:
        raise Fenced


def _fence_identity(project: str, name: str) -> BsonDocument:
    """Return the filter that finds or creates the fence."""
    shard = layout.project_prefix(project) + layout.text(name)
    return {"_id": "f" + shard, "s": shard}
