# SPDX-License-Identifier: Apache-2.0
"""Grouped queues on MongoDB with several servers: each group stays in order, and none is forgotten."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.faults.job import At, Dead, die
from tests.stores import MongoServer
from zq.clock import ManualClock
from zq.conformance.builders import DEADLINE, Scene, drafts, ids_of, run_together
from zq.model import Bounds, Claim, ClaimRef, Commit, Draft, Grouping, Message, QueueRef, Release
from zq.storage.mongodb import MongoStorage, connect, groups
from zq.storage.mongodb.producers import Step

GROUPS = 5
# Number of messages per group.
EACH = 12


@pytest.fixture
def servers(mongodb: MongoServer, request: pytest.FixtureRequest) -> Iterator[list[Scene]]:
    """Return two servers on a store with the same queue."""
    storages = [connect(mongodb.uri_of("groups"), timeout=DEADLINE) for _ in range(2)]
    clock = ManualClock(storages[0].now())
    yield [Scene(storage, clock, QueueRef("acme", request.node.name[:64])) for storage in storages]
    for storage in storages:
        storage.close()


def send(scene: Scene, *groups: str) -> list[Draft]:
    """Post a message for each of these groups."""
    new = [
        Draft(draft.id, draft.body, draft.ttl, draft.delay, draft.client, group=group)
        for draft, group in zip(drafts(len(groups), scene.now), groups, strict=True)
    ]
    scene.storage.messages.post(scene.queue, new, scene.now)
    return new


class Shop:
    """Workers on grouped queues, which record claimed and finished messages."""

    def __init__(self, expected: int) -> None:
        self._expected = expected
        self._holding: dict[str, str] = {}
        self.done: defaultdict[str, list[int]] = defaultdict(list)

    def work(self, scene: Scene, seed: int) -> None:
        """Claim and handle the messages of each group in a random way until all are done."""
        choice = random.Random(seed)
        while sum(map(len, self.done.values())) < self._expected:
            claim = scene.claim(choice.randint(1, 6), ttl=DEADLINE * 10)
            for group, messages in by_group(claim).items():
                assert claim is not None
                assert self._holding.setdefault(group, claim.id) == claim.id, "two hold one group"
                choice.choice([self._delete, self._settle, self._handle, self._commit, self._give_back])(
                    scene, claim.id, group, messages
                )

    def _finish(self, group: str, messages: Sequence[Message]) -> None:
        """Record the messages as done. The next step may give the group to another worker."""
        self.done[group] += [message.sequence for message in messages]
        del self._holding[group]

    def _delete(self, scene: Scene, claim: str, group: str, messages: Sequence[Message]) -> None:
        for message in messages[1:]:
            scene.delete(message.id, claim)
        self._finish(group, messages)
        scene.delete(messages[0].id, claim)

    def _settle(self, scene: Scene, claim: str, group: str, messages: Sequence[Message]) -> None:
        """Delete the first message and release the others."""
        first, *others = messages
        self._finish(group, [first])
        scene.settle(claim, delete=[first.id], release=[Release(one.id, 0) for one in others])

    def _handle(self, scene: Scene, claim: str, group: str, messages: Sequence[Message]) -> None:
        scene.renew(claim, ttl=DEADLINE * 10)
        self._finish(group, messages)
        scene.handle(messages)

    def _commit(self, scene: Scene, claim: str, group: str, messages: Sequence[Message]) -> None:
        """Commit a claim that holds only this group; release any other claim."""
        if len(scene.held(claim)) > len(messages):
            self._give_back(scene, claim, group, messages)
            return
        self._finish(group, messages)
        scene.commit(1, settle=[ClaimRef(scene.queue, claim)], producer=claim)

    def _give_back(self, scene: Scene, claim: str, group: str, messages: Sequence[Message]) -> None:
        del self._holding[group]
        scene.handle(messages, hold=0)


def by_group(claim: Claim | None) -> dict[str, list[Message]]:
    """Return the messages of the claim by group."""
    found: defaultdict[str, list[Message]] = defaultdict(list)
    for message in claim.messages if claim is not None else ():
        found[message.group].append(message)
    return found


def test_no_two_servers_hold_one_group_and_each_keeps_its_order(servers: list[Scene]):
    """Messages arrive by posts, commits and moves, and leave by every verb."""
    assert servers[0].storage.queues.create(servers[0].queue, b"{}", Grouping.ORDERED)
    groups = [f"g{at}" for at in range(GROUPS)]
    shop = Shop(GROUPS * EACH)
    aside = [scene.at("aside") for scene in servers]

    def post() -> None:
        for _ in range(EACH // 2):
            send(servers[0], *groups)

    def move() -> None:
        for _ in range(EACH // 2):
            new = send(aside[1], *groups)
            assert len(aside[1].move(ids_of(new), servers[0].queue.name)) == GROUPS

    def worker(at: int) -> Callable[[], None]:
        return lambda: shop.work(servers[at % 2], at)

    run_together(post, move, *map(worker, range(6)))
    assert {group: (len(done), done) for group, done in shop.done.items()} == {
        group: (EACH, sorted(shop.done[group])) for group in groups
    }
    assert servers[0].is_empty()


def test_a_queue_made_anew_as_another_kind_is_what_it_is_now(servers: list[Scene]):
    """This includes a server that has cached the queue's counter and numbering mode."""
    here, there = servers
    for before, now in ((Grouping.NONE, Grouping.ORDERED), (Grouping.ORDERED, Grouping.NONE)):
        there.storage.queues.delete(there.queue)
        assert there.storage.queues.create(there.queue, b"{}", before)
        send(here, "a")
        send(here, "a")
        assert len(here.claimable(1)) == 1
        there.storage.queues.delete(there.queue)
        assert there.storage.queues.create(there.queue, b"{}", now)
        send(here, "a")
        send(here, "a")
        assert [len(here.claimable(1)) for _ in range(2)] == ([1, 1] if now is Grouping.NONE else [1, 0])


@pytest.mark.parametrize("kind", [Grouping.ORDERED, Grouping.FAIR])
def test_heads_that_the_ttl_monitor_takes_are_not_missed(mongodb: MongoServer, servers: list[Scene], kind: Grouping):
    """This includes delayed heads, which would block their groups.

    The entry of a group is removed with its last message.
    """
    here, there = servers
    assert here.storage.queues.create(here.queue, b"{}", kind)
    short = drafts(1, here.now, ttl=60, delay=600)[0]
    here.storage.messages.post(here.queue, [Draft(short.id, b"1", 60, 600, "alice", group="a")], here.now)
    [second] = send(there, "a")
    with mongodb.client() as client:
        documents = client["groups"]["messages"]
        here.tick(60)
        assert documents.delete_many({"q": "m4:acme/" + here.queue.name, "t": 60}).deleted_count == 1
        claim = there.take()
        assert ids_of(claim.messages) == [second.id]
        assert documents.count_documents({"q": "t4:acme/" + here.queue.name}) == 1
        documents.delete_many({"q": "m4:acme/" + here.queue.name})
        here.tick(3600)
        here.reclaimed()
        assert documents.count_documents({"q": "t4:acme/" + here.queue.name}) == 0


@pytest.mark.parametrize("step", [Step.RESERVED, Step.DECIDED])
def test_groups_go_on_after_a_commit_whose_server_died(servers: list[Scene], step: Step):
    """The groups wait until the commit is decided or aborted.

    An aborted commit returns all messages, a decided one none.
    """
    here, there = servers
    assert here.storage.queues.create(here.queue, b"{}", Grouping.ORDERED)
    held = ids_of(send(here, "a", "a", "b"))
    claim = here.take(ttl=60)
    here.stage("s", 2)
    dying = MongoStorage(here.storage._client, At(step, 1, die))
    commit = Commit("acme", "etl", 1, ["s"], [ClaimRef(here.queue, claim.id)], 3600)
    with pytest.raises(Dead):
        dying.transactions.commit(commit, here.now, Bounds(1, 1000))
    dying._feed.close()
    [behind] = send(there, "a")
    here.tick(61)
    assert there.claim() is None
    here.tick(2 * DEADLINE + 20)
    there.storage.maintain(there.now)
    while there.storage.transactions.find_unfinished_commits(there.now):
        there.continue_commit()
    came = there.claimable()
    assert came == [*held[:2], behind.id, held[2]] if step is Step.RESERVED else len(came) == 3
    assert (behind.id in came, set(held) & set(came)) == (True, set(held) if step is Step.RESERVED else set())


@pytest.mark.parametrize("way", ["delete", "put off", "empty"])
def test_nothing_is_lost_between_look_and_entry(
    mongodb: MongoServer, servers: list[Scene], monkeypatch: pytest.MonkeyPatch, way: str
):
    """Before the entry is written, another server posts to the line, or releases a claim."""
    here, there = servers
    assert here.storage.queues.create(here.queue, b"{}", Grouping.ORDERED)
    [first] = ids_of(send(here, "a"))
    claim = here.take(ttl=300)
    came: list[str] = []
    write = groups.write_entries

    def between(*arguments: object) -> None:
        if not came:
            came.append(first)
            if way == "put off":
                there.release(claim.id, 0)
            else:
                came[:] = ids_of(send(there, "a"))
        write(*arguments)

    with mongodb.client() as client:
        documents = client["groups"]["messages"]
        documents.update_one({"q": "t4:acme/" + here.queue.name}, {"$set": {"d": int(1000 * here.now)}})
        if way == "empty":
            documents.delete_one({"q": "m4:acme/" + here.queue.name})
    monkeypatch.setattr(groups, "write_entries", between)
    if way == "delete":
        here.delete(first, claim.id)
    assert here.claimable() == came
