# SPDX-License-Identifier: Apache-2.0
"""Purging and deleting queues: decided in one step, carried out in bounded ones, finished by whoever finds it undone.

The decision notes in the queue's document up to which sequence (``g``) its messages go; a post is wholly before it or
wholly after, since both write that document. Then the messages go, in whatever state a claim may put them meanwhile,
and the note is taken away. The verb returns when all are gone. Should the server die before, ``finish_all`` of any
other one goes on. A deleted queue keeps its counter for a while, so that markers stay below whatever comes later.
"""

from typing import Final

from zq.storage.mongodb import layout
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Port

BATCH: Final = 5000
REMEMBERED: Final = 60 * 86_400_000
"""Milliseconds for which a deleted queue's counter is kept."""

Doomed = Document
"""A queue's document with ``_id``, ``s`` and ``g``; empty = there is nothing to remove."""


class Removal:
    """Removes the messages of purged and deleted queues."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def doom(self, key: QueueKey, *, forget: bool) -> Doomed:
        """Decide; with ``forget`` the queue itself goes in the same step."""
        step: list[Document] = [{"$set": {"g": {"$ifNull": ["$k1", 0]}}}]
        if forget:
            step[0]["$set"]["e"] = {"$add": ["$$NOW", REMEMBERED]}
            step.append({"$unset": ["n", "b"]})
        # A queue that was deleted by a server that died half-way is deleted once more.
        concerned = {"$or": [{"n": {"$exists": True}}, {"g": {"$exists": True}}]}
        command: Document = {
            "query": {"_id": key.counter, "s": key.shard, **concerned},
            "update": step,
            "new": True,
            "fields": {"s": 1, "g": 1},
        }
        return self._port.modify(command) or {}

    def finish(self, doomed: Doomed) -> int:
        """Carry it out, however long it takes; each step keeps to the timeout. Returns how many messages went."""
        if not doomed:
            return 0
        removed = 0
        while count := self._step(doomed):
            removed += count
        return removed

    def finish_all(self) -> int:
        """Carry out what others have left undone; returns how many messages went."""
        with self._port.verb():
            found = self._port.find({"g": {"$exists": True}}, hint=layout.DOOMED, fields={"s": 1, "g": 1})
        return sum(self.finish(doomed) for doomed in found)

    def _step(self, doomed: Doomed) -> int:
        """Remove a batch, or take the note away when nothing is left."""
        where: Document = {"q": "m" + doomed["s"], "k": {"$lte": doomed["g"]}}
        if self._port.sharded:
            where["s"] = doomed["s"]
        with self._port.verb():
            found = self._port.find(where, limit=BATCH, sort={"k": 1}, hint=layout.OBSERVERS, fields={"_id": 0, "k": 1})
            if found:
                bounds = {"$gte": found[0]["k"], "$lte": found[-1]["k"]}
                self._port.delete_all({**where, "k": bounds}, hint=layout.OBSERVERS)
                return len(found)
            note = {"_id": doomed["_id"], "s": doomed["s"], "g": doomed["g"]}
            self._port.update([{"q": note, "u": {"$unset": {"g": ""}}}])
        return 0
