# SPDX-License-Identifier: Apache-2.0
"""Message attributes in every verb, the time of the first claim, and claims that do not extend ttls."""

import pytest

from zq.conformance.builders import EVERYTHING, Scene, near
from zq.model import ClaimRequest, Copies, Draft, HandleOutcome, Lease, Message, Move, new_ids
from zq.model.quotas import OVERHEAD

STORED = b'{"a": {"t": "String", "v": "x"}}'
LARGE = b'{"a": "' + b"x" * 100_000 + b'"}'


def made(scene: Scene, *attributes: bytes, body: bytes = b'{"b": 1}') -> list[Draft]:
    """Return a draft with a checksum and one without, for each of the attributes."""
    return [
        Draft(id, body, 3600, 0, "alice", checksum, each)
        for each in attributes
        for id, checksum in zip(new_ids(2, scene.now), ("", "MD5:0"), strict=True)
    ]


def shown(messages: list[Message]) -> list[tuple[str, bytes, str, bytes]]:
    return [(one.id, one.body, one.checksum, one.attributes) for one in messages]


@pytest.mark.parametrize("size", [1, 5000])
def test_every_verb_shows_the_attributes(scene: Scene, size: int):
    new = made(scene, STORED, b"", LARGE, body=b'"%b"' % (b"y" * size))
    expected = [(one.id, one.body, one.checksum, one.attributes) for one in new]
    scene.storage.messages.post(scene.queue, new, scene.now)
    assert shown(scene.walk()) == expected
    assert shown(scene.get([one.id for one in new])) == expected
    claim = scene.take(6, name="a", ttl=60)
    assert shown(claim.messages) == expected
    assert shown(scene.storage.claims.get(scene.queue, "a", scene.now).messages) == expected
    scene.renew("a")
    scene.handle(claim.messages[:2], 100)
    scene.release("a")
    assert shown(scene.walk()) == expected
    assert shown(scene.take(3, name="b", ttl=60).messages) == expected[:3]
    scene.tick(61)
    assert sorted(shown(scene.storage.messages.pop(scene.queue, 6, scene.now))) == sorted(expected)


@pytest.mark.every_server
def test_a_move_keeps_the_attributes(scene: Scene):
    """A plain move, a move with a new body, and a move to a dead-letter queue and back keep the attributes."""
    [one, other] = made(scene, STORED)
    scene.storage.messages.post(scene.queue, [one, other], scene.now)
    moves = [Move(one.id, "away"), Move(other.id, "away", body=b"[2]", checksum="MD5:1", reason="no use")]
    scene.storage.messages.move(scene.queue, moves, scene.now)
    away = scene.at("away")
    assert shown(away.walk()) == [(one.id, one.body, "", STORED), (other.id, b"[2]", "MD5:1", STORED)]
    away.claim_named("a")
    away.settle("a", move=[Move(other.id, scene.queue.name), Move(one.id, scene.queue.name, body=b"", reason="r")])
    assert shown(scene.walk()) == [(other.id, b"[2]", "MD5:1", STORED), (one.id, b"", "", STORED)]


def test_copies_and_stages_keep_their_attributes(scene: Scene):
    new, copies = made(scene, STORED), made(scene, b"[1]", LARGE)
    there = scene.at("copies")
    scene.storage.messages.post(scene.queue, new, scene.now, copies=Copies(there.queue, copies))
    assert [one.attributes for one in scene.walk() + there.walk()] == [STORED] * 2 + [b"[1]"] * 2 + [LARGE] * 2
    staged = made(scene, STORED, b"")
    scene.storage.transactions.stage(scene.queue.project, "s", scene.queue, staged, scene.now, 3600, 10**6)
    scene.commit(1, ["s"])
    assert [one.attributes for one in scene.get([draft.id for draft in staged])] == [STORED] * 2 + [b""] * 2


@pytest.mark.fresh_store
@pytest.mark.needs_part("usage")
def test_attributes_count_towards_usage(scene: Scene, exact_usage: None):
    """Attributes count like bodies, in every queue that the message is moved to, until it is removed."""

    def stored() -> int:
        used = scene.storage.usage(scene.queue.project, scene.now)
        return 0 if used is None else used.bytes

    new = made(scene, STORED, LARGE)
    whole = sum(draft.size + OVERHEAD for draft in new)
    scene.storage.messages.post(scene.queue, new, scene.now)
    assert stored() == whole
    scene.claim_named("a")
    scene.settle("a", move=[Move(draft.id, "away", reason="no use") for draft in new[:3]])
    assert stored() == whole
    away = scene.at("away")
    away.pop(1, history=600)
    assert stored() == whole
    assert away.handle(away.take(3).messages) == [HandleOutcome.DONE] * 2
    scene.storage.queues.purge(scene.queue)
    scene.storage.queues.delete(away.queue)
    scene.reclaimed()
    assert stored() == 0


def test_history_entries_have_the_attributes(scene: Scene):
    """Entries of deleted, popped, settled and moved messages have the attributes."""
    new = made(scene, STORED, LARGE)
    scene.storage.messages.post(scene.queue, new, scene.now)
    scene.delete(new[0].id, history=600)
    scene.pop(1, history=600)
    scene.take(1, name="a")
    scene.settle("a", rest=True, history=600)
    scene.move([new[3].id], "away", history=600)
    assert [shown([entry.message])[0] for entry in scene.history()] == [
        (one.id, one.body, one.checksum, one.attributes) for one in new
    ]


def test_the_time_of_the_first_claim_is_kept(scene: Scene):
    """Releases, lapses, renewals, further claims and burials keep the time. A move clears it."""
    [id] = scene.post(1)
    assert scene.one(id).first_claimed == 0
    first = scene.now
    [taken] = scene.take(1, name="a", ttl=60).messages
    assert taken.first_claimed == near(first)
    scene.tick(10)
    scene.renew("a", ttl=60)
    assert scene.one(id).first_claimed == near(first)
    scene.release("a")
    assert scene.one(id).first_claimed == near(first)
    [taken] = scene.take(1, ttl=60).messages
    assert taken.first_claimed == near(first)
    scene.tick(61)
    scene.take(1, name="c", ttl=60)
    assert scene.one(id).first_claimed == near(first)
    scene.settle("c", move=[Move(id, "dead", reason="no use")])
    dead = scene.at("dead")
    assert dead.one(id).first_claimed == near(first)
    assert dead.move([id], "dead", reason="still no use") == [id]
    assert dead.one(id).first_claimed == near(first)
    [taken] = dead.take(1, ttl=60).messages
    assert taken.first_claimed == near(first)
    dead.tick(61)
    assert dead.move([id], scene.queue.name) == [id]
    assert scene.one(id).first_claimed == 0
    [taken] = scene.take(1).messages
    assert taken.first_claimed == near(scene.now)


@pytest.mark.parametrize("named", [False, True])
def test_a_claim_without_prolonging_keeps_expiry_times(scene: Scene, named: bool):
    """A claim or renewal without ``prolong`` keeps the expiry time. The message expires while it is claimed."""
    [id] = scene.post(1, ttl=100)
    expires = scene.one(id).expires
    held = ClaimRequest(Lease("a", 300, 60, prolong=False), 1, named=named)
    [taken] = scene.storage.claims.create(scene.queue, held, scene.now).claim.messages
    assert (taken.ttl, taken.expires, scene.one(id).expires) == (100, expires, expires)
    assert taken.available == near(scene.now + 300)
    scene.storage.claims.renew(scene.queue, Lease("a", 400, 60, prolong=False), scene.now)
    assert (scene.one(id).expires, scene.one(id).available) == (expires, near(scene.now + 400))
    assert scene.held("a") == [id]
    scene.tick(100)
    assert scene.walk(EVERYTHING) == []
