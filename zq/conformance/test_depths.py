# SPDX-License-Identifier: Apache-2.0
"""The depths of all queues by state. A bounded count never exceeds the true number."""

import pytest

from zq.conformance.builders import Scene, ids_of, near
from zq.core.redelivery import DeadLetters, Redelivery
from zq.model import Move
from zq.model.stats import Depth

pytestmark = [
    pytest.mark.needs_part("depths"),
    pytest.mark.usefixtures("by_sweeps_alone"),
    pytest.mark.fresh_store,
    pytest.mark.pools,
]


def states(scene: Scene, most: int = 10_000) -> tuple[int, int, int, int]:
    """Return the numbers of ready, delayed, claimed and expired messages."""
    depth = scene.depth(most)
    assert depth is not None
    return depth.ready, depth.delayed, depth.claimed, depth.expired


def oldest(scene: Scene) -> float | None:
    depth = scene.depth()
    return depth and depth.oldest_ready


def test_a_store_without_queues_has_no_depths(scene: Scene):
    assert list(scene.storage.depths(scene.now, 10, 10)) == []


def test_an_empty_queue_is_listed_with_zeros(scene: Scene):
    """Queues that were created, popped empty or purged are listed; a deleted one is not."""
    scene.storage.queues.create(scene.queue, b"{}")
    assert scene.depth() == Depth()
    scene.post(3)
    scene.pop()
    assert scene.depth() == Depth()
    scene.post(3, ttl=60)
    scene.tick(60)
    scene.storage.queues.purge(scene.queue)
    assert scene.depth() == Depth()
    scene.storage.queues.delete(scene.queue)
    assert scene.depth() is None


def test_each_message_is_in_one_state(scene: Scene):
    scene.post(5)
    scene.take(3, ttl=600)
    scene.post(1, ttl=60)
    scene.post(2, ttl=60, delay=100)
    scene.tick(60)
    scene.post(4, delay=900)
    assert states(scene) == (2, 4, 3, 3)
    assert scene.counts() == (3, 6)


def test_a_claimed_message_does_not_count_as_expired(scene: Scene):
    scene.post(2, ttl=60)
    scene.take(ttl=120, grace=0)
    scene.tick(60)
    assert states(scene) == (0, 0, 2, 0)
    scene.tick(59.999)
    assert states(scene) == (0, 0, 2, 0)
    scene.tick(0.001)
    assert states(scene) == (0, 0, 0, 2)


def test_states_change_at_the_millisecond(scene: Scene):
    scene.post(1, ttl=60, delay=30)
    scene.tick(29.999)
    assert states(scene) == (0, 1, 0, 0)
    scene.tick(0.001)
    assert states(scene) == (1, 0, 0, 0)
    assert oldest(scene) == near(scene.now)
    scene.tick(29.999)
    assert states(scene) == (1, 0, 0, 0)
    scene.tick(0.001)
    assert states(scene) == (0, 0, 0, 1)
    assert oldest(scene) is None


def test_a_message_that_expires_before_its_available_time_is_never_ready(scene: Scene):
    scene.post(1, ttl=60, delay=100)
    scene.tick(59)
    assert states(scene) == (0, 1, 0, 0)
    scene.tick(41)
    assert states(scene) == (0, 0, 0, 1)


@pytest.mark.parametrize("wait", [0, 30])
def test_lapsed_messages_are_delayed_and_then_ready(scene: Scene, wait: int):
    """With a redelivery delay, the messages are delayed first. Their age as ready messages starts at redelivery."""
    scene.post(2)
    scene.take(ttl=60, redelivery=Redelivery(wait, cap=600))
    end = scene.now + 60
    scene.tick(59.999)
    assert states(scene) == (0, 0, 2, 0)
    scene.tick(0.001)
    assert states(scene) == ((0, 2, 0, 0) if wait else (2, 0, 0, 0))
    scene.tick(wait)
    assert states(scene) == (2, 0, 0, 0)
    assert oldest(scene) == near(end + wait)


def test_a_released_message_counts_as_ready_or_delayed(scene: Scene):
    """A release restores the message's position and available time. A release with a delay makes it delayed."""
    posted = scene.now
    scene.post(1)
    scene.tick(5)
    claim = scene.take(ttl=60)
    assert oldest(scene) is None
    scene.release(claim.id)
    assert states(scene) == (1, 0, 0, 0)
    assert oldest(scene) == near(posted)
    scene.release(scene.take(ttl=60).id, delay=20)
    assert states(scene) == (0, 1, 0, 0)


def test_the_oldest_ready_message_is_the_first_in_the_order_of_claims(scene: Scene):
    """Expired, claimed and delayed messages in front do not count as the oldest one."""
    claimed = scene.post(1)
    assert ids_of(scene.take(1, ttl=600).messages) == claimed
    scene.post(3, ttl=60)
    scene.tick(1)
    first = scene.now
    scene.post(2)
    scene.post(1, delay=900)
    scene.tick(59)
    scene.post(1)
    assert states(scene) == (3, 1, 1, 3)
    assert oldest(scene) == near(first)


def test_deleted_popped_moved_and_buried_messages_do_not_count(scene: Scene):
    posted = scene.post(6)
    scene.delete(posted[0])
    scene.delete_many(posted[1:2])
    assert scene.pop(1) == posted[2:3]
    scene.storage.messages.move(scene.queue, [Move(posted[3], "next", delay=30)], scene.now)
    assert states(scene) == (2, 0, 0, 0)
    assert states(scene.at("next")) == (0, 1, 0, 0)
    grave = scene.at("dead")
    scene.release(scene.take(ttl=60).id)
    assert scene.claim(dead_letters=DeadLetters(grave.queue, 1, 600)) is None
    assert states(scene) == (0, 0, 0, 0)
    assert states(grave) == (2, 0, 0, 0)
    scene.tick(600)
    assert states(grave) == (0, 0, 0, 2)
    scene.reclaimed()
    assert states(grave) == (0, 0, 0, 0)


def test_expired_messages_count_until_they_are_removed(scene: Scene):
    scene.post(20, ttl=60)
    scene.post(5)
    scene.tick(60)
    assert states(scene) == (5, 0, 0, 20)
    assert scene.reclaimed() == 20
    assert states(scene) == (5, 0, 0, 0)


def test_every_queue_of_every_project_is_listed(scene: Scene):
    """Names that look like paths, an empty project and non-Latin names each have their own count."""
    names = [("acme", "a/b"), ("acme/a", "b"), ("", "jobs"), ("Ünïcode ☃", "jobs"), ("acme", "jobs.2"), ("*", "[a-z]?")]
    places = [scene.at(name, project) for project, name in names if project]
    places.append(Scene(scene.storage, scene.clock, scene.queue._replace(project="")))
    for count, place in enumerate(places, start=1):
        place.post(count)
        place.post(1, delay=900)
    told = dict(scene.storage.depths(scene.now, 1000, 1000))
    assert set(told) == {place.queue for place in places}
    assert [told[place.queue].ready for place in places] == list(range(1, len(places) + 1))
    assert {depth.delayed for depth in told.values()} == {1}


def test_depths_with_a_queue_limit_have_a_stable_order(scene: Scene):
    """A limited listing always returns the same queues, whatever their contents and the time."""
    for number in range(12):
        scene.at(f"q{number}", project=f"p{number % 3}").post(1)
    everything = [queue for queue, _ in scene.storage.depths(scene.now, 100, 10)]
    assert len(everything) == len(set(everything)) == 12
    scene.at("q3", project="p0").post(50)
    scene.tick(5)
    for most in (0, 1, 5, 12):
        assert [queue for queue, _ in scene.storage.depths(scene.now, most, 10)] == everything[:most]


@pytest.mark.parametrize("most", [1, 10, 24])
def test_a_depth_is_exact_below_its_bound_and_at_least_the_bound_above(scene: Scene, most: int):
    ready, delayed, claimed, expired, few = (scene.at(name) for name in ("ready", "delayed", "claimed", "old", "few"))
    claimed.post(26)
    claimed.take(26, ttl=600)
    expired.post(25, ttl=60)
    scene.tick(60)
    ready.post(29)
    delayed.post(28, delay=900)
    few.post(3)
    few.post(2, delay=900)
    for state, (place, there) in enumerate(((ready, 29), (delayed, 28), (claimed, 26), (expired, 25))):
        counted = states(place, most)
        assert min(most, there) <= counted[state] <= there
        assert sum(counted) == counted[state]
        assert states(place, 1000)[state] == there
    assert states(few, 10) == (3, 2, 0, 0)
