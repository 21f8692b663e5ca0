# SPDX-License-Identifier: Apache-2.0
"""Listeners are notified of batches that any process publishes in their projects (extensions, section 8)."""

import time
from collections.abc import Iterator
from functools import partial

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import OpenStore, make_key, run_together
from zq.conformance.topic_builders import Follower, Log, entries
from zq.errors import KeyReused, Repeated
from zq.model.topics import Entry, Retention

pytestmark = [pytest.mark.every_server, pytest.mark.fresh_store]


@pytest.fixture(params=[pytest.param(False, id="one"), pytest.param(True, id="two", marks=pytest.mark.shared)])
def logs(request: pytest.FixtureRequest, open_store: OpenStore) -> Iterator[tuple[Log, Log]]:
    """Yield the listener's and the publisher's log, on one connection or on two."""
    apart = request.param
    listening = open_store()
    acting = open_store() if apart else listening
    clock = ManualClock(listening.now())
    yield Log(listening, clock), Log(acting, clock)
    acting.close()
    if apart:
        listening.close()


def test_notified_batches_equal_read_ones(logs: tuple[Log, Log]):
    """Small and large batches of all topics arrive soon and in order, even in a new project."""
    reading, acting = logs
    follower = Follower(reading.storage, "acme")
    numbers = [acting.publish(f"t{at % 3}", 1 + at % 4, ttl=60 + at)[0] for at in range(20)]
    numbers.append(acting.put("large", [Entry(b"1" * 300_000, 60)] * 5))
    assert follower.receives(numbers[-1])
    told = follower.batches()
    assert [batch.sequence for batch in told] == numbers
    assert told == reading.walk()


def test_a_batch_is_notified_within_a_second_after_any_silence(logs: tuple[Log, Log]):
    """Each batch arrives without a later batch or a maintenance round.

    Notifications may be late on a busy machine: two of three successive batches must arrive within a second.
    """
    reading, acting = logs
    follower = Follower(reading.storage, "acme")
    waits: list[float] = []
    while len(waits) < 3 or (sorted(waits[-3:])[1] >= 1.0 and len(waits) < 15):
        [number] = acting.publish()
        published = time.monotonic()
        assert follower.receives(number)
        waits.append(time.monotonic() - published)
    assert sorted(waits[-3:])[1] < 1.0


def test_projects_that_are_not_followed_are_not_notified(logs: tuple[Log, Log]):
    reading, acting = logs
    others = ["", "acme/", "acm", "acme\x00", "ACME", "*", "\ud800"]
    followed = ["acme", "a:b", "\U0001f600", "\udfff"]
    follower = Follower(reading.storage, *followed)
    for at, project in enumerate([*others, *followed]):
        acting.of(project).publish("news", 1 + at)
    for project in followed:
        last = acting.of(project).publish("end")[0]
        assert follower.receives(last, project)
        assert follower.batches(project) == reading.of(project).walk()
    assert {project for project, _ in follower.told} == set(followed)


def test_a_project_that_is_unfollowed_is_not_notified(logs: tuple[Log, Log]):
    """A listener that follows the project again is notified again, but not of the batches in between."""
    reading, acting = logs
    follower = Follower(reading.storage, "acme", "other")
    first = acting.publish()[0]
    assert follower.receives(first)
    for _ in range(2):
        follower.unsubscribe["acme"]()
    between = acting.publish()[0]
    assert follower.receives(acting.of("other").publish()[0], "other")
    again = Follower(reading.storage, "acme")
    last = acting.publish()[0]
    assert again.receives(last)
    assert [batch.sequence for batch in again.batches()] == [last]
    assert [batch.sequence for batch in follower.batches()] == [first]
    assert [batch.sequence for batch in reading.walk()] == [first, between, last]


def test_each_of_two_listeners_is_notified(logs: tuple[Log, Log]):
    """A listener is still notified after another one has ended."""
    reading, acting = logs
    first, second = Follower(reading.storage, "acme"), Follower(reading.storage, "acme")
    number = acting.publish()[0]
    assert first.receives(number)
    assert second.receives(number)
    first.unsubscribe["acme"]()
    number = acting.publish()[0]
    assert second.receives(number)
    assert number not in [batch.sequence for batch in first.batches()]


def test_a_purge_notifies_a_loss(logs: tuple[Log, Log]):
    """A listener that is notified of a loss must discard its state of the project. Later batches arrive."""
    reading, acting = logs
    follower = Follower(reading.storage, "acme", "other")
    assert follower.receives(acting.publish()[0])
    follower.told.clear()
    acting.purge()
    assert follower.receives_loss()
    assert follower.receives(acting.publish()[0])
    assert ("other", None) not in follower.told


def test_batches_of_many_publishers_are_notified_in_order(logs: tuple[Log, Log]):
    """Six publishers: every batch that is not trimmed yet arrives, in the order of sequence."""
    reading, acting = logs
    follower = Follower(reading.storage, "acme")

    def publisher(at: int) -> list[int]:
        log = (reading, acting)[at % 2]
        return [log.put(f"t{at % 3}", entries(3), Retention(10**9, 100)) for _ in range(15)]

    made = sorted(
        number for numbers in run_together(*(partial(publisher, at) for at in range(6))) for number in numbers
    )
    assert follower.receives(made[-1])
    told = [batch.sequence for batch in follower.batches()]
    assert told == sorted(told)
    assert set(told) <= set(made)
    assert {batch.sequence for batch in reading.walk()} <= set(told)


def test_a_repeat_and_a_refusal_are_not_notified(logs: tuple[Log, Log]):
    reading, acting = logs
    follower = Follower(reading.storage, "acme")
    first = acting.publish(once=make_key())[0]
    for key, refusal in [(make_key(), Repeated), (make_key(digest=b"other"), KeyReused)]:
        with pytest.raises(refusal):
            acting.publish(once=key)
    last = acting.publish()[0]
    assert follower.receives(last)
    assert [batch.sequence for batch in follower.batches()] == [first, last]


def test_a_reader_switches_from_the_log_to_notifications_without_loss(logs: tuple[Log, Log]):
    """Like a server, follow the project, read the log to its end, then use notifications. Each message arrives once."""
    reading, acting = logs
    seen = acting.publish("a", 3)
    follower = Follower(reading.storage, "acme")
    more = [number for _ in range(5) for number in acting.publish("a", 2)]
    assert reading.sequences() == seen + more
    last = [number for _ in range(5) for number in acting.publish("a", 2)]
    assert follower.receives(last[-2])
    live = [one.sequence for batch in follower.batches() for one in batch.messages(more[-1], reading.now)]
    assert live == last
