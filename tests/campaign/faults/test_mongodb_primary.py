# SPDX-License-Identifier: Apache-2.0
"""A replica set whose primary steps down or is killed while a queue is in use."""

import contextlib
import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.faults.test_mongodb_counters import draws
from tests.faults.test_mongodb_groups import send
from tests.servers import wait_for
from tests.stores import MongoServer
from zq.clock import ManualClock
from zq.conformance.builders import EVERYTHING, Scene, drafts, ids_of
from zq.errors import Unavailable
from zq.model import Grouping, IdempotencyKey, Message, QueueRef
from zq.storage.mongodb import MongoStorage, connect
from zq.storage.mongodb.deletions import Deletions


class Member(MongoServer):
    """A mongod that waits to become a member of a replica set."""

    def answers(self) -> bool:
        with self.client() as client:
            try:
                return bool(client.admin.command("ping")["ok"])
            except PyMongoError:
                return False


@pytest.fixture
def members() -> Iterator[list[Member]]:
    """Start a replica set of three members with a primary."""
    with contextlib.ExitStack() as stack:
        three = [stack.enter_context(Member()) for _ in range(3)]
        plan = [{"_id": at, "host": member.address} for at, member in enumerate(three)]
        settings = {"electionTimeoutMillis": 2000}
        with three[0].client() as client:
            client.admin.command("replSetInitiate", {"_id": "rs0", "members": plan, "settings": settings})
        with MongoClient(uri_of(three)) as client:
            wait_for(lambda: client.primary is not None, 60, "a primary")
        yield three


def uri_of(members: list[Member]) -> str:
    return f"mongodb://{','.join(member.address for member in members)}/zq?replicaSet=rs0"


class Load:
    """Producers, consumers that delete, and consumers that pop, with the results of their calls."""

    def __init__(self, storage: MongoStorage, queue: QueueRef) -> None:
        self.scene = Scene(storage, ManualClock(storage.now()), queue)
        self.posted: list[str] = []
        self.tried: list[str] = []
        self.taken: list[str] = []
        self.stop = threading.Event()

    def produce(self) -> None:
        while not self.stop.is_set():
            new = drafts(2, self.scene.now)
            self.tried += ids_of(new)
            with contextlib.suppress(Unavailable):
                self.scene.storage.messages.post(self.scene.queue, new, self.scene.now)
                self.posted += ids_of(new)

    def work(self) -> None:
        while not self.stop.is_set():
            with contextlib.suppress(Unavailable):
                claim = self.scene.claim(3)
                self.taken += ids_of(claim.messages) if claim else []


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["step down", "kill"])
def test_a_change_of_the_primary_under_load_loses_and_doubles_nothing(members: list[Member], way: str):
    """Every acknowledged post is stored exactly once, and no message is in two claims (L1, L2, L7)."""
    storage = connect(uri_of(members), timeout=10.0, drawn_sequences=True)
    load = Load(storage, QueueRef("acme", "jobs"))
    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(work) for work in [load.produce] * 4 + [load.work] * 2]
        for _ in range(2 if way == "step down" else 1):
            before = len(load.posted)
            wait_for(lambda: len(load.posted) > before + 100, 60, "posts go through")  # noqa: B023
            change_primary(members, way)
        before = len(load.posted)
        wait_for(lambda: len(load.posted) > before + 100, 60, "posts go through again")
        load.stop.set()
    for future in running:
        future.result()
    there = ids_of(load.scene.walk())
    assert len(there) == len(set(there))
    assert len(load.taken) == len(set(load.taken))
    assert set(load.posted) <= set(there) <= set(load.tried)
    for first, second in zip(load.tried[::2], load.tried[1::2], strict=True):
        assert (first in there) == (second in there)
    sequences = [message.sequence for message in load.scene.walk()]
    assert sequences == sorted(set(sequences))
    storage.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["step down", "kill"])
def test_followers_of_servers_that_draw_miss_nothing_while_the_primary_changes(members: list[Member], way: str):
    """Three servers draw sequences in one queue, and a listing on each server follows the queue (L6)."""
    storages = [connect(uri_of(members), timeout=10.0, drawn_sequences=True) for _ in range(3)]
    loads = [Load(storage, QueueRef("acme", "followed")) for storage in storages]
    storages[0].queues.create(QueueRef("acme", "followed"), b"{}")
    for load in loads:
        draws(load.scene)
    over = threading.Event()
    with ThreadPoolExecutor(9) as pool:
        producing = [pool.submit(load.produce) for load in loads * 2]
        following = [pool.submit(follow, load.scene, over) for load in loads]
        for _ in range(2 if way == "step down" else 1):
            before = len(loads[0].posted)
            wait_for(lambda: len(loads[0].posted) > before + 100, 60, "posts go through")  # noqa: B023
            change_primary(members, way)
        before = len(loads[0].posted)
        wait_for(lambda: len(loads[0].posted) > before + 100, 60, "posts go through again")
        for load in loads:
            load.stop.set()
        for future in producing:
            future.result()
        over.set()
        seen = [future.result() for future in following]
    there = ids_of(loads[0].scene.walk())
    posted = {message for load in loads for message in load.posted}
    assert posted <= set(there) <= {message for load in loads for message in load.tried}
    assert all(its == there for its in seen)
    for storage in storages:
        storage.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("claims", [["none"], None], ids=["of a claim", "of a message"])
def test_deletion_of_an_absent_message_waits_until_the_absence_is_durable(
    members: list[Member], monkeypatch: pytest.MonkeyPatch, claims: list[str] | None
):
    """Another request deletes the message, and its deletion may still be undone by a failover (L3)."""
    here, there = (connect(uri_of(members), timeout=5.0) for _ in range(2))
    queue, now = QueueRef("acme", "gone"), here.now()
    new, other = drafts(2, now)
    message = new.id
    here.queues.create(queue, b"{}")
    here.messages.post(queue, [new], now)
    delete = Deletions._delete
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:

        def delete_there(self: Deletions, *given: Any) -> bool:
            was_deleted = delete(self, *given)
            monkeypatch.undo()
            for member in secondaries(members):
                stack.enter_context(member.frozen())
            pool.submit(there.messages.delete, queue, [message], now)
            wait_for(lambda: not here.messages.get(queue, [message], now), 10, "the message is deleted on the primary")
            return was_deleted

        monkeypatch.setattr(Deletions, "_delete", delete_there)
        with pytest.raises(Unavailable):
            here.messages.delete(queue, [other.id if claims is None else message], now, claims)
        stack.close()
    for storage in (here, there):
        storage.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["named claim", "stage"])
def test_repeated_request_waits_until_the_first_one_is_durable(members: list[Member], kind: str):
    """A failover may still undo the first request, so its repetition must not be acknowledged."""
    here, there = (connect(uri_of(members), timeout=5.0) for _ in range(2))
    clock = ManualClock(here.now())
    mine, other = (Scene(storage, clock, QueueRef("acme", "again")) for storage in (here, there))
    here.queues.create(mine.queue, b"{}")
    here.messages.post(mine.queue, drafts(1, mine.now), mine.now)
    key = IdempotencyKey("k", b"digest", 3600)

    def request(scene: Scene) -> object:
        return scene.named("mine") if kind == "named claim" else scene.stage("batch", once=key)

    written = {"c.i" if kind == "named claim" else "token": {"$exists": True}}
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(1) as pool:
        messages = stack.enter_context(MongoClient[dict[str, Any]](uri_of(members)))["zq"]["messages"]
        for member in secondaries(members):
            stack.enter_context(member.frozen())
        pool.submit(request, other)
        wait_for(lambda: messages.find_one(written), 10, "the request is visible on the primary")
        with pytest.raises(Unavailable):
            request(mine)
        stack.close()
    for storage in (here, there):
        storage.close()


def secondaries(members: list[Member]) -> list[Member]:
    with MongoClient(uri_of(members)) as client:
        wait_for(lambda: client.primary is not None, 60, "a primary")
        return [member for member in members if client.primary is not None and member.port != client.primary[1]]


def follow(scene: Scene, over: threading.Event) -> list[str]:
    """Follow the queue by markers until no message and no producer is left."""
    marker, seen = 0, []
    while True:
        is_last = over.is_set()
        with contextlib.suppress(Unavailable):
            page = scene.storage.messages.list(scene.queue, marker, 20, EVERYTHING, scene.now)
            seen += ids_of(page.items)
            marker = int(page.next or marker)
            if is_last and page.next is None:
                return seen


def change_primary(members: list[Member], way: str) -> None:
    with MongoClient(uri_of(members)) as client:
        wait_for(lambda: client.primary is not None, 60, "a primary")
        primary = next(member for member in members if member.port == client.primary[1])
        if way == "kill":
            primary.kill()
        else:
            wait_for(lambda: stepped_down(primary), 60, "the primary steps down")


def stepped_down(primary: Member) -> bool:
    with primary.client() as client, contextlib.suppress(PyMongoError):
        client.admin.command({"replSetStepDown": 10, "secondaryCatchUpPeriodSecs": 5})
        return True
    return False


class Groups:
    """Producers of groups and consumers that delete claimed messages; records the order of first deliveries."""

    def __init__(self, storage: MongoStorage, queue: QueueRef) -> None:
        self.scene = Scene(storage, ManualClock(storage.now()), queue)
        assert storage.queues.create(queue, b"{}", Grouping.ORDERED)
        self.posted: list[str] = []
        self.came: defaultdict[str, list[int]] = defaultdict(list)
        self.ids: set[str] = set()
        self.stop = threading.Event()

    def produce(self) -> None:
        while not self.stop.is_set():
            with contextlib.suppress(Unavailable):
                self.posted += ids_of(send(self.scene, *GROUPS))

    def work(self) -> None:
        while not self.stop.is_set():
            self.step()

    def step(self) -> bool:
        """Claim messages and delete them; return False if no message was ready."""
        with contextlib.suppress(Unavailable):
            claim = self.scene.claim(6)
            if claim is None:
                return False
            self._note(claim.messages)
            self.scene.handle(claim.messages)
        return True

    def _note(self, messages: Sequence[Message]) -> None:
        """Record sequences; no other thread writes to the group's list, because this claim holds the group."""
        for message in messages:
            if message.id not in self.ids:
                self.ids.add(message.id)
                self.came[message.group].append(message.sequence)


GROUPS = ("a", "b", "c")


@pytest.mark.timeout(600)
def test_groups_keep_their_order_while_the_primary_steps_down(members: list[Member]):
    """Messages of a group are delivered in order and no group is stuck, although responses were lost (L5)."""
    storage = connect(uri_of(members), timeout=10.0, drawn_sequences=True)
    load = Groups(storage, QueueRef("acme", "steps"))
    with ThreadPoolExecutor(5) as pool:
        running = [pool.submit(work) for work in [load.produce] * 2 + [load.work] * 3]
        wait_for(lambda: len(load.ids) > 30, 60, "messages go through")
        change_primary(members, "step down")
        before = len(load.ids)
        wait_for(lambda: len(load.ids) > before + 30, 60, "messages go through again")
        load.stop.set()
    for future in running:
        future.result()
    load.scene.tick(400)
    while load.step():
        pass
    assert load.scene.is_empty()
    assert set(load.posted) <= load.ids
    assert {group: came == sorted(came) for group, came in load.came.items()} == dict.fromkeys(GROUPS, True)
    storage.close()
