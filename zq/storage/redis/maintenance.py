# SPDX-License-Identifier: Apache-2.0
"""Active expiry and store metrics.

Active expiry reclaims the memory of expired data, queue by queue, in the order of the expiry schedule. The cost of a
round depends on the amount of expired data and the number of due schedule entries, not on the amount of live data.

The expiry schedule is divided into buckets. Several servers run rounds concurrently. A round leases a bucket while it
works on it, and other rounds continue with the next bucket. The lease of a dead server expires after ``LEASE`` seconds.
A schedule entry is removed only after its queue was swept and the queue's next expiry was scheduled, so an interrupted
round loses nothing.
"""

import random
import time
from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from redis.exceptions import NoPermissionError

from zq.errors import Unavailable
from zq.model import QueueRef
from zq.model.expiry import Pace
from zq.model.stats import Depth, Measure
from zq.storage.redis import batches, layout, scripts
from zq.storage.redis.client import ReadRequest
from zq.storage.redis.store import Store

# Maximum number of entries that one script removes. Such a script blocks the server for 3 to 4 ms.
MAX_SCRIPT_REMOVALS: Final = 300
# Number of schedule entries read from a bucket at a time.
QUEUES: Final = 100
# Seconds for which a round leases a bucket after its last renewal.
LEASE: Final = 5.0


class ActiveExpiry:
    """Background removal of expired data by one server, in rounds."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._first = random.randrange(layout.BUCKETS)

    def sweep(self, now: int, pace: Pace) -> int:
        """Remove the expired data of all queues that are due, and return the number of removed messages."""
        sweep = SweepRound(self._store, now, pace)
        for step in range(layout.BUCKETS):
            number = (self._first + step) % layout.BUCKETS
            sweep.sweep_bucket(number)
            if sweep.over:
                self._first = number
                break
        return sweep.removed


class SweepRound:
    """A round of active expiry."""

    def __init__(self, store: Store, now: int, pace: Pace) -> None:
        self._store = store
        self._now = now
        self._pace = pace
        self._name = uuid4().bytes
        self._leased_at = 0.0
        self.removed = 0
        self.over = False

    def sweep_bucket(self, number: int) -> None:
        """Remove the expired data of all due queues in a bucket, unless another server's round has leased the bucket.

        A bucket is a part of the expiry schedule, which lists queues by the time of their next expiry.
        """
        due = self._due(number, QUEUES)
        if not due:
            return
        try:
            while due and all(self._sweep_queue(number, member) for member in due):
                due = self._due(number, QUEUES)
        finally:
            key = layout.bucket_lease_key(number)
            self._store.client.run(scripts.DUE_DONE, (key,), self._name)

    def _sweep_queue(self, number: int, member: bytes) -> bool:
        """Remove the expired data of one queue.

        Return ``False`` if the round must leave the bucket, because the lease was lost or the round has ended.
        """
        queue = layout.decode_full_name(member[layout.MOMENT.size :])
        while size := min(self._pace.step(), MAX_SCRIPT_REMOVALS):
            # The lease may have ended during a long pause.
            if time.monotonic() - self._leased_at > LEASE / 2 and not self._due(number, 1):
                return False
            messages, others, following = self._remove(queue, size)
            self.removed += messages
            self._store.removals.add("sweep", messages)
            if messages:
                self._pace.removed(messages, queue)
            if others:
                self._pace.removed(others)
            if messages + others < size:
                self._store.schedule(queue, following, member)
                return True
        self.over = True
        return False

    def _due(self, number: int, limit: int) -> list[bytes]:
        """Lease a bucket of the expiry schedule, and return up to ``limit`` schedule entries that are due.

        If another server's round has leased the bucket, return an empty list.
        """
        keys = layout.bucket_key(number), layout.bucket_lease_key(number)
        terms = b"%d" % self._now, b"%d" % limit, self._name, b"%d" % (LEASE * 1000)
        asked = time.monotonic()
        found: list[bytes] = self._store.client.run(scripts.DUE, keys, *terms)
        self._leased_at = asked
        return found

    def _remove(self, queue: QueueRef, size: int) -> tuple[int, int, int]:
        """Remove up to ``size`` expired messages and other items, such as history entries, from the queue.

        Return the number of removed messages, the number of other removed items, and the time of the next expiry in
        milliseconds. The time is 0 if the queue has no next expiry.
        """
        terms, keys = [b"%d" % self._now, b"%d" % size], layout.keys(queue)
        script, more = scripts.SWEEP, [keys.answers, keys.history]
        if queue == layout.project_ref(queue.project):
            bounds = b"-inf", terms[0], b"BYSCORE", b"LIMIT", b"0", terms[1]
            names = self._store.client.command(keys.staging, b"ZRANGE", keys.staging, *bounds)
            stages = [layout.stage_key(queue.project, layout.decode_text(name)) for name in names]
            script = scripts.SWEEP_PROJECT
            more = [keys.transactions, keys.answers, *batches.whole(queue.project), *stages]
            terms += names
        else:
            terms.append(keys.full_name)
        messages, others, following = self._store.run(script, queue, *terms, more=more)
        return messages, others, following


# Number of projects whose queues are listed together.
PROJECTS: Final = 100
# Maximum number of queues for which ``store_messages`` is reported.
MAX_REPORTED_QUEUES: Final = 5000
# Number of queues per bucket that are checked for expired data.
QUEUES_PER_BUCKET: Final = 16
MAX_EXPIRED_WAITING: Final = 100_000
# Kinds of a project's sorted sets by expiry.
BY_EXPIRY: Final = ("staging", "producing", "windows:", "fading", "ends")
BUCKETS: Final = [layout.bucket_key(number) for number in range(layout.BUCKETS)]


class StoreStats:
    """The metrics of one Redis store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._client = store.client

    def depths(self, now: int, queues: int, max_count: int) -> list[tuple[QueueRef, Depth]]:
        """Return (queue, message counts by state) of at most ``queues`` queues. No count exceeds ``max_count``."""
        named = self._queues(queues)
        terms = b"%d" % now, b"%d" % max_count
        replies = self._client.read_pipelined(
            [self._store.read_request(scripts.DEPTH, queue, *terms) for queue in named]
        )
        return [(queue, _depth(*figures)) for queue, figures in zip(named, replies, strict=True)]

    def depth(self, queue: QueueRef, now: int, max_count: int) -> Depth:
        return _depth(*self._store.run(scripts.DEPTH, queue, b"%d" % now, b"%d" % max_count))

    def measures(self, now: int) -> list[Measure]:
        return [*self._store.removals.measures(), *self._memory(), *self._messages(), *self._expired(now)]

    def _queues(self, max_count: int) -> list[QueueRef]:
        far = b"%d" % layout.LATEST_SCORE
        bounds = far, far, b"BYSCORE", b"LIMIT", b"0", b"%d" % max_count
        named = self._client.read_pipelined([ReadRequest(key, (b"ZRANGE", key, *bounds)) for key in BUCKETS])
        projects = [layout.decode_full_name(member[layout.MOMENT.size :]) for members in named for member in members]
        found: list[QueueRef] = []
        for start in range(0, len(projects), PROJECTS):
            if len(found) >= max_count:
                break
            part = projects[start : start + PROJECTS]
            last = b"%d" % (max_count - len(found) - 1)
            keys = [layout.keys(project).names for project in part]
            names = self._client.read_pipelined([ReadRequest(key, (b"ZRANGE", key, b"0", last)) for key in keys])
            for project, its in zip(part, names, strict=True):
                found += [QueueRef(project.project, layout.decode_text(name)) for name in its]
        return found[:max_count]

    def _memory(self) -> list[Measure]:
        keys = self._client.pick_per_server(BUCKETS)
        try:
            replies = self._client.read_pipelined([ReadRequest(key, (b"INFO", b"memory")) for key in keys])
        except Unavailable as unavailable:
            if isinstance(unavailable.__cause__, NoPermissionError):
                return []
            raise
        facts = [dict(line.split(":", 1) for line in one.decode().splitlines() if ":" in line) for one in replies]
        used, limit = (sum(int(one[name]) for one in facts) for name in ("used_memory", "maxmemory"))
        return [Measure("store_bytes", used, (("part", "memory"),)), Measure("store_limit_bytes", limit)]

    def _messages(self) -> list[Measure]:
        queues = self._queues(MAX_REPORTED_QUEUES + 1)
        if len(queues) > MAX_REPORTED_QUEUES:
            return []
        keys = [layout.keys(queue).stream for queue in queues]
        return [
            Measure(
                "store_messages", sum(self._client.read_pipelined([ReadRequest(key, (b"XLEN", key)) for key in keys]))
            )
        ]

    def _expired(self, now: int) -> list[Measure]:
        bounds = b"-inf", b"%d" % now, b"BYSCORE", b"LIMIT", b"0"
        due = self._client.read_pipelined(
            [ReadRequest(key, (b"ZRANGE", key, *bounds, b"%d" % QUEUES_PER_BUCKET)) for key in BUCKETS]
        )
        queues = dict.fromkeys(
            layout.decode_full_name(member[layout.MOMENT.size :]) for members in due for member in members
        )
        keys = [key for queue in queues for key in _by_expiry(queue)]
        firsts = self._client.read_pipelined(
            [ReadRequest(key, (b"ZRANGE", key, b"0", b"0", b"WITHSCORES")) for key in keys]
        )
        oldest = min((float(first[1]) for first in firsts if first), default=now)
        named = [layout.keys(queue).expiry for queue in queues if queue.name]
        counts = self._client.read_pipelined(
            [ReadRequest(key, (b"ZCOUNT", key, b"-inf", b"%d" % now)) for key in named]
        )
        return [
            Measure("expired_waiting", min(sum(counts), MAX_EXPIRED_WAITING)),
            Measure("sweep_lag_seconds", max(0.0, now - oldest) / 1000),
        ]


def _depth(ready: int, delayed: int, claimed: int, expired: int, since: int) -> Depth:
    return Depth(ready, delayed, claimed, expired, None if since < 0 else since / 1000)


def _by_expiry(queue: QueueRef) -> Sequence[bytes]:
    return layout.keys(queue).by_expiry if queue.name else layout.project_keys(queue.project, *BY_EXPIRY)
