# SPDX-License-Identifier: Apache-2.0
"""Topics of the Redis driver: the keys over time, and the connection for notifications of batches."""

import threading
from collections.abc import Iterator
from functools import partial

import pytest
import redis

from tests.stores import RedisServer
from zq.clock import ManualClock
from zq.conformance.topic_builders import LOST, Follower, Log
from zq.model import IdempotencyKey
from zq.model.documents import DocumentRef
from zq.model.topics import Retention
from zq.storage import connect
from zq.storage.redis import batches
from zq.storage.redis.connections import CONNECTIONS


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


@pytest.fixture
def admin(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=server.port) as client:
        client.flushall()
        yield client


@pytest.fixture
def log(server: RedisServer, admin: redis.Redis) -> Iterator[Log]:
    storage = connect(server.uri)
    yield Log(storage, ManualClock(storage.now()))
    storage.close()


def readers() -> int:
    """Return the number of threads of this process that read notifications."""
    return sum(thread.name == "zq-redis-follower" for thread in threading.enumerate())


def sizes(admin: redis.Redis, project: str = "acme") -> list[int]:
    """Return the number of batches in the stream, in the indexes by topic and by expiry, and of pending purges."""
    stream, _, topics, fading, purged = (name.decode() for name in batches.keys(project))
    return [admin.xlen(stream), admin.zcard(topics), admin.zcard(fading), admin.hlen(purged)]


def test_no_thread_reads_before_the_first_follower(log: Log):
    """A single thread reads for any number of projects, and ends with the store."""
    before = readers()
    log.publish()
    assert readers() == before
    follower = Follower(log.storage, *(f"p{at}" for at in range(20)))
    assert readers() == before + 1
    assert all(follower.receives(log.of(f"p{at}").publish()[0], f"p{at}") for at in range(20))
    log.storage.close()
    assert readers() == before


def test_a_lost_connection_is_told_and_comes_back(log: Log, admin: redis.Redis):
    """Each loss is reported, later messages arrive, and the connections of verbs are not used up."""
    follower = Follower(log.storage, "acme", "globex")
    for _ in range(3):
        follower.told.clear()
        assert admin.execute_command("CLIENT", "KILL", "TYPE", "pubsub") == 1
        assert follower.receives_loss("acme")
        assert follower.receives_loss("globex")
        assert follower.receives(log.publish()[0])
    pool = log.storage.topics._store.client.network.pool(b"zq:version")
    assert pool.pool.qsize() + len(pool._idle) >= CONNECTIONS - 1
    log.publish()


def test_whoever_follows_while_nobody_answers_is_told_of_the_loss(log: Log, server: RedisServer):
    """``subscribe`` does not wait forever."""
    follower = Follower(log.storage)
    follower._positions["acme"] = 0
    with server.frozen():
        log.storage.topics.subscribe("acme", partial(follower._hear, "acme"))
        assert follower.told == []
    assert follower.receives_loss("acme")
    assert follower.receives(log.publish()[0])


def test_a_follower_that_returns_at_once_gets_batches(log: Log):
    """The confirmation of the previous unsubscription is not reported as a loss, of this or another project."""
    follower = Follower(log.storage, "acme", "globex")
    for _ in range(20):
        follower.unsubscribe["acme"]()
        follower.unsubscribe["acme"] = log.storage.topics.subscribe("acme", partial(follower._hear, "acme"))
        assert follower.receives(log.publish()[0])
    assert LOST not in [batch for _, batch in follower.told]


def test_databases_of_a_server_do_not_hear_each_other(log: Log, server: RedisServer):
    """Channels are shared by all databases, so their names include the database."""
    other = Log(connect(server.uri.removesuffix("0") + "1"), log.clock)
    follower = Follower(log.storage, "acme")
    other.publish("alien")
    other.purge("alien")
    other.storage.close()
    assert follower.receives(log.publish("own")[0])
    assert [(project, batch and batch.topic) for project, batch in follower.told] == [("acme", "own")]


def test_what_strangers_publish_does_no_harm(log: Log, admin: redis.Redis):
    """The foreign message is not a batch, and the follower gets the next batch."""
    follower = Follower(log.storage, "acme")
    for junk in (b"x", b"\xff" * 40, b"\0\0\0\1\0\1", b"\0" * 70, b"\0\0\0\0\0\1\xff" + b"0" * 60):
        assert admin.execute_command("SPUBLISH", batches.feed("acme", 0), junk) == 1
    assert follower.receives(log.publish()[0])


def test_what_fell_off_leaves_nothing_behind(log: Log, admin: redis.Redis):
    """The indexes have no entries of them. One publish removes a limited part of the excess of a log."""
    for _ in range(200):
        log.publish(count=2)
    assert sizes(admin) == [200, 200, 200, 0]
    last = log.publish(keep=Retention(10**9, 20))[-1]
    assert log.read().dropped == last - 19
    assert sizes(admin) == [201 - 32] * 3 + [0]
    assert len(log.sequences()) == len(log.sequences("news")) == log.stats().free == 19
    for _ in range(60):
        log.publish(keep=Retention(10**9, 20))
        stream, topics, fading, _ = sizes(admin)
        assert stream == topics == fading
    assert stream <= 22


def test_what_expired_or_was_purged_leaves_the_counter_behind(log: Log, admin: redis.Redis):
    """Expired and purged batches are removed round by round; only the counters stay, and sequences continue."""
    for at in range(400):
        log.publish(f"t{at % 3}", ttl=600 if at % 2 else 60)
    log.purge("t0")
    last = log.publish("t0")[0]
    assert sizes(admin) == [401, 401, 401, 1]
    log.storage.maintain(log.now)
    assert sizes(admin) == [267, 267, 267, 0]
    log.clock.advance(60)
    log.storage.maintain(log.now)
    assert sizes(admin) == [134, 134, 134, 0]
    log.clock.advance(3600)
    log.storage.maintain(log.now)
    assert sizes(admin) == [0, 0, 0, 0]
    assert log.read().last == last < log.publish()[0]


def test_sequences_rise_with_time(log: Log, admin: redis.Redis):
    """A counter that fell back, as after the loss of a log's tail or a failover, repeats no sequence (L6)."""
    log.publish()
    stream, counts = batches.keys("acme")[:2]
    before = admin.hgetall(counts)
    log.clock.advance(1)
    lost = log.publish(count=5)
    admin.xdel(stream, f"{lost[-1]}-0")
    admin.hset(counts, mapping=before)
    log.clock.advance(1)
    [new] = log.publish()
    assert log.sequences(after=lost[-1]) == [new]


def test_expired_records_and_answers_leave_nothing_behind(log: Log, admin: redis.Redis):
    """The expiry schedule includes a project that has only a document with an expiry."""
    records = log.storage.documents
    kept, gone = (DocumentRef("", "subscriptions", name) for name in ("kept", "gone"))
    records.put(gone, b"1", log.now, expires=log.now + 60)
    log.publish(ttl=60, once=IdempotencyKey("key", b"digest", 60))
    assert admin.keys("zq:*:ends") != []
    assert admin.keys("zq:*:windows:") != []
    log.clock.advance(60)
    log.storage.maintain(log.now)
    left = {key.rsplit(b"}:")[-1] for key in admin.keys("zq:*")}
    assert left - {b"due", b"zq:version", b"zq:clock"} == {b"log", b"counts"}
    records.put(kept, b"1", log.now)
    assert records.list("", "subscriptions", "", "", 10, log.now).next == "kept"
