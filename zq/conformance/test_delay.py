# SPDX-License-Identifier: Apache-2.0
"""Delayed messages: no claim or pop before their time (law L4, contract 7.8)."""

import pytest

from zq.conformance.builders import EVERYTHING, Scene, ids_of
from zq.model import Draft, ListFilter, new_ids

pytestmark = pytest.mark.objects


@pytest.mark.parametrize("delay", [1, 5, 30, 900])
def test_a_delayed_message_is_hidden_until_its_available_time(scene: Scene, delay: int):
    """Claims, pops and default listings hide the message until its available time, to the millisecond."""
    posted = scene.post(2, delay=delay)
    scene.tick(delay - 0.001)
    assert scene.claim() is None
    assert scene.pop() == []
    assert scene.page() == []
    scene.tick(0.001)
    assert scene.page() == posted
    assert scene.pop(1) == posted[:1]
    assert scene.claimable() == posted[1:]


def test_messages_with_default_own_and_no_delay_are_independent(scene: Scene):
    """Each message becomes ready at its own time: with the queue's delay, its own delay or none."""
    ids = new_ids(3, scene.now)
    terms = zip(ids, [30, 5, 0], strict=True)
    scene.storage.messages.post(scene.queue, [Draft(id, b"1", 3600, delay, "alice") for id, delay in terms], scene.now)
    assert scene.claimable() == [ids[2]]
    scene.tick(5)
    assert scene.claimable() == [ids[1]]
    scene.tick(24.999)
    assert scene.claimable() == []
    scene.tick(0.001)
    assert scene.claimable() == [ids[0]]


def test_a_claim_of_a_ready_message_leaves_a_delayed_one_behind_it(scene: Scene):
    first = scene.post(1)
    delayed = scene.post(1, delay=60)
    last = scene.post(1)
    assert scene.claimable(10) == first + last
    assert scene.pop(10) == []
    assert [message.claim_count for message in scene.get(delayed)] == [0]
    scene.tick(60)
    assert scene.claimable(10) == delayed


def test_a_claim_of_a_lapsed_message_leaves_a_delayed_one_behind_it(scene: Scene):
    lapsed = scene.post(1)
    delayed = scene.post(1, delay=900)
    for _ in range(3):
        assert ids_of(scene.take(10, ttl=60).messages) == lapsed
        scene.tick(60)
    assert scene.pop(10) == lapsed
    assert ids_of(scene.walk(EVERYTHING)) == delayed


def test_delayed_messages_do_not_block_ready_ones(scene: Scene):
    scene.post(1000, delay=900)
    ready = scene.post(1)
    assert scene.claimable(10) == ready
    assert scene.claim() is None


def test_a_delayed_message_is_shown_by_id_and_by_the_delayed_view(scene: Scene):
    """Reads by id and listings of delayed messages show the message. Statistics count it as free."""
    delayed = scene.post(2, delay=60)
    assert ids_of(scene.get(delayed)) == delayed
    assert scene.page(ListFilter(delayed=True)) == delayed
    assert scene.page(ListFilter(claimed=True)) == []
    assert scene.counts() == (0, 2)
    assert scene.stats().oldest.id == delayed[0]
    assert scene.stats().newest.id == delayed[1]


def test_a_message_with_a_ttl_shorter_than_its_delay_expires_unclaimed(scene: Scene):
    scene.post(1, ttl=60, delay=90)
    scene.post(1, ttl=60, delay=60)
    scene.tick(59.999)
    assert scene.claim() is None
    assert scene.counts() == (0, 2)
    scene.tick(0.001)
    assert (scene.claim(), scene.pop()) == (None, [])
    scene.tick(30)
    assert (scene.claim(), scene.pop()) == (None, [])
    assert scene.is_empty()


def test_a_ttl_starts_at_the_post_and_not_after_the_delay(scene: Scene):
    """The delay uses up part of the ttl. A claim extends the ttl as usual."""
    [id] = scene.post(1, ttl=100, delay=60)
    scene.tick(60)
    assert scene.one(id).expires == pytest.approx(scene.now + 40, abs=0.0005)
    [message] = scene.take(ttl=60, grace=5).messages
    assert (message.ttl, message.expires) == (65, pytest.approx(scene.now + 65, abs=0.0005))


def test_a_message_keeps_its_available_time_when_the_default_delay_changes(scene: Scene):
    scene.storage.queues.create(scene.queue, b'{"_default_message_delay": 60}')
    delayed = scene.post(1, delay=60)
    scene.storage.queues.update(scene.queue, b'{"_default_message_delay": 60}', b"{}")
    assert scene.claim() is None
    ready = scene.post(1)
    scene.storage.queues.update(scene.queue, b"{}", b'{"_default_message_delay": 900}')
    assert scene.claimable() == ready
    scene.tick(60)
    assert scene.claimable() == delayed


def test_a_delayed_message_is_ready_like_others_after_its_time(scene: Scene):
    """After its available time, a lapse or a release makes the message ready, not delayed."""
    [id] = scene.post(1, delay=60)
    scene.tick(60)
    claim = scene.take(ttl=60)
    scene.release(claim.id)
    assert scene.page() == [id]
    scene.take(ttl=60)
    scene.tick(60)
    assert scene.page() == [id]
    assert scene.claimable() == [id]
