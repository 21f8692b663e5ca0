# SPDX-License-Identifier: Apache-2.0
"""The tails of logs in memory: after lost, repeated or late notices, readers get each batch once and in order.

The store is a fake, because no real one can be made to lose notices.
"""

import random
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.rotation import SEED
from zq.core import tails
from zq.core.tails import Tail, Tails
from zq.errors import Unavailable
from zq.model.topics import Batch, Entry, Listener, LogSlice, Pattern
from zq.storage.api import Storage

PROJECT = "acme"


class FakeLog:
    """A log in memory whose listener is notified only by the test."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.listener: Listener | None = None
        self.followed: list[str] = []
        self.reads = 0
        self.dropped = 0
        self.broken = False
        self.skipped = 0
        self.gate = threading.Event()
        self.gate.set()

    def publish(self, count: int = 1, topic: str = "news") -> Batch:
        first = (self.batches[-1].last if self.batches else 0) + 1 + self.skipped
        batch = Batch(topic, first, 0.0, [Entry(b"%d" % (first + at), 60) for at in range(count)])
        self.batches.append(batch)
        return batch

    def read(self, project: str, after: int, limit: int, pattern: Pattern) -> LogSlice:
        self.reads += 1
        self.gate.wait()
        if self.broken:
            raise Unavailable("broken")
        after = max(after, self.dropped)
        last = self.batches[-1].last if self.batches else 0
        found, count = [], 0
        for batch in self.batches:
            if batch.last > after and pattern.matches(batch.topic):
                found.append(batch)
                count += len(batch.entries)
                if count >= limit:
                    return LogSlice(found, batch.last, batch.last < last, last, self.dropped)
        return LogSlice(found, max(after, last), False, last, self.dropped)

    def subscribe(self, project: str, listener: Listener) -> Callable[[], None]:
        self.listener = listener
        self.followed.append(project)
        return lambda: self.followed.remove(project)

    def tell(self, batch: Batch | None, project: str = PROJECT) -> None:
        assert self.listener is not None
        self.listener(batch, self.before(batch) if batch else 0)

    def before(self, batch: Batch) -> int:
        return max((other.last for other in self.batches if other.last < batch.sequence), default=0)


@pytest.fixture
def log() -> FakeLog:
    return FakeLog()


@pytest.fixture
def both(log: FakeLog) -> Tails:
    return Tails(cast(Storage, SimpleNamespace(topics=log)))


@pytest.fixture
def tail(log: FakeLog, both: Tails) -> Iterator[Tail]:
    log.publish(3)
    with both.following(PROJECT) as tail:
        yield tail
    assert log.followed == []


def sequences(batches: list[Batch] | None) -> list[int]:
    assert batches is not None
    return [batch.sequence for batch in batches]


def test_notices_in_order_are_passed_on_without_a_read(log: FakeLog, tail: Tail) -> None:
    """A reader at the end causes no read of the store."""
    before = log.reads
    for _ in range(3):
        log.tell(log.publish(2))
    assert sequences(tail.after(3, 1)) == [4, 6, 8]
    assert sequences(tail.after(5, 1)) == [6, 8]
    assert sequences(tail.after(6, 1)) == [6, 8], "a marker in the middle of a batch"
    assert log.reads == before


def test_skipped_sequences_are_not_a_loss(log: FakeLog, tail: Tail) -> None:
    """A batch has the sequence before it, so that sequences may have gaps."""
    before, log.skipped = log.reads, 16
    for _ in range(3):
        log.tell(log.publish())
    assert sequences(tail.after(3, 1)) == [20, 37, 54]
    assert log.reads == before


def test_a_portion_is_bounded_by_its_weight(log: FakeLog, tail: Tail) -> None:
    """Empty messages have a weight too, both in the cache and in what a reader gets at once."""
    for _ in range(40):
        log.tell(log.publish(1000))
    assert sequences(tail.after(30_003, 1)) == [30_004, 31_004]
    assert tail.after(3, 0) is None


def test_a_missed_batch_is_read_once_for_all_readers(log: FakeLog, tail: Tail) -> None:
    """A gap between sequences is detected; the first reader reads the store, and the others use its result."""
    before = log.reads
    log.publish()
    log.tell(log.publish())
    assert sequences(tail.after(3, 1)) == [4, 5]
    assert sequences(tail.after(3, 1)) == [4, 5]
    assert log.reads == before + 1


def test_late_and_repeated_notices_add_nothing(log: FakeLog, tail: Tail) -> None:
    """A late or repeated notice adds its batch once, in its place."""
    fourth, fifth = log.publish(), log.publish()
    log.tell(fifth)
    log.tell(fourth)
    log.tell(fifth)
    log.tell(fourth)
    assert sequences(tail.after(3, 1)) == [4, 5]


def test_a_lost_last_notice_is_compensated_by_a_read(log: FakeLog, tail: Tail, monkeypatch: pytest.MonkeyPatch) -> None:
    """No later notice would show the gap, so the store is read again after an interval."""
    monkeypatch.setattr(tails, "RECHECK_INTERVAL", 0.05)
    monkeypatch.setattr(tails, "RETRY_INTERVAL", 0.01)
    log.publish()
    assert sequences(tail.after(3, 5)) == [4]


def test_a_reader_from_before_the_tail_has_to_read_the_store(
    log: FakeLog, tail: Tail, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader from before the tail or before its window has to read the store."""
    assert tail.after(2, 0) is None
    monkeypatch.setattr(tails, "WINDOW", 1000)
    for _ in range(30):
        log.tell(log.publish())
    assert tail.after(3, 0) is None
    assert sequences(tail.after(31, 0)) == [32, 33]


def test_a_purge_is_forgotten_at_once(log: FakeLog, tail: Tail) -> None:
    """Batches of the log that are cached are not returned any more."""
    log.tell(log.publish())
    log.batches.clear()
    log.tell(None)
    assert tail.after(3, 0) is None
    assert tail.after(4, 0) == []


def test_batches_trimmed_unnoticed_are_left_to_the_store(log: FakeLog, tail: Tail) -> None:
    """A tail that missed notices does not return batches that were trimmed."""
    for _ in range(4):
        last = log.publish()
    log.dropped = 5
    log.tell(last)
    assert tail.after(5, 1) is not None
    assert tail.after(3, 0) is None


def test_a_failed_read_is_repeated(log: FakeLog, tail: Tail, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers wait through an outage and lose no batch."""
    monkeypatch.setattr(tails, "RETRY_INTERVAL", 0.01)
    log.broken = True
    log.publish()
    log.tell(log.publish())
    assert tail.after(3, 0.1) == []
    log.broken = False
    assert sequences(tail.after(3, 5)) == [4, 5]


def test_a_tail_that_cannot_begin_leaves_nothing(log: FakeLog, both: Tails) -> None:
    """The next reader tries again."""
    log.broken = True
    with pytest.raises(Unavailable):
        both.join(PROJECT)
    assert log.followed == []
    log.broken = False
    with both.following(PROJECT), both.following(PROJECT):
        assert log.followed == [PROJECT]


def test_a_reader_that_joins_during_a_failing_start_shares_its_error(log: FakeLog, both: Tails) -> None:
    """All readers that wait use the result of one read of the unavailable store."""
    log.broken, log.gate = True, threading.Event()
    refused: list[Exception] = []

    def join() -> None:
        try:
            both.join(PROJECT)
        except Unavailable as refusal:
            refused.append(refusal)

    joining = [threading.Thread(target=join) for _ in range(5)]
    for thread in joining:
        thread.start()
    while both._tails[PROJECT].users < len(joining):
        threading.Event().wait(0.001)
    log.gate.set()
    for thread in joining:
        thread.join(60)
    assert (len(refused), log.reads, log.followed) == (5, 1, [])


def test_closing_wakes_all(log: FakeLog, both: Tails, tail: Tail) -> None:
    """Waiting readers return, and later ones do not wait."""
    answers: list[Any] = []
    waiting = threading.Thread(target=lambda: answers.append(tail.after(3, 60)))
    waiting.start()
    both.close()
    waiting.join(60)
    assert answers == [[]]
    assert tail.after(3, 60) == []


def test_readers_get_each_batch_once_and_in_order_whatever_the_notices(
    log: FakeLog, both: Tails, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Notices are lost, repeated and shuffled at random while readers follow, leave and resume."""
    monkeypatch.setattr(tails, "RECHECK_INTERVAL", 0.02)
    monkeypatch.setattr(tails, "RETRY_INTERVAL", 0.01)
    monkeypatch.setattr(tails, "WINDOW", 200)
    end = 200

    def follow(chance: random.Random) -> None:
        got: list[int] = []
        while not got or got[-1] < end:
            with both.following(PROJECT) as tail:
                for _ in range(chance.randrange(1, 20)):
                    position = got[-1] if got else 0
                    batches = tail.after(position, 0.2)
                    if batches is None:
                        batches = log.read(PROJECT, position, 50, tails.ALL).batches
                    got += [message.sequence for batch in batches for message in batch.messages(position, 0)]
        collected.append(got)

    collected: list[list[int]] = []
    readers = [threading.Thread(target=follow, args=(random.Random(SEED + number),)) for number in range(6)]
    for reader in readers:
        reader.start()
    chance, late = random.Random(SEED), list[Batch]()
    while not log.batches or log.batches[-1].last < end:
        late.append(log.publish(min(chance.randrange(1, 5), end - (log.batches[-1].last if log.batches else 0))))
        chance.shuffle(late)
        while late and chance.random() < 0.7:
            if chance.random() < 0.8:
                log.tell(late[-1])
            if chance.random() < 0.8:
                late.pop()
    for reader in readers:
        reader.join(60)
    assert collected == [list(range(1, end + 1))] * len(readers)
