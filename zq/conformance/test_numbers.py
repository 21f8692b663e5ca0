# SPDX-License-Identifier: Apache-2.0
"""Numbers of any size pass a store unchanged and come back as Python's own types.

A driver's integer type cannot be encoded as JSON, and a float has only 53 bits.
"""

from enum import Enum
from typing import Any

import msgspec
import pytest

from zq.conformance.builders import EVERYTHING, Scene, make_key, near
from zq.conformance.topic_builders import Log
from zq.errors import Fenced
from zq.model import ClaimRef, ClaimRequest, Draft, Fence, Lease, Settlement, new_ids
from zq.model.documents import DocumentRef
from zq.model.limits import MAX_LIFE
from zq.model.topics import Entry
from zq.storage.api import Storage
from zq.wire.numbers import MAX_BODY_NUMBER

pytestmark = pytest.mark.fresh_store

LARGE = [2**31, 2**53 + 1, 2**63 - 1]
PLAIN = (int, float, str, bytes, bool, type(None))


def plain(value: Any) -> Any:
    """Return the value after checking that each part of it has a plain Python type."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            plain(getattr(value, field))
    elif isinstance(value, list | tuple | set | frozenset):
        for part in value:
            plain(part)
    elif isinstance(value, dict):
        plain(list(value.items()))
    elif not isinstance(value, Enum):
        assert type(value) in PLAIN, (type(value), value)
    return value


@pytest.mark.parametrize("number", LARGE)
def test_a_batch_number_is_returned_unchanged(scene: Scene, number: int):
    """The commit, its repeat and the lookup return the number. Numbers next to it are different batches."""
    assert plain(scene.commit(number - 1)).batch == number - 1
    assert plain(scene.last()).batch == number - 1
    assert plain(scene.commit(number)) == scene.last()
    assert plain(scene.last()).batch == number
    assert scene.commit(number).replayed
    assert plain(scene.commit(number - 1)).batch == number
    if number < MAX_BODY_NUMBER:
        assert not scene.commit(number + 1).replayed


def test_the_figures_of_a_large_commit_are_numbers(scene: Scene):
    scene.post(3)
    claim = scene.take(3)
    scene.stage("s", 2)
    made = scene.commit(2**53 + 1, ["s"], [ClaimRef(scene.queue, claim.id, 600)])
    assert (plain(made).published, made.deleted) == (2, 3)
    assert plain(scene.last()) == made


@pytest.mark.parametrize("number", LARGE)
def test_a_marker_may_be_any_number(scene: Scene, storage: Storage, number: int):
    """A marker beyond the end finds nothing in any listing and is not refused."""
    scene.post(2)
    scene.pop(1, history=600)
    log = Log(storage, scene.clock)
    [sequence] = log.publish()
    assert scene.page(marker=number) == scene.page(EVERYTHING, marker=number) == []
    assert scene.history(marker=number) == []
    assert plain(storage.history.list(scene.queue, number, 10, None, scene.now)).items == []
    assert bool(plain(log.read(after=number)).batches) == (number < sequence)


@pytest.mark.parametrize("number", LARGE)
def test_an_epoch_that_was_never_issued_is_refused(scene: Scene, number: int):
    """An epoch of any size that was never issued is refused; issued epochs are plain numbers."""
    fence = scene.fence()
    assert plain(fence.epoch) == 1
    with pytest.raises(Fenced):
        scene.commit(1, fence=Fence(fence.name, number))
    assert plain(scene.commit(1, fence=fence)).batch == 1


@pytest.mark.parametrize("number", LARGE)
def test_metadata_keep_their_numbers(scene: Scene, storage: Storage, number: int):
    value = b'{"limit":%d}' % number
    assert storage.queues.create(scene.queue, value)
    assert plain(storage.queues.get(scene.queue)).metadata == value
    assert plain(storage.queues.list("acme", "", 10)).items[0].metadata == value
    ref = DocumentRef("acme", "kind", "name")
    assert storage.documents.put(ref, value, scene.now, expires=scene.now + MAX_LIFE)
    assert plain(storage.documents.get(ref, scene.now)).value == value
    assert plain(storage.documents.list("acme", "kind", "", "", 10, scene.now)).items[0].expires > scene.now + 2**31


def test_the_longest_ttls_and_delays_are_kept(scene: Scene, storage: Storage):
    """Ttls and delays beyond 32 bits are kept unchanged."""
    draft = Draft(new_ids(1, scene.now)[0], b"1", MAX_LIFE - 60, 0, "alice")
    later = Draft(new_ids(1, scene.now)[0], b"2", MAX_LIFE, MAX_LIFE - 60, "alice")
    storage.queues.create(scene.queue, b"{}")
    storage.messages.post(scene.queue, [draft, later], scene.now)
    posted, delayed = plain(scene.walk())
    assert (posted.ttl, posted.expires) == (MAX_LIFE - 60, near(scene.now + MAX_LIFE - 60))
    assert delayed.available == near(scene.now + MAX_LIFE - 60)
    made = plain(storage.claims.create(scene.queue, ClaimRequest(Lease("a.a", MAX_LIFE, MAX_LIFE), 10), scene.now))
    claim = made.claim
    assert [message.id for message in claim.messages] == [draft.id]
    claim = plain(storage.claims.get(scene.queue, "a.a", scene.now))
    assert claim.ttl == MAX_LIFE
    assert claim.messages[0].expires == near(scene.now + 2 * MAX_LIFE)
    storage.claims.renew(scene.queue, Lease("a.a", 2**31, 2**31), scene.now)
    assert plain(storage.claims.get(scene.queue, "a.a", scene.now)).ttl == 2**31


def test_every_verb_returns_plain_numbers(scene: Scene):
    scene.post(1)
    scene.pop(1, history=600)
    Log(scene.storage, scene.clock).publish()
    answers_in_plain_numbers(scene)


def answers_in_plain_numbers(scene: Scene, counted: int = 0) -> None:
    """Call each verb on a store whose counters have reached ``counted``."""
    storage, queue, log = scene.storage, scene.queue, Log(scene.storage, scene.clock)
    ids = scene.post(6, ttl=600)
    assert plain(storage.messages.list(queue, 0, 100, EVERYTHING, scene.now)).items
    assert plain(scene.get(ids))
    claim = plain(scene.take(3))
    plain(storage.claims.get(queue, claim.id, scene.now))
    plain(storage.claims.settle(queue, claim.id, Settlement(delete=ids[:1]), scene.now, make_key("settle:k")))
    plain(storage.messages.move(queue, [], scene.now))
    assert plain(scene.move(ids[3:4], "other", history=600))
    assert plain(storage.messages.pop(queue, 1, scene.now, 600))
    assert plain(scene.history())
    assert plain(storage.history.get(queue, ids, scene.now))
    page = plain(storage.history.list(queue, 0, 100, None, scene.now))
    assert int(page.next or 0) > counted
    plain([scene.stats(), scene.ready(), scene.due(), scene.depth(), storage.queues.count("acme")])
    plain(storage.depths(scene.now, 10, 100))
    plain(storage.measures(scene.now))

    sequence = plain(log.put("news", [Entry(b"1", 2**31)]))
    assert sequence > counted
    assert plain(log.read()).batches
    plain(log.stats())
    plain(storage.maintain(scene.now + 10_000))
