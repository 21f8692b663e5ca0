# SPDX-License-Identifier: Apache-2.0
"""Handling single messages by receipt (a ``MessageHandle``): delete them or change the end of their hold."""

from collections.abc import Callable
from functools import partial

import pytest

from zq.conformance.builders import EVERYTHING, Scene, ids_of, near, run_together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS
from zq.errors import ClaimLapsed, ClaimNotFound
from zq.model import (
    Claim,
    ClaimRef,
    ClaimRequest,
    CommitResult,
    HandleOutcome,
    Lease,
    ListFilter,
    Message,
    MessageHandle,
    Outcome,
    Position,
    State,
)
from zq.model.claims import split_into_runs

DONE, GONE, LOST, EXPIRED = HandleOutcome.DONE, HandleOutcome.GONE, HandleOutcome.LOST, HandleOutcome.EXPIRED
TOO_LONG = HandleOutcome.TOO_LONG
# Number of messages in races.
MANY = 30


def nothing(scene: Scene, taken: Claim) -> None:
    pass


def lapses(scene: Scene, taken: Claim) -> None:
    scene.tick(61)


def is_taken_again(scene: Scene, taken: Claim) -> None:
    scene.tick(61)
    scene.take(1, name="other")


def is_taken_again_by_the_name(scene: Scene, taken: Claim) -> None:
    scene.tick(61)
    scene.take(1, name=taken.id)


def is_given_back(scene: Scene, taken: Claim) -> None:
    scene.release(taken.id)


def is_deleted(scene: Scene, taken: Claim) -> None:
    scene.delete_many(ids_of(taken.messages))


def is_moved(scene: Scene, taken: Claim) -> None:
    scene.tick(61)
    scene.move(ids_of(taken.messages), "other")


def expires(scene: Scene, taken: Claim) -> None:
    scene.tick(4000)


# The event, the result for the last holder, and the result if late deletes are allowed.
FATES: list[tuple[Callable[[Scene, Claim], None], HandleOutcome, HandleOutcome]] = [
    (nothing, DONE, DONE),
    (lapses, EXPIRED, DONE),
    (is_taken_again, LOST, LOST),
    (is_taken_again_by_the_name, LOST, LOST),
    (is_given_back, LOST, LOST),
    (is_deleted, GONE, GONE),
    (is_moved, GONE, GONE),
    (expires, GONE, GONE),
]


@pytest.mark.parametrize(("happens", "soon", "late"), FATES, ids=[fate[0].__name__ for fate in FATES])
def test_a_receipt_works_until_another_claim_takes_the_message(
    scene: Scene, happens, soon: HandleOutcome, late: HandleOutcome
):
    scene.post(1)
    taken = scene.take(1, ttl=60)
    happens(scene, taken)
    before = scene.walk()
    if soon is not DONE:
        assert scene.handle(taken.messages) == [soon]
        assert scene.handle(taken.messages, 60) == [soon]
        assert scene.walk() == before
    assert scene.handle(taken.messages, 60, late=True) == [late]
    if late is not DONE:
        assert scene.walk() == before
    assert scene.handle(taken.messages, late=True) == [late]
    assert scene.walk() == ([] if late is DONE else before)


def test_a_receipt_is_refused_after_its_longest_hold(scene: Scene):
    """The limit counts from the creation or last renewal of the claim, even if the claim has lapsed."""
    scene.post(1)
    [message] = scene.take(1, ttl=60).messages

    def held(hold: int) -> HandleOutcome:
        handle = MessageHandle(message.id, message.claim, message.claim_count, hold, max_hold=300)
        return scene.storage.claims.handle(scene.queue, [handle], scene.now, accepts_expired=True)[0]

    scene.tick(30)
    before = scene.walk()
    assert (held(271), scene.walk() == before) == (TOO_LONG, True)
    assert held(40) is DONE
    scene.tick(50)
    assert held(221) is TOO_LONG
    assert held(220) is DONE
    scene.renew(message.claim, ttl=60)
    scene.tick(1)
    assert held(300) is TOO_LONG
    assert held(299) is DONE
    assert scene.handle([message]) == [DONE]
    assert held(1000) is GONE


def test_messages_of_a_claim_are_handled_separately(scene: Scene):
    """Some messages are deleted, and some are held longer or shorter. The claim holds the others."""
    scene.post(5)
    taken = scene.take(5, name="a", ttl=60)
    [first, second, third, *rest] = taken.messages
    assert scene.handle([first, third]) == [DONE, DONE]
    assert scene.handle([third, second], 600) == [GONE, DONE]
    assert scene.held("a") == sorted(ids_of([second, *rest]))
    assert scene.one(second.id).available == near(scene.now + 600)
    scene.tick(60)
    assert scene.held("a") == [second.id]
    assert scene.pop() == ids_of(rest)
    scene.tick(539)
    assert scene.handle([second], 1) == [DONE]
    assert scene.claimable() == []
    scene.tick(1)
    assert scene.claimable() == [second.id]
    with pytest.raises(ClaimNotFound):
        scene.held("a")


def test_a_hold_of_zero_seconds_makes_a_message_ready_and_keeps_its_receipt(scene: Scene):
    """The message is ready behind earlier ready messages, in every verb; its last holder may delete it."""
    scene.post(2)
    [one, other] = scene.take(2, name="a", ttl=600).messages
    fresh = scene.post(1)
    scene.tick(5)
    assert scene.handle([one, other], 0, late=True) == [DONE, DONE]
    assert scene.counts() == (0, 3)
    assert scene.ready() == 3
    assert scene.page() == ids_of([one, other, *scene.get(fresh)])
    browsed = scene.storage.messages.browse(scene.queue, State.READY, Position(), 10, scene.now).items
    assert ids_of(browsed) == fresh + ids_of([one, other])
    assert scene.one(one.id).claim == ""
    assert scene.handle([one]) == [EXPIRED]
    assert scene.handle([one], late=True) == [DONE]
    [again] = scene.take(2, name="b").messages[1:]
    assert (again.id, again.claim_count) == (other.id, 2)
    assert scene.handle([other], late=True) == [LOST]


def test_a_handled_message_is_ready_after_its_redelivery_delay(scene: Scene):
    """The claim's redelivery delay applies however the hold ends."""
    scene.post(1)
    [taken] = scene.storage.claims.create(scene.queue, waiting(scene, 1), scene.now).claim.messages
    for hold in (600, 0):
        assert scene.handle([taken], hold) == [DONE]
        assert scene.one(taken.id).available == near(scene.now + hold + 30)
    scene.tick(29)
    assert scene.claimable() == []
    scene.tick(1)
    assert scene.claimable() == [taken.id]


def waiting(scene: Scene, limit: int) -> ClaimRequest:
    request = scene.request(limit, ttl=60)
    return ClaimRequest(request.lease, request.limit, (30,))


def test_a_hold_does_not_extend_the_ttl(scene: Scene):
    scene.post(1, ttl=100)
    [taken] = scene.take(1, ttl=60).messages
    assert scene.handle([taken], 1000) == [DONE]
    assert scene.one(taken.id).expires == taken.expires
    scene.tick(101)
    assert (scene.handle([taken], late=True), scene.walk(EVERYTHING)) == ([GONE], [])


def test_a_message_that_expires_while_held_leaves_its_claim(scene: Scene):
    """It leaves the claim whether the hold or the claim would end later."""
    scene.post(2, ttl=100)
    longer = scene.take(1, name="a", ttl=60)
    lease = Lease("b", 600, 60, prolong=False)
    assert scene.storage.claims.create(scene.queue, ClaimRequest(lease, 1), scene.now).claim is not None
    fresh = scene.post(1)
    assert scene.handle(longer.messages, 1000) == [DONE]
    assert (scene.counts(), states(scene)) == ((2, 1), (1, 0, 2))
    scene.tick(100)
    assert (scene.counts(), states(scene)) == ((0, 1), (1, 0, 0))
    assert scene.page(EVERYTHING) == scene.page() == fresh
    assert list(scene.storage.claims.list(scene.queue.project, "", 10, scene.now).items) == []
    for name in "ab":
        uses = (
            partial(scene.held, name),
            partial(scene.renew, name),
            partial(scene.settle, name, delete=ids_of(longer.messages)),
        )
        for use in uses:
            with pytest.raises(ClaimNotFound):
                use()
        scene.release(name)
        with pytest.raises(ClaimLapsed):
            scene.commit(1, settle=[ClaimRef(scene.queue, name)])
    assert scene.claimable() == fresh


def states(scene: Scene) -> tuple[int, int, int]:
    """Return the numbers of ready, delayed and claimed messages."""
    depth = scene.storage.depth(scene.queue, scene.now, 1000)
    return depth.ready, depth.delayed, depth.claimed


@pytest.mark.parametrize("commit", [Scene.commit, Scene.decide])
def test_a_commit_leaves_messages_whose_hold_has_ended(scene: Scene, commit: Callable[..., CommitResult]):
    """Small and large commits settle the messages that the claim still holds.

    Messages whose hold has ended may belong to other claims, so the commit does not change them. It does not change
    expired messages either.
    """
    scene.post(2)
    scene.post(1, ttl=30)
    scene.post(1)
    first, *_, dead, last = scene.storage.claims.create(scene.queue, dying(scene, 4), scene.now).claim.messages
    assert scene.handle([last], 0) == [DONE]
    assert scene.handle([first, dead], 600) == [DONE, DONE]
    scene.tick(30)
    assert commit(scene, 1, settle=[ClaimRef(scene.queue, "a")]).deleted == 2
    assert scene.claimable() == [last.id]


def dying(scene: Scene, limit: int) -> ClaimRequest:
    """Return a request for a claim that does not extend ttls."""
    return ClaimRequest(Lease("a", 60, 0, prolong=False), limit)


def test_a_message_held_again_is_listed_as_claimed(scene: Scene):
    """The listing shows the message, even if an earlier listing during the redelivery delay was empty."""
    scene.post(70)
    taken = scene.storage.claims.create(scene.queue, waiting(scene, 70), scene.now).claim.messages
    scene.tick(61)
    claimed = ListFilter(claimed=True)
    assert scene.page(claimed) == []
    assert scene.handle(taken[:1], 20) == [EXPIRED]
    assert scene.handle(taken[:1], 20, late=True) == [DONE]
    assert scene.page(claimed) == [taken[0].id]
    assert scene.page(EVERYTHING) == ids_of(taken)


@pytest.mark.every_server
def test_a_deletion_by_receipt_leaves_a_history_entry(scene: Scene):
    """The entry exists for a live claim, and for a lapsed claim if late deletes are allowed."""
    scene.post(2)
    [one, other] = scene.take(2, ttl=60).messages
    assert scene.handle([one], history=600) == [DONE]
    scene.tick(61)
    assert scene.handle([other], late=True, history=600) == [DONE]
    assert scene.finished() == [(one.id, Outcome.DELETED), (other.id, Outcome.DELETED)]


def test_a_history_entry_has_the_last_hold(scene: Scene):
    """The entry has the last hold, even if the same call deletes the message."""
    scene.post(1)
    [taken] = scene.take(1, ttl=60).messages
    handles = [MessageHandle(taken.id, taken.claim, 1, 400), MessageHandle(taken.id, taken.claim, 1)]
    assert list(scene.storage.claims.handle(scene.queue, handles, scene.now, False, 600)) == [DONE, DONE]
    [record] = scene.history()
    assert record.message.available == near(scene.now + 400)


@pytest.mark.every_server
def test_receipts_are_handled_in_order(scene: Scene):
    """Results have the order of the receipts, also for two receipts of one message."""
    scene.post(2)
    [one, other] = scene.take(2, ttl=60).messages
    wanted = [(one, 5), (other, None), (one, 100), (other, 7), (one, None), (one, 3)]
    handles = [MessageHandle(message.id, message.claim, message.claim_count, hold) for message, hold in wanted]
    assert [len(run) for run in split_into_runs(handles)] == [2, 2, 1, 1]
    handled = scene.storage.claims.handle(scene.queue, handles[:4], scene.now)
    assert list(handled) == [DONE, DONE, DONE, GONE]
    assert scene.one(one.id).available == near(scene.now + 100)
    assert list(scene.storage.claims.handle(scene.queue, handles[4:], scene.now)) == [DONE, GONE]
    assert list(scene.storage.claims.handle(scene.at("missing").queue, handles[:1], scene.now)) == [GONE]
    assert list(scene.storage.claims.handle(scene.queue, [], scene.now)) == []


@ONE_OR_TWO_CONNECTIONS
def test_a_late_holder_and_a_new_one_never_both_hold_a_message(scene: Scene):
    """Each message is deleted by the late holder or delivered to the new one, never both."""
    scene.post(MANY)
    late = scene.take(MANY, ttl=60).messages
    scene.tick(61)
    halves = late[: MANY // 2], late[MANY // 2 :]
    works: list[Callable[[], list[object]]] = [
        *(partial(scene.handle, some, late=True) for some in halves),
        *(partial(taken, scene, MANY // 3) for _ in range(3)),
    ]
    first, second, *claims = run_together(*works)
    again = [message for some in claims for message in some]
    deleted = [one.id for one, done in zip(late, first + second, strict=True) if done is DONE]
    assert {*first, *second} <= {DONE, LOST}
    assert sorted(deleted + again) == sorted(set(deleted + again))
    assert sorted(ids_of(scene.walk())) == sorted(set(ids_of(late)) - set(deleted))


def taken(scene: Scene, limit: int) -> list[str]:
    claim = scene.claim(limit)
    return [] if claim is None else ids_of(claim.messages)


@ONE_OR_TWO_CONNECTIONS
def test_concurrent_holds_of_one_message_leave_one_hold(scene: Scene):
    """Two concurrent changes of a hold leave only the index entries of one change."""
    scene.post(4)
    held: list[Message] = scene.take(4, ttl=60).messages
    first, second = run_together(partial(scene.handle, held, 100), partial(scene.handle, held, 200))
    assert first + second == [DONE] * 8
    ends = {round(scene.one(message.id).available - scene.now) for message in held}
    assert ends <= {100, 200}
    scene.tick(200)
    assert sorted(scene.claimable()) == sorted(ids_of(held))


def test_a_claim_of_zero_seconds_keeps_no_message(scene: Scene):
    ids = scene.post(3)
    for count in range(1, 5):
        taken = scene.take(ttl=0).messages
        assert ([message.id for message in taken], {message.claim_count for message in taken}) == (ids, {count})
