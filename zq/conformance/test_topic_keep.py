# SPDX-License-Identifier: Apache-2.0
"""Retention of a topic log: the oldest batches are trimmed by bytes and by number, and readers detect the gap."""

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import make_key
from zq.conformance.topic_builders import ROOMY, Log, entries
from zq.errors import Repeated
from zq.model.topics import Entry, Retention
from zq.storage.api import Storage


@pytest.fixture
def log(storage: Storage, clock: ManualClock, project: str) -> Log:
    return Log(storage, clock, project)


def publish_and_check(log: Log, keep: Retention, shapes: list[tuple[int, int]], most: int) -> None:
    """Publish batches to several topics, and check the retained batches after each.

    ``shapes`` are pairs of message count and bytes per message. ``most`` is the number of bytes or messages that are
    kept, whichever limit is reached first.
    """
    made: list[tuple[int, int]] = []
    dropped = 0
    for at, (count, size) in enumerate(shapes):
        numbers = log.publish(f"t{at % 3}", count, size=size, keep=keep)
        made.append((numbers[-1], count * size if most == keep.size else count))
        told = log.read()
        seen = [batch.last for batch in told.batches]
        total, allowed, due = 0, 0, 0
        for last, weight in reversed(made):
            total += weight
            if last != numbers[-1]:
                allowed = max(allowed, last * (total > most))
                due = max(due, last * (total > most * 9 / 8))
        assert max(due, dropped) <= told.dropped <= allowed
        assert told.dropped in (0, *(last for last, _ in made))
        assert seen == [last for last, _ in made if last > told.dropped]
        assert told.last == numbers[-1]
        dropped = told.dropped
    assert dropped > 0


SHAPES = [(1 + at * 5 % 7, 10 + at * 11 % 40) for at in range(24)]


def test_batches_are_trimmed_by_number_and_by_bytes(log: Log):
    """A log within its limit is not trimmed. A log beyond 9/8 of the limit is. The newest batch always stays."""
    keeps = [
        (Retention(10**9, 40), SHAPES),
        (Retention(10**9, 1), SHAPES[:5]),
        (Retention(1500, 10**9), SHAPES),
        (Retention(1, 10**9), SHAPES[:5]),
    ]
    for at, (keep, shapes) in enumerate(keeps):
        publish_and_check(log.of(f"p{at}"), keep, shapes, min(keep))


def test_a_batch_larger_than_the_retention_stays_until_the_next(log: Log):
    for keep in (Retention(10**9, 10), Retention(1000, 10**9)):
        old = log.publish("a", 2, size=40, keep=keep)
        large = log.publish("a", 30, size=200, keep=keep)
        assert log.sequences() == log.sequences("a") == large
        assert log.read().dropped == old[-1]
        small = log.publish("b", 1, keep=keep)
        assert log.sequences() == small
        assert (log.sequences("a"), log.figures("a"), log.read("a").dropped) == ([], (0, 0, 0), large[-1])


@pytest.mark.fresh_store
def test_trimmed_batches_are_neither_read_nor_counted(log: Log):
    """Reads and statistics omit trimmed messages, and readers get the gap."""
    made = [log.publish(f"t{at % 2}", 2, keep=Retention(10**9, 8)) for at in range(20)]
    dropped = log.read().dropped
    assert dropped == made[15][1]
    kept = [numbers for numbers in made if numbers[0] > dropped]
    for after in (0, made[0][0], dropped - 1, dropped):
        for match in ("**", "t*"):
            assert log.sequences(match, after) == [number for numbers in kept for number in numbers]
            assert log.read(match, after).dropped == dropped
    for at in range(2):
        own = [number for numbers in kept for number in numbers if numbers in made[at::2]]
        assert log.sequences(f"t{at}") == own
        assert log.figures(f"t{at}") == (len(own), own[0], own[-1])
        assert log.read(f"t{at}", limit=1).dropped == dropped
    log.reclaim()
    assert (log.sequences(), log.read().dropped) == ([number for numbers in kept for number in numbers], dropped)


@pytest.mark.fresh_store
def test_purged_and_expired_batches_count_towards_the_retention(log: Log):
    """Purged and expired messages count until they are trimmed. ``dropped`` includes neither."""
    keep = Retention(10**9, 16)
    first = log.publish("kept", 4, keep=keep)
    log.publish("purged", 6, keep=keep)
    log.purge("purged")
    log.publish("expired", 6, ttl=60, keep=keep)
    log.clock.advance(60)
    log.reclaim()
    assert (log.sequences(), log.read().dropped) == (first, 0)
    new = log.publish("kept", 3, keep=keep)
    assert log.sequences() == new
    assert log.read().dropped == first[-1]


def test_a_changed_retention_shrinks_or_grows_the_log(log: Log):
    """Each publish sets the retention; trimmed messages do not return."""
    made = [number for _ in range(20) for number in log.publish("news", 2)]
    assert log.sequences() == made
    made += log.publish("news", 2, keep=Retention(10**9, 8))
    dropped = log.read().dropped
    assert dropped == made[-9]
    made += [number for _ in range(20) for number in log.publish("news", 2, keep=ROOMY)]
    assert log.sequences() == [number for number in made if number > dropped]
    assert log.read().dropped == dropped


@pytest.mark.fresh_store
def test_a_trim_leaves_logs_of_other_projects_alone(log: Log):
    neighbours = [log.of(project) for project in ("acm", "acme/", "acmf", "acme\x00")]
    kept = [room.publish("news", 3, keep=Retention(10**9, 8)) for room in neighbours]
    for _ in range(20):
        log.publish("news", 3, keep=Retention(10**9, 8))
    log.reclaim()
    for room, numbers in zip(neighbours, kept, strict=True):
        assert (room.sequences(), room.read().dropped, room.figures()[0]) == (numbers, 0, 3)


def test_a_repeat_is_recognized_after_its_batch_was_trimmed(log: Log):
    [first] = log.publish(once=make_key())
    for _ in range(5):
        log.put("news", entries(9), Retention(10**9, 4))
    assert log.read().dropped > first
    with pytest.raises(Repeated) as told:
        log.publish(once=make_key())
    assert told.value.answer == first


def test_attributes_count_towards_the_retention(log: Log):
    batches = [[Entry(b"1", 3600, attributes=b"a" * 99)] for _ in range(20)]
    made = [log.put("news", batch, Retention(1000, 10**9)) for batch in batches]
    log.reclaim()
    assert log.sequences()[-1] == made[-1]
    assert 10 <= len(log.sequences()) <= 12
