# SPDX-License-Identifier: Apache-2.0
"""Failures of Redis in use: a lost script cache, kill -9, full memory, no response; and wrong settings."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import pytest
import redis

from tests.abilities import able
from tests.rotation import rotated
from tests.servers import free_port, soon, wait_for
from tests.stores import RedisServer
from zq.clock import ManualClock
from zq.conformance.builders import EVERYTHING, Scene, drafts, ids_of
from zq.conformance.topic_builders import Log
from zq.core.redelivery import DeadLetters
from zq.errors import StartRefused, Unavailable
from zq.model import Draft, QueueRef, new_ids
from zq.model.documents import DocumentRef
from zq.storage import connect
from zq.storage.redis.layout import LATEST_SCORE

TIMEOUT = 2.0
QUEUE = QueueRef("acme", "jobs")

BINARIES = [None, "redis-server"]
# A daily run uses valkey-server or redis-server in turn.
TODAY = rotated(BINARIES if able("redis-server") else [None], 1)
each_server = pytest.mark.parametrize("binary", TODAY, ids=lambda binary: "redis" if binary else "valkey")


def open_scene(uri: str, **options: object) -> Scene:
    storage = connect(uri, {"timeout": TIMEOUT, **options})
    return Scene(storage, ManualClock(storage.now()), QUEUE)


@pytest.fixture(scope="module", params=TODAY, ids=lambda binary: "redis" if binary else "valkey")
def server(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    with RedisServer(request.param) as started:
        yield started


@pytest.fixture
def scene(server: RedisServer) -> Iterator[Scene]:
    with redis.Redis(port=server.port) as admin:
        admin.flushall()
        admin.config_set("maxmemory", 0)
    opened = open_scene(server.uri)
    yield opened
    opened.storage.close()


def verbs(scene: Scene) -> dict[str, Callable[[], object]]:
    """Return one call of each verb that uses the store."""
    log, records = Log(scene.storage, scene.clock, scene.queue.project), scene.storage.documents
    record = DocumentRef(scene.queue.project, "kind", "name")
    return {
        "publish": log.publish,
        "read topics": log.read,
        "purge a topic": log.purge,
        "stats of a topic": log.stats,
        "put a record": lambda: records.put(record, b"1", scene.now, expires=scene.now + 60),
        "get a record": lambda: records.get(record, scene.now),
        "list records": lambda: records.list(record.project, record.kind, "", "", 10, scene.now),
        "delete a record": lambda: records.delete(record, scene.now),
        "create": lambda: scene.storage.queues.create(scene.queue, b"{}"),
        "get queue": scene.exists,
        "update": lambda: scene.storage.queues.update(scene.queue, b"{}", b"{}"),
        "list queues": lambda: scene.storage.queues.list("acme", "", 10),
        "count": lambda: scene.storage.queues.count("acme"),
        "purge": lambda: scene.storage.queues.purge(scene.queue),
        "stats": scene.stats,
        "post": scene.post,
        "get": lambda: scene.get(["x"]),
        "list": scene.page,
        "delete": lambda: scene.delete("x"),
        "delete many": lambda: scene.delete_many(["x"]),
        "pop": scene.pop,
        "claim": scene.claim,
        "release": lambda: scene.release("x"),
        "now": scene.storage.now,
        "ping": scene.storage.ping,
        "maintain": lambda: scene.storage.maintain(scene.now),
        "depths": lambda: scene.storage.depths(scene.now, 10, 10),
        "measures": lambda: scene.storage.measures(scene.now),
    }


def round_trip(scene: Scene) -> None:
    """Use every kind of key, including moved dead letters."""
    a, b, c, d = scene.post(4)
    claim = scene.take(2)
    assert scene.held(claim.id) == sorted([a, b])
    scene.renew(claim.id)
    scene.delete(a, claim.id)
    scene.release(claim.id)
    assert scene.pop(1) == [b]
    scene.delete_many([c])
    grave = scene.at("dead")
    assert scene.claim(dead_letters=DeadLetters(grave.queue, 0, None)) is None
    assert grave.page(EVERYTHING) == [d]
    assert grave.pop() == [d]
    assert scene.counts() == (0, 0)
    names = {queue.ref.name for queue in scene.storage.queues.list(scene.queue.project, "", 10).items}
    assert names >= {"dead", scene.queue.name}


def test_a_lost_script_cache_is_not_noticed(scene: Scene, server: RedisServer):
    """After SCRIPT FLUSH between any two calls every verb still works, and nothing happens twice."""
    with redis.Redis(port=server.port) as admin:
        for verb in verbs(scene).values():
            admin.script_flush()
            verb()
        round_trip(scene.at("other"))
        stop = threading.Event()

        def flush() -> None:
            while not stop.wait(0.001):
                admin.script_flush()

        thread = threading.Thread(target=flush)
        thread.start()
        try:
            busy = scene.at("busy")
            posted = [id for _ in range(100) for id in busy.post(2)]
            assert busy.claimable() == posted
        finally:
            stop.set()
            thread.join()


@each_server
def test_what_was_acknowledged_survives_a_kill(binary: str | None):
    """With appendfsync always, every acknowledged message exists once and in its state after kill -9 and a restart."""
    with RedisServer(binary, "--appendonly", "yes", "--appendfsync", "always") as server:
        scene = open_scene(server.uri)
        acknowledged: list[str] = []
        unknown: list[str] = []

        def produce() -> None:
            while True:
                new = drafts(3, scene.now)
                try:
                    scene.storage.messages.post(scene.queue, new, scene.now)
                except Unavailable:
                    unknown.extend(ids_of(new))
                    return
                acknowledged.extend(ids_of(new))

        claim = None
        producers = [threading.Thread(target=produce) for _ in range(4)]
        for producer in producers:
            producer.start()
        deadline = time.monotonic() + 60
        while len(acknowledged) < 60 and time.monotonic() < deadline:
            time.sleep(0.01)
        claim = scene.take(10)
        deleted, *kept = ids_of(claim.messages)
        scene.delete(deleted, claim.id)
        server.kill()
        for producer in producers:
            producer.join(60)
        server.start()
        found = ids_of(scene.walk())
        assert len(found) == len(set(found))
        assert set(acknowledged) - {deleted} <= set(found) <= (set(acknowledged) | set(unknown)) - {deleted}
        assert scene.held(claim.id) == sorted(kept)
        later = scene.post(1)
        assert scene.walk()[-1].id == later[0]
        scene.storage.close()


def keys_of_queues(admin: redis.Redis) -> list[bytes]:
    """Return all keys except the expiry schedule. A refused post may leave a harmless entry in it for a short time."""
    return [key for key in admin.scan_iter(count=1000) if not key.endswith(b":due")]


def post_until_full(scene: Scene) -> list[str]:
    """Post until a post is refused, and return the acknowledged ids."""
    acknowledged: list[str] = []
    for _ in range(3000):
        new = [Draft(id, b"x" * 3000, 3600, 0, "alice") for id in new_ids(5, scene.now)]
        try:
            scene.storage.messages.post(scene.queue, new, scene.now)
        except Unavailable:
            return acknowledged
        acknowledged += ids_of(new)
    raise AssertionError("The store was never full.")


def test_a_full_store_refuses_posts_whole_and_lets_messages_go(scene: Scene, server: RedisServer):
    """At maxmemory, posts and new queues are refused with an error and leave no trace.

    All verbs that remove messages still work, and once there is enough memory posts work too.
    """
    with redis.Redis(port=server.port) as admin:
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] + 6_000_000)
        acknowledged = post_until_full(scene)
        admin.config_set("maxmemory", admin.info("memory")["used_memory"] - 3_000_000)  # certainly full
        assert ids_of(scene.walk(limit=100)) == acknowledged
        assert scene.counts() == (0, len(acknowledged))
        size = len(keys_of_queues(admin))
        for room in (scene, scene.at("new")):
            with pytest.raises(Unavailable, match="full"):
                room.post()
        with pytest.raises(Unavailable, match="full"):
            scene.storage.queues.create(QueueRef("acme", "new"), b"{}")
        assert len(keys_of_queues(admin)) == size
        assert scene.counts() == (0, len(acknowledged))
        scene.storage.ping()
        claim = scene.take(10)
        scene.renew(claim.id)
        scene.delete(acknowledged[0], claim.id)
        scene.release(claim.id)
        scene.delete_many(acknowledged[1:100])
        assert scene.pop(100) == acknowledged[100:200]
        assert ids_of(scene.walk(limit=100)) == acknowledged[200:]
        connect(server.uri).close()
        scene.storage.queues.purge(scene.queue)
        wait_for(lambda: posted(scene), 60, "a post is taken again, once UNLINK gave the memory back")


def posted(scene: Scene) -> list[str]:
    try:
        return scene.post(1)
    except Unavailable:
        return []


def assert_unavailable(scene: Scene) -> None:
    """Assert that every verb fails with the same error in time."""
    for verb in verbs(scene).values():
        error = soon(TIMEOUT + 1.5, partial(unavailable, verb))
        assert "Error" not in str(error)
        assert error.__cause__ is not None


def unavailable(verb: Callable[[], object]) -> Unavailable:
    """Return the error of the verb."""
    with pytest.raises(Unavailable) as error:
        verb()
    return error.value


@each_server
def test_a_killed_store_is_unavailable_and_comes_back(binary: str | None):
    """Every verb fails within the timeout, on idle and on new connections; a restart of the store suffices."""
    with RedisServer(binary, "--appendonly", "yes", "--appendfsync", "always") as server:
        scene = open_scene(server.uri)
        posted = scene.post(3)
        server.kill()
        assert_unavailable(scene)
        server.start()
        assert scene.page() == posted
        round_trip(scene.at("other"))
        scene.storage.close()


def test_a_restart_between_two_calls_is_not_noticed():
    """Idle connections that the server has closed are reopened before the driver sends on them."""
    with RedisServer(None, "--appendonly", "yes", "--appendfsync", "always") as server:
        scene = open_scene(server.uri)
        posted = scene.post(2)
        server.kill()
        server.start()
        assert scene.pop() == posted
        scene.storage.close()


def test_a_store_that_hangs_is_unavailable_in_time(scene: Scene, server: RedisServer):
    """A server that accepts connections and never answers delays callers for no longer than the timeout."""
    with server.frozen():
        calls = [verbs(scene)[name] for name in ("post", "claim", "get queue", "pop")]
        for verb in calls:
            soon(TIMEOUT + 1.5, partial(unavailable, verb))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            scene.storage.ping()
            break
        except Unavailable:
            pass
    round_trip(scene.at("other"))


def test_more_threads_than_connections_wait_their_turn(scene: Scene):
    """With 300 concurrent threads, each call gets its response."""
    results: list[list[str]] = []
    threads = [threading.Thread(target=lambda: results.append(scene.post(1))) for _ in range(300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(scene.walk()) == len(results) == 300


def test_memory_comes_back_after_expiry(scene: Scene, server: RedisServer):
    """After everything has expired, only counters of queues and the store's own keys are left.

    The expiry schedule keeps the names of projects, which a count of queues needs.
    """
    rooms = [scene.at(f"q{at}", project=f"p{at % 7}") for at in range(40)]
    for room in rooms:
        room.post(20, ttl=60)
        room.post(5, ttl=90, delay=80)
        room.take(5, ttl=60, grace=5)
        room.pop(2)
        assert room.claim(2, dead_letters=DeadLetters(QueueRef(room.queue.project, "dead"), 0, 70)) is None
    with redis.Redis(port=server.port) as admin:
        assert admin.dbsize() > 9 * 40
        for _ in range(8):
            scene.tick(20)
            scene.reclaimed()
        left = sorted(key.decode() for key in admin.scan_iter(count=1000))
        kinds = {key.split(":")[2] for key in left if "{" in key}
        assert kinds == {"names", "queues", "state", "due"}
        entries = [entry for key in left if ":due" in key for entry in admin.zrange(key, 0, -1, withscores=True)]
        assert sorted(entry[8:] for entry, _ in entries) == [b"\0\0\0\2p%d" % at for at in range(7)]
        assert {score for _, score in entries} == {LATEST_SCORE}
        assert [key for key in left if "{" not in key] == ["zq:clock", "zq:version"]
        assert len([key for key in left if ":state:" in key]) == 40 + 7
        for room in rooms:
            scene.storage.queues.delete(room.queue)
        for at in range(7):
            scene.storage.queues.delete(QueueRef(f"p{at}", "dead"))
        assert {key.decode().split(":")[2] for key in admin.scan_iter() if b"{" in key} == {"floor", "due"}


def test_used_memory_returns_when_messages_have_expired():
    """INFO memory before 50,000 messages and after their sweep differs by at most a fiftieth of their memory."""
    with RedisServer() as server, redis.Redis(port=server.port) as admin:
        scene = open_scene(server.uri)
        scene.post(1)
        scene.pop()
        before = admin.info("memory")["used_memory"]
        for _ in range(50):
            new = [Draft(id, b'"%b"' % (b"x" * 198), 60, 0, "alice") for id in new_ids(1000, scene.now)]
            scene.storage.messages.post(scene.queue, new, scene.now)
        full = admin.info("memory")["used_memory"]
        assert full - before > 50_000 * 400
        scene.tick(60)
        assert scene.storage.maintain(scene.now) == 50_000
        left = wait_for(lambda: shrunk(admin, before + (full - before) // 50), 60, "memory returns")
        assert left < full
        scene.storage.close()


def test_a_user_without_the_right_to_info_gets_the_other_measures(server: RedisServer, scene: Scene):
    """If the right to INFO is revoked after the start, only the measures of memory are omitted."""
    with redis.Redis(port=server.port) as admin:
        admin.acl_setuser("zq", enabled=True, passwords=["+key"], commands=["+@all"], keys=["zq:*"], channels=["*"])
        other = open_scene(server.uri.replace("//", "//zq:key@"))
        every = {measure.name for measure in other.storage.measures(scene.now)}
        admin.acl_setuser("zq", enabled=True, commands=["-info"])
        fewer = {measure.name for measure in other.storage.measures(scene.now)}
        other.storage.close()
    assert every - fewer == {"store_bytes", "store_limit_bytes"}
    assert fewer >= {"expired_removed_total", "expired_waiting", "sweep_lag_seconds", "store_messages"}


def shrunk(admin: redis.Redis, most: int) -> int:
    """Return the used memory once it is at most ``most``, and 0 before."""
    used = int(admin.info("memory")["used_memory"])
    return used if used <= most else 0


def test_idle_queues_give_space_back_whoever_posted(scene: Scene, server: RedisServer):
    """The expiry schedule is in the store: another server, opened later, finds expired messages."""
    scene.post(10, ttl=60)
    scene.tick(60)
    other = open_scene(server.uri)
    assert other.storage.maintain(scene.now) == 10
    assert scene.storage.maintain(scene.now) == 0
    other.storage.close()


def test_sweeps_side_by_side_count_each_message_once(scene: Scene, server: RedisServer):
    """Four servers sweep at once."""
    for at in range(20):
        scene.at(f"q{at}").post(100, ttl=60)
    kept = scene.at("kept").post(5)
    scene.tick(60)
    others = [open_scene(server.uri) for _ in range(4)]
    removed: list[int] = []
    threads = [
        threading.Thread(target=lambda other=other: removed.append(other.storage.maintain(scene.now)))
        for other in others
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(removed) + scene.reclaimed() == 2000
    assert scene.at("kept").page() == kept
    for other in others:
        other.storage.close()


@pytest.mark.parametrize("removal", ["delete", "purge"])
def test_sequences_outlive_their_queue(scene: Scene, removal: str):
    """A marker of a deleted queue hides no message of its successor, at the same time or later (L6)."""
    for _ in range(3):
        old = scene.post(5)
        marker = scene.one(old[-1]).sequence
        getattr(scene.storage.queues, removal)(scene.queue)
        new = scene.post(1)
        assert scene.page(marker=marker) == new


def test_sequences_rise_with_time(scene: Scene, server: RedisServer):
    """A counter that fell back, as after the loss of a log's tail or a failover, repeats no sequence (L6)."""
    scene.post(1)
    with redis.Redis(port=server.port) as admin:
        [state] = list(admin.scan_iter("zq:*:state:*"))
        before = admin.hgetall(state)
        scene.tick(1)
        lost = scene.post(5)
        marker = scene.one(lost[-1]).sequence
        scene.delete_many(lost)
        admin.hset(state, mapping=before)
    scene.tick(1)
    new = scene.post(1)
    assert scene.page(marker=marker) == new


def test_the_clock_never_falls_with_the_servers(scene: Scene, server: RedisServer):
    """The time in ``zq:clock`` counts, unless it is so far ahead that it must be false."""
    with redis.Redis(port=server.port) as admin:
        ahead = int(scene.storage.now() * 1e6) + 30_000_000
        admin.set("zq:clock", ahead)
        assert scene.storage.now() == pytest.approx(ahead / 1e6, abs=0.001)
        admin.set("zq:clock", ahead + 600_000_000)
        assert scene.storage.now() < ahead / 1e6 - 20


def test_too_few_replicas_leave_a_change_unconfirmed(server: RedisServer, scene: Scene):
    """With wait_replicas, a write that no replica confirms is refused in time; reads are not delayed."""
    careful = open_scene(server.uri, wait_replicas=1)
    for write in (careful.post, careful.storage.ping):
        assert "replicas" in str(soon(TIMEOUT + 1.5, partial(unavailable, write)))
    assert soon(TIMEOUT, careful.page) == scene.page()
    careful.storage.close()


def refused(uri: str) -> str:
    """Return the error message with which the store refuses to open."""

    def sentence() -> str:
        with pytest.raises(StartRefused) as refusal:
            connect(uri, {"timeout": TIMEOUT})
        return str(refusal.value)

    said = soon(2 * TIMEOUT, sentence)
    assert "geheim" not in said
    return said


def test_a_wrong_password_is_reported():
    """The cases are a missing, a wrong and the right password."""
    with RedisServer(None, "--requirepass", "geheim") as server:
        right = server.uri.replace("redis://", "redis://:geheim@")
        for uri in (server.uri, right.replace("geheim", "geheimer"), right.replace(":geheim", "user:geheim")):
            sentence = refused(uri)
            assert "password" in sentence
            assert str(server.port) in sentence
        round_trip(open_scene(right))


@pytest.mark.parametrize("rights", ["+get", "+@all -spublish", "+@all -publish", "+@all -ssubscribe"])
def test_a_user_without_rights_is_reported(server: RedisServer, rights: str):
    """This includes a user without publish or subscribe.

    Scripts would continue after such an error without notifications.
    """
    with redis.Redis(port=server.port) as admin:
        every = {"keys": ["*"], "channels": ["*"], "reset": True}
        admin.acl_setuser("weak", enabled=True, passwords=["+geheim"], commands=rights.split(), **every)
    assert "denies this user" in refused(server.uri.replace("redis://", "redis://weak:geheim@"))


def test_a_missing_database_is_reported(server: RedisServer):
    assert "no database 99" in refused(server.uri.removesuffix("/0") + "/99")


def test_a_server_that_evicts_is_refused(scene: Scene, server: RedisServer):
    """allkeys-lru with maxmemory deletes messages; without maxmemory, or with noeviction, none is lost."""
    with redis.Redis(port=server.port) as admin:
        try:
            admin.config_set("maxmemory", 10**9)
            admin.config_set("maxmemory-policy", "allkeys-lru")
            assert "noeviction" in refused(server.uri)
            admin.config_set("maxmemory", 0)
            connect(server.uri).close()
        finally:
            admin.config_set("maxmemory-policy", "noeviction")
            admin.config_set("maxmemory", 0)


def test_another_layout_is_refused(scene: Scene, server: RedisServer):
    with redis.Redis(port=server.port) as admin:
        admin.set("zq:version", "99")
    assert "layout 99" in refused(server.uri)


def test_a_server_that_does_not_listen_is_unavailable():
    """The error names host and port, not the password."""
    port = free_port()
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}") as error:
        connect(f"redis://:geheim@127.0.0.1:{port}")
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize("greeting", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n"])
def test_a_server_that_is_not_redis_is_reported(greeting: bytes):
    """Another program listens on the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(4):
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(1000)
                    connection.sendall(greeting)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert "the Redis protocol" in refused(f"redis://127.0.0.1:{listener.getsockname()[1]}")


def test_a_socket_serves_as_well(tmp_path):
    """The URI is unix:// with a database."""
    with RedisServer(None, "--unixsocket", str(tmp_path / "s")) as server:
        scene = open_scene(f"unix://{tmp_path}/s?db=2")
        round_trip(scene)
        scene.post(1)
        with redis.Redis(port=server.port, db=2) as admin:
            assert admin.dbsize() > 5
        scene.storage.close()
