# SPDX-License-Identifier: Apache-2.0
"""Long polls on a stub store: which poll is notified when, and the number of queries."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from tests.servers import wait_for
from zq.clock import ManualClock
from zq.core import waiting
from zq.core.wait_queues import MAX_CONCURRENT_POLLS
from zq.core.waiting import PollResult, Waiters
from zq.errors import Invalid, Unavailable
from zq.model import QueueRef, ReadyMessages
from zq.model.limits import Limits
from zq.storage.inline import LongScan

QUEUE, OTHER = QueueRef("acme", "jobs"), QueueRef("acme", "other")
LONG, SOON = 30, 25
"""A wait that no poll here reaches, and the seconds within which each notified poll returns."""


class Shelf:
    """A store of one queue; a poll calls ``take``."""

    def __init__(self) -> None:
        self.queues = self
        self.items: list[str] = []
        self.asked = 0
        self.due_at: float | None = None
        self.failing = False
        self.looks: Callable[[], list[str]] = self.look
        self._lock = threading.Lock()

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        self.tell = listener

    def ready(self, queue: QueueRef, max_count: int, now: float) -> ReadyMessages:
        return ReadyMessages(next=self.due_at)

    def take(self) -> str | None:
        with self._lock:
            self.asked += 1
            if self.failing:
                raise Unavailable("down")
            return self.items.pop(0) if self.items else None

    def look(self) -> list[str]:
        with self._lock:
            self.asked += 1
            return list(self.items)


def poll(
    waiters: Waiters,
    queue: QueueRef,
    wait: int | None,
    ask: Callable[[], Any],
    found: Callable[[Any], object],
    *,
    gone: Callable[[], bool] = lambda: False,
    waits: Callable[[], object] = lambda: None,
    **options: Any,
) -> PollResult[Any]:
    """Poll like a server without an event loop: the thread waits."""
    queue_poll = waiters.enter(queue, wait, **options)
    try:
        while (polled := queue_poll.poll(ask, found, gone)) is None:
            notified = threading.Event()
            queue_poll.begin(notified.set)
            waits()
            notified.wait(queue_poll.seconds_left())
            queue_poll.end()
        return polled
    finally:
        queue_poll.close()


class Scene:
    """Waiters on a stub store, and threads that poll."""

    def __init__(self, most: int) -> None:
        self.shelf = Shelf()
        self.clock = ManualClock(1000.0)
        self.waiters = Waiters(self.shelf, self.clock, Limits(), most)
        self.pool = ThreadPoolExecutor(16)

    def start(
        self, *, takes: bool = True, queue: QueueRef = QUEUE, wait: int = LONG, gone: bool = False
    ) -> Future[PollResult]:
        """Start a poll and wait until it has found nothing and waits."""
        waits = threading.Event()
        ask = self.shelf.take if takes else lambda: self.shelf.looks()
        options = {"takes": takes, "gone": lambda: gone, "waits": waits.set}
        running = self.pool.submit(poll, self.waiters, queue, wait, ask, bool, **options)
        wait_for(lambda: waits.is_set() or running.done(), SOON, "the poll waits")
        return running

    def put(self, *items: str, told: int = 1) -> None:
        self.shelf.items += items
        for _ in range(told):
            self.shelf.tell(QUEUE)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene(most=40)
    yield made
    made.waiters.close()
    made.pool.shutdown()


def test_what_is_there_is_answered_at_once(scene: Scene) -> None:
    scene.shelf.items = ["a"]
    assert poll(scene.waiters, QUEUE, LONG, scene.shelf.take, bool, takes=True) == PollResult("a")
    assert scene.shelf.asked == 1


@pytest.mark.parametrize("wait", [None, 0])
def test_a_poll_without_wait_returns_at_once(scene: Scene, wait: int | None) -> None:
    assert poll(scene.waiters, QUEUE, wait, scene.shelf.take, bool, takes=True) == PollResult(None)


@pytest.mark.parametrize("wait", [-1, 31])
def test_a_wait_out_of_bounds_is_refused_before_anything_is_taken(scene: Scene, wait: int) -> None:
    """The allowed range is 0 to ``max_wait`` (extensions 2)."""
    with pytest.raises(Invalid, match="wait must be from 0 to 30"):
        poll(scene.waiters, QUEUE, wait, scene.shelf.take, bool, takes=True)
    assert scene.shelf.asked == 0


def test_a_poll_without_messages_ends_after_its_time(scene: Scene) -> None:
    """The poll returns its last result."""
    began = time.monotonic()
    assert poll(scene.waiters, QUEUE, 1, scene.shelf.take, bool, takes=True) == PollResult(None)
    assert 1 <= time.monotonic() - began < SOON
    assert scene.shelf.asked <= 3


def test_a_notification_wakes_a_poll_of_its_queue(scene: Scene) -> None:
    """Polls of other queues do not query the store."""
    running = scene.start()
    elsewhere = scene.start(queue=OTHER)
    scene.put("a")
    assert running.result(SOON) == PollResult("a")
    assert scene.shelf.asked == 3
    assert not elsewhere.done()


def test_one_message_wakes_one_taking_poll(scene: Scene) -> None:
    """The first of six polls gets the message, the second one checks for another, and four keep waiting."""
    running = [scene.start() for _ in range(6)]
    scene.put("a")
    wait_for(lambda: scene.shelf.asked == 8, SOON, "the second one has looked")
    assert [future.done() for future in running].count(True) == 1
    assert running[0].result(SOON) == PollResult("a"), "the first who came"


def test_one_notification_of_many_messages_serves_as_many_polls(scene: Scene) -> None:
    """A poll that finds a message notifies the next poll."""
    running = [scene.start() for _ in range(4)]
    scene.put("a", "b", "c", told=1)
    wait_for(lambda: [future.done() for future in running].count(True) == 3, SOON, "three are served")


def test_many_notifications_serve_many_polls(scene: Scene) -> None:
    """No notification is lost, however many coincide."""
    running = [scene.start() for _ in range(8)]
    for name in "abcdefgh":
        scene.put(name)
    assert sorted(future.result(SOON).answer for future in running) == list("abcdefgh")


def test_a_disconnected_poll_takes_nothing_and_wakes_the_next(scene: Scene) -> None:
    """The next poll gets the message."""
    lost, there = scene.start(gone=True), scene.start()
    scene.put("a")
    assert there.result(SOON) == PollResult("a")
    assert lost.result(SOON) == PollResult(None)


def test_a_notification_wakes_all_reading_polls(scene: Scene) -> None:
    """Every poll sees a message that none of them takes."""
    running = [scene.start(takes=False) for _ in range(5)]
    scene.put("a")
    assert [future.result(SOON) for future in running] == [PollResult(["a"])] * 5


def test_reading_polls_run_a_few_at_a_time(scene: Scene) -> None:
    """The next poll begins when one has ended; a notification during a poll is not lost."""
    running = [scene.start(takes=False) for _ in range(2 * MAX_CONCURRENT_POLLS)]
    looking, looks = list[int](), list[bool]()
    most = 0

    def look() -> list[str]:
        nonlocal most
        looking.append(1)
        most = max(most, len(looking))
        in_vain = len(looks) < MAX_CONCURRENT_POLLS
        looks.append(in_vain)
        if in_vain:
            scene.shelf.tell(QUEUE)
        time.sleep(0.01)
        looking.pop()
        return [] if in_vain else scene.shelf.look()

    scene.shelf.looks = look
    scene.put("a")
    assert [future.result(SOON) for future in running] == [PollResult(["a"])] * len(running)
    assert most <= MAX_CONCURRENT_POLLS


def test_a_message_that_becomes_ready_wakes_a_poll(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A single timer is set for the time that the store returns."""
    monkeypatch.setattr(waiting, "RECHECK_INTERVAL", 1000.0)
    scene.shelf.due_at = 1000.3
    began = time.monotonic()
    running = scene.start()
    scene.shelf.items.append("a")
    assert running.result(SOON) == PollResult("a")
    assert time.monotonic() - began > 0.25


def test_a_lost_notification_only_adds_latency(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each queue is polled again after an interval anyway (extensions 2)."""
    monkeypatch.setattr(waiting, "RECHECK_INTERVAL", 0.2)
    running = [scene.start() for _ in range(2)]
    scene.put("a", "b", told=0)
    assert sorted(future.result(SOON).answer for future in running) == ["a", "b"]


def test_without_a_place_a_poll_is_turned_away() -> None:
    """Beyond ``max_waiters``, a poll returns at once with what it finds (extensions 2)."""
    scene = Scene(most=1)
    running = scene.start()
    assert poll(scene.waiters, OTHER, LONG, lambda: None, bool, takes=True) == PollResult(None, turned_away=True)
    assert poll(scene.waiters, OTHER, LONG, lambda: "x", bool, takes=True) == PollResult("x")
    scene.put("a")
    assert running.result(SOON) == PollResult("a")
    scene.shelf.items.append("b")
    assert poll(scene.waiters, QUEUE, LONG, scene.shelf.take, bool, takes=True) == PollResult("b"), (
        "the place is free again"
    )
    scene.pool.shutdown()


def test_a_poll_in_the_reserve_is_held_for_a_short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small reserve holds such polls for a short time (SQS 7).

    They are notified like others; without a message they return soon, and beyond the reserve at once.
    """
    monkeypatch.setattr(waiting, "RESERVE_WAIT", 0.05)
    scene = Scene(most=1)
    running = scene.start()
    again = partial(poll, scene.waiters, OTHER, LONG, lambda: None, bool, takes=True, may_use_reserve=True)
    assert again() == PollResult(None)
    monkeypatch.setattr(waiting, "RESERVE_WAIT", float(LONG))
    held = scene.pool.submit(poll, scene.waiters, OTHER, LONG, scene.shelf.take, bool, takes=True, may_use_reserve=True)
    wait_for(lambda: scene.shelf.asked > 1, SOON, "the one in the reserve has asked")
    assert again() == PollResult(None, turned_away=True)
    scene.shelf.items.append("a")
    scene.waiters.wake(OTHER)
    assert held.result(SOON) == PollResult("a")
    scene.put("b")
    assert running.result(SOON) == PollResult("b")
    scene.pool.shutdown()


def test_one_project_gets_a_quarter_of_the_slots_to_wait() -> None:
    """A poll beyond the project's share is refused at once, and other projects' polls can wait (S7)."""
    scene = Scene(most=8)
    mine = [scene.start() for _ in range(2)]
    turned_away = poll(scene.waiters, OTHER, LONG, lambda: None, bool, takes=True)
    assert turned_away == PollResult(None, turned_away=True)
    assert not scene.waiters.acquire_slot(QUEUE.project)
    neighbour = QueueRef("rival", "jobs")
    theirs = scene.start(queue=neighbour)
    assert scene.waiters.acquire_slot(neighbour.project)
    scene.waiters.release_slot(neighbour.project)
    scene.shelf.items += ["a", "b", "c"]
    for queue in (QUEUE, QUEUE, neighbour):
        scene.waiters.wake(queue)
    assert sorted(future.result(SOON).answer for future in [*mine, theirs]) == ["a", "b", "c"]
    scene.pool.shutdown()


def test_closing_answers_all_polls_at_once(scene: Scene) -> None:
    """Polls after the shutdown do not wait (extensions 2)."""
    running = [scene.start(), scene.start(takes=False), scene.start(queue=OTHER)]
    scene.waiters.close()
    assert [future.result(SOON).answer for future in running] == [None, [], None]
    assert poll(scene.waiters, QUEUE, LONG, scene.shelf.take, bool, takes=True).turned_away


def test_a_failing_store_fails_all_its_polls(scene: Scene) -> None:
    """No poll keeps waiting for one that failed."""
    running = [scene.start() for _ in range(3)]
    scene.shelf.failing = True
    scene.put("a")
    for future in running:
        with pytest.raises(Unavailable):
            future.result(SOON)


def test_a_message_that_becomes_ready_during_a_poll_is_not_missed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message is too late for the poll's query, and not in the future any more when `ready` is queried."""
    monkeypatch.setattr(waiting, "RECHECK_INTERVAL", 1000.0)
    moments: list[float] = []

    def ready(queue: QueueRef, max_count: int, now: float) -> ReadyMessages:
        moments.append(now)
        return ReadyMessages(next=scene.shelf.due_at if scene.shelf.due_at and scene.shelf.due_at > now else None)

    def ask() -> str | None:
        if moments:
            return scene.shelf.take()
        scene.shelf.due_at = scene.clock.now() + 0.001
        scene.clock.advance(0.002)
        scene.shelf.items.append("a")
        return None

    scene.shelf.ready = ready
    began = time.monotonic()
    assert poll(scene.waiters, QUEUE, LONG, ask, bool, takes=True) == PollResult("a")
    assert time.monotonic() - began < SOON


def test_a_poll_that_needs_a_thread_is_not_notified_again(scene: Scene) -> None:
    """The poll was notified, began on the event loop's thread and continues on another, so it is not notified again."""
    queue_poll = scene.waiters.enter(QUEUE, LONG, takes=False, check=bool)
    assert queue_poll.poll(scene.shelf.look, bool) is None
    queue_poll.begin(threading.Event().set)
    scene.put("a")
    queue_poll.end()

    def walk() -> list[str]:
        raise LongScan

    with pytest.raises(LongScan):
        queue_poll.poll(walk, bool)
    assert queue_poll.poll(scene.shelf.look, bool) == PollResult(["a"])
    queue_poll.close()
