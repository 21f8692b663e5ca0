# SPDX-License-Identifier: Apache-2.0
"""Topics: all readers get published messages until these expire or are purged (extensions, section 8)."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import OpenStore, RunningWorkers, make_key, run_together
from zq.conformance.test_tenants import PROJECTS
from zq.conformance.topic_builders import Log, entries
from zq.errors import KeyReused, Repeated
from zq.model import EndMessage, Stats
from zq.model.topics import Batch, Entry, Retention
from zq.storage.api import Storage

pytestmark = [pytest.mark.every_server, pytest.mark.pools]

TOPICS = ["b", "b.b", "b/b", "b:b", "b\x01", "*", "é", "\ud800", "x" * 64]


@pytest.fixture
def log(storage: Storage, clock: ManualClock, project: str) -> Log:
    return Log(storage, clock, project)


def test_a_batch_is_returned_whole(log: Log):
    """Topic, time, bodies, ttl, checksum and attributes are unchanged; the sequences are consecutive."""
    bodies = [b"null", b'"\\u0000\\ud800"', '"é\U0001f600"'.encode(), b" " * 70_000 + b"1", b"\x00\xff"]
    batch = [
        Entry(body, 60 + at, "SHA256:ab" if at % 2 else "", attributes=b"a" * (at - 1))
        for at, body in enumerate(bodies, 1)
    ]
    first = log.put("news", batch)
    assert first >= 1
    told = log.read("news")
    assert told.batches == log.read().batches == [Batch("news", first, log.now, batch)]
    assert (told.position, told.more, told.last, told.dropped) == (first + 4, False, first + 4, 0)
    assert log.stats() == Stats(
        0, 5, EndMessage(str(first), log.now, first), EndMessage(str(first + 4), log.now, first + 4)
    )


def test_topics_of_a_project_share_one_order(log: Log):
    """Every batch comes after all earlier ones, of the same and of other topics."""
    posted = [(topic, log.publish(topic, 1 + at % 3)) for at, topic in enumerate(["a", "b", "a.c", "b", "a"] * 4)]
    numbers = [number for _, batch in posted for number in batch]
    assert numbers == sorted(set(numbers))
    assert log.sequences() == numbers
    assert log.read().last == numbers[-1]
    for match, topics in {
        "a": {"a"},
        "b": {"b"},
        "a*": {"a"},
        "a**": {"a", "a.c"},
        "*": {"a", "b"},
        "c": set(),
    }.items():
        assert log.sequences(match) == [number for topic, batch in posted for number in batch if topic in topics]


def test_every_project_has_a_log_of_its_own(log: Log):
    rooms = [log.of(project) for project in ["", *PROJECTS, "\udfff"]]
    made = [room.publish("news", 1 + at % 3, once=make_key()) for at, room in enumerate(rooms)]
    for at, (room, numbers) in enumerate(zip(rooms, made, strict=True)):
        assert room.sequences() == room.sequences("news") == numbers
        assert (room.read().last, room.figures()[0]) == (numbers[-1], 1 + at % 3)
        with pytest.raises(Repeated) as told:
            room.publish(once=make_key())
        assert told.value.answer == numbers[0]
    for room in rooms[::2]:
        room.purge()
    assert [room.sequences() for room in rooms] == [numbers * (at % 2) for at, numbers in enumerate(made)]


def test_topics_with_odd_names_are_distinct(log: Log):
    rooms = [log, *(log.of(log.project + end) for end in ("/b", "b", ":", "\x00"))]
    made = {(room.project, topic): room.publish(topic, 2) for room in rooms for topic in TOPICS if "*" not in topic}
    for room in rooms:
        for topic in (topic for topic in TOPICS if "*" not in topic):
            assert room.sequences(topic) == made[room.project, topic]
            assert room.figures(topic) == (2, *made[room.project, topic])
    log.purge("b")
    for (project, topic), numbers in made.items():
        assert log.of(project).sequences(topic) == ([] if (project, topic) == (log.project, "b") else numbers)


def test_a_name_with_a_star_is_a_name_to_verbs_without_patterns(log: Log):
    kept = log.publish("news")
    assert log.stats("*") == Stats()
    log.purge("*")
    log.purge("**")
    assert log.sequences() == kept


def test_a_missing_log_reads_as_empty(log: Log):
    """Reads of a missing project or topic return nothing and create nothing."""
    for after in (0, 7, 2**62):
        told = log.read("news", after)
        assert (told.batches, told.position, told.more, told.last, told.dropped) == ([], after, False, 0, 0)
    log.purge()
    assert log.stats() == Stats()
    [first] = log.publish("other")
    assert log.stats() == Stats()
    assert (log.read("news").position, log.read("news").last) == (first, first)


@pytest.mark.fresh_store
def test_expired_messages_are_omitted_by_their_own_ttl(log: Log):
    """Messages expire within a batch, to the millisecond; the other messages keep their sequences."""
    first = log.put("news", [Entry(b"0", 60), Entry(b"1", 600), Entry(b"2", 61), Entry(b"3", 60)])
    log.clock.advance(59.999)
    assert log.sequences() == [first, first + 1, first + 2, first + 3]
    log.clock.advance(0.001)
    assert log.sequences() == log.sequences("news") == [first + 1, first + 2]
    assert log.figures() == (2, first + 1, first + 2)
    log.clock.advance(1)
    log.reclaim()
    assert log.sequences() == [first + 1]
    assert log.figures() == (1, first + 1, first + 1)
    log.clock.advance(539)
    assert (log.sequences(), log.stats()) == ([], Stats())


@pytest.mark.fresh_store
def test_a_purge_hides_earlier_batches_only(log: Log):
    """A purge hides the batches of one topic only. Later messages are readable until the next purge."""
    old, other = log.publish("news", 3), log.publish("news.a", 2)
    log.purge()
    told = log.read("news")
    assert (told.batches, told.position, told.last, told.dropped) == ([], other[-1], other[-1], 0)
    assert log.stats() == Stats()
    assert log.sequences() == log.sequences("**", old[0]) == other
    new = log.publish("news", 2)
    assert new[0] > other[-1]
    assert (log.sequences("news"), log.figures()) == (new, (2, *new))
    log.reclaim()
    assert log.sequences() == other + new
    log.purge()
    log.purge()
    assert log.sequences() == other


def test_reads_during_a_purge_show_all_batches_or_none(log: Log):
    """Statistics and reads of a topic show all of its batches or none, and other topics stay."""
    run_together(*[lambda: [log.publish() for _ in range(100)]] * 6, partial(log.publish, "other"))
    shift = RunningWorkers(1)

    def watch(total: Callable[[], int]) -> list[int]:
        seen = [total()]
        while not shift.is_over():
            seen.append(total())
        return [*seen, total()]

    def purge() -> list[int]:
        with shift.at_work():
            log.purge()
            log.storage.maintain(log.now)
        return []

    counted, read, everything, _ = run_together(
        partial(watch, lambda: log.figures()[0]),
        partial(watch, lambda: len(log.read("news").batches)),
        partial(watch, lambda: len(log.read().batches) - 1),
        purge,
    )
    for seen in (counted, read, everything):
        assert set(seen) <= {0, 600}
        assert seen == sorted(seen, reverse=True)
        assert seen[-1] == 0
    log.reclaim()
    assert log.figures("other")[0] == 1


def test_purges_during_publishes_hide_whole_batches(log: Log):
    """The purged topic keeps its last batches whole. Other topics lose nothing."""

    def publisher(topic: str) -> list[list[int]]:
        return [log.publish(topic, 3) for _ in range(15)]

    def purger() -> list[list[int]]:
        for _ in range(15):
            log.purge("a")
        return []

    of_a, again, of_b, _ = run_together(*(partial(publisher, topic) for topic in "aab"), purger)
    left = log.sequences("a")
    everything = sorted(number for batch in of_a + again for number in batch)
    assert left == everything[len(everything) - len(left) :]
    assert len(left) % 3 == 0
    assert log.sequences("b") == [number for batch in of_b for number in batch]
    log.purge("a")
    assert log.sequences("a") == []


@pytest.mark.fresh_store
def test_a_repeated_publish_stores_nothing_and_gets_the_first_sequence(log: Log):
    """The key is unique in the project and survives the batch. Another digest is refused until the window ends."""
    first = log.publish("news", 3, ttl=60, once=make_key())[0]
    for change in (
        lambda: None,
        log.purge,
        partial(log.clock.advance, 60),
        log.reclaim,
        partial(log.clock.advance, 3539.999),
    ):
        change()
        for topic in ("news", "other"):
            with pytest.raises(Repeated) as told:
                log.publish(topic, 2, once=make_key())
            assert told.value.answer == first
            with pytest.raises(KeyReused):
                log.publish(topic, 2, once=make_key(digest=b"other"))
    assert (log.sequences(), log.read().last) == ([], first + 2)
    other = log.publish(once=make_key("post:K"))
    log.clock.advance(0.001)
    assert log.sequences() == other
    again = log.publish("news", 1, once=make_key(digest=b"other"))
    log.reclaim()
    assert log.sequences() == other + again
    rival = log.of(f"{log.project}.rival")
    assert rival.publish(once=make_key()) == rival.sequences()


def test_one_of_many_publishers_with_one_key_publishes(log: Log):
    """The key is stored atomically with the batch. The other publishers get the sequence of the first."""

    def publisher(key: str) -> tuple[bool, object]:
        try:
            return True, log.publish("news", 2, once=make_key(key))[0]
        except Repeated as told:
            return False, told.answer

    for at in range(5):
        told = run_together(*[partial(publisher, f"post:{at}")] * 6)
        assert sorted(published for published, _ in told) == [False] * 5 + [True]
        assert {first for _, first in told} == {first for published, first in told if published}
        assert log.figures()[0] == 2 * (at + 1)


@pytest.fixture
def reopened(open_store: OpenStore) -> Iterator[Log]:
    """Yield a log whose store is closed and opened again."""
    storage = open_store()
    log = Log(storage, ManualClock(storage.now()))
    yield log
    log.storage.close()


REMOVALS: dict[str, Callable[[Log], object]] = {
    "none": lambda log: None,
    "purge": lambda log: log.purge(),
    "expire": lambda log: log.reclaim(),
    "fall off": lambda log: log.put("other", entries(9, ttl=60), keep=Retention(10, 4)),
}


@pytest.mark.fresh_store
@pytest.mark.durable
def test_a_restart_keeps_logs_and_reuses_no_sequence(open_store: OpenStore, reopened: Log):
    """Batches, purges, keys and gaps survive. New batches come after all earlier ones, even in an empty log."""
    rooms = [reopened.of(name) for name in REMOVALS]
    tops = [
        room.put("news", entries(3, ttl=60 if room.project == "expire" else 600), once=make_key()) + 2 for room in rooms
    ]
    first = [top - 2 for top in tops]
    reopened.clock.advance(60)
    for room in rooms:
        REMOVALS[room.project](room)
    dropped = [room.read().dropped for room in rooms]
    assert dropped == [0, 0, 0, tops[3]]
    for _ in range(2):
        seen = [room.messages() for room in rooms]
        tops = [room.read().last for room in rooms]
        reopened.storage.close()
        reopened.storage = open_store()
        rooms = [reopened.of(name) for name in REMOVALS]
        assert [room.messages() for room in rooms] == seen
        assert [room.read().dropped for room in rooms] == dropped
        for at, room in enumerate(rooms):
            marker = max(tops[at], room.read().last)
            with pytest.raises(Repeated) as told:
                room.publish(once=make_key())
            assert told.value.answer == first[at]
            [number] = room.publish("other")
            assert number > marker
            assert room.sequences("**", marker) == room.sequences("**", tops[at]) == [number]
