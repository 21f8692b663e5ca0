# SPDX-License-Identifier: Apache-2.0
"""Published messages in Redis: one stream per project, with an index by topic."""

import contextlib
import random
from collections.abc import Callable, Sequence
from struct import Struct as Packing
from typing import Final

from msgspec import structs
from redis.exceptions import OutOfMemoryError

from zq.errors import Unavailable
from zq.model import EndMessage, IdempotencyKey, Seconds, Stats
from zq.model.topics import Batch, Entry, Listener, LogSlice, Pattern, Retention, TopicRef
from zq.storage.redis import batches, layout, scripts
from zq.storage.redis.connections import Reply
from zq.storage.redis.notices import LogSubscriber
from zq.storage.redis.scripts import Script
from zq.storage.redis.store import Store, checked

# Upper bound for times in the expiry schedule that mean "due immediately".
PAST_SCORE: Final = 10**9
# Reply of a publish: first sequence, and whether trimmed messages are left to remove.
PUBLISHED: Final = Packing(">Q?")
MAX_BYTES: Final = 1 << 20
# Maximum bytes of a read, and maximum number of batches that it examines.
MAX_BATCHES: Final = 1000
# Maximum round trips of a read by pattern. Each of them requests ``GROWTH`` times as many messages as the previous one.
MAX_ROUND_TRIPS: Final = 5
GROWTH: Final = 4
# Maximum seconds by which a log may be ahead of the store's time.
MAX_LEAD_SECONDS: Final = 60
# Header of a reply: position reached, last sequence of the log, last dropped sequence.
STATE: Final = Packing(">QQQ")


class TopicController:
    """The Redis implementation of ``zq.storage.capabilities.TopicController``."""

    def __init__(self, store: Store, follower: LogSubscriber) -> None:
        self._store, self._follower = store, follower

    def publish(
        self,
        topic: TopicRef,
        entries: Sequence[Entry],
        now: Seconds,
        retention: Retention,
        idempotency_key: IdempotencyKey | None = None,
    ) -> int:
        moment, whole = layout.ms(now), layout.project_ref(topic.project)
        lives = [entry.ttl for entry in entries]
        ends = moment + max(lives) * 1000
        self._store.schedule_expiry(whole, ends, moment)
        size = sum(entry.size for entry in entries)
        numbers = len(entries), size, moment + min(lives) * 1000, ends, retention.size, retention.messages
        terms = [b"%d" % moment, layout.encode_text(topic.name), *(b"%d" % number for number in numbers)]
        terms += [batches.pack(entries), self._follower.channel(topic.project)]
        keys = batches.keys(topic.project)
        if idempotency_key is not None:
            answers, remembered = self._store.schedule_idempotency_key(whole, idempotency_key, moment)
            keys += answers
            terms += remembered
        try:
            reply = self._store.client.run(scripts.PUBLISH, keys, *terms)
        except Unavailable as unavailable:
            full = isinstance(unavailable.__cause__, OutOfMemoryError)
            if not full or not self._trim(topic.project, retention):
                raise
            reply = self._store.client.run(scripts.PUBLISH, keys, *terms)
        first, left = PUBLISHED.unpack(checked(reply, idempotency_key, int))
        if left:
            with contextlib.suppress(Unavailable):  # the batch itself has been published
                self._sweep_soon(topic.project)
        return int(first)

    def read(self, project: str, after: int, limit: int, pattern: Pattern) -> LogSlice:
        scan = LogScan(after, limit, pattern)
        for _ in range(MAX_ROUND_TRIPS):
            scan.take(self._run(scripts.LOG_READ, project, *scan.terms()))
            if scan.done:
                break
        reading = scan.result()
        if reading.last < after < batches.MAX_SEQUENCE:
            return structs.replace(reading, given=self._highest(project))
        return reading

    def purge(self, topic: TopicRef) -> None:
        terms = layout.encode_text(topic.name), self._follower.channel(topic.project)
        # Schedule before the purge, because its reply may be lost. Schedule again, because a sweep in between may have
        # removed the first entry.
        self._sweep_soon(topic.project)
        self._run(scripts.TOPIC_PURGE, topic.project, *terms)
        self._sweep_soon(topic.project)

    def stats(self, topic: TopicRef, now: Seconds) -> Stats:
        after, free = b"0", 0
        edges: list[EndMessage] = []
        while True:
            asked = b"%d" % layout.ms(now), layout.encode_text(topic.name), after
            after, whole, *fronts, rest = self._run(scripts.TOPIC_STATS, topic.project, *asked)
            living = [item for batch in batches.batches(rest, 0) for item in batch.decode().messages(0, now)]
            free += whole + len(living)
            edges += [EndMessage(str(item.sequence), item.created, item.sequence) for item in living]
            for at, front in enumerate(filter(None, fronts)):
                *sequences, created = batches.edges(front)
                edges.append(EndMessage(str(sequences[at]), created, sequences[at]))
            edges.sort(key=lambda edge: edge.sequence)
            edges = [edges[0], edges[-1]] if edges else []
            if not after:
                oldest, newest = edges or (None, None)
                return Stats(0, free, oldest, newest)

    def subscribe(self, project: str, listener: Listener) -> Callable[[], None]:
        return self._follower.subscribe(project, listener)

    def _highest(self, project: str) -> int:
        """Return an upper bound of all sequences that the log has ever assigned, even to lost messages."""
        seconds, _ = self._store.client.command(batches.keys(project)[0], b"TIME")
        return (int(seconds) + MAX_LEAD_SECONDS) * 1000 * batches.PACE

    def _trim(self, project: str, retention: Retention) -> bool:
        gone, left = self._run(scripts.LOG_TRIM, project, b"%d" % retention.size, b"%d" % retention.messages)
        if left:
            self._sweep_soon(project)
        return bool(gone)

    def _sweep_soon(self, project: str) -> None:
        """Schedule the removal of the project's expired data for the next maintenance round.

        The scheduled time is random and in the distant past. The new schedule entry therefore differs from any entry
        that a round in progress is about to remove.
        """
        self._store.schedule(layout.project_ref(project), random.randrange(1, PAST_SCORE))

    def _run(self, script: Script, project: str, *arguments: bytes) -> Reply:
        return self._store.client.run(script, batches.keys(project), *arguments)


class LogScan:
    """A read operation on a project's topic log, and its progress. The operation may take several script calls."""

    def __init__(self, after: int, limit: int, pattern: Pattern) -> None:
        self._after, self._limit, self._pattern = after, limit, pattern
        self._position = min(after, batches.MAX_SEQUENCE - 2)
        self._ask = limit
        self._last = self._dropped = 0
        self._found: list[Batch] = []
        self._messages = self._bytes = self._seen = 0
        self.done = False

    def terms(self) -> list[bytes]:
        numbers = self._position, self._ask, MAX_BYTES, MAX_BATCHES - self._seen
        return [*(b"%d" % number for number in numbers), layout.encode_text(self._pattern.topic)]

    def take(self, blob: bytes) -> None:
        reached, self._last, self._dropped = STATE.unpack_from(blob)
        for batch in batches.batches(blob, STATE.size):
            if self._pattern.matches(batch.topic):
                if self._found and self._bytes + len(batch.messages) > MAX_BYTES:
                    self.done = True
                    return
                self._found.append(batch.decode())
                self._bytes += len(batch.messages)
                self._messages += batch.last - max(self._after, batch.first - 1)
            self._position, self._seen = batch.last, self._seen + 1
            if self._messages >= self._limit:
                self.done = True
                return
        self._position = reached
        self._ask *= GROWTH
        self.done = bool(self._pattern.topic) or reached >= self._last or self._seen >= MAX_BATCHES

    def result(self) -> LogSlice:
        position = max(self._position, self._after)
        return LogSlice(self._found, position, position < self._last, self._last, self._dropped)
