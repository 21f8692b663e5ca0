# SPDX-License-Identifier: Apache-2.0
"""Every dead letter keeps its origin and reason until it is moved again (extensions, section 4)."""

import pytest

from zq.conformance.builders import Scene, near
from zq.core.redelivery import DeadLetters
from zq.model import Message, Move

GRAVE = "dead.letters"


def bury(scene: Scene, id: str, way: str, grave: str = GRAVE, ttl: int | None = None) -> None:
    """Bury the message ``id`` by a claim, by the owner's move or by a settlement. No other message may be ready."""
    move = Move(id, grave, ttl, reason="max_claim_count")
    if way == "claim":
        assert scene.claim(dead_letters=DeadLetters(scene.at(grave).queue, 0, ttl)) is None
    elif way == "owner":
        assert scene.storage.messages.move(scene.queue, [move], scene.now) == [id]
    else:
        assert scene.settle(scene.take().id, move=[move]).buried == 1


WAYS = pytest.mark.parametrize("way", ["claim", "owner", "holder"])


def story(message: Message) -> tuple[str, int, str]:
    return message.origin, message.origin_claim_count, message.reason


@WAYS
def test_a_dead_letter_remembers_origin_count_and_reason(scene: Scene, way: str):
    """Every verb that reads the message returns them. The age is kept, the ttl restarts, and the claim count is 0."""
    [id] = scene.post(1, ttl=600)
    born = scene.now
    for _ in range(3):
        scene.release(scene.take().id)
    scene.tick(100)
    bury(scene, id, way)
    grave = scene.at(GRAVE)
    expected = ("jobs", 4 if way == "holder" else 3, "max_claim_count")
    found = grave.one(id)
    assert (story(found), found.claim_count, found.claim) == (expected, 0, "")
    assert (found.created, found.expires, found.available) == (near(born), near(scene.now + 600), near(scene.now))
    assert [story(message) for message in grave.walk()] == [expected]
    claim = grave.take()
    assert [(story(message), message.claim_count) for message in claim.messages] == [(expected, 1)]
    grave.release(claim.id)
    [popped] = grave.storage.messages.pop(grave.queue, 1, scene.now)
    assert story(popped) == expected


@pytest.mark.parametrize("way", ["owner", "holder"])
def test_the_reason_of_a_dead_letter_is_kept_unchanged(scene: Scene, way: str):
    reason = 'schema "mismatch" \u00e9 \U0001f600 \x00 \n' + "x" * 1000
    [id] = scene.post(1)
    move = Move(id, GRAVE, reason=reason)
    if way == "owner":
        scene.storage.messages.move(scene.queue, [move], scene.now)
    else:
        scene.settle(scene.take().id, move=[move])
    assert scene.at(GRAVE).one(id).reason == reason


@WAYS
def test_a_dead_letter_buried_again_has_its_last_origin(scene: Scene, way: str):
    """The origin is the last queue that buried the message. The age still counts from the first post."""
    [id] = scene.post(1)
    born = scene.now
    scene.tick(10)
    bury(scene, id, "claim")
    grave = scene.at(GRAVE)
    grave.release(grave.take().id)
    scene.tick(10)
    bury(grave, id, way, "deeper", 60)
    found = scene.at("deeper").one(id)
    assert story(found) == (GRAVE, 2 if way == "holder" else 1, "max_claim_count")
    assert (found.created, found.ttl, found.expires) == (near(born), 60, near(scene.now + 60))


@pytest.mark.parametrize("way", ["owner", "holder"])
def test_a_dead_letter_that_moves_back_has_no_origin(scene: Scene, way: str):
    """A move without a reason restarts the age and clears origin and reason."""
    [id] = scene.post(1)
    scene.tick(10)
    bury(scene, id, "claim")
    grave = scene.at(GRAVE)
    scene.tick(10)
    if way == "owner":
        assert grave.move([id], "jobs") == [id]
    else:
        grave.settle(grave.take().id, move=[Move(id, "jobs")])
    found = scene.one(id)
    assert (story(found), found.created, found.claim_count) == (("", 0, ""), near(scene.now), 0)
    assert grave.is_empty()
    assert scene.claimable() == [id]


def test_plain_messages_have_no_origin(scene: Scene):
    posted = scene.post(3)
    scene.release(scene.take(1).id)
    scene.take(2, ttl=60)
    scene.tick(60)
    assert [story(message) for message in scene.get(posted)] == [("", 0, "")] * 3


def test_claims_keep_origin_and_reason(scene: Scene):
    [id] = scene.post(1)
    bury(scene, id, "owner")
    grave = scene.at(GRAVE)
    claim = grave.take(ttl=60)
    grave.renew(claim.id, ttl=60)
    grave.release(claim.id, 10)
    scene.tick(10)
    grave.take(ttl=60)
    scene.tick(60)
    assert story(grave.one(id)) == ("jobs", 0, "max_claim_count")
    assert grave.one(id).claim_count == 2
