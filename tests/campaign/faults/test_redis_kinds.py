# SPDX-License-Identifier: Apache-2.0
"""Redis with Sentinels and as a cluster: all operations, failover, and slot migration."""

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from redis.exceptions import MovedError

from tests.campaign.faults.failovers import SLOTS, Sentinel, admin
from tests.faults.test_redis_faults import BINARIES, TIMEOUT, open_scene, round_trip, verbs
from tests.faults.test_redis_topics import readers
from tests.servers import T, free_port, soon, wait_for
from tests.stores import RedisServer
from zq.conformance.builders import EVERYTHING, RunningWorkers, Scene, ids_of, run_together
from zq.conformance.topic_builders import Follower, Log
from zq.errors import StartRefused, Unavailable
from zq.storage import connect
from zq.storage.redis import batches, layout

IDS = ["valkey", "redis"][: len(BINARIES)]
DEADLINE = 60.0


def until_served(work: Callable[[], Any]) -> Any:
    """Repeat the work while the store is unavailable."""
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            return work()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def unless_unavailable(work: Callable[[], T]) -> T | None:
    with contextlib.suppress(Unavailable):
        return work()
    return None


@pytest.fixture(params=BINARIES, ids=IDS)
def watched(request: pytest.FixtureRequest) -> Iterator[tuple[RedisServer, RedisServer, str]]:
    """Start a master, its replica and a Sentinel, and yield the servers and the URI."""
    with ExitStack() as stack:
        master = stack.enter_context(RedisServer(request.param, "--repl-diskless-sync-delay", "0"))
        replica = stack.enter_context(RedisServer(request.param, "--replicaof", "127.0.0.1", str(master.port)))
        wait_for(
            lambda: (
                "state=online" in str(admin(master).execute_command("INFO", "replication"))
                or admin(replica).info("replication")["master_link_status"] == "up"
            ),
            60,
            "the replica follows",
        )
        sentinel = stack.enter_context(Sentinel(request.param, master.port, patience=2000))
        wait_for(lambda: admin(sentinel).sentinel_slaves("main") != [], 60, "the Sentinel knows the replica")
        yield master, replica, f"redis://127.0.0.1:{sentinel.port},127.0.0.1:{sentinel.port}/0?master=main"


def test_a_failover_is_followed(watched: tuple[RedisServer, RedisServer, str]):
    """Messages acknowledged with wait_replicas survive the master's death, and the new master serves all operations."""
    master, _, uri = watched
    scene = open_scene(uri, wait_replicas=1)
    round_trip(scene.at("other"))
    posted = scene.post(5)
    marker = scene.one(posted[-1]).sequence
    claim = scene.take(2)
    master.kill()
    with pytest.raises(Unavailable):
        scene.post(1)
    soon(TIMEOUT + 1.5, lambda: unless_unavailable(scene.page))
    scene.storage.close()
    scene = until_served(lambda: open_scene(uri))
    assert scene.page(EVERYTHING) == posted
    assert scene.held(claim.id) == sorted(posted[:2])
    new = until_served(lambda: scene.post(1))
    assert scene.page(marker=marker) == new
    round_trip(scene.at("another"))
    scene.storage.close()


def told(scene: Scene, follower: Follower, project: str = "acme") -> None:
    """Wait until the follower is notified of a batch of the project."""
    log = Log(scene.storage, scene.clock, project)
    wait_for(lambda: follower.receives(until_served(log.publish)[0], project), DEADLINE, "a batch is told")


@pytest.mark.parametrize("binary", BINARIES, ids=IDS)
def test_a_master_without_replicas_says_so(binary: str | None):
    """With min-replicas-to-write 1 and no replica, the error names the replicas instead of a timeout."""
    with RedisServer(binary) as server:
        scene = open_scene(server.uri)
        admin(server).config_set("min-replicas-to-write", 1)
        with pytest.raises(Unavailable, match="Too few replicas"):
            scene.post(1)
        with pytest.raises(Unavailable, match="fewer replicas are connected"):
            connect(server.uri, {"timeout": TIMEOUT})
        admin(server).config_set("min-replicas-to-write", 0)
        assert len(scene.post(1)) == len(scene.walk())
        scene.storage.close()


def test_missing_replication_setting_is_warned_of(
    watched: tuple[RedisServer, RedisServer, str], caplog: pytest.LogCaptureFixture
):
    """The server warns at its start behind Sentinels unless one of the two options is set."""
    master, _, uri = watched

    def warned(address: str, **options: int) -> bool:
        caplog.clear()
        connect(address, {"timeout": TIMEOUT, **options}).close()
        return "min-replicas-to-write" in caplog.text

    assert warned(uri)
    assert not warned(uri, wait_replicas=1)
    assert not warned(master.uri)
    admin(master).config_set("min-replicas-to-write", 1)
    assert not warned(uri)


def test_a_wrong_masters_name_is_told(watched: tuple[RedisServer, RedisServer, str]):
    _, replica, uri = watched
    with pytest.raises((StartRefused, Unavailable), match="is unavailable"):
        connect(uri.replace("master=main", "master=nobody"), {"timeout": TIMEOUT})
    with pytest.raises(Unavailable, match="replica"):
        connect(replica.uri, {"timeout": TIMEOUT})


@pytest.fixture(params=BINARIES, ids=IDS)
def cluster(request: pytest.FixtureRequest) -> Iterator[list[RedisServer]]:
    """Start two masters, each with half of the slots."""
    with ExitStack() as stack:
        buses = [str(free_port()) for _ in range(2)]
        enabled = ("--cluster-enabled", "yes", "--cluster-port")
        nodes = [stack.enter_context(RedisServer(request.param, *enabled, bus)) for bus in buses]
        first, second = (admin(node) for node in nodes)
        first.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, SLOTS // 2 - 1)
        second.execute_command("CLUSTER", "ADDSLOTSRANGE", SLOTS // 2, SLOTS - 1)
        second.execute_command("CLUSTER", "SET-CONFIG-EPOCH", 2)
        first.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port, buses[1])
        for node in (first, second):
            wait_for(lambda node=node: node.cluster("info")["cluster_state"] == "ok", 60, "the cluster is whole")
        yield nodes


def uri_of(cluster: list[RedisServer]) -> str:
    return "redis://" + ",".join(f"127.0.0.1:{node.port}" for node in cluster) + "?cluster=true"


def test_a_cluster_serves_every_verb(cluster: list[RedisServer]):
    """Operations on both servers work, including moves of dead letters and the sweep, after a script flush, too."""
    scene = open_scene(uri_of(cluster))
    rooms = [scene.at("jobs", project=f"p{at}") for at in range(8)]
    for room in rooms:
        round_trip(room)
        for verb in verbs(room).values():
            verb()
    assert all(admin(node).dbsize() > 10 for node in cluster)
    for node in cluster:
        admin(node).script_flush()
    posted = {room.queue.project: room.post(3, ttl=60) for room in rooms}
    scene.tick(60)
    assert scene.reclaimed() == 3 * len(posted)
    scene.storage.close()


def half(cluster: list[RedisServer], key: bytes) -> tuple[int, int]:
    """Return the slot of a key and the index of its original server."""
    slot = int(admin(cluster[0]).execute_command("CLUSTER", "KEYSLOT", key))
    return slot, 0 if slot < SLOTS // 2 else 1


def names(cluster: list[RedisServer]) -> list[str]:
    return [admin(node).execute_command("CLUSTER", "MYID").decode() for node in cluster]


def serves(node: RedisServer, key: bytes) -> bool:
    """Return whether the server reports that it has the key's slot."""
    try:
        return bool(admin(node).exists(key))
    except MovedError:
        return False


def move(cluster: list[RedisServer], key: bytes, count: int = 1000) -> None:
    """Start to migrate the slot of a key to the other server, and move up to ``count`` of its keys."""
    slot, at = half(cluster, key)
    known = names(cluster)
    source, target = admin(cluster[at]), admin(cluster[1 - at])
    target.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", known[at])
    source.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", known[1 - at])
    keys = source.execute_command("CLUSTER", "GETKEYSINSLOT", slot, count)
    if keys:
        source.execute_command("MIGRATE", "127.0.0.1", cluster[1 - at].port, "", 0, 5000, "KEYS", *keys)


def settle(cluster: list[RedisServer], key: bytes) -> None:
    """End the migration."""
    slot, at = half(cluster, key)
    known = names(cluster)
    for node in (cluster[1 - at], cluster[at]):
        admin(node).execute_command("CLUSTER", "SETSLOT", slot, "NODE", known[1 - at])


def test_a_slot_that_moved_is_followed(cluster: list[RedisServer]):
    """An open store finds a project on its new server."""
    scene = open_scene(uri_of(cluster))
    posted = scene.post(3)
    key = layout.keys(scene.queue).names
    move(cluster, key)
    settle(cluster, key)
    assert scene.page() == posted
    round_trip(scene.at("other"))
    scene.storage.close()


def test_a_slot_that_never_arrives_holds_up_its_projects_for_the_timeout(cluster: list[RedisServer]):
    """During a slot migration only operations on several keys fail, and other projects are served.

    Operations on one key find it on either server. Scripts need several keys: they wait, and fail within the timeout
    with an error message.
    """
    scene = open_scene(uri_of(cluster))
    posted = scene.post(3)
    other = scene.at("jobs", project="other")
    key = layout.keys(scene.queue).names
    move(cluster, key)
    assert scene.exists()
    assert scene.storage.queues.count("acme") == 1
    began = time.monotonic()
    with pytest.raises(Unavailable, match="moving the project"):
        scene.pop(1)
    assert TIMEOUT / 2 < time.monotonic() - began < TIMEOUT + 1.5
    round_trip(other)
    settle(cluster, key)
    assert scene.pop(1) == posted[:1]
    assert scene.post(1) != []
    scene.storage.close()


@pytest.mark.parametrize("stage", ["begun", "half moved", "all moved"])
def test_a_slot_that_moves_within_the_timeout_fails_no_verb(cluster: list[RedisServer], stage: str):
    """Posts, pops, claims and depths wait for the end of the migration, whatever part of the keys has moved."""
    scene = open_scene(uri_of(cluster))
    posted = scene.post(20)
    key = layout.keys(scene.queue).names
    move(cluster, key, {"begun": 0, "half moved": 3, "all moved": 1000}[stage])
    threading.Timer(TIMEOUT / 4, lambda: (move(cluster, key), settle(cluster, key))).start()
    done = run_together(
        partial(scene.post, 1),
        partial(scene.pop, 3),
        lambda: ids_of(scene.take(2).messages),
        lambda: [str(scene.storage.depth(scene.queue, scene.now, 100).ready)],
        lambda: [str(scene.storage.depths(scene.now, 10, 100)[0][1].ready)],
    )
    assert set(done[1] + done[2]) < set(posted)
    assert sorted([*done[1], *done[2], *scene.claimable()]) == sorted([*posted, *done[0]])
    scene.storage.close()


def test_valkey_moves_a_slot_in_one_step_under_load(cluster: list[RedisServer]):
    """``CLUSTER MIGRATESLOTS`` in both directions fails no operation, and no message is lost or duplicated.

    Posts, claims with settlement and commits of the project run at the same time.
    """
    if admin(cluster[0]).info("server").get("valkey_version", "0") < "9":
        pytest.skip("CLUSTER MIGRATESLOTS needs Valkey 9")
    scene = open_scene(uri_of(cluster))
    posted = [id for _ in range(20) for id in scene.post(1000)]
    key = layout.keys(scene.queue).names
    slot, at = half(cluster, key)
    shift = RunningWorkers(1)
    batches_done = itertools.count(1)

    def post() -> list[str]:
        new: list[str] = []
        while not shift.is_over():
            new += scene.post(2)
        return new

    def settle_some() -> list[str]:
        done: list[str] = []
        while not shift.is_over():
            claim = scene.take(5)
            assert scene.settle(claim.id, rest=True).deleted == 5
            done += ids_of(claim.messages)
        return done

    def commit() -> list[str]:
        staged: list[str] = []
        while not shift.is_over():
            batch = next(batches_done)
            staged += scene.stage(f"s{batch}", 3)
            assert scene.commit(batch, publish=[f"s{batch}"]).published == 3
        return staged

    def migrate() -> list[str]:
        with shift.at_work():
            for source, target in ((at, 1 - at), (1 - at, at)):
                request = ("SLOTSRANGE", slot, slot, "NODE", names(cluster)[target])
                admin(cluster[source]).execute_command("CLUSTER", "MIGRATESLOTS", *request)
                wait_for(partial(serves, cluster[target], key), DEADLINE, "the slot has moved")
        return []

    new, done, staged, _ = run_together(post, settle_some, commit, migrate)
    assert len(set(done)) == len(done)
    assert sorted([*done, *ids_of(scene.walk())]) == sorted([*posted, *new, *staged])
    scene.storage.close()


def test_topics_of_a_cluster_are_told_wherever_they_move(cluster: list[RedisServer]):
    """Notifications follow a migrated slot, and resume after an outage of a server.

    The store has one reader for each server with a followed project; the other server's projects are notified during
    the outage.
    """
    scene = open_scene(uri_of(cluster))
    before = readers()
    homes = {half(cluster, batches.keys(name)[0])[1]: name for name in (f"p{at}" for at in range(50))}
    moving, near, far = "acme", homes[0], homes[1]
    follower = Follower(scene.storage, moving, near, far)
    assert readers() == before + 2
    assert all(follower.receives(Log(scene.storage, scene.clock, name).publish()[0], name) for name in (near, far))
    key = batches.keys(moving)[0]
    move(cluster, key)
    settle(cluster, key)
    assert follower.receives_loss(moving)
    told(scene, follower, moving)
    follower.told.clear()
    cluster[1].kill()
    told(scene, follower, near)
    cluster[1].start()
    told(scene, follower, far)
    assert follower.receives_loss(far)
    scene.storage.close()
    assert readers() == before


def test_half_a_cluster_is_unavailable_in_time(cluster: list[RedisServer]):
    """The projects of a dead server fail within the timeout, and work again after its restart without data."""
    scene = open_scene(uri_of(cluster))
    rooms = [scene.at("jobs", project=f"p{at}") for at in range(8)]
    for room in rooms:
        room.post(1)
    cluster[1].kill()
    failed = 0
    for room in rooms:
        failed += soon(TIMEOUT + 1.5, lambda room=room: unless_unavailable(room.page)) is None
    assert failed > 0
    cluster[1].start()
    for room in rooms:
        until_served(lambda room=room: room.post(1))
    scene.storage.close()


def test_a_silent_server_of_a_cluster_holds_up_nobody_else(cluster: list[RedisServer]):
    """Projects on the stopped server fail within the timeout, others are served, and all work after it resumes."""
    scene = open_scene(uri_of(cluster))
    rooms = [scene.at("jobs", project=f"p{at}") for at in range(6)]
    posted = [room.post(1) for room in rooms]
    served = 0
    with cluster[1].frozen():
        for room, ids in zip(rooms, posted, strict=True):
            served += soon(TIMEOUT + 1.5, lambda room=room: unless_unavailable(room.page)) == ids
    assert 0 < served < len(rooms)
    assert [until_served(room.page) for room in rooms] == posted
    scene.storage.close()


def test_many_threads_share_a_cluster(cluster: list[RedisServer]):
    scene = open_scene(uri_of(cluster))
    results: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda at=at: results.append(scene.at("q", project=f"p{at % 5}").post(2)))
        for at in range(60)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(len(scene.at("q", project=f"p{at}").walk()) for at in range(5)) == 120
    scene.storage.close()


def test_a_cluster_must_be_called_one(cluster: list[RedisServer]):
    """A plain URI of a cluster is rejected with the solution, and so is a cluster URI of a plain server."""
    with pytest.raises(StartRefused, match="cluster=true"):
        connect(cluster[0].uri, {"timeout": TIMEOUT})
    with RedisServer() as plain, pytest.raises((StartRefused, Unavailable), match=str(plain.port)):
        connect(f"redis://127.0.0.1:{plain.port}?cluster=true", {"timeout": TIMEOUT})
