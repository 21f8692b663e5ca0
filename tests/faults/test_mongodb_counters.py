# SPDX-License-Identifier: Apache-2.0
"""Cached counters of queues on MongoDB: a server never trusts them after another server has written."""

import json
from collections.abc import Iterator
from itertools import cycle, product
from uuid import uuid4

import pytest

from tests.stores import MongoServer
from zq.clock import ManualClock
from zq.conformance.builders import Scene, drafts, ids_of, run_together
from zq.errors import QueueNotFound
from zq.model import QueueRef
from zq.storage.mongodb import connect, layout
from zq.storage.mongodb.counter_cache import CounterCache
from zq.storage.mongodb.messages import Post, Poster

# Modes in which each of two servers gets sequences: drawn next to the transaction, or assigned within it.
MODES = list(product(("exclusive", "shared"), repeat=2))


def draws(scene: Scene) -> None:
    """Make the server draw sequences in this queue from now on."""
    counters = scene.storage._client.counters = CounterCache(shared_seconds=3600)
    counters.record(layout.key(scene.queue).counter, 0, 0)
    counters.record(layout.key(scene.queue).counter, 1, 1)


@pytest.fixture
def servers(mongodb: MongoServer) -> Iterator[list[Scene]]:
    """Return two servers on a store with the same queue, to which both have posted."""
    storages = [connect(mongodb.uri_of("counters"), drawn_sequences=True) for _ in range(2)]
    clock = ManualClock(storages[0].now())
    queue = QueueRef("acme", uuid4().hex)
    yield [Scene(storage, clock, queue) for storage in storages]
    for storage in storages:
        storage.close()


@pytest.fixture(params=MODES, ids="-".join)
def pair(servers: list[Scene], request: pytest.FixtureRequest) -> list[Scene]:
    """Return the servers in each pair of modes. An exclusive one draws only after a conflict, and only once."""
    servers[0].storage.queues.create(servers[0].queue, b"{}")
    for scene, mode in zip(servers, request.param, strict=True):
        if mode == "shared":
            draws(scene)
        else:
            scene.storage._client.counters = CounterCache(shared_seconds=0)
    return servers


def updates(mongodb: MongoServer, scene: Scene) -> list[dict]:
    """Return the updates of the queue's counter that a post of this server sends."""
    with mongodb.client() as client:
        database = client["counters"]
        database.command("profile", 2)
        scene.post(1)
        database.command("profile", 0)
        found = [one["command"] for one in database["system.profile"].find({"op": "update"})]
        database.drop_collection("system.profile")
    return found


def test_a_counter_that_nobody_else_wrote_is_not_computed_again(mongodb: MongoServer, servers: list[Scene]):
    """This holds from the second post on; without it, this file would test nothing."""
    here, _ = servers
    here.post(1)
    [sent] = updates(mongodb, here)
    assert sent["q"]["k1"] == 1
    assert sent["u"]["$set"]["k1"] == 2


def test_posts_in_turns_keep_their_order(pair: list[Scene]):
    posted = [message for scene, _ in zip(cycle(pair), range(20), strict=False) for message in scene.post(2)]
    assert ids_of(pair[0].walk()) == posted
    sequences = [message.sequence for message in pair[1].walk()]
    assert sequences == sorted(set(sequences))


def test_posts_at_once_keep_each_one_s_order(pair: list[Scene]):
    def many(scene: Scene) -> list[str]:
        return [message for _ in range(40) for message in scene.post(3)]

    told = run_together(*[lambda scene=scene: many(scene) for scene in pair * 2])
    listed = ids_of(pair[0].walk())
    assert sorted(listed) == sorted(message for its in told for message in its)
    for its in told:
        assert [message for message in listed if message in set(its)] == its
    sequences = [message.sequence for message in pair[0].walk()]
    assert sequences == sorted(set(sequences))


def test_metadata_that_another_server_changed_are_told_to_the_next_post(pair: list[Scene]):
    here, there = pair
    here.post(2)
    there.storage.queues.update(here.queue, b"{}", b'{"_ttl": 7}')
    met = here.storage.messages.post(here.queue, drafts(1, here.now), here.now, b"{}")
    assert json.loads(met or b"") == {"_ttl": 7}
    assert len(here.walk()) == 2
    assert here.storage.messages.post(here.queue, drafts(1, here.now), here.now, b'{"_ttl": 7}') is None
    assert len(here.walk()) == 3


def test_a_counter_is_remembered_after_a_purge_of_a_queue_that_was_never_posted_to(
    mongodb: MongoServer, servers: list[Scene]
):
    """The purge does not cause repeated posts."""
    here, _ = servers
    here.storage.queues.create(here.queue, b"{}")
    here.storage.queues.purge(here.queue)
    for _ in range(4):
        here.post(1)
    assert outcomes(here)["outdated"] == 0
    [sent] = updates(mongodb, here)
    assert sent["u"]["$set"]["k1"] == 5


@pytest.mark.parametrize("way", ["move", "commit", "purge", "delete", "update"])
def test_server_that_changes_a_counter_itself_posts_in_the_exclusive_mode(
    mongodb: MongoServer, servers: list[Scene], way: str
):
    """No transaction is discarded, and later posts use the cache again."""
    here, _ = servers
    side = here.at(f"side.{here.queue.name}")
    moved = side.post(3)

    def change(at: int) -> None:
        if way == "move":
            side.move(moved[at : at + 1], here.queue.name)
        elif way == "commit":
            here.stage("staged", 2)
            here.commit(at, ["staged"], producer=here.queue.name)
        elif way == "update":
            metadata = [b'{"_ttl": 7%d}' % number for number in range(3)]
            assert here.storage.queues.update(here.queue, metadata[at - 1] if at else b"{}", metadata[at])
        else:
            getattr(here.storage.queues, way)(here.queue)

    for at in range(3):
        here.post(1)
        change(at)
    here.post(1)
    assert not here.storage._client.counters.is_shared([layout.key(here.queue)])
    assert outcomes(here)["outdated"] == 0
    [sent] = updates(mongodb, here)
    assert "k1" in sent["q"]


def test_server_whose_counter_another_one_changed_draws(servers: list[Scene]):
    """This includes a move as the first transaction that finds the change."""
    here, there = servers
    side = here.at(f"side.{here.queue.name}")
    moved = side.post(1)
    here.post(1)
    there.post(1)
    side.move(moved, here.queue.name)
    assert here.storage._client.counters.is_shared([layout.key(here.queue)])
    assert outcomes(here)["outdated"] == 0


@pytest.mark.parametrize("way", ["purge", "delete"])
def test_what_another_server_removed_stays_so(pair: list[Scene], way: str):
    here, there = pair
    here.post(3)
    getattr(there.storage.queues, way)(here.queue)
    new = here.post(2)
    assert ids_of(here.walk()) == new
    assert here.exists()


def test_a_move_by_another_server_takes_its_place_in_line(pair: list[Scene]):
    here, there = pair
    first = here.post(2)
    side = there.at(f"side.{here.queue.name}")
    moved = side.post(1)
    side.move(moved, here.queue.name)
    last = here.post(1)
    assert ids_of(here.walk()) == [*first, *moved, *last]


def test_usage_counts_what_was_posted_by_memory(pair: list[Scene]):
    here, there = pair
    for scene in (here, here, there, here, here):
        scene.post(2)
    assert here.entered() == there.entered() == 10


def test_a_move_beside_posts_of_another_server_keeps_all(pair: list[Scene]):
    """Moves advance the counter within their transactions, in either mode."""
    here, there = pair
    side = there.at(f"side.{here.queue.name}")
    moved = side.post(8)

    def move() -> list[str]:
        return [message for start in range(0, 8, 2) for message in side.move(moved[start : start + 2], here.queue.name)]

    def post() -> list[str]:
        return [message for _ in range(20) for message in here.post(2)]

    told = run_together(move, post)
    listed = ids_of(there.walk())
    for its in told:
        assert [message for message in listed if message in set(its)] == its
    assert len(listed) == 48


def outcomes(scene: Scene) -> dict[str, float]:
    """Return the transactions of a server by outcome."""
    figures = scene.storage.measures(scene.now)
    return {one.labels[0][1]: one.value for one in figures if one.name == "store_transactions_total"}


def test_discarded_transactions_are_counted_by_outcome(servers: list[Scene]):
    """A single server discards none; a server with an outdated counter discards one."""
    here, there = servers
    for _ in range(5):
        here.post(1)
    before = outcomes(here)
    assert before == {"committed": 5, "conflict": 0, "outdated": 0, "failed": 0}
    for _ in range(5):
        there.post(1)
    here.post(1)
    after = outcomes(here)
    assert after["committed"] == 6
    assert after["outdated"] == 1


def test_post_to_a_missing_queue_does_not_repeat_the_other_posts_of_its_transaction(servers: list[Scene]):
    """The transaction rejects only the post that must not create its queue."""
    here, _ = servers
    here.post(1)
    client, missing = here.storage._client, QueueRef("acme", uuid4().hex)
    now = layout.ms(here.now)
    posts = [
        Post(layout.key(here.queue), drafts(1, here.now), now, None),
        Post(layout.key(missing), drafts(1, here.now), now, None, create=False),
    ]
    with client.verb():
        stored, rejected = Poster(client)._post(posts)
    assert stored is None
    assert isinstance(rejected, QueueNotFound)
    assert len(here.walk()) == 2
    assert here.storage.queues.get(missing) is None
