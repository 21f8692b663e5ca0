# SPDX-License-Identifier: Apache-2.0
"""A post that expects certain metadata: the rules that it was made by are checked in the step that stores it."""

from functools import partial
from itertools import pairwise
from threading import Semaphore

import pytest

from zq.conformance.builders import Scene, drafts, together
from zq.errors import QueueNotFound

NONE = b"{}"
SOME = b'{"colour": "blue"}'


def post(scene: Scene, expected: bytes | None, count: int = 2) -> bytes | None:
    return scene.storage.messages.post(scene.queue, drafts(count, scene.now), scene.now, expected)


def test_a_post_that_finds_what_it_expects_is_stored(scene: Scene):
    """In a queue with metadata, in one without, and in one that is missing, which has none."""
    assert post(scene, NONE) is None
    assert scene.exists()
    assert post(scene, NONE) is None
    scene.storage.queues.update(scene.queue, NONE, SOME)
    assert post(scene, SOME) is None
    assert len(scene.walk()) == 6


def test_a_post_that_expects_nothing_is_stored(scene: Scene):
    """None stands for any metadata."""
    scene.storage.queues.create(scene.queue, SOME)
    assert post(scene, None) is None
    assert len(scene.walk()) == 2


def test_a_post_that_expects_other_metadata_is_told_and_not_stored(scene: Scene):
    """The answer is what the metadata are; a second try that expects these is stored."""
    scene.storage.queues.create(scene.queue, SOME)
    for wrong in (NONE, SOME + b" "):
        assert post(scene, wrong) == SOME
    assert scene.is_empty()
    assert post(scene, SOME) is None
    assert len(scene.walk()) == 2


def test_a_post_to_a_missing_queue_that_expects_metadata_is_told_that_there_are_none(scene: Scene):
    """A queue that was deleted, and made anew by nobody yet."""
    scene.storage.queues.create(scene.queue, SOME)
    scene.storage.queues.delete(scene.queue)
    assert post(scene, SOME) == NONE
    assert scene.walk() == []
    assert post(scene, NONE) is None
    assert len(scene.walk()) == 2


def test_a_post_need_not_create_the_queue(scene: Scene):
    """A missing one is told apart from one without metadata, whatever is expected and whoever posts beside; one that a
    post has made exists for whoever would create it."""
    messages, there = scene.storage.messages, scene.at("there")
    there.post(1)
    new = partial(drafts, 1, scene.now)

    def refused(expected: bytes | None) -> bool:
        with pytest.raises(QueueNotFound):
            messages.post(scene.queue, new(), scene.now, expected, create=False)
        return True

    for expected in (None, NONE, SOME):
        assert together(partial(refused, expected), lambda: there.post(1) != [])
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


def test_posts_beside_updates_are_stored_under_what_they_expect_only(scene: Scene):
    """While the metadata go from version to version, no message made by an older one arrives behind a newer one's."""
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
            while stored.acquire(blocking=False):  # what was stored so far says nothing of the new version
                pass

    together(write, write, write, update)
    seen = [versions.index(message.client.encode()) for message in scene.walk()]
    assert seen == sorted(seen)
    assert len(set(seen)) > 3
