# SPDX-License-Identifier: Apache-2.0
"""Copies: messages that another queue gets in the same atomic change as a post."""

from functools import partial

import pytest

from zq.conformance.builders import Scene, drafts, ids_of, run_together
from zq.errors import KeyReused, Repeated
from zq.model import Copies, Draft, IdempotencyKey

TIMES = 25


def post(scene: Scene, to: Scene, new: list[Draft], copies: list[Draft], **terms: object) -> bytes | None:
    """Post to the scene's queue, with copies to the other queue."""
    return scene.storage.messages.post(scene.queue, new, scene.now, copies=Copies(to.queue, copies), **terms)  # type: ignore[arg-type]


def test_copies_are_stored_with_the_messages(scene: Scene):
    """Each queue has its own ready messages in order. A missing queue is created."""
    there = scene.at("copies")
    new, copies = drafts(2, scene.now), [*drafts(2, scene.now), *drafts(1, scene.now, delay=60)]
    assert post(scene, there, new, copies) is None
    assert scene.claimable() == ids_of(new)
    assert there.claimable() == ids_of(copies)[:2]
    found = there.get(ids_of(copies))
    assert [message.body for message in found] == [draft.body for draft in copies]
    scene.tick(60)
    assert there.claimable() == ids_of(copies)[2:]


@pytest.mark.parametrize("exists", [False, True])
def test_no_copy_is_stored_without_the_messages(scene: Scene, exists: bool):
    """No copy is stored if the metadata differ, or if the idempotency key is known or belongs to another request."""
    there = scene.at("copies")
    key = IdempotencyKey("k", b"digest", 60)
    scene.storage.messages.post(scene.queue, first := drafts(1, scene.now), scene.now, idempotency_key=key)
    if exists:
        there.post(1)
    before = ids_of(there.walk())
    assert post(scene, there, drafts(1, scene.now), drafts(1, scene.now), expected=b'{"a": 1}') == b"{}"
    with pytest.raises(Repeated) as repeated:
        post(scene, there, drafts(1, scene.now), drafts(1, scene.now), idempotency_key=key)
    assert repeated.value.answer == ids_of(first)
    other = IdempotencyKey("k", b"other", 60)
    with pytest.raises(KeyReused):
        post(scene, there, drafts(1, scene.now), drafts(1, scene.now), idempotency_key=other)
    assert scene.claimable() == ids_of(first)
    assert ids_of(there.walk()) == before


def test_the_key_of_a_post_with_copies_is_remembered(scene: Scene):
    there = scene.at("copies")
    key = IdempotencyKey("k", b"digest", 60)
    new, copies = drafts(2, scene.now), drafts(3, scene.now)
    assert post(scene, there, new, copies, idempotency_key=key) is None
    with pytest.raises(Repeated) as repeated:
        post(scene, there, drafts(2, scene.now), drafts(3, scene.now), idempotency_key=key)
    assert repeated.value.answer == ids_of(new)
    assert there.claimable() == ids_of(copies)


def test_posts_with_copies_in_both_directions_do_not_deadlock(scene: Scene):
    there = scene.at("copies")
    sent: dict[str, list[str]] = {"here": [], "there": []}

    def cross(source: Scene, target: Scene, own: str, others: str) -> None:
        for _ in range(TIMES):
            new, copies = drafts(1, scene.now), drafts(2, scene.now)
            assert post(source, target, new, copies) is None
            sent[own] += ids_of(new)
            sent[others] += ids_of(copies)

    ways = [partial(cross, scene, there, "here", "there"), partial(cross, there, scene, "there", "here")]
    run_together(*ways, *ways)
    for place, name in ((scene, "here"), (there, "there")):
        assert sorted(ids_of(place.walk())) == sorted(sent[name])
        assert len(sent[name]) == 6 * TIMES
