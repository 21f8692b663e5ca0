# SPDX-License-Identifier: Apache-2.0
"""A post that expects certain metadata: the check and the post are one atomic change."""

from functools import partial
from itertools import pairwise
from threading import Semaphore

import pytest

from zq.conformance.builders import Scene, drafts, run_together
from zq.errors import QueueNotFound

NONE = b"{}"
SOME = b'{"colour": "blue"}'


def post(scene: Scene, expected: bytes | None, count: int = 2) -> bytes | None:
    return scene.storage.messages.post(scene.queue, drafts(count, scene.now), scene.now, expected)


def test_a_post_with_matching_expected_metadata_is_stored(scene: Scene):
    """The post is stored in a queue with metadata, in a queue without, and in a missing queue."""
    assert post(scene, NONE) is None
    assert scene.exists()
    assert post(scene, NONE) is None
    scene.storage.queues.update(scene.queue, NONE, SOME)
    assert post(scene, SOME) is None
    assert len(scene.walk()) == 6


def test_a_post_without_expected_metadata_is_stored(scene: Scene):
    """``None`` accepts any metadata."""
    scene.storage.queues.create(scene.queue, SOME)
    assert post(scene, None) is None
    assert len(scene.walk()) == 2


def test_a_post_that_expects_other_metadata_returns_them_and_is_not_stored(scene: Scene):
    """The post returns the current metadata; a second attempt that expects them is stored."""
    scene.storage.queues.create(scene.queue, SOME)
    for wrong in (NONE, SOME + b" "):
        assert post(scene, wrong) == SOME
    assert scene.is_empty()
    assert post(scene, SOME) is None
    assert len(scene.walk()) == 2


def test_a_post_to_a_missing_queue_that_expects_metadata_returns_none(scene: Scene):
    scene.storage.queues.create(scene.queue, SOME)
    scene.storage.queues.delete(scene.queue)
    assert post(scene, SOME) == NONE
    assert scene.walk() == []
    assert post(scene, NONE) is None
    assert len(scene.walk()) == 2


def test_a_post_need_not_create_the_queue(scene: Scene):
    """With ``create=False``, a post to a missing queue is refused, whatever metadata it expects.

    A queue without metadata is not missing, nor is a queue that a post has created.
    """
    messages, there = scene.storage.messages, scene.at("there")
    there.post(1)
    new = partial(drafts, 1, scene.now)

    def refused(expected: bytes | None) -> bool:
        with pytest.raises(QueueNotFound):
            messages.post(scene.queue, new(), scene.now, expected, create=False)
        return True

    for expected in (None, NONE, SOME):
        assert run_together(partial(refused, expected), lambda: there.post(1) != [])
    assert not scene.exists()
    assert post(scene, None) is None
    for expected in (None, NONE):
        assert messages.post(scene.queue, new(), scene.now, expected, create=False) is None
    assert messages.post(scene.queue, new(), scene.now, SOME, create=False) == NONE
    assert not scene.storage.queues.create(scene.queue, SOME)
    assert messages.post(scene.queue, new(), scene.now, NONE, create=False) is None
    assert len(scene.walk()) == 5
    scene.storage.queues.delete(scene.queue)
    assert refused(NONE)


def test_posts_racing_updates_are_stored_only_under_expected_metadata(scene: Scene):
    """A message posted under older metadata never comes after a message posted under newer metadata."""
    versions = [b'{"version": %d}' % number for number in range(20)]
    stored = Semaphore(0)
    scene.storage.queues.create(scene.queue, versions[0])

    def write() -> None:
        known = versions[0]
        while known != versions[-1]:
            new = drafts(1, scene.now, client=known.decode())
            metadata = scene.storage.messages.post(scene.queue, new, scene.now, known)
            if metadata is None:
                stored.release()
            else:
                known = metadata

    def update() -> None:
        for former, latter in pairwise(versions):
            assert stored.acquire(timeout=30)
            assert scene.storage.queues.update(scene.queue, former, latter)
            while stored.acquire(blocking=False):  # earlier posts do not prove the new version
                pass

    run_together(write, write, write, update)
    seen = [versions.index(message.client.encode()) for message in scene.walk()]
    assert seen == sorted(seen)
    assert len(set(seen)) > 3
