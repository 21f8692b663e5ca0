# SPDX-License-Identifier: Apache-2.0
"""Queues that deliver each group's messages in order, or whose groups take turns (decision 0129)."""

import pytest
from msgspec import structs

from zq.conformance.builders import DEADLINE, RunningWorkers, Scene, drafts, ids_of, run_together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS
from zq.core.redelivery import DeadLetters
from zq.model import Claim, Grouping, HandleOutcome, MessageHandle, Move, Release

KINDS = [Grouping.ORDERED, Grouping.FAIR]


@pytest.fixture
def ordered(scene: Scene) -> Scene:
    """Return a queue that delivers each group in order."""
    assert scene.storage.queues.create(scene.queue, b"{}", Grouping.ORDERED)
    return scene


@pytest.fixture
def fair(scene: Scene) -> Scene:
    """Return a queue whose groups take turns."""
    assert scene.storage.queues.create(scene.queue, b"{}", Grouping.FAIR)
    return scene


@pytest.fixture(params=KINDS)
def grouped(request: pytest.FixtureRequest, scene: Scene) -> Scene:
    """Return a queue of either kind."""
    assert scene.storage.queues.create(scene.queue, b"{}", request.param)
    return scene


def send(scene: Scene, *groups: str, ttl: int = 3600, delay: int = 0) -> list[str]:
    """Post one message for each of these groups; return their ids."""
    plain = drafts(len(groups), scene.now, ttl=ttl, delay=delay)
    new = [structs.replace(draft, group=group) for draft, group in zip(plain, groups, strict=True)]
    scene.storage.messages.post(scene.queue, new, scene.now)
    return ids_of(new)


def test_a_group_in_a_queue_without_groups_is_returned_without_effect(scene: Scene):
    [first, second, third] = send(scene, "a", "a", "")
    assert [message.group for message in scene.take(1).messages] == ["a"]
    assert scene.claimable() == [second, third]
    assert [scene.one(id).group for id in (first, second, third)] == ["a", "a", ""]


def test_a_group_is_busy_while_its_first_message_is_held(ordered: Scene):
    """Other groups are not busy. Messages of a group that were claimed together are held together."""
    a1, b1, a2, a3, b2 = send(ordered, "a", "b", "a", "a", "b")
    first = ordered.take(2)
    assert ids_of(first.messages) == [a1, a2]
    assert ordered.claimable() == [b1, b2]
    assert ordered.claim() is None
    assert ordered.pop() == []
    ordered.delete(a2, first.id)
    assert ordered.claim() is None
    ordered.delete(a1, first.id)
    assert ordered.claimable() == [a3]


def test_a_claim_takes_one_group_before_the_next(ordered: Scene):
    """A group that became free earlier is claimed first. Messages of a group are claimed in the order of posts."""
    a1, b1, a2, c1, b2 = send(ordered, "a", "b", "a", "c", "b")
    assert ids_of(ordered.take(3).messages) == [a1, a2, b1]
    assert ordered.claimable() == [c1]
    assert ordered.one(b2).claim == ""


def test_groups_take_turns(ordered: Scene):
    """A group whose message is finished takes its turn after the other free groups."""
    a1, a2, b1, c1 = send(ordered, "a", "a", "b", "c")
    claim = ordered.take(1)
    assert ids_of(claim.messages) == [a1]
    ordered.tick(1)
    ordered.delete(a1, claim.id)
    assert [ids_of(ordered.take(1).messages) for _ in range(3)] == [[b1], [c1], [a2]]


def test_messages_behind_a_busy_group_are_not_ready(ordered: Scene):
    [a1] = send(ordered, "a")
    claim = ordered.take()
    [a2] = send(ordered, "a")
    assert ordered.claim() is None
    ordered.delete(a1, claim.id)
    assert ordered.claimable() == [a2]


def test_hiding_the_second_of_three_messages_leaves_only_the_first_ready(ordered: Scene):
    """Messages behind a delayed one are not ready. Messages in front of it are."""
    a1, a2, a3 = send(ordered, "a", "a", "a")
    claim = ordered.take()
    ordered.settle(claim.id, release=[Release(a1, 0), Release(a3, 0)])
    again = ordered.take()
    assert ids_of(again.messages) == [a1]
    ordered.settle(again.id, release=[Release(a1, 30)])
    ordered.release(claim.id, 0)
    assert ordered.claim() is None
    ordered.tick(30)
    assert ordered.claimable() == [a1, a2, a3]


@pytest.mark.parametrize("way", ["release", "lapse"])
def test_a_returned_message_keeps_its_position_in_its_group(ordered: Scene, way: str):
    a1, a2 = send(ordered, "a", "a")
    claim = ordered.take(1, ttl=60)
    send(ordered, "b")
    if way == "release":
        ordered.release(claim.id)
    else:
        ordered.tick(60)
    assert {a1, a2} <= set(ordered.claimable())
    assert [message.id for message in ordered.walk() if message.group == "a"] == [a1, a2]


def test_a_renewed_claim_keeps_its_group_busy(ordered: Scene):
    a1, a2 = send(ordered, "a", "a")
    claim = ordered.take(1, ttl=60)
    ordered.tick(50)
    ordered.renew(claim.id, ttl=60)
    ordered.tick(59)
    assert ordered.claim() is None
    ordered.tick(1)
    assert ordered.claimable() == [a1, a2]


def test_a_delayed_message_holds_up_its_group(ordered: Scene):
    """Messages behind the delayed one wait for it. Messages in front of it do not."""
    [a1] = send(ordered, "a")
    [a2] = send(ordered, "a", delay=30)
    [a3] = send(ordered, "a")
    claim = ordered.take()
    assert ids_of(claim.messages) == [a1]
    ordered.delete(a1, claim.id)
    assert ordered.claim() is None
    ordered.tick(30)
    assert ordered.claimable() == [a2, a3]


@pytest.mark.fresh_store
def test_an_expired_head_of_a_group_frees_the_next_message(ordered: Scene):
    """The next message is ready before and after the removal of the expired head, even if the head was claimed."""
    [_a1] = send(ordered, "a", ttl=60)
    [a2] = send(ordered, "a", ttl=120)
    [a3] = send(ordered, "a")
    ordered.tick(60)
    claim = ordered.take(1)
    assert ids_of(claim.messages) == [a2]
    ordered.release(claim.id, 0)
    ordered.tick(600)
    assert ordered.claimable() == [a3]
    ordered.reclaimed()
    assert ids_of(ordered.walk()) == [a3]


@pytest.mark.fresh_store
def test_removal_of_expired_group_heads_readies_the_next_message(ordered: Scene):
    """The next message is ready even if no claim came after the expiry."""
    send(ordered, "a", "b", ttl=60)
    a2, b2 = send(ordered, "a", "b")
    ordered.tick(61)
    ordered.reclaimed()
    assert sorted(ordered.claimable()) == sorted([a2, b2])


@pytest.mark.parametrize("way", ["delete", "move", "pop", "settle", "bury"])
def test_removing_the_head_of_a_group_frees_the_next_message(ordered: Scene, way: str):
    """Deletes by id, moves, pops, settlements and dead letters free the next message."""
    a1, a2 = send(ordered, "a", "a")
    if way == "delete":
        ordered.delete_many([a1])
    elif way == "move":
        assert ordered.move([a1], "other") == [a1]
    elif way == "pop":
        assert ordered.pop(1) == [a1]
    else:
        claim = ordered.take(1)
        ordered.settle(
            claim.id,
            delete=[a1] if way == "settle" else [],
            move=[Move(a1, "other", reason="r")] if way == "bury" else [],
        )
    assert ordered.claimable() == [a2]


def test_removing_a_message_in_the_middle_of_a_group_keeps_its_order(ordered: Scene):
    a1, a2, a3 = send(ordered, "a", "a", "a")
    claim = ordered.take(1)
    ordered.delete_many([a2])
    assert ordered.claim() is None
    ordered.delete(a1, claim.id)
    assert ordered.claimable() == [a3]


def test_a_pop_respects_groups(ordered: Scene):
    a1, b1, a2 = send(ordered, "a", "b", "a")
    ordered.take(1)
    assert ordered.pop() == [b1]
    assert [ordered.one(id).claim != "" for id in (a1, a2)] == [True, False]


def test_burying_a_group_head_keeps_its_group_and_frees_the_next_message(ordered: Scene):
    """The dead-letter queue has groups, too."""
    dead = ordered.at("dead")
    assert dead.storage.queues.create(dead.queue, b"{}", Grouping.ORDERED)
    a1, a2, b1 = send(ordered, "a", "a", "b")
    rule = DeadLetters(dead.queue, 1, None)
    ordered.release(ordered.take(1, dead_letters=rule).id, 0)
    ordered.tick(1)
    claimed = [ids_of(ordered.take(1, dead_letters=rule).messages) for _ in range(2)]
    assert sorted(claimed) == sorted([[b1], [a2]])
    assert [(message.id, message.group) for message in dead.walk()] == [(a1, "a")]
    assert dead.claimable() == [a1]


def test_moved_messages_join_the_end_of_their_group(ordered: Scene):
    there = ordered.at("there")
    assert there.storage.queues.create(there.queue, b"{}", Grouping.ORDERED)
    [a1] = send(there, "a")
    claim = there.take()
    a2, b1 = send(ordered, "a", "b")
    assert ordered.move([a2, b1], "there") == [a2, b1]
    assert there.claimable() == [b1]
    there.delete(a1, claim.id)
    assert there.claimable() == [a2]


def test_staged_messages_join_their_groups(ordered: Scene):
    """Messages that a commit deletes and posts keep the order, too."""
    a1, a2 = send(ordered, "a", "a")
    ordered.stage("s", 2)
    ordered.commit(1, ["s"])
    claim = ordered.take(1)
    assert ids_of(claim.messages) == [a1]
    assert len(ordered.claimable()) == 2  # messages without a group form one group
    ordered.delete(a1, claim.id)
    assert ordered.claimable() == [a2]


@pytest.mark.parametrize("limit", [1, 3, 10])
def test_ready_counts_agree_with_claims_of_groups(grouped: Scene, limit: int):
    send(grouped, "a", "a", "b", "c", "c", "c")
    send(grouped, "d", delay=45)
    assert [grouped.ready(most) for most in (0, 2, 100)] == [0, 2, 6]
    held = grouped.take(limit, ttl=30)
    left = grouped.ready()
    assert len(grouped.claimable()) == left
    grouped.tick(15)
    due = grouped.due()
    assert due is not None
    grouped.tick(due - grouped.now)
    assert grouped.ready() > 0
    assert len(held.messages) == min(limit, 6)


@pytest.mark.fresh_store
def test_messages_behind_a_busy_group_count_as_free(ordered: Scene):
    """The messages count as free, not as claimed or delayed, and are listed."""
    a1, a2, a3 = send(ordered, "a", "a", "a")
    ordered.take(1)
    assert ordered.counts() == (1, 2)
    assert ordered.page() == [a2, a3]
    depth = ordered.depth()
    assert depth is not None
    assert (depth.claimed, depth.delayed, depth.ready) == (1, 0, 2)
    assert ordered.one(a1).claim != ""


def test_a_purge_frees_all_groups(grouped: Scene):
    send(grouped, "a", "a")
    grouped.take(1)
    grouped.storage.queues.purge(grouped.queue)
    [a3] = send(grouped, "a")
    assert grouped.claimable() == [a3]


def test_a_fair_queue_gives_each_group_its_turn(fair: Scene):
    """A group with a backlog neither blocks nor delays other groups."""
    busy = send(fair, *["a"] * 6)
    [b1] = send(fair, "b")
    fair.tick(1)
    assert ids_of(fair.take(2).messages) == busy[:2]
    fair.tick(1)
    assert ids_of(fair.take(2).messages) == [b1, busy[2]]
    fair.tick(1)
    assert ids_of(fair.take(2).messages) == busy[3:5]


def test_a_fair_group_is_served_while_its_messages_are_claimed(fair: Scene):
    """Returned messages are claimed before newer ones."""
    a1, a2 = send(fair, "a", "a")
    claim = fair.take(1)
    assert ids_of(claim.messages) == [a1]
    again = fair.take(1)
    assert ids_of(again.messages) == [a2]
    fair.release(claim.id)
    assert fair.claimable() == [a1]


def test_a_message_of_a_fair_group_is_ready_at_the_end_of_its_hold(fair: Scene):
    """The last change to the hold applies, also if one request changes the same message twice."""
    a1, a2 = send(fair, "a", "a")
    [first, second] = fair.take(2).messages
    assert fair.handle([first, second], hold=100) == [HandleOutcome.DONE, HandleOutcome.DONE]
    fair.tick(90)
    assert fair.claimable() == []
    assert fair.handle([first], hold=0) == [HandleOutcome.DONE]
    assert fair.handle([second], hold=5) == [HandleOutcome.DONE]
    [again] = fair.take(2).messages
    assert again.id == a1
    changes = [
        MessageHandle(a1, again.claim, 2, 50),
        MessageHandle(a2, second.claim, 1, 0),
        MessageHandle(a1, again.claim, 2, None),
    ]
    handled = fair.storage.claims.handle(fair.queue, changes, fair.now)
    assert handled == [HandleOutcome.DONE] * 3
    assert fair.claimable() == [a2]
    [a3] = send(fair, "a")
    assert fair.claimable() == [a3]


def test_a_fair_group_does_not_wait_for_its_delayed_messages(fair: Scene):
    [a1] = send(fair, "a", delay=30)
    [a2] = send(fair, "a")
    assert fair.claimable() == [a2]
    fair.tick(30)
    assert fair.claimable() == [a1]


def test_many_groups_are_each_served_once(grouped: Scene):
    """Groups with long common prefixes, zero bytes or the longest name are distinct."""
    names = [f"group-{at}" for at in range(150)] + ["", "a\0b", "a\0", "ä" * 64, "x" * 128]
    ids = send(grouped, *names)
    more = send(grouped, *names)
    claimed = []
    while claim := grouped.claim(20):
        claimed += ids_of(claim.messages)
        for message in claim.messages:
            grouped.delete(message.id, claim.id)
    assert sorted(claimed) == sorted(ids + more)
    for first, second in zip(ids, more, strict=True):
        assert claimed.index(first) < claimed.index(second)


def test_a_claim_skips_a_busy_group_with_many_messages(ordered: Scene):
    """Messages of other groups are found behind thousands that wait."""
    for _ in range(20):
        send(ordered, *["a"] * 500)
    [b1] = send(ordered, "b")
    ordered.take(1)
    assert ordered.claimable(5) == [b1]
    assert ordered.claim() is None


@ONE_OR_TWO_CONNECTIONS
def test_many_consumers_keep_the_order_of_each_group(ordered: Scene):
    """Each group is delivered by a single claim at a time, in the order of posts."""
    names = [f"g{at % 5}" for at in range(100)]
    ids = send(ordered, *names)
    done: dict[str, list[str]] = {name: [] for name in names}
    holding: dict[str, str] = {}
    shift = RunningWorkers(4)

    def consume() -> None:
        with shift.at_work():
            while sum(map(len, done.values())) < len(ids):
                claim = ordered.claim(3, ttl=DEADLINE * 10)
                for group, messages in by_group(claim).items():
                    assert claim is not None
                    assert holding.setdefault(group, claim.id) == claim.id
                    done[group] += messages
                    for message in messages[1:]:
                        ordered.delete(message, claim.id)
                    del holding[group]
                    ordered.delete(messages[0], claim.id)  # the group is now free for other consumers

    run_together(*[consume] * 4)
    assert done == {name: [id for id, its in zip(ids, names, strict=True) if its == name] for name in done}


def by_group(claim: Claim | None) -> dict[str, list[str]]:
    """Return the ids that a claim holds, by group."""
    found: dict[str, list[str]] = {}
    for message in claim.messages if claim is not None else ():
        found.setdefault(message.group, []).append(message.id)
    return found
