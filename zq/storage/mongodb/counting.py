# SPDX-License-Identifier: Apache-2.0
"""Queues' counters: where messages get their sequence and their moment, in the step in which they enter a queue."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Port, Session

FALSE_FUTURE: Final = 60_000
"""Milliseconds ahead of now at which a queue's last moment must stem from a clock that was wrong."""
NO_METADATA: Final = b"{}"
Step = Document | list[Document]
"""An update."""


class Entry(NamedTuple):
    """How many messages (``number``) enter a queue; ``fresh`` = at which moment, if one of them has no delay."""

    number: int
    fresh: int | None


class Place(NamedTuple):
    """Where they enter: the first one's sequence, the moment from which those without delay are available, metadata."""

    sequence: int
    available: int
    metadata: bytes


def advance(port: Port, session: Session, entries: Mapping[QueueKey, Entry]) -> Mapping[QueueKey, Place]:
    """Make room in the queues, which are created if they are missing; nobody else can until the transaction ends.

    Always in the order of names, so that two that need the same queues do not each hold what the other waits for.
    """
    steps = {key: _step(key, entry) for key, entry in entries.items()}
    counters = bump(port, session, steps, {"k1": 1, "d1": 1, "b": 1})
    return {key: _place(counter, entries[key].number) for key, counter in counters.items()}


def bump(
    port: Port, session: Session, steps: Mapping[QueueKey, Step], fields: Mapping[str, int]
) -> Mapping[QueueKey, Document]:
    """Change counters, or make them, always in the order of names; the fields that are asked for, as they are now."""
    keys = sorted(steps, key=lambda key: key.counter)
    if len(keys) == 1:
        (key,) = keys
        command = {"query": _identity(key), "update": steps[key], "upsert": True, "new": True, "fields": fields}
        found = [port.modify(command, session) or {}]
    else:
        port.update([{"q": _identity(key), "u": steps[key], "upsert": True} for key in keys], session)
        named: Document = {"_id": {"$in": [key.counter for key in keys]}}
        if port.sharded:
            named["s"] = {"$in": [key.shard for key in keys]}
        found = port.find(named, fields=fields, session=session)
    counters = {counter["_id"]: counter for counter in found}
    return {key: counters[key.counter] for key in keys}


def _place(counter: Document, number: int) -> Place:
    return Place(counter["k1"] - number + 1, counter.get("d1", 0), counter["b"])


def _identity(key: QueueKey) -> Document:
    return {"_id": key.counter, "s": key.shard}


def _step(key: QueueKey, entry: Entry) -> list[Document]:
    made: Document = {
        "n": key.shard,
        "b": {"$ifNull": ["$b", NO_METADATA]},
        "k1": {"$add": [{"$ifNull": ["$k1", 0]}, entry.number]},
    }
    if entry.fresh is not None:
        believed = {"$lte": ["$d1", entry.fresh + FALSE_FUTURE]}
        made["d1"] = {"$cond": [believed, {"$max": ["$d1", entry.fresh]}, entry.fresh]}
    return [{"$set": made}, {"$unset": "e"}]
