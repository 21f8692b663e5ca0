# SPDX-License-Identifier: Apache-2.0
"""Logs of the Redis driver that were lost, fill the store, are large, or were purged concurrently."""

from collections.abc import Callable, Iterator

import pytest
import redis

from tests.faults.test_redis_topics import sizes
from tests.stores import RedisServer
from zq.clock import ManualClock
from zq.conformance.topic_builders import ROOMY, Log, entries
from zq.errors import Unavailable
from zq.model.topics import Entry, Retention
from zq.storage import connect
from zq.storage.redis import scripts
from zq.storage.redis.client import UNCONFIRMED_ERROR
from zq.storage.redis.connections import Reply
from zq.storage.redis.scripts import Script

BIG = 100_000
MEBIBYTE = 1 << 20


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


@pytest.fixture
def admin(server: RedisServer) -> redis.Redis:
    return redis.Redis(port=server.port)


@pytest.fixture
def log(server: RedisServer, admin: redis.Redis) -> Iterator[Log]:
    """Return a log in an empty store."""
    admin.config_set("maxmemory", 0)
    admin.flushall()
    storage = connect(server.uri)
    yield Log(storage, ManualClock(storage.now()))
    storage.close()
    admin.close()


def watched(log: Log, monkeypatch: pytest.MonkeyPatch, watch: Callable[[Script, Reply], None]) -> None:
    """Call ``watch`` with each executed script and its reply."""
    port = log.storage.topics._store.client
    run = port.run

    def told(script: Script, *arguments: object) -> Reply:
        reply = run(script, *arguments)
        watch(script, reply)
        return reply

    monkeypatch.setattr(port, "run", told)


def fill(log: Log, count: int, keep: Retention = ROOMY) -> None:
    """Publish large batches one after the other."""
    for _ in range(count):
        log.publish(size=BIG, keep=keep)


def after(log: Log, seconds: float) -> list[int]:
    """Publish ``seconds`` later and return the sequences."""
    log.clock.advance(seconds)
    return log.publish()


def test_a_fast_log_that_lost_its_end_gives_no_sequence_again(log: Log, admin: redis.Redis):
    """The log has 100 messages per millisecond; then the store returns to a snapshot. A marker still works (L6)."""
    log.publish(count=100)
    snapshot = {key: admin.dump(key) for key in admin.keys("zq:*")}
    for _ in range(20):
        log.clock.advance(0.001)
        lost = log.publish(count=100)
    admin.flushall()
    for key, dump in snapshot.items():
        admin.restore(key, 0, dump)
    new = after(log, 0.001)
    assert log.sequences(after=lost[-1]) == new


def test_a_forgotten_log_gives_no_sequence_again(log: Log, admin: redis.Redis):
    """This is the case of a Redis without persistence."""
    lost = [log.publish(count=100), log.publish(count=100)][-1]
    admin.flushall()
    new = after(log, 0.001)
    assert log.sequences(after=lost[-1]) == new


def test_a_topic_is_counted_in_bounded_looks(log: Log, monkeypatch: pytest.MonkeyPatch):
    """However many messages have partly expired, a reply has at most a MiB of messages and one batch."""
    for _ in range(30):
        log.put("news", [Entry(b'"%b"' % (b"x" * BIG), ttl) for ttl in (60, 3600)])
    log.clock.advance(60)
    answers: list[int] = []

    def watch(script: Script, reply: Reply) -> None:
        if script is scripts.TOPIC_STATS:
            answers.append(len(reply[-1]))

    watched(log, monkeypatch, watch)
    free, oldest, newest = log.figures()
    assert (free, newest - oldest) == (30, 58)
    assert len(answers) > 5
    assert max(answers) < MEBIBYTE + 3 * BIG


def test_a_full_store_has_room_once_logs_keep_less(log: Log, admin: redis.Redis):
    """A publish removes outdated batches before it fails; without any, it is refused."""
    admin.config_set("maxmemory", 30 * MEBIBYTE)
    with pytest.raises(Unavailable, match="full"):
        fill(log, 400)
    assert sizes(admin)[0] > 100
    fill(log, 30, Retention(MEBIBYTE, 1000))
    assert sizes(admin)[0] < 15


def test_the_sweep_removes_what_publishing_has_left(log: Log, admin: redis.Redis):
    """A quiet log whose retention was reduced does not keep its size until it expires."""
    for _ in range(200):
        log.publish()
    last = log.publish(keep=Retention(10**9, 5))[0]
    assert sizes(admin)[0] > 150
    log.storage.maintain(log.now)
    assert sizes(admin) == [5, 5, 5, 0]
    assert log.read().last == last


@pytest.mark.parametrize("size", [1, BIG])
def test_one_publish_removes_a_bounded_part(log: Log, admin: redis.Redis, size: int):
    """The limit is 32 batches or a MiB of batches, because the removal must read them."""
    for _ in range(60):
        log.publish(size=size)
    log.publish(size=size, keep=Retention(10**9, 2))
    assert sizes(admin)[0] == 61 - (32 if size == 1 else 11)


def test_a_purge_amid_a_round_is_found_by_the_next_one(log: Log, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch):
    """A round that read the project before the purge removes only its own entries from the schedule."""
    for topic in ("a", "b"):
        log.publish(topic)
    log.purge("a")
    purged = []

    def watch(script: Script, reply: Reply) -> None:
        if script is scripts.SWEEP_PROJECT and not purged:
            purged.append("b")
            log.purge("b")

    watched(log, monkeypatch, watch)
    log.storage.maintain(log.now)
    log.storage.maintain(log.now)
    assert purged == ["b"]
    assert sizes(admin) == [0, 0, 0, 0]


def test_a_purge_that_was_not_confirmed_is_swept(log: Log, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch):
    """The purge took effect, so its space is freed."""
    log.put("a", entries(5))

    def watch(script: Script, reply: Reply) -> None:
        if script is scripts.TOPIC_PURGE:
            raise Unavailable(UNCONFIRMED_ERROR)

    watched(log, monkeypatch, watch)
    with pytest.raises(Unavailable):
        log.purge("a")
    log.storage.maintain(log.now)
    assert sizes(admin) == [0, 0, 0, 0]
