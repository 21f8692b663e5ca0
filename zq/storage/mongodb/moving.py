# SPDX-License-Identifier: Apache-2.0
"""Moves of messages from queue to queue, in the caller's transaction: settled ones, dead letters, redrives."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from bson.datetime_ms import DatetimeMS

from zq.model import Move, Outcome
from zq.storage.mongodb import layout
from zq.storage.mongodb.counting import Entry, advance
from zq.storage.mongodb.finishing import leave_copies
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Forsaken, Port, Session

Journey = tuple[Document, Move]
"""A message, wholly as it was found, and its way."""


def counters(source: QueueKey, ways: Iterable[Move], history: int) -> set[str]:
    """The counters that moves write."""
    targets = {layout.key(source.ref._replace(name=way.to)).counter for way in ways}
    return {*targets, source.finishing} if history else targets


def move(
    port: Port, session: Session, source: QueueKey, journeys: Sequence[Journey], now: int, history: int = 0
) -> None:
    """Move them all, in this order; raises ``Forsaken`` if one of them has changed since it was found."""
    if not journeys:
        return
    arrivals = _arrivals(port, session, source, journeys, now)
    as_found = [_as_found(port, source, found) for found, _ in journeys]
    if port.sharded:  # where a document cannot go to another shard by a plain update
        gone = port.delete([{"q": one, "limit": 1, "hint": "_id_"} for one in as_found], session)
        port.insert(arrivals, session)
    else:
        statements = zip(as_found, arrivals, strict=True)
        gone = port.update([{"q": one, "u": arrival, "hint": "_id_"} for one, arrival in statements], session)
    if gone != len(journeys):
        raise Forsaken
    if history:
        left = [(found, Outcome.DEAD_LETTERED if way.reason else Outcome.MOVED) for found, way in journeys]
        leave_copies(port, session, source, left, now, history)


def _arrivals(
    port: Port, session: Session, source: QueueKey, journeys: Sequence[Journey], now: int
) -> Sequence[Document]:
    """What the messages become, each in the next place of its queue."""
    targets = {way.to: layout.key(source.ref._replace(name=way.to)) for _, way in journeys}
    entering: defaultdict[str, list[Move]] = defaultdict(list)
    for _, way in journeys:
        entering[way.to].append(way)
    entries = {
        targets[name]: Entry(len(ways), None if all(way.delay for way in ways) else now)
        for name, ways in entering.items()
    }
    places = advance(port, session, entries)
    next_sequence = {name: places[target].sequence for name, target in targets.items()}
    arrivals = []
    for found, way in journeys:
        target = targets[way.to]
        available = now + way.delay * 1000 if way.delay else places[target].available
        place = {"s": target.shard, "q": target.messages, "k": next_sequence[way.to], "d": available}
        arrivals.append({**_anew(source, found, way, now), **place})
        next_sequence[way.to] += 1
    return arrivals


def _anew(source: QueueKey, found: Document, way: Move, now: int) -> Document:
    """The message unclaimed, its life from now on."""
    made = {field: value for field, value in found.items() if field not in ("c", "o", "r")}
    made["t"] = found["t"] if way.ttl is None else way.ttl
    made["e"] = DatetimeMS(now + made["t"] * 1000)
    if way.reason:
        made["o"] = {"q": source.shard, "n": found.get("c", layout.NO_CLAIM)["n"]}
        made["r"] = layout.text(way.reason)
    else:
        made["a"] = now
    if way.body is not None:
        made["b"] = way.body
        made.pop("m", None)
        if way.checksum:
            made["m"] = layout.text(way.checksum)
    return made


def _as_found(port: Port, source: QueueKey, found: Document) -> Document:
    """A filter that the message fits as long as nobody has claimed, released or moved it."""
    claimed = {"c.n": found["c"]["n"]} if "c" in found else {}
    return port.where(source, _id=found["_id"], k=found["k"], d=found["d"], e=found["e"], **claimed)
