# SPDX-License-Identifier: Apache-2.0
"""A new claim tells how many of its messages another one let lapse (S-A3: no background work is needed for that)."""

import pytest

from zq.conformance.builders import Scene
from zq.core.redelivery import DeadLetters, Redelivery


@pytest.fixture(params=["create", "create_named"])
def lapsed(request: pytest.FixtureRequest, scene: Scene):
    """A function that claims in one of the two ways: (how many messages, how many of them had lapsed)."""
    numbers = iter(range(100))

    def claim(limit: int = 10, name: str = "", **terms) -> tuple[int, int]:
        lease_name = name or f"claim.{next(numbers)}"
        if request.param == "create":
            made = scene.claim(limit, name=lease_name, **terms)
        else:
            made = scene.claim_named(lease_name, limit, **terms)
        return (len(made.messages), made.lapsed) if made else (0, 0)

    return claim


def test_fresh_messages_have_not_lapsed(scene: Scene, lapsed):
    """Ready ones, and delayed ones whose moment has come."""
    scene.post(2)
    scene.post(3, delay=30)
    scene.tick(30)
    assert lapsed() == (5, 0)


def test_messages_of_a_claim_that_ended_have_lapsed(scene: Scene, lapsed):
    """They alone, among others, and again each time; nobody had to do anything in between."""
    scene.post(3)
    assert lapsed(2, ttl=60) == (2, 0)
    scene.tick(59.999)
    assert lapsed(10, ttl=60) == (1, 0)
    scene.tick(0.001)
    scene.post(4)
    assert lapsed(10, ttl=60) == (6, 2)
    scene.tick(60)
    assert lapsed(4, ttl=60)[1] >= 1
    scene.tick(60)
    assert lapsed(100) == (7, 7)


def test_the_lapse_is_told_after_a_redelivery_wait_too(scene: Scene, lapsed):
    """However long it was away."""
    scene.post(2)
    assert lapsed(ttl=60, redelivery=Redelivery(30, cap=60)) == (2, 0)
    scene.tick(89.999)
    assert lapsed() == (0, 0)
    scene.tick(0.001)
    assert lapsed() == (2, 2)


@pytest.mark.parametrize("delay", [None, 0, 20])
def test_a_released_message_has_not_lapsed(scene: Scene, lapsed, delay: int | None):
    """Its holder gave it back in time."""
    scene.post(2)
    assert lapsed(name="first", ttl=60) == (2, 0)
    scene.release("first", delay)
    scene.tick(60)
    assert lapsed() == (2, 0)


def test_a_renewed_claim_lapses_once(scene: Scene, lapsed):
    """Renewals move the end, and one lapse follows however many there were."""
    scene.post(2)
    assert lapsed(name="first", ttl=60) == (2, 0)
    for _ in range(3):
        scene.tick(59)
        scene.renew("first", ttl=60)
    scene.tick(59.999)
    assert lapsed() == (0, 0)
    scene.tick(0.001)
    assert lapsed() == (2, 2)


def test_a_claim_under_the_same_name_took_over_too(scene: Scene, lapsed):
    """The name says nothing: the claim that bore it has lapsed."""
    scene.post(2)
    assert lapsed(name="first", ttl=60) == (2, 0)
    scene.tick(60)
    assert lapsed(name="first", ttl=60) == (2, 2)


def test_a_claim_that_is_found_again_tells_nothing(scene: Scene):
    """Told when it is made only."""
    scene.post(2)
    scene.take(ttl=60)
    scene.tick(60)
    made, again = scene.claim_named("mine"), scene.claim_named("mine")
    assert made is not None
    assert again is not None
    assert (made.lapsed, again.lapsed) == (2, 0)
    assert scene.storage.claims.get(scene.queue, "mine", scene.now).lapsed == 0


def test_messages_that_are_buried_are_not_the_claim_s(scene: Scene, lapsed):
    """Those that lapsed for the last time go to the dead letters; what the claim holds is counted."""
    scene.post(3)
    assert lapsed(2, ttl=60) == (2, 0)
    scene.tick(60)
    grave = scene.at("dead")
    assert lapsed(dead_letters=DeadLetters(grave.queue, 1, 600)) == (1, 0)
    assert grave.take().lapsed == 0


def test_a_message_that_was_moved_has_not_lapsed(scene: Scene, lapsed):
    """Its claims are forgotten on the way."""
    posted = scene.post(1)
    assert lapsed(ttl=60) == (1, 0)
    scene.tick(60)
    assert scene.move(posted, scene.queue.name) == posted
    assert lapsed() == (1, 0)
