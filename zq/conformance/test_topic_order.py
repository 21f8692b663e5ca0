# SPDX-License-Identifier: Apache-2.0
"""Concurrent publishers: no reader skips a message that becomes visible later, and all see one order (L6)."""

import time
from collections.abc import Iterator
from functools import partial

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import DEADLINE, OpenStore, RunningWorkers, make_key, run_together
from zq.conformance.topic_builders import Log
from zq.errors import Repeated
from zq.model.topics import Entry, LogSlice, Pattern, Retention

pytestmark = pytest.mark.fresh_store

PUBLISHERS = 6
BATCHES = 15
Numbered = tuple[int, bytes]


@pytest.fixture(params=[pytest.param(False, id="one"), pytest.param(True, id="two", marks=pytest.mark.shared)])
def logs(request: pytest.FixtureRequest, open_store: OpenStore) -> Iterator[list[Log]]:
    """Yield the log twice, on one connection or on two."""
    first = open_store()
    second = open_store() if request.param else first
    clock = ManualClock(first.now())
    yield [Log(first, clock), Log(second, clock)]
    second.close()
    if first is not second:
        first.close()


def bodies(at: int, batch: int) -> list[bytes]:
    """Return bodies that only this batch of this publisher has."""
    return [b"%d.%d.%d" % (at, batch, index) for index in range(1 + batch % 4)]


def publisher(log: Log, shift: RunningWorkers, at: int) -> list[tuple[int, list[bytes]]]:
    """Publish batches to all topics in turn; return first sequence and bodies of each."""
    made = []
    with shift.at_work():
        for batch in range(BATCHES):
            own = bodies(at, batch)
            made.append((log.put(f"t{(at + batch) % 3}", [Entry(body, 3600) for body in own]), own))
    return made


def looks(log: Log, shift: RunningWorkers, match: str, limit: int) -> Iterator[tuple[int, LogSlice]]:
    """Yield each read and its marker until the publishers have finished and nothing more comes."""
    pattern, after = Pattern(match), 0
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        over = shift.is_over()
        told = log.storage.topics.read(log.project, after, limit, pattern)
        yield after, told
        if over and not told.more:
            return
        after = told.position
    raise AssertionError("The reader did not come to an end.")


def reader(log: Log, shift: RunningWorkers, match: str, limit: int) -> list[Numbered]:
    """Return the messages that a reader gets."""
    batches = ((after, batch) for after, told in looks(log, shift, match, limit) for batch in told.batches)
    return [(one.sequence, one.entry.body) for after, batch in batches for one in batch.messages(after, log.now)]


def numbered(made: list[list[tuple[int, list[bytes]]]]) -> list[Numbered]:
    """Return every published message, ordered by sequence."""
    batches = [batch for batches in made for batch in batches]
    return sorted((first + index, body) for first, own in batches for index, body in enumerate(own))


def test_readers_by_position_miss_nothing_while_publishers_publish(logs: list[Log]):
    """Six publishers use two connections and three topics. All readers get every message once and in one order."""
    shift = RunningWorkers(PUBLISHERS)
    readers = [partial(reader, log, shift, match, limit) for log in logs for match, limit in [("**", 5), ("t*", 100)]]
    readers += [partial(reader, logs[0], shift, f"t{at}", 7) for at in range(3)]
    publishers = [partial(publisher, logs[at % 2], shift, at) for at in range(PUBLISHERS)]
    told = run_together(*readers, *publishers)
    seen, made = told[: len(readers)], told[len(readers) :]
    everything = numbered(made)
    assert len({number for number, _ in everything}) == len(everything)
    for one in seen[:4]:
        assert one == everything
    for one in seen[4:]:
        assert one == sorted(one)
    assert sorted(message for one in seen[4:] for message in one) == everything
    for batches in made:
        assert [first for first, _ in batches] == sorted(first for first, _ in batches)


def test_a_returned_publish_is_readable_and_precedes_later_ones(logs: list[Log]):
    """A published batch is visible on both connections and comes before every later one."""
    last = 0
    for at in range(12):
        [number] = logs[at % 2].publish(f"t{at % 3}")
        assert number > last
        for log in logs:
            assert log.read("**", last).last == number
            assert log.sequences("**", last) == log.sequences(f"t{at % 3}", last) == [number]
        last = number


def test_concurrent_repeats_are_published_once(logs: list[Log]):
    """Four threads on two connections repeat the same requests. Each request takes effect once."""
    shift = RunningWorkers(4)

    def repeater(log: Log) -> list[int]:
        told = []
        with shift.at_work():
            for at in range(BATCHES):
                try:
                    told.append(log.publish("t0", 2, once=make_key(f"post:{at}"))[0])
                except Repeated as known:
                    told.append(known.answer)
        return told

    def follower() -> list[int]:
        return [number for number, _ in reader(logs[0], shift, "**", 3)]

    seen, *answers = run_together(follower, *(partial(repeater, logs[at % 2]) for at in range(4)))
    assert answers[1:] == answers[:-1]
    assert seen == sorted(number for first in answers[0] for number in (first, first + 1))


def test_concurrent_trims_keep_batches_whole(logs: list[Log]):
    """While the oldest batches are trimmed, a reader misses only messages in its reported gaps."""
    keep = Retention(10**9, 60)
    shift = RunningWorkers(4)

    def overflow(log: Log, at: int) -> list[int]:
        with shift.at_work():
            return [number for _ in range(15) for number in log.publish(f"t{at}", 3, keep=keep)]

    def follow(log: Log) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the sequences that were read, and the reported gaps (after, to)."""
        seen, gaps = list[int](), list[tuple[int, int]]()
        for after, told in looks(log, shift, "**", 10):
            gaps += [(after, told.dropped)] * (told.dropped > after)
            assert all(batch.sequence > told.dropped for batch in told.batches)
            seen += [one.sequence for batch in told.batches for one in batch.messages(after, log.now)]
        return seen, gaps

    told = run_together(
        *(partial(follow, log) for log in logs), *(partial(overflow, logs[at % 2], at) for at in range(4))
    )
    made = sorted(number for numbers in told[2:] for number in numbers)
    for seen, gaps in told[:2]:
        assert seen == sorted(set(seen))
        lacking = set(made) - set(seen)
        assert set(seen) <= set(made)
        assert all(any(after < number <= to for after, to in gaps) for number in lacking)
    left = logs[0].sequences()
    assert left == logs[1].sequences() == made[len(made) - len(left) :]
    assert 60 <= len(left) <= 67


def test_one_connection_sees_publishes_purges_and_trims_of_another(logs: list[Log]):
    mine, yours = logs
    first = mine.publish("a", 3)
    assert yours.messages() == mine.messages()
    other = yours.publish("b", 3)
    yours.purge("a")
    assert mine.sequences() == other
    assert mine.figures("a") == yours.figures("a") == (0, 0, 0)
    new = mine.publish("a", 9, keep=Retention(10**9, 10))
    assert yours.sequences() == new
    assert yours.read().dropped == mine.read().dropped >= other[-1] > first[-1]
    assert yours.figures("a") == (9, new[0], new[-1])
    assert yours.walk() == mine.walk()
