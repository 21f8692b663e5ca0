# SPDX-License-Identifier: Apache-2.0
"""Removal of expired documents, and of documents that purges, deletions and trims have left behind.

MongoDB's TTL monitor removes expired documents once a minute, by the index on ``e``. A round of active expiry does so
sooner, in steps, by the same index, so its cost depends on the documents to remove and not on the living ones. Of
several servers, the one with the leader lease does the work. If it dies, the others wait until the lease ends, some
seconds by MongoDB's clock; two servers at once would only do the same work twice.

A purge or deletion is one update of the queue's document, in a transaction: see ``floors``. It notes in ``g`` (and a
deletion in ``g1``) up to which sequence documents are to be deleted. Maintenance of any server deletes them in small
steps: the messages, whatever claims do with them; after a deletion the history entries and idempotency keys; then the
note. Entries of lines that were about such messages are placed anew. A deleted queue keeps its counters for a while, so
that markers stay below later sequences.

Purged topics and trimmed batches go the same way: see ``topic_log``.
"""

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Final
from uuid import uuid4

from bson.datetime_ms import DatetimeMS

from zq.model import QueueRef
from zq.model.expiry import Pace
from zq.storage.mongodb import layout, lines, topic_log
from zq.storage.mongodb.client import Session, StoreClient, end_orphans
from zq.storage.mongodb.commits import Commits
from zq.storage.mongodb.feed import Feed
from zq.storage.mongodb.floors import conflict_with_removals
from zq.storage.mongodb.group_commit import BEFORE_ALL
from zq.storage.mongodb.layout import CLOCK, SWEEPER, BsonDocument, QueueKey

# Seconds of a leader lease.
LEASE: Final = 5.0


class LeaderLease:
    """The leader lease of one round; a context manager that returns it."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._round = uuid4().hex
        self._heard = 0.0
        self._is_leader = False

    def __enter__(self) -> "LeaderLease":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._is_leader:
            with self._client.verb():
                self._client.modify({"query": {"_id": SWEEPER, "round": self._round}, "remove": True}, collection=CLOCK)

    def is_leader(self) -> bool:
        """Return whether this round has the lease for the next seconds; take or renew it if possible."""
        if time.monotonic() - self._heard > LEASE / 2:
            asked = time.monotonic()
            with self._client.verb():
                found = self._client.modify(self._command(), collection=CLOCK)
            self._is_leader = found is not None and found["round"] == self._round
            self._heard = asked
        return self._is_leader

    def _command(self) -> BsonDocument:
        """Return the command that takes or renews the lease, unless another round has it."""
        free = {"$or": [{"$eq": ["$round", self._round]}, {"$lte": ["$until", "$$NOW"]}]}  # a missing one is less
        end = {"$add": ["$$NOW", round(LEASE * 1000)]}
        lease = {
            "round": {"$cond": [free, self._round, "$round"]},
            "until": {"$cond": [free, end, "$until"]},
        }
        return {"query": {"_id": SWEEPER}, "update": [{"$set": lease}], "upsert": True, "new": True}


# Milliseconds for which the counter of a deleted queue is kept.
REMEMBERED: Final = 60 * 86_400_000

# The document of a queue or log, or the note of a topic's purge: ``_id``, ``s``, ``g``, and maybe ``g1`` and ``d``.
Pending = BsonDocument
NOTE: Final = {"s": 1, "g": 1, "g1": 1, "d": 1}


class PendingDeletes:
    """Purges and deletions of queues, and the deletes of their documents, of purged topics and of trimmed batches.

    The purge of a topic ends with a notice in the feed, so that no process remembers purged batches.
    """

    def __init__(self, client: StoreClient, feed: Feed) -> None:
        self._client = client
        self._feed = feed

    def purge(self, key: QueueKey) -> None:
        """Remove all messages of the queue, in one step."""
        last: BsonDocument = {"$ifNull": ["$k1", 0]}
        there = {"n": {"$exists": True}}
        self._client.transaction(partial(self._decide, key, [{"$set": {"g": last, "m0": last}}], there))

    def delete(self, key: QueueKey) -> None:
        """Remove the queue with its messages, history entries and idempotency keys, in one step."""
        # A deletion uses a sequence number, which separates its idempotency keys from later ones.
        floors = dict.fromkeys(("g", "g1", "m0", "h0"), "$k1")
        step: list[BsonDocument] = [
            {"$set": {"k1": {"$add": [{"$ifNull": ["$k1", 0]}, 1]}}},
            {"$set": {**floors, "e": {"$add": ["$$NOW", REMEMBERED]}}},
            {"$unset": ["n", "b", "h", "n1", "w1"]},
        ]
        if self._client.transaction(partial(self._decide, key, step, {})):
            return
        # A queue that was never created or posted to may have keys of stagings.
        known = {"q": key.known, "k": {"$lte": BEFORE_ALL}, **self._client.shards([key.shard])}
        self._client.delete_all(known, hint=layout.OBSERVERS)

    def _decide(self, key: QueueKey, step: list[BsonDocument], conditions: BsonDocument, session: Session) -> bool:
        """Update the queue's document, if there is one that fits. Return whether there is."""
        statement = {"q": {"_id": key.counter, "s": key.shard, **conditions}, "u": step, "hint": "_id_"}
        is_decided = self._client.update([statement], session) > 0
        if is_decided:
            self._client.update([conflict_with_removals(key)], session)
        return is_decided

    def resume(self, pace: Pace) -> None:
        """Delete documents that purges, deletions and trims have removed, as far as the pace allows."""
        with self._client.verb():
            found = self._client.find({"g": {"$exists": True}}, hint=layout.PENDING_DELETES, fields=NOTE)
        if not found:
            return
        with LeaderLease(self._client) as lease:
            for pending in found:
                while (size := pace.step()) and lease.is_leader():
                    count = self._step(pending, size)
                    if not count:
                        break
                    pace.removed(count)

    def _step(self, pending: Pending, most: int) -> int:
        """Delete some documents and return their number; remove the note if none is left."""
        with self._client.verb():
            if pending["s"].startswith(topic_log.LOG):
                return self._log_step(pending, most)
            removed = self._batch({"q": "m" + pending["s"]}, pending, "g", most) or lines.replace_up_to(
                self._client, layout.key(layout.queue_of(pending["s"])), pending["g"], most
            )
            if not removed and "g1" in pending:
                known, records = {"q": "o" + pending["s"]}, {"q": "h" + pending["s"]}
                keys = {**pending, "g1": pending["g1"] - 1}
                removed = self._batch(records, pending, "g1", most) or self._batch(known, keys, "g1", most)
                if not removed:
                    self._forget_later("c" + pending["s"], pending["s"])
            if not removed:
                note = {"_id": pending["_id"], "s": pending["s"], "g": pending["g"], "g1": pending.get("g1")}
                self._client.update([{"q": note, "u": {"$unset": {"g": "", "g1": ""}}}])
        return removed

    def _log_step(self, pending: Pending, most: int) -> int:
        """Delete some trimmed batches of a log, or batches of a purged topic, whose note is a document of its own."""
        note = {field: pending[field] for field in ("_id", "s", "g")}
        whole = pending["_id"] == pending["s"]
        batches = {"q": pending["s"]} if whole else {"q": pending["s"], "d": pending["d"]}
        removed = self._batch(batches, pending, "g", most, layout.OBSERVERS if whole else layout.CLAIMS)
        if not removed and whole:
            self._client.update([{"q": note, "u": {"$unset": {"g": ""}}}])
        elif not removed:  # if this server dies in between, the note stays and another one notifies again
            self._feed.purge(topic_log.project_of(pending["s"]), pending["g"])
            self._client.delete_all(note)
        return removed

    def _batch(self, what: BsonDocument, pending: Pending, bound: str, most: int, index: str = layout.OBSERVERS) -> int:
        """Delete some documents up to the noted sequence, and return the number that was found."""
        where = {**what, "k": {"$lte": pending[bound]}, **self._client.shards([pending["s"]])}
        found = self._client.find(where, limit=most, sort={"k": 1}, hint=index, fields={"_id": 0, "k": 1})
        if found:
            bounds = {"$gte": found[0]["k"], "$lte": found[-1]["k"]}
            self._client.delete_all({**where, "k": bounds}, hint=index)
        return len(found)

    def _forget_later(self, finishing: str, shard: str) -> None:
        """Let the counter of finishing expire with the queue's own. A verb that finishes a message keeps it."""
        step = [{"$set": {"e": {"$add": ["$$NOW", REMEMBERED]}}}]
        self._client.update([{"q": {"_id": finishing, "s": shard}, "u": step}])


class ActiveExpiry:
    """The rounds of one server; one runs at a time."""

    def __init__(self, client: StoreClient, pending_deletes: PendingDeletes, commits: Commits) -> None:
        self._client = client
        self._pending_deletes = pending_deletes
        self._commits = commits

    def sweep(self, now: int, pace: Pace, *, expired: bool) -> int:
        """Run one round and return the number of expired messages that it removed.

        ``expired`` False: remove the documents of purges, deletions and trims only.
        """
        with self._client.verb():
            end_orphans(self._client.pymongo)
        self._pending_deletes.resume(pace)
        removed = self._clear(now, pace) if expired else 0
        if drafts := self._commits.resume(now, stages=expired):
            pace.removed(drafts)
        return removed

    def _clear(self, now: int, pace: Pace) -> int:
        with self._client.verb():
            due = self._find(now, 1)
        if not due:
            return 0
        removed, met, size = 0, 0, 0
        with LeaderLease(self._client) as lease:
            while met == size and (size := pace.step()) and lease.is_leader():
                with self._client.verb():
                    met, gone, others = self._step(now, size)
                removed += gone.total()
                self._client.removals.add("sweep", gone.total())
                for queue, count in gone.items():
                    pace.removed(count, queue)
                if others:
                    pace.removed(others)
        return removed

    def _find(self, now: int, limit: int) -> list[BsonDocument]:
        """Find documents that have expired, the oldest first."""
        due = {"e": {"$lte": DatetimeMS(now)}}
        return self._client.find(due, limit=limit, sort={"e": 1}, hint=layout.EXPIRY, fields={"s": 1, "q": 1})

    def _step(self, now: int, size: int) -> tuple[int, Counter[QueueRef], int]:
        """Remove expired documents.

        Return the number that was found, the number of removed messages of each queue, and of other documents.
        """
        found = self._find(now, size)
        messages = [one for one in found if one.get("q", "").startswith("m")]
        others = [one for one in found if not one.get("q", "").startswith("m")]
        removed = self._remove(others, now)
        gone = self._remove(messages, now)
        if gone < len(messages):  # a claim has extended one since, or another server was quicker
            named = self._named(messages)
            kept = {one["_id"] for one in self._client.find(named, fields={"_id": 1})}
            messages = [one for one in messages if one["_id"] not in kept][:gone]
        return len(found), Counter(layout.queue_of(one["s"]) for one in messages), removed

    def _remove(self, found: Sequence[BsonDocument], now: int) -> int:
        due = {"e": {"$lte": DatetimeMS(now)}}
        return self._client.delete_all({**self._named(found), **due}) if found else 0

    def _named(self, found: Sequence[BsonDocument]) -> BsonDocument:
        return {"_id": {"$in": [one["_id"] for one in found]}, **self._client.shards(one["s"] for one in found)}
