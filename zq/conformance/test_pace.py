# SPDX-License-Identifier: Apache-2.0
"""Maintenance rounds keep to their pace (a bound per step and per round) and report removed messages (law L9)."""

import threading
from collections import Counter

import pytest

from zq.conformance.builders import DEADLINE, Scene, configure, ids_of, make_key, run_together
from zq.errors import Repeated
from zq.model import QueueRef
from zq.model.expiry import Expiry, Steps

pytestmark = [pytest.mark.needs_part("depths"), pytest.mark.usefixtures("by_sweeps_alone"), pytest.mark.fresh_store]
IDLE = 8
"""Maximum number of steps of one queue's round that remove nothing: one for each kind of data."""
UNSWEPT = Expiry(sweep=False, delete_on_read=False)
SWEPT = Expiry(delete_on_read=False)


class Account(Steps):
    """A pace of equal steps with a total bound, which records each step."""

    def __init__(self, size: int, max_items: int = 100_000) -> None:
        super().__init__(size, max_items)
        self.steps: list[int] = []
        """Number of items that each step has removed."""
        self.allowed: list[int] = []
        self.by_queue: Counter[QueueRef | None] = Counter()

    def step(self) -> int:
        self.steps.append(0)
        self.allowed.append(super().step())
        return self.allowed[-1]

    def removed(self, count: int, queue: QueueRef | None = None) -> None:
        super().removed(count, queue)
        if count:
            self.steps[-1] += count
        self.by_queue[queue] += count

    @property
    def expired(self) -> int:
        return sum(count for queue, count in self.by_queue.items() if queue is not None)


def expire(scene: Scene, count: int, ttl: int = 60) -> None:
    """Post ``count`` messages and let them expire without any other call."""
    for start in range(0, count, 1000):
        scene.post(min(1000, count - start), ttl=ttl)
    scene.tick(ttl)


@pytest.mark.parametrize("size", [1, 7, 100])
def test_no_step_removes_more_than_its_bound(scene: Scene, size: int):
    """Each step is requested and reported, and together the steps remove everything.

    A store of several servers may use as many further steps as it uses when there is nothing to remove.
    """
    idle = Account(size)
    scene.storage.maintain(scene.now, None, idle)
    expire(scene, 23)
    account = Account(size)
    assert scene.storage.maintain(scene.now, None, account) == 23
    assert all(done <= allowed for done, allowed in zip(account.steps, account.allowed, strict=True))
    assert account.expired == 23
    assert len(account.steps) <= -(-23 // size) + max(IDLE, len(idle.steps))


def test_a_round_stops_when_nothing_is_left(scene: Scene):
    """The number of steps depends only on the expired messages."""
    scene.post(500, ttl=600)
    scene.at("other").post(500, ttl=600)
    expire(scene, 10)
    account = Account(20)
    assert scene.storage.maintain(scene.now, None, account) == 10
    assert len(account.steps) <= 1 + 2 * IDLE
    empty = Account(20)
    assert scene.storage.maintain(scene.now, None, empty) == 0
    assert len(empty.steps) <= 2 * IDLE
    assert sum(empty.steps) == 0
    assert len(scene.walk()) == 500


def test_a_round_stops_at_its_bound_and_the_next_one_continues(scene: Scene):
    """The round removes exactly as many messages as the bound allows. The rest is left for later rounds."""
    expire(scene, 50)
    kept = scene.post(3)
    gone = []
    for _ in range(4):
        gone.append(scene.storage.maintain(scene.now, None, Account(10, max_items=20)))
        assert ids_of(scene.walk()) == kept
    assert gone == [20, 20, 10, 0]


def test_a_pace_of_zero_ends_the_round_at_once(scene: Scene):
    expire(scene, 5)
    account = Account(0)
    assert scene.storage.maintain(scene.now, None, account) == 0
    assert sum(account.steps) == 0
    assert scene.reclaimed() == 5


def test_each_queue_is_reported_with_its_number_of_removed_messages(scene: Scene):
    """The result of the round is the sum of these numbers."""
    lost = {scene: 30, scene.at("b"): 5, scene.at("jobs", project="acme/"): 12, scene.at("a/b", project=""): 1}
    for place, count in lost.items():
        place.post(count, ttl=60)
        place.post(2, ttl=600)
    scene.at("whole").post(3, ttl=600)
    scene.tick(60)
    account = Account(7)
    assert scene.storage.maintain(scene.now, None, account) == 48
    assert +account.by_queue == {place.queue: count for place, count in lost.items()}
    assert [len(place.walk()) for place in lost] == [2] * len(lost)


def test_a_message_with_an_extended_ttl_is_not_removed(scene: Scene):
    """The claim may be made early or at the last millisecond, be renewed, or lapse and be made again."""
    posted = scene.post(6, ttl=60)
    early = scene.take(2, ttl=120, grace=60)
    scene.tick(59.999)
    late = scene.take(2, ttl=120, grace=60)
    scene.tick(0.001)
    assert scene.storage.maintain(scene.now, None, Account(1)) == 2
    assert scene.held(early.id) == sorted(posted[:2])
    scene.tick(59)
    scene.renew(early.id, ttl=120, grace=60)
    assert scene.storage.maintain(scene.now, None, Account(1)) == 0
    scene.tick(61)  # The late claim ended a second ago, and its messages live on.
    assert scene.storage.maintain(scene.now, None, Account(1)) == 0
    assert scene.held(early.id) == sorted(posted[:2])
    assert scene.take(ttl=600, grace=60).messages[0].claim != late.id
    scene.tick(120)
    assert scene.storage.maintain(scene.now, None, Account(1)) == 2
    assert ids_of(scene.walk()) == posted[2:4]


def test_a_released_message_keeps_its_extended_ttl(scene: Scene):
    """The first expiry time removes nothing, whether the release has a delay or not."""
    posted = scene.post(2, ttl=60)
    scene.release(scene.take(1, ttl=300, grace=60).id)
    scene.release(scene.take(2, ttl=300, grace=60).id, delay=100)
    scene.tick(60)
    assert scene.storage.maintain(scene.now) == 0
    scene.tick(40)
    assert scene.claimable() == posted


def test_removed_history_and_keys_are_reported_without_a_queue(scene: Scene):
    """Rounds remove history entries and idempotency keys too, and do not count them as expired messages."""
    scene.post(9, ttl=3600)
    scene.pop(9, history=60)
    [kept] = scene.post(1, ttl=60)
    scene.storage.messages.delete(scene.queue, [kept], scene.now, history=60)
    scene.tick(60)
    account = Account(4)
    assert scene.storage.maintain(scene.now, None, account) == 0
    assert account.expired == 0
    assert scene.history() == []


def test_no_verb_waits_while_the_round_pauses(scene: Scene):
    living = scene.post(100)
    expire(scene, 40)
    taken: list[str] = []

    class Resting(Account):
        def step(self) -> int:
            if len(taken) < 12:
                claimer = threading.Thread(target=lambda: taken.extend(scene.claimable(2)), daemon=True)
                claimer.start()
                claimer.join(DEADLINE)
                assert not claimer.is_alive(), "a claim waits for the round"
            return super().step()

    assert scene.storage.maintain(scene.now, None, Resting(10)) == 40
    assert taken == living[: len(taken)]
    assert len(taken) >= 8
    assert ids_of(scene.walk()) == living


def test_a_queue_deleted_while_the_round_pauses_is_skipped(scene: Scene):
    """A queue that is deleted and created again between two steps keeps its new messages."""
    expire(scene, 40)
    posted: list[str] = []

    class Meddling(Account):
        def step(self) -> int:
            if len(self.steps) == 2:
                scene.storage.queues.delete(scene.queue)
                posted.extend(scene.post(5, ttl=60))
            return super().step()

    scene.storage.maintain(scene.now, None, Meddling(10))
    scene.reclaimed()
    assert ids_of(scene.walk()) == posted
    assert scene.counts() == (0, 5)


def test_a_store_that_does_not_sweep_hides_expired_messages(scene: Scene):
    configure(scene.storage, UNSWEPT)
    kept = scene.post(4)
    expire(scene, 20)
    assert scene.reclaimed() == 0
    assert scene.expired() == 20
    assert ids_of(scene.walk()) == kept
    assert scene.counts() == (0, 4)
    assert scene.claimable(4) == kept
    configure(scene.storage, SWEPT)
    assert scene.reclaimed() == 20
    assert scene.expired() == 0
    scene.tick(300)
    assert scene.pop() == kept


def test_a_store_that_does_not_sweep_reclaims_purged_queues(scene: Scene):
    configure(scene.storage, UNSWEPT)
    other = scene.at("other")
    for place in (scene, other):
        place.post(30, ttl=60)
        place.post(30)
    scene.tick(60)
    scene.storage.queues.purge(scene.queue)
    scene.storage.queues.delete(other.queue)
    stay = scene.at("stay")
    stay.post(5, ttl=60)
    scene.tick(60)
    for _ in range(20):
        assert scene.storage.maintain(scene.now, None, Account(7)) == 0
    assert scene.expired() == 0
    assert stay.expired() == 5
    configure(scene.storage, SWEPT)
    assert scene.reclaimed() == 5, "what was purged counts as expired, or is there still"


@pytest.mark.parametrize("read", [True, False], ids=["by reading too", "by sweeps alone"])
def test_readers_get_the_same_with_and_without_removal_on_read(scene: Scene, read: bool):
    configure(scene.storage, Expiry(delete_on_read=read, delete_queue_size=3))
    expire(scene, 20)
    kept = scene.post(4)
    for _ in range(3):
        assert ids_of(scene.walk()) == kept
        assert scene.counts() == (0, 4)
        assert scene.ready() == 4
    scene.reclaimed()
    assert scene.expired() == 0
    assert scene.claimable() == kept


def test_options_change_while_verbs_and_rounds_run(scene: Scene):
    """No call fails, no living message is removed, and no expired message is left."""
    expire(scene, 300)
    living = scene.post(200)
    options = [Expiry(), UNSWEPT, Expiry(delete_on_read=False), Expiry(delete_queue_size=1), Expiry(sweep_batch_size=1)]

    def change() -> list[str]:
        for _ in range(10):
            for chosen in options:
                configure(scene.storage, chosen)
        return []

    def take() -> list[str]:
        return [id for _ in range(20) for id in scene.claimable(5)]

    def sweep() -> list[str]:
        for _ in range(10):
            scene.storage.maintain(scene.now, None, Account(10, max_items=30))
        return []

    taken = [id for ids in run_together(change, take, take, sweep) for id in ids]
    assert sorted(taken) == sorted(living)
    configure(scene.storage, SWEPT)
    scene.reclaimed()
    assert scene.expired() == 0
    assert sorted(ids_of(scene.walk())) == sorted(living)


def test_a_round_keeps_a_key_until_its_window_ends(scene: Scene):
    key = make_key(window=600)
    scene.post(1, once=key)
    scene.tick(599)
    for options in (UNSWEPT, SWEPT):
        configure(scene.storage, options)
        scene.reclaimed()
        with pytest.raises(Repeated):
            scene.post(1, once=key)
    scene.tick(1)
    scene.reclaimed()
    scene.post(1, once=key)
