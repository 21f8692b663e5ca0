# SPDX-License-Identifier: Apache-2.0
"""What servers do and ask beside the verbs: active expiry, and the figures of a store.

Active expiry gives back the memory of what has expired, queue by queue as the expiry schedule says, together with other
servers.

A round costs what there is to remove and what the schedule has due, not what lives. Of the rounds of several servers
one works on a bucket at a time, the others go on to the next one; a bucket whose server died is free again after
``LEASE``. An entry is removed only after its queue was looked at and the next expiry of that queue is entered, so an
interrupted round loses nothing.
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
from zq.storage.redis.client import Question
from zq.storage.redis.store import Store

# Things that one script removes: it holds up the server for 3 to 4 ms.
MOST: Final = 300
# Entries read from a bucket at a time.
QUEUES: Final = 100
# Seconds for which a round has a bucket, from its last word on.
LEASE: Final = 5.0


class ActiveExpiry:
    """The rounds of one server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._first = random.randrange(layout.BUCKETS)

    def sweep(self, now: int, pace: Pace) -> int:
        """One round over all buckets; how many expired messages went."""
        sweep = Round(self._store, now, pace)
        for step in range(layout.BUCKETS):
            number = (self._first + step) % layout.BUCKETS
            sweep.clear(number)
            if sweep.over:
                self._first = number
                break
        return sweep.removed


class Round:
    """One round. ``over``: the pace ended it."""

    def __init__(self, store: Store, now: int, pace: Pace) -> None:
        self._store = store
        self._now = now
        self._pace = pace
        self._name = uuid4().bytes
        self._heard = 0.0
        self.removed = 0
        self.over = False

    def clear(self, number: int) -> None:
        """Look at every queue that the bucket has due, unless another round is at it."""
        due = self._due(number, QUEUES)
        if not due:
            return
        try:
            while due and all(self._look(number, member) for member in due):
                due = self._due(number, QUEUES)
        finally:
            key = layout.bucket_lease(number)
            self._store.client.run(scripts.DUE_DONE, (key,), self._name)

    def _look(self, number: int, member: bytes) -> bool:
        """Remove what has expired in a queue; whether this round goes on with the bucket."""
        queue = layout.queue_of(member[layout.MOMENT.size :])
        while size := min(self._pace.step(), MOST):
            # The pace may have slept for so long that the bucket is another round's.
            if time.monotonic() - self._heard > LEASE / 2 and not self._due(number, 1):
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
        """What the bucket has due, which is this round's alone from now on; nothing if it is another one's."""
        keys = layout.bucket(number), layout.bucket_lease(number)
        terms = b"%d" % self._now, b"%d" % limit, self._name, b"%d" % (LEASE * 1000)
        asked = time.monotonic()
        found: list[bytes] = self._store.client.run(scripts.DUE, keys, *terms)
        self._heard = asked
        return found

    def _remove(self, queue: QueueRef, size: int) -> tuple[int, int, int]:
        """How many messages went, how much else, and when there is something to do again (0: never)."""
        terms, keys = [b"%d" % self._now, b"%d" % size], layout.keys(queue)
        script, more = scripts.SWEEP, [keys.answers, keys.history]
        if queue == layout.whole(queue.project):
            bounds = b"-inf", terms[0], b"BYSCORE", b"LIMIT", b"0", terms[1]
            names = self._store.client.command(keys.staging, b"ZRANGE", keys.staging, *bounds)
            stages = [layout.content(queue.project, layout.string(name)) for name in names]
            script = scripts.SWEEP_PROJECT
            more = [keys.transactions, keys.answers, *batches.whole(queue.project), *stages]
            terms += names
        else:
            terms.append(keys.full)
        messages, others, following = self._store.run(script, queue, *terms, more=more)
        return messages, others, following


# Projects whose queues are asked for together.
PROJECTS: Final = 100
# Queues whose messages are counted for ``store_messages``: all of them, then.
COUNTED: Final = 5000
# Queues of each bucket that are looked at for what waits.
DUE: Final = 16
MOST_WAITING: Final = 100_000
# Kinds of a project's sorted sets by expiry.
BY_EXPIRY: Final = ("staging", "producing", "windows:", "fading", "ends")
BUCKETS: Final = [layout.bucket(number) for number in range(layout.BUCKETS)]


class StoreStats:
    """The figures of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._client = store.client

    def depths(self, now: int, queues: int, most: int) -> list[tuple[QueueRef, Depth]]:
        """The first queues, in the order of buckets and names, and what is in each."""
        named = self._queues(queues)
        terms = b"%d" % now, b"%d" % most
        replies = self._client.each([self._store.question(scripts.DEPTH, queue, *terms) for queue in named])
        return [(queue, _depth(*figures)) for queue, figures in zip(named, replies, strict=True)]

    def depth(self, queue: QueueRef, now: int, most: int) -> Depth:
        """What is in one queue."""
        return _depth(*self._store.run(scripts.DEPTH, queue, b"%d" % now, b"%d" % most))

    def measures(self, now: int) -> list[Measure]:
        return [*self._store.removals.measures(), *self._memory(), *self._messages(), *self._waiting(now)]

    def _queues(self, most: int) -> list[QueueRef]:
        """The first queues of the store. The expiry schedule names all projects that have any."""
        far = b"%d" % layout.FAR
        bounds = far, far, b"BYSCORE", b"LIMIT", b"0", b"%d" % most
        named = self._client.each([Question(key, (b"ZRANGE", key, *bounds)) for key in BUCKETS])
        projects = [layout.queue_of(member[layout.MOMENT.size :]) for members in named for member in members]
        found: list[QueueRef] = []
        for start in range(0, len(projects), PROJECTS):
            if len(found) >= most:
                break
            part = projects[start : start + PROJECTS]
            last = b"%d" % (most - len(found) - 1)
            keys = [layout.keys(project).names for project in part]
            names = self._client.each([Question(key, (b"ZRANGE", key, b"0", last)) for key in keys])
            for project, its in zip(part, names, strict=True):
                found += [QueueRef(project.project, layout.string(name)) for name in its]
        return found[:most]

    def _memory(self) -> list[Measure]:
        """Of all servers together; nothing where the user must not ask."""
        keys = self._client.one_of_each(BUCKETS)
        try:
            replies = self._client.each([Question(key, (b"INFO", b"memory")) for key in keys])
        except Unavailable as unavailable:
            if isinstance(unavailable.__cause__, NoPermissionError):
                return []
            raise
        facts = [dict(line.split(":", 1) for line in one.decode().splitlines() if ":" in line) for one in replies]
        used, limit = (sum(int(one[name]) for one in facts) for name in ("used_memory", "maxmemory"))
        return [Measure("store_bytes", used, (("part", "memory"),)), Measure("store_limit_bytes", limit)]

    def _messages(self) -> list[Measure]:
        """How many messages there are; nothing where there are too many queues to count them."""
        queues = self._queues(COUNTED + 1)
        if len(queues) > COUNTED:
            return []
        keys = [layout.keys(queue).stream for queue in queues]
        return [Measure("store_messages", sum(self._client.each([Question(key, (b"XLEN", key)) for key in keys])))]

    def _waiting(self, now: int) -> list[Measure]:
        """What has expired and is there still: only queues that the expiry schedule has due can have such."""
        bounds = b"-inf", b"%d" % now, b"BYSCORE", b"LIMIT", b"0"
        due = self._client.each([Question(key, (b"ZRANGE", key, *bounds, b"%d" % DUE)) for key in BUCKETS])
        queues = dict.fromkeys(layout.queue_of(member[layout.MOMENT.size :]) for members in due for member in members)
        keys = [key for queue in queues for key in _by_expiry(queue)]
        firsts = self._client.each([Question(key, (b"ZRANGE", key, b"0", b"0", b"WITHSCORES")) for key in keys])
        oldest = min((float(first[1]) for first in firsts if first), default=now)
        named = [layout.keys(queue).expiry for queue in queues if queue.name]
        counts = self._client.each([Question(key, (b"ZCOUNT", key, b"-inf", b"%d" % now)) for key in named])
        return [
            Measure("expired_waiting", min(sum(counts), MOST_WAITING)),
            Measure("sweep_lag_seconds", max(0.0, now - oldest) / 1000),
        ]


def _depth(ready: int, delayed: int, claimed: int, expired: int, since: int) -> Depth:
    return Depth(ready, delayed, claimed, expired, None if since < 0 else since / 1000)


def _by_expiry(queue: QueueRef) -> Sequence[bytes]:
    """The keys of sorted sets by expiry, of a queue or of a whole project."""
    return layout.keys(queue).by_expiry if queue.name else layout.own(queue.project, *BY_EXPIRY)
