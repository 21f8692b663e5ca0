# SPDX-License-Identifier: Apache-2.0
"""The reference model of topics: one project's log in plain lists, which judges what a store tells.

Which sequences it gives, and how late within an eighth a batch falls off, is the store's business: the model takes that
over where it is within bounds.
"""

from dataclasses import dataclass

from zq.errors import KeyReused, Repeated
from zq.model import EndMessage, IdempotencyKey, Stats
from zq.model.topics import Batch, Entry, LogSlice, Pattern, PublishedMessage, Retention


@dataclass
class Kept:
    """A batch; ``purged`` = nobody reads it any more."""

    batch: Batch
    purged: bool = False

    def lives(self, now: float) -> bool:
        return not self.purged and any(round(self.batch.created + entry.ttl, 3) > now for entry in self.batch.entries)


class Log:
    """All that was ever published in one project."""

    def __init__(self) -> None:
        self.batches: list[Kept] = []
        self.last = 0
        self.dropped = 0
        self.due = 0
        """Up to here everything must have fallen off."""
        self.allowed = 0
        """Beyond here nothing may."""
        self.keys: dict[str, tuple[bytes, int, float]] = {}

    def refusal(self, once: IdempotencyKey | None, now: float) -> object:
        """How a publish is refused, if it is."""
        digest, first, expires = self.keys.get(once.key, (b"", 0, 0.0)) if once else (b"", 0, 0.0)
        if once is None or expires <= now:
            return None
        return (Repeated, first) if digest == once.digest else (KeyReused, KeyReused.sentence)

    def publish(
        self, topic: str, entries: list[Entry], now: float, keep: Retention, once: IdempotencyKey | None, first: int
    ) -> None:
        """The store has published it from sequence ``first`` on."""
        assert first > self.last
        self.batches.append(Kept(Batch(topic, first, now, entries)))
        self.last = first + len(entries) - 1
        if once:
            self.keys[once.key] = (once.digest, first, round(now + once.window, 3))
        size = messages = 0
        self.allowed = self.dropped
        for kept in reversed(self.batches):
            size, messages = size + kept.batch.size, messages + len(kept.batch.entries)
            if kept is self.batches[-1]:
                continue
            if size > keep.size or messages > keep.messages:
                self.allowed = max(self.allowed, kept.batch.last)
            if kept.lives(now) and (size * 8 > keep.size * 9 or messages * 8 > keep.messages * 9):
                self.due = max(self.due, kept.batch.last)

    def purge(self, topic: str) -> None:
        for kept in self.batches:
            kept.purged = kept.purged or kept.batch.topic == topic

    def living(self, pattern: Pattern, after: int, to: int, now: float) -> list[PublishedMessage]:
        """What a reader must find above one marker and up to another."""
        start = max(after, self.dropped)
        batches = [kept.batch for kept in self.batches if kept.lives(now) and pattern.matches(kept.batch.topic)]
        return [one for batch in batches for one in batch.messages(start, now) if one.sequence <= to]

    def stats(self, topic: str, now: float) -> Stats:
        living = self.living(Pattern(topic), 0, self.last, now)
        marks = [EndMessage(str(one.sequence), one.created, one.sequence) for one in living]
        return Stats(0, len(marks), marks[0], marks[-1]) if marks else Stats()

    def judge(self, told: LogSlice, after: int, limit: int, pattern: Pattern, now: float) -> None:
        """Whether the store may say so."""
        assert told.last >= self.last
        self.last = told.last
        assert max(self.due, self.dropped) <= told.dropped <= self.allowed
        assert told.dropped in (0, *(kept.batch.last for kept in self.batches))
        self.dropped = told.dropped
        assert told.more == (told.position < told.last)
        assert told.position > after if told.more else told.position == max(after, told.last)
        self._judge_batches(told, after, limit, pattern)
        seen = [one for batch in told.batches for one in batch.messages(after, now)]
        assert seen == self.living(pattern, after, told.position, now)

    def _judge_batches(self, told: LogSlice, after: int, limit: int, pattern: Pattern) -> None:
        """They are as they were published, in order, and no more and no fewer than were asked for."""
        known = [kept.batch for kept in self.batches if not kept.purged and kept.batch.sequence > self.dropped]
        known = [batch for batch in known if batch.last > after and pattern.matches(batch.topic)]
        ends = [batch.last for batch in told.batches]
        assert told.batches == [batch for batch in known if batch.last in ends]
        assert not ends or ends[-1] <= told.position
        above = [min(len(batch.entries), batch.last - after) for batch in told.batches]
        assert sum(above[:-2]) < limit
        assert not told.more or sum(len(batch.entries) for batch in told.batches) >= limit
