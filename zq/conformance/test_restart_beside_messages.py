# SPDX-License-Identifier: Apache-2.0
"""Closing and opening a store: history, keys, fences, stages and producers are still there (law L1)."""

from collections.abc import Iterator

import pytest

from zq.conformance.builders import OpenStore, make_key
from zq.conformance.test_restart import RestartableScene
from zq.core.redelivery import Redelivery
from zq.errors import Fenced, Repeated, StageNotFound
from zq.model import ClaimRef, CommitResult, Move, QueueRef, Release

pytestmark = [pytest.mark.durable, pytest.mark.fresh_store]


@pytest.fixture
def scene(open_store: OpenStore, queue: QueueRef) -> Iterator[RestartableScene]:
    opened = RestartableScene(open_store, queue)
    yield opened
    opened.storage.close()


def test_redelivery_delays_and_moves_survive(scene: RestartableScene):
    """A redelivery delay outlives its claim. A message moved by a settlement is complete in its target queue."""
    posted = scene.post(4)
    claim = scene.take(4, ttl=60, redelivery=Redelivery(30, cap=600))
    scene.settle(claim.id, release=[Release(posted[0], 45)], move=[Move(posted[1], "next", body=b"[1]", reason="odd")])
    scene.restart()
    assert scene.held(claim.id) == sorted(posted[2:])
    scene.renew(claim.id, ttl=60)
    before, moved = scene.walk(), scene.at("next").walk()
    scene.restart()
    assert (scene.walk(), scene.at("next").walk()) == (before, moved)
    assert [(m.body, m.origin, m.origin_claim_count, m.reason) for m in moved] == [(b"[1]", "jobs", 1, "odd")]
    for seconds, due in [(44.999, []), (0.001, posted[:1]), (44.999, posted[:1]), (0.001, [posted[0], *posted[2:]])]:
        scene.tick(seconds)
        assert scene.page() == due


def test_history_survives(scene: RestartableScene):
    """Entries keep their order; later entries come after every issued marker."""
    posted = scene.post(5)
    scene.delete(posted[3], history=600)
    scene.pop(2, 600)
    before, tail = scene.history(), scene.tail()
    scene.restart()
    assert (scene.history(), scene.tail()) == (before, tail)
    scene.delete_many(posted[4:], history=600)
    assert scene.history()[:3] == before
    assert [record.message.id for record in scene.history(marker=before[-1].position)] == posted[4:]
    scene.tick(600)
    scene.restart()
    assert scene.history() == []
    marker = before[-1].position
    scene.delete(scene.post(1)[0], history=600)
    assert len(scene.history(marker=marker)) == 1


def test_keys_of_requests_survive(scene: RestartableScene):
    posted = scene.post(2, once=make_key("post:k"))
    claim = scene.take()
    told = scene.settle(claim.id, delete=[posted[0], "unknown"], once=make_key("settle:k"))
    scene.restart()
    with pytest.raises(Repeated) as repeated:
        scene.post(2, once=make_key("post:k"))
    assert repeated.value.answer == posted
    with pytest.raises(Repeated) as repeated:
        scene.settle(claim.id, rest=True, once=make_key("settle:k"))
    assert repeated.value.answer == told
    assert scene.counts() == (1, 0)


def test_fences_stages_and_producers_survive(scene: RestartableScene):
    """An old epoch is refused, a stage can be published, and a batch number is known."""
    scene.post(2)
    old, fence = scene.fence(), scene.fence()
    scene.named("etl.0", 2)
    staged = scene.stage("s1", 2)
    scene.stage("s2", 1, lives=60)
    scene.commit(1)
    scene.restart()
    assert scene.last() == CommitResult(1, 0, 0)
    with pytest.raises(Fenced):
        scene.renew("etl.0", fence=old)
    scene.tick(60)
    with pytest.raises(StageNotFound):
        scene.commit(2, ["s2"])
    assert scene.commit(2, ["s1"], [ClaimRef(scene.queue, "etl.0")], fence=fence) == CommitResult(2, 2, 2)
    scene.restart()
    assert scene.commit(2, ["s1"]) == CommitResult(2, 2, 2, replayed=True)
    assert scene.claimable() == staged
    assert scene.fence().epoch == 3
