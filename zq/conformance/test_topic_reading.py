# SPDX-License-Identifier: Apache-2.0
"""Reading a log by position: each batch once, for any pattern, from any marker, in bounded reads (L6)."""

import itertools

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import run_together
from zq.conformance.topic_builders import Log, entries
from zq.model.topics import Entry, Pattern
from zq.storage.api import Storage

PATTERNS = ["a", "a.b", "*", "a.*", "**.b", "**", "*.*", "none", "none.*"]
LOOK = 1 << 20
"""Approximate bytes of bodies in one read."""


@pytest.fixture
def log(storage: Storage, clock: ManualClock, project: str) -> Log:
    return Log(storage, clock, project)


@pytest.fixture
def mixed(log: Log) -> dict[str, list[int]]:
    """Publish twenty batches of one to five messages; return the sequences by topic."""
    made: dict[str, list[int]] = {}
    for at in range(20):
        topic = ["a", "a.b", "b", "a.c.b", "a"][at % 5]
        made.setdefault(topic, []).extend(log.publish(topic, 1 + at * 7 % 5))
    return made


def expected(made: dict[str, list[int]], match: str, after: int = 0) -> list[int]:
    pattern = Pattern(match)
    topics = (numbers for topic, numbers in made.items() if pattern.matches(topic))
    return sorted(number for numbers in topics for number in numbers if number > after)


def test_a_reader_by_position_gets_each_batch_once(log: Log, mixed: dict[str, list[int]]):
    for match in PATTERNS:
        for limit in (1, 4, 1000):
            assert log.sequences(match, limit=limit) == expected(mixed, match), (match, limit)


def test_a_marker_may_be_any_sequence(log: Log, mixed: dict[str, list[int]]):
    """The marker may be 0, within a batch, at its end, of another topic or beyond the end of the log."""
    last = log.read().last
    near = {0} | {sequence + off for its in mixed.values() for sequence in its for off in (-1, 0, 1, 2)}
    for match in ("a", "a.*", "**"):
        for after in near:
            assert log.sequences(match, after) == expected(mixed, match, after), (match, after)
        for after in (last + 1, last + 1000, 2**62):
            told = log.read(match, after)
            assert (told.batches, told.position, told.more, told.last) == ([], after, False, last)


def test_sequences_far_beyond_the_end_were_never_issued(log: Log, mixed: dict[str, list[int]]):
    """A sequence an hour ahead, or beyond a driver's number range, was never issued."""
    last = log.read().last
    for beyond in (last + 3600 * 512_000, 2**62):
        told = log.read("**", beyond)
        assert max(told.last, told.given) < beyond


def test_a_marker_within_a_batch_returns_the_whole_batch(log: Log):
    """``Batch.messages`` leaves out the messages before the marker."""
    first = log.put("news", entries(5))
    [batch] = log.read("news", first + 2).batches
    assert (batch.sequence, batch.entries) == (first, entries(5))
    assert [message.sequence for message in batch.messages(first + 2, log.now)] == [first + 3, first + 4]
    assert log.read("news", first + 4).batches == log.read("**", first + 4).batches == []


def test_a_read_ends_soon_after_its_limit(log: Log):
    """A read exceeds the limit by at most one batch. It returns its marker and whether there is more."""
    numbers = [number for _ in range(12) for number in log.publish("news", 3)]
    for match, limit in itertools.product(["news", "n*", "**"], [1, 2, 3, 4, 10, 33]):
        told = log.read(match, limit=limit)
        needed = -(-limit // 3)
        assert needed <= len(told.batches) <= needed + 1
        assert told.more == (len(told.batches) < 12)
        assert told.last == numbers[-1]
        assert log.read(match, told.position).batches == log.read(match).batches[len(told.batches) :]
    for match, limit in itertools.product(["news", "n*", "**"], [36, 37, 10_000]):
        told = log.read(match, limit=limit)
        assert (len(told.batches), told.more, told.position) == (12, False, numbers[-1])


def test_an_empty_read_advances_the_marker(log: Log):
    """A reader skips batches of other topics only once, so a reader of an empty topic reaches the end of the log."""
    [own] = log.publish("mine")
    for _ in range(30):
        last = log.publish("others", 3)[-1]
    for match in ("mine", "m*", "none"):
        told = log.read(match, own)
        assert (told.batches, told.position, told.more, told.last) == ([], last, False, last)
    [new] = log.publish("mine")
    assert log.sequences("mine", last) == log.sequences("m*", last) == [new]


def test_a_read_has_at_most_about_a_megabyte(log: Log):
    """A read has at least one batch, however large. Memory is bounded, and every reader progresses."""
    large = log.put("news", [Entry(b"1" * LOOK, 60)] * 2)
    for _ in range(10):
        log.put("news", [Entry(b"2" * 150_000, 60)])
    for match in ("news", "ne*"):
        assert [batch.sequence for batch in log.read(match).batches][:1] == [large]
        assert log.read(match, large + 1).more
        after, seen = 0, 0
        while (told := log.read(match, after)).batches:
            after, seen = told.position, seen + len(told.batches)
            assert sum(batch.size for batch in told.batches[:-1]) <= LOOK + 150_000
        assert seen == 11


def test_a_reader_skips_thousands_of_batches_of_other_topics(log: Log):
    """Reads by glob are bounded and reach the end. Reads by name need few calls."""
    own = log.publish("mine.a")

    def publisher() -> None:
        for _ in range(75):
            log.publish("others")

    run_together(*[publisher] * 16)
    own += log.publish("mine.a")
    assert log.sequences("mine.*", limit=10) == own
    assert [batch.sequence for batch in log.read("mine.a", limit=10).batches] == own


def test_reads_of_a_topic_skip_purged_batches_of_others(log: Log, mixed: dict[str, list[int]]):
    log.purge("a")
    log.purge("b")
    kept = {topic: numbers for topic, numbers in mixed.items() if topic not in ("a", "b")}
    for match in PATTERNS:
        for limit in (1, 1000):
            assert log.sequences(match, limit=limit) == expected(kept, match)
