# SPDX-License-Identifier: Apache-2.0
"""History entries and remembered results count in the bytes of a project until they are removed.

An entry counts as much as its message, a result its stored bytes and ``OVERHEAD``.
"""

from collections.abc import Callable

import pytest

from zq.conformance.builders import Scene, make_key
from zq.conformance.topic_builders import Log
from zq.conformance.usage_builders import figures, post, size
from zq.errors import Repeated
from zq.model import ClaimRef, IdempotencyKey, SettleResult
from zq.model.quotas import OVERHEAD

pytestmark = [
    pytest.mark.needs_part("usage"),
    pytest.mark.usefixtures("exact_usage"),
    pytest.mark.fresh_store,
    pytest.mark.pools,
]


def in_history(scene: Scene, *bodies: int) -> None:
    """Assert that only history entries with bodies of these sizes count."""
    assert figures(scene) == (0, size(*bodies)[1])


FINISH: list[Callable[[Scene, str], object]] = [
    lambda scene, id: scene.delete(id, history=600),
    lambda scene, id: scene.pop(1, history=600),
    lambda scene, id: scene.settle(scene.take(1).id, delete=[id], history=600),
    lambda scene, id: scene.commit(1, [], [ClaimRef(scene.queue, scene.take(1).id, 600)]),
]


@pytest.mark.parametrize("finish", FINISH)
def test_a_history_entry_counts_as_much_as_its_message(scene: Scene, finish: Callable[[Scene, str], object]):
    """The entry counts from the finish of the message until the removal of the entry."""
    [message] = post(scene, 10)
    finish(scene, message)
    in_history(scene, 10)
    scene.tick(599)
    scene.reclaimed()
    in_history(scene, 10)
    scene.tick(2)
    scene.reclaimed()
    assert figures(scene) == (0, 0)


def test_a_moved_message_counts_in_the_history_of_its_former_queue_too(scene: Scene):
    """The entry has the body that the message had in its former queue."""
    [message] = post(scene, 10)
    scene.move([message], "other", history=600, body=b"7" * 100, checksum="")
    assert figures(scene) == (1, size(10, 100)[1])


def test_a_purge_leaves_history_and_a_deletion_does_not(scene: Scene):
    post(scene, 10, 20)
    scene.pop(1, history=600)
    scene.storage.queues.purge(scene.queue)
    in_history(scene, 10)
    scene.tick(601)
    scene.reclaimed()
    post(scene, 20)
    scene.storage.queues.purge(scene.queue)
    scene.reclaimed()
    assert figures(scene) == (0, 0)
    post(scene, 10)
    scene.pop(1, history=600)
    in_history(scene, 10)
    scene.storage.queues.delete(scene.queue)
    assert figures(scene) == (0, 0)
    scene.reclaimed()
    scene.tick(601)
    scene.reclaimed()
    assert figures(scene) == (0, 0)
    post(scene, 30)
    scene.pop(1, history=600)
    in_history(scene, 30)


def remembered(scene: Scene, ids: int) -> int:
    """Return the bytes that count for a remembered result with ``ids`` ids, excluding messages."""
    messages, stored = figures(scene)
    bodies = [len(message.body) for message in scene.walk()]
    assert messages == len(bodies)
    beside = stored - size(*bodies)[1]
    assert OVERHEAD < beside <= OVERHEAD + 100 * (ids + 1)
    return beside


def test_a_remembered_result_counts_until_its_window_ends(scene: Scene):
    """The result counts even if its messages are removed, and a repeat adds nothing."""
    key = make_key(window=600)
    scene.post(10, once=key)
    before = remembered(scene, 10)
    with pytest.raises(Repeated):
        scene.post(10, once=key)
    scene.pop(5)
    assert remembered(scene, 10) == before
    scene.storage.queues.purge(scene.queue)
    scene.tick(599)
    scene.reclaimed()
    assert figures(scene) == (0, before)
    scene.tick(2)
    scene.reclaimed()
    assert figures(scene) == (0, 0)


def test_a_key_that_is_used_again_counts_once(scene: Scene):
    scene.post(1, once=make_key(window=60))
    scene.tick(61)
    scene.post(1, once=make_key(window=60))
    scene.reclaimed()
    assert remembered(scene, 1)
    scene.tick(61)
    scene.reclaimed()
    assert figures(scene) == size(1, 1)


def test_the_remembered_result_of_a_settlement_counts(scene: Scene):
    scene.post(3)
    claim = scene.take(3)
    settled = scene.settle(claim.id, rest=True, once=make_key("settle:k"))
    assert settled == SettleResult(deleted=3)
    remembered(scene, 0)


def test_a_deleted_queue_drops_its_remembered_results_at_once(scene: Scene):
    scene.post(1, once=make_key(window=60))
    scene.storage.queues.delete(scene.queue)
    assert figures(scene) == (0, 0)
    scene.post(1, once=make_key(window=600))
    before = remembered(scene, 1)
    scene.reclaimed()
    scene.tick(61)
    scene.reclaimed()
    assert remembered(scene, 1) == before


def staged_once(scene: Scene, key: IdempotencyKey) -> int:
    """Stage one message and drop the stage; return the usage that is left."""
    scene.stage("s", once=key)
    scene.drop_stage("s")
    return figures(scene)[1]


def test_the_remembered_result_of_staging_counts_without_a_queue(scene: Scene):
    """The result counts the same after the queue is created. It ends with its window."""
    before = staged_once(scene, make_key(window=60))
    assert OVERHEAD < before <= OVERHEAD + 200
    assert staged_once(scene.at("jobs", "other"), make_key(window=60)) == before
    post(scene, 10)
    assert remembered(scene, 1) == before
    scene.tick(61)
    scene.reclaimed()
    assert figures(scene) == size(10)
    assert figures(scene.at("jobs", "other")) == (0, 0)


def test_remembered_results_of_publishing_do_not_count(scene: Scene):
    """A topic's log has a limit of its own."""
    Log(scene.storage, scene.clock, scene.queue.project).publish(once=make_key("publish:k"))
    assert figures(scene) == (0, 0)
