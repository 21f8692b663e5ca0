# SPDX-License-Identifier: Apache-2.0
"""Removal of expired documents, and of documents that purges, deletions and trims leave behind.

**Expired documents.** MongoDB's TTL monitor removes expired documents once a minute, by the index on ``e``. Active
expiry removes them sooner, in rounds of small steps, by the same index. The cost of a round therefore depends on the
number of expired documents and not on the number of live ones.

**Leader lease.** Only the server with the leader lease removes documents. If this server dies, another server takes
over at most ``LEASE`` seconds later. If two servers ever work at the same time, they only duplicate work.

**Purges and deletions.** A purge or deletion of a queue only updates the queue's document; see the module ``floors``.
The fields ``g`` and, for a deletion, ``g1`` store the sequence up to which documents are still to be deleted. The
leader deletes these documents in small steps:

1. The messages, whether claimed or not. In a grouped queue, outdated group entries are recomputed.
2. If the queue was deleted: its history entries and idempotency keys.
3. The fields ``g`` and ``g1``.

The counters of a deleted queue are kept for 60 days. If a queue of the same name is created during this time, its
sequences continue from the old counters, so they exceed all markers of the deleted queue.

**Topics.** Documents of purged topics and trimmed batches are deleted in the same way: see the module ``topic_log``.
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
from zq.model.documents import Guard
from zq.model.expiry import Pace
from zq.storage.mongodb import documents, groups, layout, topic_log
from zq.storage.mongodb.client import Session, StoreClient, end_orphans
from zq.storage.mongodb.commits import Commits
from zq.storage.mongodb.feed import Feed
from zq.storage.mongodb.floors import conflict_with_removals
from zq.storage.mongodb.group_commit import BEFORE_ALL
from zq.storage.mongodb.layout import CLOCK, SWEEPER, BsonDocument, QueueKey
from zq.storage.mongodb.open_posts import OpenPosts

# Duration of a leader lease in seconds.
LEASE: Final = 5.0


class LeaderLease:
    """The leader lease during one maintenance round.

    It is a context manager, which releases the lease on exit.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._round = uuid4().hex
        self._last_check = 0.0
        self._is_leader = False

    def __enter__(self) -> "LeaderLease":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._is_leader:
            with self._client.verb():
                self._client.modify({"query": {"_id": SWEEPER, "round": self._round}, "remove": True}, collection=CLOCK)

    def is_leader(self) -> bool:
        """Acquire or renew the lease if necessary, and return whether this round holds it."""
        if time.monotonic() - self._last_check > LEASE / 2:
            now = time.monotonic()
            with self._client.verb():
                found = self._client.modify(self._command(), collection=CLOCK)
            self._is_leader = found is not None and found["round"] == self._round
            self._last_check = now
        return self._is_leader

    def _command(self) -> BsonDocument:
        # A missing ``until`` compares as less than every time.
        free = {"$or": [{"$eq": ["$round", self._round]}, {"$lte": ["$until", "$$NOW"]}]}
        end = {"$add": ["$$NOW", round(LEASE * 1000)]}
        lease = {
            "round": {"$cond": [free, self._round, "$round"]},
            "until": {"$cond": [free, end, "$until"]},
        }
        return {"query": {"_id": SWEEPER}, "update": [{"$set": lease}], "upsert": True, "new": True}


# Retention of the counters of a deleted queue in milliseconds: 60 days.
COUNTER_RETENTION: Final = 60 * 86_400_000

# The update that deletes a queue. It takes a sequence, which separates the removed idempotency keys from later ones.
DELETION: Final[list[BsonDocument]] = [
    {"$set": {"k1": {"$add": [{"$ifNull": ["$k1", 0]}, 1]}}},
    {"$set": {**dict.fromkeys(("g", "g1", "m0", "h0"), "$k1"), "e": {"$add": ["$$NOW", COUNTER_RETENTION]}}},
    {"$unset": ["n", "b", "h", "n1", "w1"]},
]

# A document that records pending deletes: the document of a queue, the counter of a topic log, or the purge record of a
# topic. ``PENDING_FIELDS`` lists its fields.
Pending = BsonDocument
PENDING_FIELDS: Final = {"s": 1, "g": 1, "g1": 1, "d": 1}


class PendingDeletes:
    """The component that purges and deletes queues. It hides documents immediately, and deletes them later.

    After the last document of a purged topic is deleted, the component notifies all server processes. Each process then
    drops the topic batches that it has cached.
    """

    def __init__(self, client: StoreClient, feed: Feed, open_posts: OpenPosts) -> None:
        self._client = client
        self._feed = feed
        self._open_posts = open_posts

    def purge(self, key: QueueKey) -> None:
        """Make all messages of a queue invisible atomically. Ignore a missing queue."""
        last: BsonDocument = {"$ifNull": ["$k1", 0]}
        there = {"n": {"$exists": True}}
        self._client.transaction(partial(self._decide, key, [{"$set": {"g": last, "m0": last}}], there, 0))
        self._open_posts.settle(key)

    def delete(self, key: QueueKey) -> None:
        """Make a queue and all of its data invisible atomically."""
        if self._client.transaction(partial(self._decide, key, DELETION, {}, 1)):
            self._open_posts.settle(key)
            return
        # A queue without a document may have idempotency keys of requests that staged drafts for it.
        known = {"q": key.idempotency_keys, "k": {"$lte": BEFORE_ALL}, **self._client.shards([key.shard])}
        self._client.delete_all(known, hint=layout.OBSERVERS)

    def delete_guarded(self, key: QueueKey, guard: Guard, sequence: int | None) -> bool:
        """Delete the queue as ``ParcelController.delete_queue`` does."""
        there = {"n": {"$exists": True}}
        expected = {} if sequence is None else {"k1": sequence or {"$in": [0, None]}}

        def work(session: Session) -> bool:
            documents.check_guard(self._client, session, guard)
            if self._decide(key, DELETION, {**there, **expected}, 1, session):
                return True
            return not self._client.find({"_id": key.counter, "s": key.shard, **there}, session=session)

        is_missing = self._client.transaction(work)
        self._open_posts.settle(key)
        return is_missing

    def _decide(
        self, key: QueueKey, step: list[BsonDocument], conditions: BsonDocument, reserved: int, session: Session
    ) -> bool:
        """Apply the update ``step`` to the queue's document if the document exists and matches the conditions.

        Return whether the document was updated. The update conflicts with concurrent transactions that finish or move
        messages of the queue. ``reserved`` is the number of sequences that the step reserves.
        """
        where = {"_id": key.counter, "s": key.shard, **conditions}
        decided = self._client.modify({"query": where, "update": step, "new": True, "fields": {"k1": 1}}, session)
        if decided is None:
            return False
        last = int(decided.get("k1", 0))
        self._client.counters.record(key.counter, last - reserved, last)
        self._client.update([conflict_with_removals(key)], session)
        return True

    def resume(self, pace: Pace) -> None:
        """Delete documents that purges, deletions and trims have left behind, if this server is the leader."""
        with self._client.verb():
            found = self._client.find({"g": {"$exists": True}}, hint=layout.PENDING_DELETES, fields=PENDING_FIELDS)
        if not found:
            return
        with LeaderLease(self._client) as lease:
            for pending in found:
                if not lease.is_leader():
                    return
                self._settle(pending)
                while (size := pace.step()) and lease.is_leader():
                    count = self._step(pending, size)
                    if not count:
                        break
                    pace.removed(count)

    def _settle(self, pending: Pending) -> None:
        """Wait until all posts to the queue that are in progress have ended.

        The server that started the purge or deletion also waits, but it may have died before all posts ended.
        """
        if not pending["s"].startswith(topic_log.LOG):
            with self._client.verb():
                self._open_posts.settle(layout.key(layout.queue_of(pending["s"])))

    def _step(self, pending: Pending, max_removals: int) -> int:
        """Delete up to ``max_removals`` documents of a pending purge, deletion or trim, and return their number.

        If the number is 0, no work is left, and ``pending`` is removed from the database.
        """
        with self._client.verb():
            if pending["s"].startswith(topic_log.LOG):
                return self._log_step(pending, max_removals)
            key = layout.key(layout.queue_of(pending["s"]))
            removed = self._delete_batch({"q": key.messages}, pending, "g", max_removals) or groups.rewrite_up_to(
                self._client, key, pending["g"], max_removals
            )
            if not removed and "g1" in pending:
                known, records = {"q": "o" + pending["s"]}, {"q": "h" + pending["s"]}
                keys = {**pending, "g1": pending["g1"] - 1}
                removed = self._delete_batch(records, pending, "g1", max_removals) or self._delete_batch(
                    known, keys, "g1", max_removals
                )
                if not removed:
                    self._forget_later("c" + pending["s"], pending["s"])
            if not removed:
                note = {"_id": pending["_id"], "s": pending["s"], "g": pending["g"], "g1": pending.get("g1")}
                self._client.update([{"q": note, "u": {"$unset": {"g": "", "g1": ""}}}])
        return removed

    def _log_step(self, pending: Pending, max_removals: int) -> int:
        note = {field: pending[field] for field in ("_id", "s", "g")}
        whole = pending["_id"] == pending["s"]
        batches = {"q": pending["s"]} if whole else {"q": pending["s"], "d": pending["d"]}
        removed = self._delete_batch(batches, pending, "g", max_removals, layout.OBSERVERS if whole else layout.CLAIMS)
        if not removed and whole:
            self._client.update([{"q": note, "u": {"$unset": {"g": ""}}}])
        elif not removed:  # if this server dies after the notice, the record stays and another server notifies again
            self._feed.purge(topic_log.project_of(pending["s"]), pending["g"])
            self._client.delete_all(note)
        return removed

    def _delete_batch(
        self, what: BsonDocument, pending: Pending, bound: str, max_removals: int, index: str = layout.OBSERVERS
    ) -> int:
        where = {**what, "k": {"$lte": pending[bound]}, **self._client.shards([pending["s"]])}
        found = self._client.find(where, limit=max_removals, sort={"k": 1}, hint=index, fields={"_id": 0, "k": 1})
        if found:
            bounds = {"$gte": found[0]["k"], "$lte": found[-1]["k"]}
            self._client.delete_all({**where, "k": bounds}, hint=index)
        return len(found)

    def _forget_later(self, finishing: str, shard: str) -> None:
        """Set the expiry of a deleted queue's history counter."""
        step = [{"$set": {"e": {"$add": ["$$NOW", COUNTER_RETENTION]}}}]
        self._client.update([{"q": {"_id": finishing, "s": shard}, "u": step}])


class ActiveExpiry:
    """The maintenance rounds of one server."""

    def __init__(self, client: StoreClient, pending_deletes: PendingDeletes, commits: Commits) -> None:
        self._client = client
        self._pending_deletes = pending_deletes
        self._commits = commits

    def sweep(self, now: int, pace: Pace, *, expired: bool) -> int:
        """Run one maintenance round until ``pace`` ends it, and return the number of removed expired messages.

        If ``expired`` is False, only resume pending deletes and abandoned commits.
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
        removed, found_count, size = 0, 0, 0
        with LeaderLease(self._client) as lease:
            while found_count == size and (size := pace.step()) and lease.is_leader():
                with self._client.verb():
                    found_count, gone, others = self._step(now, size)
                removed += gone.total()
                self._client.removals.add("sweep", gone.total())
                for queue, count in gone.items():
                    pace.removed(count, queue)
                if others:
                    pace.removed(others)
        return removed

    def _find(self, now: int, limit: int) -> list[BsonDocument]:
        due = {"e": {"$lte": DatetimeMS(now)}}
        return self._client.find(due, limit=limit, sort={"e": 1}, hint=layout.EXPIRY, fields={"s": 1, "q": 1})

    def _step(self, now: int, size: int) -> tuple[int, Counter[QueueRef], int]:
        """Remove up to ``size`` expired documents.

        Return the number of expired documents that were found, the number of removed messages by queue, and the number
        of other removed documents.
        """
        found = self._find(now, size)
        messages = [one for one in found if one.get("q", "").startswith("m")]
        others = [one for one in found if not one.get("q", "").startswith("m")]
        removed = self._remove(others, now)
        gone = self._remove(messages, now)
        if gone < len(messages):  # a claim has extended a message meanwhile, or another server has removed one
            named = self._named(messages)
            kept = {one["_id"] for one in self._client.find(named, fields={"_id": 1})}
            messages = [one for one in messages if one["_id"] not in kept][:gone]
        return len(found), Counter(layout.queue_of(one["s"]) for one in messages), removed

    def _remove(self, found: Sequence[BsonDocument], now: int) -> int:
        due = {"e": {"$lte": DatetimeMS(now)}}
        return self._client.delete_all({**self._named(found), **due}) if found else 0

    def _named(self, found: Sequence[BsonDocument]) -> BsonDocument:
        return {"_id": {"$in": [one["_id"] for one in found]}, **self._client.shards(one["s"] for one in found)}
