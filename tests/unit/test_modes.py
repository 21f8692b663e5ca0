# SPDX-License-Identifier: Apache-2.0
"""The mode of a process, and the check for low disk space."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from zq import wire
from zq.clock import ManualClock
from zq.core import Broker
from zq.core.modes import Modes
from zq.errors import NoPosts, ReadOnly, Unavailable
from zq.model import Draft, Grouping, ListFilter, QueueRef
from zq.model.modes import Mode
from zq.serving.mode_watch import ModeWatch
from zq.sqs.extension import ATTRIBUTES
from zq.sqs.feature import use_cases
from zq.sqs.messaging import OutgoingMessage
from zq.storage import connect
from zq.storage.rocksdb.space import SpaceGuard, default_minimum
from zq.websocket.pushes import NoSubscriptions, Pusher

GIB = 1 << 30


class Usage(NamedTuple):
    total: int
    free: int


class Disk:
    """A file system whose free space a test sets."""

    def __init__(self, free: int) -> None:
        self.free = free

    def usage(self, _path: Path) -> Usage:
        return Usage(1000, self.free)


@pytest.fixture
def modes() -> Modes:
    return Modes(connect("memory:").documents, ManualClock(1000.0))


def test_space_that_was_low_is_low_until_twice_the_minimum_is_free() -> None:
    disk = Disk(100)
    guard = SpaceGuard(Path("/store"), 100, disk.usage)
    seen = []
    for disk.free in (100, 99, 100, 199, 200, 100, 99):
        seen.append(guard.is_low())
    assert seen == [False, True, True, True, False, False, True]


def test_space_recovers_although_twice_the_minimum_is_more_than_the_disk() -> None:
    disk = Disk(500)
    guard = SpaceGuard(Path("/store"), 600, disk.usage)
    seen = []
    for disk.free in (500, 700, 799, 800, 700):
        seen.append(guard.is_low())
    assert seen == [True, True, True, False, False]


def test_space_is_never_low_without_a_minimum() -> None:
    assert not SpaceGuard(Path("/store"), 0, Disk(0).usage).is_low()


@pytest.mark.parametrize(
    ("total", "expected"),
    [(4000 * GIB, 10 * GIB), (100 * GIB, 5 * GIB), (10 * GIB, GIB), (2 * GIB, int(0.4 * GIB)), (0, 0)],
)
def test_the_default_minimum_is_a_twentieth_within_bounds(total: int, expected: int) -> None:
    assert default_minimum(total) == expected


def test_low_space_restricts_a_normal_mode_only(modes: Modes) -> None:
    modes.refresh(has_low_space=True)
    assert (modes.stored, modes.current) == (Mode.NORMAL, Mode.NO_POSTS)
    modes.check_change()
    with pytest.raises(NoPosts, match="little free disk space"):
        modes.check_post()
    modes.set(Mode.READ_ONLY)
    modes.refresh(has_low_space=True)
    with pytest.raises(ReadOnly):
        modes.check_post()
    with pytest.raises(ReadOnly):
        modes.check_change()
    modes.set(Mode.NORMAL)
    modes.refresh(has_low_space=False)
    modes.check_post()


def test_a_mode_is_read_by_other_processes(modes: Modes) -> None:
    storage, clock = connect("memory:"), ManualClock(1000.0)
    one, other = Modes(storage.documents, clock), Modes(storage.documents, clock)
    one.set(Mode.NO_POSTS)
    other.refresh(has_low_space=False)
    assert other.current is Mode.NO_POSTS
    with pytest.raises(NoPosts, match="no_posts"):
        other.check_post()


@pytest.mark.parametrize("failure", [Unavailable(), ValueError("x")])
def test_a_watch_survives_a_failure_and_keeps_the_mode(modes: Modes, failure: Exception) -> None:
    def fail() -> bool:
        raise failure

    modes.set(Mode.NO_POSTS)
    ModeWatch(modes, fail)
    assert modes.current is Mode.NO_POSTS


def test_a_watch_reads_the_mode_if_the_free_space_is_unknown() -> None:
    """The last free space that could be read still counts."""

    def fail() -> bool:
        raise OSError(5, "Input/output error")

    storage, clock = connect("memory:"), ManualClock(1000.0)
    modes = Modes(storage.documents, clock)
    modes.refresh(has_low_space=True)
    ModeWatch(modes, fail)
    assert modes.current is Mode.NO_POSTS
    Modes(storage.documents, clock).set(Mode.READ_ONLY)
    reported: list[Mode] = []
    ModeWatch(modes, fail, reported.append)
    assert reported == [modes.current] == [Mode.READ_ONLY]


class ReadOnlySubscriptions(NoSubscriptions):
    """Subscriptions whose messages cannot be claimed, because the service is read-only."""

    def exists(self, _queue: QueueRef, _id: str) -> bool:
        return True

    def batches(self, _queue: QueueRef, _id: str) -> Iterator[Sequence[bytes]]:
        raise ReadOnly


def test_a_push_to_a_websocket_waits_silently_until_the_mode_allows_it(caplog: pytest.LogCaptureFixture) -> None:
    pusher = Pusher(ReadOnlySubscriptions(), bool)
    pusher.add(QueueRef("acme", "jobs"), "s", binary=False)
    assert list(pusher.batches()) == []
    assert caplog.records == []


@pytest.mark.parametrize("has_low_space", [True, False], ids=["low-space", "no_posts"])
@pytest.mark.parametrize("grouping", Grouping)
def test_a_mode_refuses_sqs_messages(has_low_space: bool, grouping: Grouping) -> None:
    """Single messages and batches are refused, for standard and FIFO queues."""
    storage, queue = connect("memory:"), QueueRef("acme", "jobs")
    broker = Broker(storage, ManualClock(storage.now()))
    metadata = wire.encode({ATTRIBUTES: {"fifo": grouping is Grouping.ORDERED}})
    assert storage.queues.create(queue, metadata, grouping)
    if not has_low_space:
        broker.modes.set(Mode.NO_POSTS)
    broker.modes.refresh(has_low_space)
    messaging = use_cases(broker).messaging
    for count in (1, 2):
        outgoing = [OutgoingMessage(b"1", 1, group="g", deduplication_id=str(number)) for number in range(count)]
        with pytest.raises(NoPosts):
            messaging.send(queue, "AK", outgoing)
    assert storage.messages.list(queue, 0, 10, ListFilter(), storage.now()).items == []


def test_move_tasks_pause_while_the_service_is_read_only() -> None:
    storage, source = connect("memory:"), QueueRef("acme", "dead")
    clock = ManualClock(storage.now())
    broker = Broker(storage, clock)
    tasks = use_cases(broker).move_tasks
    assert storage.queues.create(QueueRef("acme", "jobs"), b"{}")
    storage.messages.post(source, [Draft("a", b"1", 600, 0, "c")], clock.now())
    tasks.start(source, "jobs", 0, 1)
    broker.modes.set(Mode.READ_ONLY)
    tasks.resume()
    assert tasks.latest(source, 1)[0].moved == 0
    broker.modes.set(Mode.NO_POSTS)
    tasks.resume()
    assert tasks.latest(source, 1)[0].moved == 1
