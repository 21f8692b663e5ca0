# SPDX-License-Identifier: Apache-2.0
"""Published messages in Redis: a stream for each project, and an index of it by topic."""

import contextlib
import random
from collections.abc import Sequence
from struct import Struct as Packing
from typing import Final

from msgspec import structs
from redis.exceptions import OutOfMemoryError

from zq.errors import Unavailable
from zq.model import Landmark, Once, Seconds, Stats
from zq.storage.redis import batches, layout, scripts
from zq.storage.redis.follower import Follower
from zq.storage.redis.lines import Reply
from zq.storage.redis.refusals import checked
from zq.storage.redis.scripts import Script
from zq.storage.redis.store import Store
from zq.topics import Batch, Entry, Keep, Listener, Pattern, Published, Reading, TopicRef

LONG_AGO: Final = 10**9
"""Moments in a calendar below this one have come."""
TOLD: Final = Packing(">Q?")
"""What a publish answers: the first sequence; whether more has fallen off now than was removed."""
MOST_BYTES: Final = 1 << 20
MOST_BATCHES: Final = 1000
"""Bytes that one reading carries, and batches that it looks at."""
LOOKS: Final = 5
"""Round trips of one reading by a pattern, each for ``GROWTH`` times as many messages as the one before."""
GROWTH: Final = 4
AHEAD: Final = 60
"""Seconds by which a log may be ahead of the store's time."""
STATE: Final = Packing(">QQQ")
"""Front of a reply: up to where it goes, the log's last sequence, the last dropped."""


class TopicController:
    """``zq.storage.extensions.TopicController`` on Redis."""

    def __init__(self, store: Store, follower: Follower) -> None:
        self._store, self._follower = store, follower

    def publish(
        self, topic: TopicRef, entries: Sequence[Entry], now: Seconds, keep: Keep, once: Once | None = None
    ) -> int:
        moment, whole = layout.ms(now), layout.whole(topic.project)
        lives = [entry.ttl for entry in entries]
        ends = moment + max(lives) * 1000
        self._store.expect(whole, ends, moment)
        size = sum(len(entry.body) for entry in entries)
        numbers = len(entries), size, moment + min(lives) * 1000, ends, keep.size, keep.messages
        terms = [b"%d" % moment, layout.text(topic.name), *(b"%d" % number for number in numbers)]
        terms += [batches.pack(entries), self._follower.channel(topic.project)]
        keys = batches.keys(topic.project)
        packed, count = keys.block
        if once is not None:
            answers, remembered = self._store.answers(whole, once, moment)
            packed, count = packed + answers.packed, count + answers.number
            terms += remembered
        try:
            told = self._store.port.run(scripts.PUBLISH, keys.stream, count, packed, *terms)
        except Unavailable as unavailable:
            full = isinstance(unavailable.__cause__, OutOfMemoryError)
            if not full or not self._trim(topic.project, keep):
                raise
            told = self._store.port.run(scripts.PUBLISH, keys.stream, count, packed, *terms)
        first, left = TOLD.unpack(checked(told, once, int))
        if left:
            with contextlib.suppress(Unavailable):  # what was published was
                self._sweep_soon(topic.project)
        return int(first)

    def read(self, project: str, after: int, limit: int, pattern: Pattern) -> Reading:
        looking = Looking(after, limit, pattern)
        for _ in range(LOOKS):
            looking.take(self._run(scripts.LOG_READ, project, *looking.terms()))
            if looking.done:
                break
        reading = looking.reading()
        if reading.last < after < batches.MAX_SEQUENCE:
            return structs.replace(reading, given=self._highest(project))
        return reading

    def purge(self, topic: TopicRef) -> None:
        terms = layout.text(topic.name), self._follower.channel(topic.project)
        # Before, in case that the answer is lost; and again, for a round that came in between has struck that off.
        self._sweep_soon(topic.project)
        self._run(scripts.TOPIC_PURGE, topic.project, *terms)
        self._sweep_soon(topic.project)

    def stats(self, topic: TopicRef, now: Seconds) -> Stats:
        after, free = b"0", 0
        edges: list[Landmark] = []
        while True:
            asked = b"%d" % layout.ms(now), layout.text(topic.name), after
            after, whole, *fronts, rest = self._run(scripts.TOPIC_STATS, topic.project, *asked)
            living = [item for batch in batches.batches(rest, 0) for item in batch.opened().messages(0, now)]
            free += whole + len(living)
            edges += [_landmark(item) for item in living]
            for at, front in enumerate(filter(None, fronts)):
                *sequences, created = batches.landmarks(front)
                edges.append(Landmark(str(sequences[at]), created, sequences[at]))
            edges.sort(key=lambda landmark: landmark.sequence)
            edges = [edges[0], edges[-1]] if edges else []
            if not after:
                return Stats(0, free, *edges)

    def listen(self, listener: Listener) -> None:
        self._follower.listener = listener

    def follow(self, project: str) -> None:
        self._follower.follow(project)

    def unfollow(self, project: str) -> None:
        self._follower.unfollow(project)

    def _highest(self, project: str) -> int:
        """Above all sequences of the log, whatever of it was lost: they rise with the time of the store."""
        seconds, _ = self._store.port.command(batches.keys(project).stream, b"TIME")
        return (int(seconds) + AHEAD) * 1000 * batches.PACE

    def _trim(self, project: str, keep: Keep) -> bool:
        """Have fall off what is over, in a store that is full; whether that made room."""
        gone, left = self._run(scripts.LOG_TRIM, project, b"%d" % keep.size, b"%d" % keep.messages)
        if left:
            self._sweep_soon(project)
        return bool(gone)

    def _sweep_soon(self, project: str) -> None:
        """Have the next round look at the project. Each entry is one of its own, so that only a round that came after
        it strikes it off."""
        self._store.enter(layout.whole(project), random.randrange(1, LONG_AGO))

    def _run(self, script: Script, project: str, *arguments: bytes) -> Reply:
        keys = batches.keys(project)
        return self._store.port.run(script, keys.stream, keys.block.number, keys.block.packed, *arguments)


class Looking:
    """A reading under way."""

    def __init__(self, after: int, limit: int, pattern: Pattern) -> None:
        self._after, self._limit, self._pattern = after, limit, pattern
        self._position = min(after, batches.MAX_SEQUENCE - 2)
        self._ask = limit
        self._last = self._dropped = 0
        self._found: list[Batch] = []
        self._messages = self._bytes = self._seen = 0
        self.done = False

    def terms(self) -> list[bytes]:
        """What the script has to know next."""
        numbers = self._position, self._ask, MOST_BYTES, MOST_BATCHES - self._seen
        return [*(b"%d" % number for number in numbers), layout.text(self._pattern.topic)]

    def take(self, blob: bytes) -> None:
        """Keep of a reply what is wanted."""
        reached, self._last, self._dropped = STATE.unpack_from(blob)
        for batch in batches.batches(blob, STATE.size):
            if self._pattern.matches(batch.topic):
                if self._found and self._bytes + len(batch.messages) > MOST_BYTES:
                    self.done = True
                    return
                self._found.append(batch.opened())
                self._bytes += len(batch.messages)
                self._messages += batch.last - max(self._after, batch.first - 1)
            self._position, self._seen = batch.last, self._seen + 1
            if self._messages >= self._limit:
                self.done = True
                return
        self._position = reached
        self._ask *= GROWTH
        self.done = bool(self._pattern.topic) or reached >= self._last or self._seen >= MOST_BATCHES

    def reading(self) -> Reading:
        position = max(self._position, self._after)
        return Reading(self._found, position, position < self._last, self._last, self._dropped)


def _landmark(item: Published) -> Landmark:
    return Landmark(str(item.sequence), item.created, item.sequence)
