# SPDX-License-Identifier: Apache-2.0
"""Paused queues: pops that expect certain metadata, and claims that may return no messages."""

from contextlib import suppress
from itertools import pairwise
from threading import Event

import pytest

from zq.conformance.builders import Scene, drafts, ids_of, run_together
from zq.errors import Fenced, OtherMetadata
from zq.model import ClaimRequest, ClaimResult, Fence, Lease, Messages

NONE = b"{}"
SOME = b'{"colour": "blue"}'
FAR_TOO_MANY = 1 << 40


def pop(scene: Scene, expected: bytes | None, limit: int = 1, history: int = 0) -> Messages:
    return scene.storage.messages.pop(scene.queue, limit, scene.now, history, FAR_TOO_MANY, expected)


def hand_out_nothing(
    scene: Scene, claim: str, expected: bytes | None = None, fence: Fence | None = None
) -> ClaimResult:
    """Claim like a server if the queue is paused: return no new messages."""
    lease = Lease(claim, 60, 60)
    request = ClaimRequest(lease, 1, named="." in claim, fence=fence, max_claims=0, max_bytes=0, expected=expected)
    return scene.storage.claims.create(scene.queue, request, scene.now)


def test_a_pop_with_matching_expected_metadata_takes_messages(scene: Scene):
    scene.post(4)
    assert len(pop(scene, NONE)) == 1
    assert len(pop(scene, None)) == 1
    scene.storage.queues.update(scene.queue, NONE, SOME)
    assert len(pop(scene, SOME)) == 1
    assert len(pop(scene, None)) == 1


@pytest.mark.parametrize("history", [0, 600])
def test_a_pop_that_expects_other_metadata_returns_them_and_takes_nothing(scene: Scene, history: int):
    """The pop returns the current metadata. A second attempt that expects these metadata gets the first message."""
    scene.storage.queues.create(scene.queue, SOME)
    posted = scene.post(2)
    for wrong in (NONE, SOME + b" "):
        with pytest.raises(OtherMetadata) as told:
            pop(scene, wrong, history=history)
        assert told.value.metadata == SOME
    assert ids_of(scene.walk()) == posted
    assert ids_of(pop(scene, SOME, history=history)) == posted[:1]


def test_a_pop_of_a_missing_queue_finds_nothing(scene: Scene):
    assert pop(scene, NONE) == []
    with suppress(OtherMetadata):
        assert pop(scene, SOME) == []


def test_concurrent_pops_take_messages_only_under_current_metadata(scene: Scene):
    scene.storage.queues.create(scene.queue, SOME)
    scene.post(40)
    taken: list[Messages] = []

    def right() -> None:
        for _ in range(10):
            taken.append(pop(scene, SOME))

    def wrong() -> None:
        for _ in range(10):
            with pytest.raises(OtherMetadata):
                pop(scene, NONE)

    run_together(right, wrong, right, wrong)
    assert len({message.id for popped in taken for message in popped}) == 20
    assert len(scene.walk()) == 20


def test_pops_racing_updates_take_only_under_expected_metadata(scene: Scene):
    """A pop that begins after a pause was acknowledged takes nothing."""
    free, paused = b'{"_paused": null}', b'{"_paused": "claims"}'
    scene.storage.queues.create(scene.queue, free)
    scene.post(300)
    pauses = [0]
    done = Event()
    wrong: list[str] = []

    def take() -> None:
        while not done.is_set():
            known = pauses[-1]
            with suppress(OtherMetadata):
                popped = pop(scene, free)
                if known and popped and pauses[-1] == known:
                    wrong.append(popped[0].id)

    def switch() -> None:
        for number, (former, latter) in enumerate(pairwise([free, paused] * 10), start=1):
            pauses.append(0)
            assert scene.storage.queues.update(scene.queue, former, latter)
            if latter == paused:
                pauses.append(number)  # Zero: the queue may not be paused yet.
                for _ in range(5):
                    with pytest.raises(OtherMetadata):
                        pop(scene, free)
        done.set()

    run_together(take, take, switch)
    assert wrong == []


@pytest.mark.parametrize("claim", ["c1", "job.1"])
def test_a_claim_that_returns_no_messages_changes_nothing(scene: Scene, claim: str):
    """After any number of such claims, the messages are ready and in order, and the claim count is unchanged."""
    posted = scene.post(3)
    for _ in range(3):
        asked = hand_out_nothing(scene, claim, NONE)
        assert (asked.claim, asked.existing, asked.metadata) == (None, False, None)
    claimed = scene.claim(limit=3)
    assert ids_of(claimed.messages) == posted
    assert [message.claim_count for message in claimed.messages] == [1, 1, 1]


@pytest.mark.parametrize("claim", ["c1", "job.1"])
def test_a_claim_that_returns_no_messages_returns_other_metadata(scene: Scene, claim: str):
    """If the expected metadata differ, the claim returns the current metadata."""
    scene.storage.queues.create(scene.queue, SOME)
    scene.post(1)
    assert hand_out_nothing(scene, claim, NONE).metadata == SOME


def test_a_claim_that_returns_no_messages_finds_the_named_claim(scene: Scene):
    """The claim returns the messages that the named claim holds, but claims no more."""
    posted = scene.post(3)
    lease = Lease("job.1", 60, 60)
    first = scene.storage.claims.create(scene.queue, ClaimRequest(lease, 2, named=True), scene.now)
    again = hand_out_nothing(scene, "job.1", NONE)
    assert again.existing
    assert ids_of(again.claim.messages) == ids_of(first.claim.messages) == posted[:2]


def test_a_claim_that_returns_no_messages_refuses_an_old_epoch(scene: Scene):
    scene.post(1)
    former, last = scene.fence(), scene.fence()
    with pytest.raises(Fenced):
        hand_out_nothing(scene, "job.1", NONE, former)
    assert hand_out_nothing(scene, "job.1", NONE, last).claim is None


def test_a_post_refused_by_expected_metadata_does_not_affect_pops(scene: Scene):
    scene.storage.queues.create(scene.queue, SOME)
    assert scene.storage.messages.post(scene.queue, drafts(1, scene.now), scene.now, NONE) == SOME
    assert pop(scene, SOME) == []
