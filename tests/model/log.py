# SPDX-License-Identifier: Apache-2.0
"""The reference model of topics: one project's log in plain lists, which checks the results of a store.

The store chooses the sequences and, within an eighth, when batches are trimmed; the model takes both over if they are
within the limits.
"""

from dataclasses import dataclass

from zq.errors import KeyReused, Repeated
from zq.model import EndMessage, IdempotencyKey, Stats
from zq.model.topics import Batch, Entry, LogSlice, Pattern, PublishedMessage, Retention


@dataclass
class Kept:
    """A batch; ``purged``: readers do not get it any more."""

    batch: Batch
    purged: bool = False

    def lives(self, now: float) -> bool:
        return not self.purged and any(round(self.batch.created + entry.ttl, 3) > now for entry in self.batch.entries)


class Log:
    """All batches that were ever published in one project."""

    def __init__(self) -> None:
        self.batches: list[Kept] = []
        self.last = 0
        self.dropped = 0
        self.due = 0
        """The sequence up to which everything must have been trimmed."""
        self.allowed = 0
        """The sequence beyond which nothing may be trimmed."""
        self.keys: dict[str, tuple[bytes, int, float]] = {}

    def refusal(self, once: IdempotencyKey | None, now: float) -> object:
        """Return the error of a publish, `None` if it is accepted."""
        digest, first, expires = self.keys.get(once.key, (b"", 0, 0.0)) if once else (b"", 0, 0.0)
        if once is None or expires <= now:
            return None
        return (Repeated, first) if digest == once.digest else (KeyReused, KeyReused.sentence)

    def publish(
        self, topic: str, entries: list[Entry], now: float, keep: Retention, once: IdempotencyKey | None, first: int
    ) -> None:
        """Add a batch that the store has published from sequence ``first`` on."""
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
        """Return the messages that a reader must get, from one marker up to another."""
        start = max(after, self.dropped)
        batches = [kept.batch for kept in self.batches if kept.lives(now) and pattern.matches(kept.batch.topic)]
        return [one for batch in batches for one in batch.messages(start, now) if one.sequence <= to]

    def stats(self, topic: str, now: float) -> Stats:
        living = self.living(Pattern(topic), 0, self.last, now)
        marks = [EndMessage(str(one.sequence), one.created, one.sequence) for one in living]
        return Stats(0, len(marks), marks[0], marks[-1]) if marks else Stats()

    def judge(self, told: LogSlice, after: int, limit: int, pattern: Pattern, now: float) -> None:
        """Assert that the store may return this slice."""
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
        """Assert that the batches are unchanged, in order, and as many as were requested unless batches were purged."""
        known = [kept.batch for kept in self.batches if not kept.purged and kept.batch.sequence > self.dropped]
        known = [batch for batch in known if batch.last > after and pattern.matches(batch.topic)]
        ends = [batch.last for batch in told.batches]
        assert told.batches == [batch for batch in known if batch.last in ends]
        assert not ends or ends[-1] <= told.position
        above = [min(len(batch.entries), batch.last - after) for batch in told.batches]
        assert sum(above[:-2]) < limit
        purged = any(kept.purged and after < kept.batch.last <= told.position for kept in self.batches)
        assert not told.more or purged or sum(len(batch.entries) for batch in told.batches) >= limit
