# SPDX-License-Identifier: Apache-2.0
"""Gives space back: whatever has expired, and what purges, deletions and dead servers have left.

MongoDB's own TTL monitor removes expired documents once a minute, by the index on ``e``. A round of this does the same
sooner, step by step, by the same index, so it costs what there is to remove and not what lives. Of several servers one
removes at a time: see ``leading``.
"""

from collections import Counter
from collections.abc import Sequence

from bson.datetime_ms import DatetimeMS

from zq.expiry import Pace
from zq.model import QueueRef
from zq.storage.mongodb import layout
from zq.storage.mongodb.commits import Commits
from zq.storage.mongodb.layout import Document
from zq.storage.mongodb.leading import Lead
from zq.storage.mongodb.orphans import end_orphans
from zq.storage.mongodb.port import Port
from zq.storage.mongodb.removal import Removal


class Sweeper:
    """The rounds of one server, one at a time."""

    def __init__(self, port: Port, removal: Removal, commits: Commits) -> None:
        self._port = port
        self._removal = removal
        self._commits = commits

    def sweep(self, now: int, pace: Pace, *, expired: bool) -> int:
        """One round, of what has ``expired`` only if so; how many expired messages went."""
        with self._port.verb():
            end_orphans(self._port.client)
        self._removal.finish_all(pace)
        removed = self._clear(now, pace) if expired else 0
        if drafts := self._commits.resume(now, stages=expired):
            pace.removed(drafts)
        return removed

    def _clear(self, now: int, pace: Pace) -> int:
        with self._port.verb():
            due = self._find(now, 1)
        if not due:
            return 0
        removed, met, size = 0, 0, 0
        with Lead(self._port) as lead:
            while met == size and (size := pace.step()) and lead.is_ours():
                with self._port.verb():
                    met, gone, others = self._step(now, size)
                removed += gone.total()
                self._port.removals.add("sweep", gone.total())
                for queue, count in gone.items():
                    pace.removed(count, queue)
                if others:
                    pace.removed(others)
        return removed

    def _find(self, now: int, limit: int) -> list[Document]:
        """What has expired, the oldest first."""
        due = {"e": {"$lte": DatetimeMS(now)}}
        return self._port.find(due, limit=limit, sort={"e": 1}, hint=layout.EXPIRY, fields={"s": 1, "q": 1})

    def _step(self, now: int, size: int) -> tuple[int, Counter[QueueRef], int]:
        """How many were found, how many messages of which queues were removed, and how much else."""
        found = self._find(now, size)
        messages = [one for one in found if one.get("q", "").startswith("m")]
        others = [one for one in found if not one.get("q", "").startswith("m")]
        removed = self._remove(others, now)
        gone = self._remove(messages, now)
        if gone < len(messages):  # a claim has kept it alive since, or somebody else was quicker
            named = self._named(messages)
            kept = {one["_id"] for one in self._port.find(named, fields={"_id": 1})}
            messages = [one for one in messages if one["_id"] not in kept][:gone]
        return len(found), Counter(layout.queue_of(one["s"]) for one in messages), removed

    def _remove(self, found: Sequence[Document], now: int) -> int:
        due = {"e": {"$lte": DatetimeMS(now)}}
        return self._port.delete_all({**self._named(found), **due}) if found else 0

    def _named(self, found: Sequence[Document]) -> Document:
        named: Document = {"_id": {"$in": [one["_id"] for one in found]}}
        return {**named, "s": {"$in": list({one["s"] for one in found})}} if self._port.sharded else named
