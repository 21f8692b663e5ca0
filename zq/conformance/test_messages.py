# SPDX-License-Identifier: Apache-2.0
"""Messages: post, get and pop (contract 7.1 to 7.5, 7.7)."""

import pytest

from zq.conformance.builders import Scene, drafts, ids_of
from zq.model import Draft, Message, new_ids

pytestmark = pytest.mark.pools


def test_a_message_is_returned_as_it_was_posted(scene: Scene):
    """All fields of the draft are kept. The times follow from post time, ttl and delay."""
    [id] = new_ids(1, scene.now)
    scene.storage.messages.post(scene.queue, [Draft(id, b'{"a": 1}', 120, 30, "alice", "MD5:abc")], scene.now)
    found = scene.one(id)
    assert found == Message(
        id=id,
        body=b'{"a": 1}',
        ttl=120,
        created=scene.now,
        expires=pytest.approx(scene.now + 120, abs=0.0005),
        available=pytest.approx(scene.now + 30, abs=0.0005),
        sequence=found.sequence,
        client="alice",
        claim="",
        claim_count=0,
        checksum="MD5:abc",
    )


@pytest.mark.parametrize(
    "body",
    [
        b"null",
        b'""',
        b"0",
        b'{"$where": 1, "a.b": {"": []}}',
        b"[ 18446744073709551616,1e400 , -0.0]",
        '"\u00e9\U0001f600 \\u0000\\ud800"'.encode(),
        b'"' + b"x" * 262000 + b'"',
    ],
    ids=["null", "empty", "zero", "odd keys", "huge numbers", "odd text", "large"],
)
def test_a_body_is_returned_byte_for_byte(scene: Scene, body: bytes):
    [id] = new_ids(1, scene.now)
    scene.storage.messages.post(scene.queue, [Draft(id, body, 3600, 0, "alice")], scene.now)
    assert scene.one(id).body == body
    assert [message.body for message in scene.walk()] == [body]
    claim = scene.take()
    assert [message.body for message in claim.messages] == [body]
    assert [message.body for message in scene.storage.claims.get(scene.queue, claim.id, scene.now).messages] == [body]
    scene.release(claim.id)
    assert [message.body for message in scene.storage.messages.pop(scene.queue, 1, scene.now)] == [body]


def test_the_client_id_is_returned_unchanged(scene: Scene):
    """A client id may have any characters or be empty."""
    clients = ["", "a/b", "\u00e9\x00\U0001f600", "x" * 36]
    posted = [scene.post(1, client=client)[0] for client in clients]
    assert [message.client for message in scene.get(posted)] == clients


def test_one_post_keeps_its_array_order(scene: Scene):
    """200 messages of one post have rising sequences in array order, independent of their ids."""
    new = sorted(drafts(200, scene.now), key=lambda draft: draft.id, reverse=True)
    scene.storage.messages.post(scene.queue, new, scene.now)
    listed = scene.walk()
    assert ids_of(listed) == [draft.id for draft in new]
    assert [message.body for message in listed] == [draft.body for draft in new]
    sequences = [message.sequence for message in listed]
    assert sequences == sorted(set(sequences))
    assert sequences[0] > 0


def test_messages_of_one_post_keep_their_own_terms(scene: Scene):
    """Ttl, delay and client belong to the message, not to the post."""
    ids = new_ids(3, scene.now)
    terms = [(60, 0, "alice"), (120, 30, "bob"), (600, 5, "")]
    new = [Draft(id, b"1", ttl, delay, client) for id, (ttl, delay, client) in zip(ids, terms, strict=True)]
    scene.storage.messages.post(scene.queue, new, scene.now)
    found = scene.get(ids)
    assert [(m.ttl, round(m.available - scene.now), m.client) for m in found] == terms
    assert [round(m.expires - scene.now) for m in found] == [60, 120, 600]


def test_messages_by_id_are_returned_once_in_the_requested_order(scene: Scene):
    """Get returns the messages in the order of the ids. It ignores repeated ids and skips missing ones."""
    a, b, c = scene.post(3)
    asked = [c, "nothing", a, c, "", a, "z" * 32, b]
    assert ids_of(scene.get(asked)) == [c, a, b]
    assert scene.get([]) == []


def test_ids_show_messages_in_every_living_state(scene: Scene):
    """Reads by id return claimed, lapsed and delayed messages, and show a claim only while it is live."""
    ready = scene.post(2)
    delayed = scene.post(1, delay=600)
    claim = scene.take(2, ttl=60)
    found = scene.get(ready + delayed)
    assert ids_of(found) == ready + delayed
    assert [(message.claim, message.claim_count) for message in found] == [(claim.id, 1), (claim.id, 1), ("", 0)]
    scene.tick(60)
    assert [(m.claim, m.claim_count) for m in scene.get(ready + delayed)] == [("", 1), ("", 1), ("", 0)]


def test_ids_of_another_queue_are_not_found(scene: Scene):
    [id] = scene.post()
    other = scene.at("other")
    other.post()
    assert other.get([id]) == []
    assert scene.at("missing").get([id]) == []


def test_a_pop_removes_the_oldest_messages(scene: Scene):
    """Popped messages have all fields and are in order. No verb shows them again."""
    posted = scene.post(5)
    popped = scene.storage.messages.pop(scene.queue, 3, scene.now)
    assert ids_of(popped) == posted[:3]
    assert [message.body for message in popped] == [b"0", b"1", b"2"]
    assert scene.get(posted[:3]) == []
    assert ids_of(scene.walk()) == posted[3:]
    assert scene.pop(10) == posted[3:]
    assert scene.pop(10) == []
    assert scene.is_empty()


def test_a_pop_skips_claimed_and_delayed_messages(scene: Scene):
    posted = scene.post(2)
    claim = scene.take(1)
    delayed = scene.post(1, delay=60)
    later = scene.post(1)
    assert scene.pop() == [posted[1], *later]
    assert scene.held(claim.id) == posted[:1]
    scene.tick(60)
    assert scene.pop() == delayed
    scene.release(claim.id)
    assert scene.pop() == posted[:1]


def test_a_pop_takes_lapsed_messages(scene: Scene):
    posted = scene.post(2)
    scene.take(ttl=60)
    scene.tick(59.999)
    assert scene.pop() == []
    scene.tick(0.001)
    assert scene.pop() == posted
    assert scene.is_empty()


def test_a_pop_does_not_count_as_a_claim(scene: Scene):
    """A popped message has the same claim count as before."""
    scene.post(1)
    scene.release(scene.take().id)
    scene.post(1)
    popped = scene.storage.messages.pop(scene.queue, 10, scene.now)
    assert [(message.claim, message.claim_count) for message in popped] == [("", 1), ("", 0)]


def test_a_thousand_messages_are_popped_at_once(scene: Scene):
    posted = scene.post(1100)
    assert scene.pop(1000) == posted[:1000]
    assert scene.counts() == (0, 100)


def test_a_popped_message_leaves_the_rest_of_its_post(scene: Scene):
    a, b, c = scene.post(3)
    scene.delete(b)
    assert scene.pop(1) == [a]
    assert ids_of(scene.walk()) == [c]
