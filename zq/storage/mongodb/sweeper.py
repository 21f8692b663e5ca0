# SPDX-License-Identifier: Apache-2.0
"""Gives space back: expired messages, records and known keys, and what purges, deletions and dead servers have left.

MongoDB's own TTL monitor removes expired documents once a minute, by the index on ``e``. A round of this does the same
sooner, in batches, by the same index, so it costs what there is to remove and not what lives.
"""

from collections.abc import Sequence
from typing import Final

from bson.datetime_ms import DatetimeMS

from zq.storage.mongodb import layout
from zq.storage.mongodb.commits import Commits
from zq.storage.mongodb.layout import Document
from zq.storage.mongodb.orphans import end_orphans
from zq.storage.mongodb.port import Port
from zq.storage.mongodb.removal import Removal

BATCH: Final = 1000
MAX_DELETES: Final = 100_000


class Sweeper:
    """One round at a time; several servers may sweep side by side."""

    def __init__(self, port: Port, removal: Removal, commits: Commits) -> None:
        self._port = port
        self._removal = removal
        self._commits = commits

    def sweep(self, now: int) -> int:
        """Remove up to ``MAX_DELETES`` expired messages; returns how many went."""
        with self._port.verb():
            end_orphans(self._port.client)
        removed = self._removal.finish_all()
        while removed < MAX_DELETES:
            with self._port.verb():
                met, gone = self._remove_expired(now)
            removed += gone
            if met < BATCH:
                break
        return removed + self._commits.resume(now)

    def _remove_expired(self, now: int) -> tuple[int, int]:
        """How many were found, and how many messages and records among them this server removed."""
        due = {"e": {"$lte": DatetimeMS(now)}}
        # Forgotten counters have an expiry too; they are the TTL monitor's.
        found = self._port.find(
            {**due, "k": {"$exists": True}}, limit=BATCH, sort={"e": 1}, hint=layout.EXPIRY, fields={"s": 1, "q": 1}
        )
        keys = [document for document in found if document["q"].startswith("o")]
        messages = [document for document in found if not document["q"].startswith("o")]
        # What a claim has kept alive since has another expiry now.
        self._remove(keys, due)
        return len(found), self._remove(messages, due)

    def _remove(self, found: Sequence[Document], due: Document) -> int:
        if not found:
            return 0
        named: Document = {"_id": {"$in": [document["_id"] for document in found]}, **due}
        if self._port.sharded:
            named["s"] = {"$in": list({document["s"] for document in found})}
        return self._port.delete_all(named)
