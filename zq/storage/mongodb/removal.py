# SPDX-License-Identifier: Apache-2.0
"""Purging and deleting queues: decided in one step, carried out in bounded ones, finished by whoever finds it undone.

The decision notes in the queue's document up to which sequence (``g``) its messages go; a post is wholly before it or
wholly after, since both write that document. Then the messages go, in whatever state a claim may put them meanwhile,
then, after a deletion (``g1``), the records and known keys that belong to them, and the note is taken away. The verb
returns when all are gone. Should the server die before, ``finish_all`` of any other one goes on. A deleted queue keeps
its counters for a while, so that markers stay below whatever comes later. Purged topics, and what has fallen off a log,
go the same way: see ``log``.
"""

from collections.abc import Callable
from typing import Final

from zq.expiry import Pace
from zq.storage.mongodb import layout, log
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.once import BEFORE_ALL
from zq.storage.mongodb.port import Port

BATCH: Final = 5000
REMEMBERED: Final = 60 * 86_400_000
"""Milliseconds for which a deleted queue's counter is kept."""

Doomed = Document
"""A queue's or log's document, or the note of a topic's purge, with ``_id``, ``s``, ``g`` and maybe ``g1`` and ``d``;
empty = there is nothing to remove."""
NOTE: Final = {"s": 1, "g": 1, "g1": 1, "d": 1}


class Removal:
    """Removes the messages of purged and deleted queues, and of purged topics. ``tell`` is told of these: which
    project's, and up to which sequence; it returns when all are told."""

    def __init__(self, port: Port, tell: Callable[[str, int], None]) -> None:
        self._port = port
        self._tell = tell

    def doom(self, key: QueueKey, *, forget: bool) -> Doomed:
        """Decide; with ``forget`` the queue itself goes in the same step."""
        last = {"$ifNull": ["$k1", 0]}
        step: list[Document] = [{"$set": {"g": last}}]
        if forget:
            step[0]["$set"] |= {"g1": last, "e": {"$add": ["$$NOW", REMEMBERED]}}
            step.append({"$unset": ["n", "b"]})
        # A queue that was deleted by a server that died half-way is deleted once more.
        concerned = {"$or": [{"n": {"$exists": True}}, {"g": {"$exists": True}}]}
        command: Document = {
            "query": {"_id": key.counter, "s": key.shard, **concerned},
            "update": step,
            "new": True,
            "fields": NOTE,
        }
        doomed = self._port.modify(command) or {}
        if forget and not doomed:  # a queue that was never posted to may have keys of stagings
            known: Document = {"s": key.shard} if self._port.sharded else {}
            known |= {"q": key.known, "k": {"$lte": BEFORE_ALL}}
            self._port.delete_all(known, hint=layout.OBSERVERS)
        return doomed

    def finish(self, doomed: Doomed) -> None:
        """Carry it out, however long it takes; each step keeps to the timeout."""
        while doomed and self._step(doomed):
            pass

    def finish_all(self, pace: Pace) -> None:
        """Carry out what others have left undone, as far as the pace goes."""
        with self._port.verb():
            found = self._port.find({"g": {"$exists": True}}, hint=layout.DOOMED, fields=NOTE)
        for doomed in found:
            while size := pace.step():
                count = self._step(doomed, size)
                if not count:
                    break
                pace.removed(count)

    def _step(self, doomed: Doomed, most: int = BATCH) -> int:
        """Remove a batch, or take the note away when nothing is left."""
        with self._port.verb():
            if doomed["s"].startswith(log.LOG):
                return self._log_step(doomed, most)
            removed = self._batch({"q": "m" + doomed["s"]}, doomed, "g", most)
            if not removed and "g1" in doomed:
                known, records = {"q": "o" + doomed["s"]}, {"q": "h" + doomed["s"]}
                removed = self._batch(records, doomed, "g1", most) or self._batch(known, doomed, "g1", most)
                if not removed:
                    self._forget_later("c" + doomed["s"], doomed["s"])
            if not removed:
                note = {"_id": doomed["_id"], "s": doomed["s"], "g": doomed["g"], "g1": doomed.get("g1")}
                self._port.update([{"q": note, "u": {"$unset": {"g": "", "g1": ""}}}])
        return removed

    def _log_step(self, doomed: Doomed, most: int) -> int:
        """The same for what has fallen off a log, or a purged topic, whose note is a document of its own."""
        note = {field: doomed[field] for field in ("_id", "s", "g")}
        whole = doomed["_id"] == doomed["s"]
        batches = {"q": doomed["s"]} if whole else {"q": doomed["s"], "d": doomed["d"]}
        removed = self._batch(batches, doomed, "g", most, layout.OBSERVERS if whole else layout.CLAIMS)
        if not removed and whole:
            self._port.update([{"q": note, "u": {"$unset": {"g": ""}}}])
        elif not removed:  # whoever dies in between leaves the note, and others tell it again
            self._tell(log.project_of(doomed["s"]), doomed["g"])
            self._port.delete_all(note)
        return removed

    def _batch(self, what: Document, doomed: Doomed, bound: str, most: int, index: str = layout.OBSERVERS) -> int:
        """Remove some documents up to the noted sequence; how many were found."""
        where: Document = {**what, "k": {"$lte": doomed[bound]}}
        if self._port.sharded:
            where["s"] = doomed["s"]
        found = self._port.find(where, limit=most, sort={"k": 1}, hint=index, fields={"_id": 0, "k": 1})
        if found:
            bounds = {"$gte": found[0]["k"], "$lte": found[-1]["k"]}
            self._port.delete_all({**where, "k": bounds}, hint=index)
        return len(found)

    def _forget_later(self, finishing: str, shard: str) -> None:
        """The counter of finishing has as long to live as the queue's own; who finishes a message prolongs it."""
        step = [{"$set": {"e": {"$add": ["$$NOW", REMEMBERED]}}}]
        self._port.update([{"q": {"_id": finishing, "s": shard}, "u": step}])
