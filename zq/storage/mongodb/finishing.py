# SPDX-License-Identifier: Apache-2.0
"""How messages finish: deleted, or, on a queue with history, turned into records, in the caller's transaction.

Positions and moments come from the queue's counter of finishing, in the same step, so that no reader can pass a record
that appears later. Whoever finishes messages of a queue with history waits for nobody but others who do.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from bson.datetime_ms import DatetimeMS

from zq.model import Outcome
from zq.storage.mongodb.layout import CLAIM_FIELDS, Document, QueueKey
from zq.storage.mongodb.port import Forsaken, Port, Session

TOGETHER: Final = 256
"""Messages that one update turns into records."""


class Ending(NamedTuple):
    """How and when (milliseconds) messages finish; ``history``: seconds for which records are kept, 0 = none are."""

    outcome: Outcome
    now: int
    history: int


def finish(
    port: Port,
    session: Session,
    key: QueueKey,
    places: Sequence[str],
    ending: Ending,
    conditions: Mapping[str, object] | None = None,
    first: Sequence[Document] = (),
) -> None:
    """Finish the messages of these ``_id``, no two alike, in this order; raises ``Forsaken`` if not all fit.

    They fit if they are in the queue and meet the ``conditions``; after a search in the same transaction it needs none.
    ``first``: stages of an update to be done before, when a record is made, for what must not be seen in it.
    """
    where = [
        port.where(key, _id={"$in": list(places[start : start + TOGETHER])}, **(conditions or {}))
        for start in range(0, len(places), TOGETHER)
    ]
    if not places:
        return
    if ending.history:
        position, finished = _position(port, session, key, len(places), ending.now)
        steps = [
            [*first, *_recording(key, one["_id"]["$in"], position + at * TOGETHER, finished, ending)]
            for at, one in enumerate(where)
        ]
        updates = [{"q": one, "u": step, "multi": True, "hint": "_id_"} for one, step in zip(where, steps, strict=True)]
        gone = port.update(updates, session)
    else:
        gone = port.delete([{"q": one, "limit": 0, "hint": "_id_"} for one in where], session)
    if gone != len(places):
        raise Forsaken


def leave_copies(
    port: Port, session: Session, key: QueueKey, found: Sequence[tuple[Document, Outcome]], now: int, history: int
) -> None:
    """Leave records of messages, as they were found, that live on in other places."""
    position, finished = _position(port, session, key, len(found), now)
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
        if "c" in copy:
            copy["c"] = {"n": copy["c"]["n"]}
        copies.append(copy)
    port.insert(copies, session)


def _recording(key: QueueKey, places: Sequence[str], position: int, finished: int, ending: Ending) -> list[Document]:
    """The update that makes records, with positions in the order of the places."""
    record: Document = {
        "q": {"$literal": key.records},
        "p": {"$add": [position, {"$indexOfArray": [{"$literal": places}, "$_id"]}]},
        "f": finished,
        "x": ending.outcome.value,
        "z": {"$ifNull": ["$y.e", "$e"]},  # the owner's word stands above the pins of commits
        "d": {"$ifNull": ["$y.d", "$d"]},
        "e": DatetimeMS(finished + ending.history * 1000),
    }
    return [{"$set": record}, {"$unset": [*CLAIM_FIELDS, "y"]}]


def _position(port: Port, session: Session, key: QueueKey, number: int, now: int) -> tuple[int, int]:
    """The first of so many positions, and the moment of finishing; nobody else gets any until the transaction ends."""
    step = [
        {"$set": {"p1": {"$add": [{"$ifNull": ["$p1", 0]}, number]}, "f1": {"$max": ["$f1", now]}}},
        {"$unset": "e"},
    ]
    command: Document = {"query": {"_id": key.finishing, "s": key.shard}, "update": step, "upsert": True, "new": True}
    counter = port.modify(command, session) or {}
    return counter["p1"] - number + 1, counter["f1"]
