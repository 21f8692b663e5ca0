# SPDX-License-Identifier: Apache-2.0
"""The number of ready messages of a queue, and the time when the next message becomes ready (extensions, section 2)."""

from zq.conformance.builders import Scene, near
from zq.core.redelivery import Redelivery
from zq.model import Move, Release

AFTER_30 = Redelivery(30, cap=600)


def test_ready_counts_claimable_messages(scene: Scene):
    """Claimed, delayed and expired messages do not count; lapsed and released ones do."""
    assert scene.ready() == 0
    scene.post(2, ttl=60)
    scene.post(3)
    scene.post(2, delay=45)
    assert scene.ready() == 5
    claim = scene.take(3, ttl=50)
    assert scene.ready() == 2
    scene.release(claim.id)
    scene.take(3, ttl=20, redelivery=AFTER_30)
    assert scene.ready() == 2
    scene.tick(20)
    assert scene.ready() == 2
    scene.tick(25)
    assert scene.ready() == 4
    scene.tick(5)
    assert scene.ready() == 7
    scene.tick(10)
    assert scene.ready() == 5


def test_ready_counts_up_to_its_bound(scene: Scene):
    scene.post(30)
    assert [scene.ready(most) for most in (1, 29, 30, 31, 10000)] == [1, 29, 30, 30, 30]


def test_ready_counts_messages_behind_thousands_of_others(scene: Scene):
    scene.post(1000, ttl=60)
    scene.post(1000, delay=900)
    scene.post(1003)
    scene.tick(60)
    scene.take(1000)
    assert scene.ready(5000) == 3


def test_every_removal_lowers_the_ready_count(scene: Scene):
    """Pop, delete, move, settlement and purge lower the count. Posts, releases, moves and commits raise it."""
    posted = scene.post(6)
    scene.pop(1)
    scene.delete(posted[1])
    scene.move(posted[2:3], "next")
    assert (scene.ready(), scene.at("next").ready()) == (3, 1)
    claim = scene.take(3)
    scene.settle(claim.id, delete=posted[3:4], release=[Release(posted[4])], move=[Move(posted[5], "next")])
    assert (scene.ready(), scene.at("next").ready()) == (1, 2)
    scene.stage("s1", 4)
    assert scene.ready() == 1
    scene.commit(1, ["s1"])
    assert scene.ready() == 5
    scene.storage.queues.purge(scene.queue)
    assert scene.ready() == 0


def test_a_queue_without_waiting_messages_has_no_next_time(scene: Scene):
    """A missing queue, an empty one and one whose messages are all ready have no next time."""
    assert scene.due() is None
    scene.post(2)
    assert scene.due() is None
    scene.pop()
    assert scene.due() is None


def test_the_next_time_is_that_of_the_first_waiting_message(scene: Scene):
    """The next time is the earliest end of a delay, a claim or a redelivery delay."""
    scene.post(1)
    start = scene.now
    scene.take(ttl=100)
    scene.post(1)
    scene.take(ttl=50, redelivery=AFTER_30)
    scene.post(1, delay=60)
    for moment in (60, 80, 100):
        assert scene.due() == near(start + moment)
        scene.tick(start + moment - scene.now - 0.001)
        assert scene.due() == near(start + moment)
        scene.tick(0.001)
    assert scene.due() is None
    assert scene.ready() == 3


def test_a_renewal_and_a_release_change_the_next_time(scene: Scene):
    """A renewal changes the next time. A release with a delay sets it; a release without one removes it."""
    posted = scene.post(2)
    claim = scene.take(ttl=60)
    scene.renew(claim.id, ttl=600)
    assert scene.due() == near(scene.now + 600)
    scene.renew(claim.id, ttl=30)
    assert scene.due() == near(scene.now + 30)
    scene.settle(claim.id, release=[Release(posted[0], 20)])
    assert scene.due() == near(scene.now + 20)
    scene.delete(posted[0])
    assert scene.due() == near(scene.now + 30)
    scene.release(claim.id)
    assert scene.due() is None


def test_ready_messages_do_not_hide_the_next_time(scene: Scene):
    scene.post(1000)
    scene.post(1, delay=60)
    scene.post(1000)
    assert scene.due() == near(scene.now + 60)
    scene.move([scene.post(1)[0]], "next", delay=90)
    assert scene.at("next").due() == near(scene.now + 90)


def test_the_next_time_ignores_other_queues(scene: Scene):
    for room in (scene.at("jobs2"), scene.rival):
        room.post(2)
        room.post(1, delay=30)
    assert (scene.ready(), scene.due()) == (0, None)
    scene.post(1, delay=60)
    assert (scene.ready(), scene.due()) == (0, near(scene.now + 60))
