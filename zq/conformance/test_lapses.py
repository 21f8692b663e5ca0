# SPDX-License-Identifier: Apache-2.0
"""A new claim counts how many of its messages lapsed before (S-A3). No background work is needed."""

import pytest

from zq.conformance.builders import Scene
from zq.core.redelivery import DeadLetters, Redelivery


@pytest.fixture(params=["create", "create_named"])
def lapsed(request: pytest.FixtureRequest, scene: Scene):
    """Return a function that claims with or without a name. It returns the numbers of messages and of lapsed ones."""
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
    scene.post(2)
    scene.post(3, delay=30)
    scene.tick(30)
    assert lapsed() == (5, 0)


def test_messages_of_a_claim_that_ended_have_lapsed(scene: Scene, lapsed):
    """Only these messages count, at each lapse, without any call between the lapse and the new claim."""
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


def test_a_lapse_counts_after_a_redelivery_delay(scene: Scene, lapsed):
    scene.post(2)
    assert lapsed(ttl=60, redelivery=Redelivery(30, cap=60)) == (2, 0)
    scene.tick(89.999)
    assert lapsed() == (0, 0)
    scene.tick(0.001)
    assert lapsed() == (2, 2)


@pytest.mark.parametrize("delay", [None, 0, 20])
def test_a_released_message_has_not_lapsed(scene: Scene, lapsed, delay: int | None):
    scene.post(2)
    assert lapsed(name="first", ttl=60) == (2, 0)
    scene.release("first", delay)
    scene.tick(60)
    assert lapsed() == (2, 0)


def test_a_renewed_claim_lapses_once(scene: Scene, lapsed):
    scene.post(2)
    assert lapsed(name="first", ttl=60) == (2, 0)
    for _ in range(3):
        scene.tick(59)
        scene.renew("first", ttl=60)
    scene.tick(59.999)
    assert lapsed() == (0, 0)
    scene.tick(0.001)
    assert lapsed() == (2, 2)


def test_a_new_claim_of_a_lapsed_name_counts_the_lapse(scene: Scene, lapsed):
    scene.post(2)
    assert lapsed(name="first", ttl=60) == (2, 0)
    scene.tick(60)
    assert lapsed(name="first", ttl=60) == (2, 2)


def test_a_repeated_named_claim_reports_no_lapses(scene: Scene):
    scene.post(2)
    scene.take(ttl=60)
    scene.tick(60)
    made, again = scene.claim_named("mine"), scene.claim_named("mine")
    assert made is not None
    assert again is not None
    assert (made.lapsed, again.lapsed) == (2, 0)
    assert scene.storage.claims.get(scene.queue, "mine", scene.now).lapsed == 0


def test_buried_messages_are_not_counted_as_lapsed(scene: Scene, lapsed):
    """Lapsed messages that the claim returns count. Lapsed messages that it buries do not."""
    scene.post(3)
    assert lapsed(2, ttl=60) == (2, 0)
    scene.tick(60)
    grave = scene.at("dead")
    assert lapsed(dead_letters=DeadLetters(grave.queue, 1, 600)) == (1, 0)
    assert grave.take().lapsed == 0


def test_a_message_that_was_moved_has_not_lapsed(scene: Scene, lapsed):
    """A move clears the message's claims."""
    posted = scene.post(1)
    assert lapsed(ttl=60) == (1, 0)
    scene.tick(60)
    assert scene.move(posted, scene.queue.name) == posted
    assert lapsed() == (1, 0)
