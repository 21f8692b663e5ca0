# SPDX-License-Identifier: Apache-2.0
"""Publishing and reading in any order, on a store and on the model of a log at the same time."""

from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.model.log import Log
from tests.model.pair import PICKS, TTLS, Holder, outcome
from tests.model.timeline import Timeline
from zq.model import IdempotencyKey
from zq.model.topics import EVERYTHING, Entry, Pattern, Retention, TopicRef

PROJECTS = st.sampled_from([0, 0, 0, 1])
TOPICS = st.sampled_from(["a", "a", "a.b", "ab", "a.b.c"])
PATTERNS = st.sampled_from(["a", "a.b", "*", "a*", "a.*", "a**", "**", "**", "**.c", "none", "n*"])
LIMITS = st.sampled_from([1, 2, 3, 7, 1000])
FEW = st.lists(st.tuples(TTLS, st.sampled_from([1, 10, 40])), min_size=1, max_size=5)
BATCHES = st.one_of(FEW, st.sampled_from([30, 70]).map(lambda count: [(60, 1)] * count))
ROOMY = Retention(10**9, 10**9)
KEEPS = st.sampled_from(
    [ROOMY, ROOMY, Retention(200, 10**9), Retention(10**9, 16), Retention(10**9, 100), Retention(1, 1)]
)
OTHERS = st.sampled_from([None] * 9 + [9, 100])
"""Retention in messages of a publisher with other options."""
ONCES = st.none() | st.builds(
    IdempotencyKey,
    st.sampled_from(["post:1", "post:2"]),
    st.sampled_from([b"a", b"a", b"b"]),
    st.sampled_from([5, 600]),
)
Shapes = list[tuple[int, int]]


class LogMachine(Timeline):
    """A store and the models of the logs of two projects."""

    def __init__(self, holder: Holder) -> None:
        super().__init__(holder)
        self.logs = [Log() for _ in self.projects]
        self.serials = count()
        self.keep = ROOMY

    def ends(self) -> set[float]:
        batches = (kept.batch for log in self.logs for kept in log.batches[-20:])
        lives = {round(batch.created + entry.ttl, 3) for batch in batches for entry in batch.entries}
        return lives | {expires for log in self.logs for _, _, expires in log.keys.values()}

    @initialize(keep=KEEPS)
    def choose(self, keep: Retention) -> None:
        """Choose the retention that most publishers of the example use."""
        self.keep = keep

    @rule(at=PROJECTS, topic=TOPICS, shapes=BATCHES, most=OTHERS, once=ONCES)
    def publish(self, at: int, topic: str, shapes: Shapes, most: int | None, once: IdempotencyKey | None) -> None:
        """Publish; batches that must be trimmed are trimmed when the verb returns."""
        keep = self.keep if most is None else Retention(10**9, most)
        entries = [
            Entry((b"%d" % next(self.serials)).rjust(size), ttl, f"MD5:{size}" if size > 1 else "")
            for ttl, size in shapes
        ]
        ref, log = TopicRef(self.projects[at], topic), self.logs[at]
        told = outcome(self.holder.storage.topics.publish, ref, entries, self.now, keep, once)
        refused = log.refusal(once, self.now)
        if refused is not None:
            assert told == refused
            return
        assert isinstance(told, int)
        log.publish(topic, entries, self.now, keep, once, told)
        self.look(at, 0, 1, EVERYTHING)

    @rule(at=PROJECTS, batches=st.lists(st.tuples(TOPICS, FEW), min_size=2, max_size=8))
    def publish_some(self, at: int, batches: list[tuple[str, Shapes]]) -> None:
        for topic, shapes in batches:
            self.publish(at, topic, shapes, None, None)

    def look(self, at: int, after: int, limit: int, match: str) -> int | None:
        """Read once and check the slice; return the next marker, `None` at the end of the log."""
        pattern = Pattern(match)
        told = self.holder.storage.topics.read(self.projects[at], after, limit, pattern)
        self.logs[at].judge(told, after, limit, pattern, self.now)
        return told.position if told.more else None

    @rule(at=PROJECTS, pick=PICKS, offset=st.sampled_from([0, 0, -1, 1]), limit=LIMITS, match=PATTERNS)
    def read(self, at: int, pick: int, offset: int, limit: int, match: str) -> None:
        """Read from the start or from near the end of any batch to the end of the log."""
        ends = [0, *(kept.batch.last for kept in self.logs[at].batches)]
        after: int | None = max(0, ends[-1 - pick % len(ends)] + offset)
        while after is not None:
            after = self.look(at, after, limit, match)

    @rule(at=PROJECTS, topic=TOPICS, really=PICKS)
    def purge(self, at: int, topic: str, really: int) -> None:
        if really % 3 == 0:
            self.holder.storage.topics.purge(TopicRef(self.projects[at], topic))
            self.logs[at].purge(topic)

    @rule(at=PROJECTS, topic=TOPICS)
    def stats(self, at: int, topic: str) -> None:
        told = self.holder.storage.topics.stats(TopicRef(self.projects[at], topic), self.now)
        assert told == self.logs[at].stats(topic, self.now)

    @rule()
    def agree_on_everything(self) -> None:
        """Compare the messages and statistics of every topic, and all messages together."""
        for at in range(len(self.projects)):
            for topic in ("a", "a.b", "ab", "a.b.c", "none"):
                self.read(at, 0, -(10**9), 1000, topic)
                self.stats(at, topic)
            self.read(at, 0, -(10**9), 1000, EVERYTHING)


class RestartingLogMachine(LogMachine):
    """A machine whose store is closed and reopened at any time."""

    @precondition(lambda self: self.logs[0].batches)
    @rule(really=PICKS)
    def restart(self, really: int) -> None:
        if really % 2 == 0:
            self.holder.reopen()
