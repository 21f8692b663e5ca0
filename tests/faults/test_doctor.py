# SPDX-License-Identifier: Apache-2.0
"""The doctor's checks of Redis and MongoDB servers, each with a planted fault."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from socket import gethostname

import pytest
import redis
from pymongo import MongoClient

from tests.commands import run
from tests.servers import wait_for
from tests.stores import QUIET, MongoServer, RedisServer, Stores
from zq import diagnosis
from zq.clock import local_time
from zq.conformance.test_levels import support
from zq.diagnosis import Status
from zq.errors import NotAuthorized, StartRefused
from zq.serving import level_watch
from zq.serving.level_watch import LevelWatch
from zq.serving.migration.record import Records, SourceRecord, check_served
from zq.storage import connect, diagnose
from zq.storage.mongodb.doctor import run as run_command
from zq.storage.redis.doctor import check_version
from zq.storage.redis.layout import VERSION_KEY

pytestmark = [pytest.mark.slow, pytest.mark.one_store]


def statuses(uri: str, ahead: float = 0.0, **options: object) -> Mapping[str, Status]:
    """Return the statuses of a store's checks on a machine whose clock is ``ahead`` seconds ahead."""
    opened = diagnose(uri, lambda: local_time() + ahead, options)
    assert opened is not None
    with opened as checks:
        return {result.check: result.status for result in diagnosis.run(checks)}


@pytest.fixture(scope="module")
def valkey() -> Iterator[RedisServer]:
    with RedisServer(None, "--appendonly", "yes", "--maxmemory", "1gb") as server:
        yield server


@pytest.fixture
def admin(valkey: RedisServer) -> Iterator[redis.Redis]:
    """Return a connection for changes of the configuration, which is restored at the end."""
    with redis.Redis(port=valkey.port) as client:
        before = client.config_get("maxmemory*", "appendonly", "appendfsync")
        yield client
        for name in ("maxmemory", "maxmemory-policy", "appendonly", "appendfsync"):
            client.config_set(name, before[name])
        client.flushall()


def test_faults_of_redis_are_found_and_nothing_is_written(
    valkey: RedisServer, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis, "MAX_ROUND_TRIP", 60.0)  # the machine may be busy
    sound = statuses(valkey.uri)
    assert len(sound) == 7
    assert {name for name, status in sound.items() if status != "ok"} == {"replicas"}
    assert statuses(valkey.uri, wait_replicas=1)["replicas"] == "fail"
    assert statuses(valkey.uri, ahead=-3)["store clock"] == "warn"
    assert statuses(valkey.uri, ahead=90)["store clock"] == "fail"
    admin.config_set("appendfsync", "no")
    assert statuses(valkey.uri)["persistence"] == "warn"
    admin.execute_command("ACL SETUSER noconfig on nopass ~* &* +@all -config")
    assert statuses(valkey.uri.replace("//", "//noconfig:x@"))["persistence"] == "skip"
    admin.config_set("appendonly", "no")
    assert statuses(valkey.uri)["persistence"] == "warn"
    admin.config_set("maxmemory", admin.info("memory")["used_memory"] * 11 // 10)
    assert statuses(valkey.uri)["store memory"] == "warn"
    admin.config_set("maxmemory", 0)
    admin.config_set("maxmemory-policy", "allkeys-lru")
    unbounded = statuses(valkey.uri)
    assert (unbounded["store memory"], unbounded["eviction"]) == ("warn", "warn")
    monkeypatch.setattr(diagnosis, "MAX_ROUND_TRIP", 0.0)
    assert statuses(valkey.uri)["round trip"] == "warn"
    assert admin.dbsize() == 0


def test_files_that_redis_could_not_write_are_a_failure(tmp_path: Path) -> None:
    """The folder of the files was removed."""
    folder = tmp_path / "files"
    folder.mkdir()
    with RedisServer(None, "--dir", str(folder)) as server, redis.Redis(port=server.port) as client:
        shutil.rmtree(folder)
        client.bgsave()
        wait_for(lambda: client.info()["rdb_last_bgsave_status"] == "err", 20, "the save fails")
        assert statuses(server.uri)["persistence"] == "fail"


def test_redis_servers_of_different_versions_are_a_warning() -> None:
    redis_server, valkey_server = {"redis_version": "7.2.4"}, {"redis_version": "7.2.4", "valkey_version": "8.1.0"}
    assert check_version([redis_server, redis_server]).status == "ok"
    found = check_version([redis_server, valkey_server])
    assert (found.status, "Redis 7.2.4, Valkey 8.1.0" in found.found) == ("warn", True)


def test_the_check_ends_with_the_sentence_of_the_start(
    valkey: RedisServer, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds if Redis evicts messages or has another layout.

    After a start, the store has a valid layout.
    """
    monkeypatch.setenv("OS_STORAGE__URI", valkey.uri)
    connect(valkey.uri).close()
    assert run("--check").code == 0
    for change in (
        lambda: admin.config_set("maxmemory-policy", "allkeys-lru"),
        lambda: (admin.config_set("maxmemory-policy", "noeviction"), admin.set(VERSION_KEY, 99)),
    ):
        change()
        with pytest.raises(StartRefused) as refused:
            connect(valkey.uri)
        done = run("--check")
        assert (done.code, done.error) == (2, f"zq-server: {refused.value}\n")
        assert f"fail  store: {refused.value}" in run("doctor").said


def test_the_check_fails_for_the_source_of_a_migration(
    valkey: RedisServer, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that does not exist yet passes the check, and is not created."""
    monkeypatch.setenv("OS_STORAGE__URI", valkey.uri)
    done = run("--check")
    assert (done.code, "skip  start: There is no store" in done.said, admin.dbsize()) == (0, True, 0)
    with closing(connect(valkey.uri)) as storage:
        Records(storage.documents, storage.now).write(SourceRecord("redis:target", 1.0))
        with pytest.raises(StartRefused) as refused:
            check_served(storage.documents, storage.now())
    done = run("--check")
    assert (done.code, done.error) == (2, f"zq-server: {refused.value}\n")


def test_servers_of_two_versions_and_an_old_level_are_found(
    valkey: RedisServer, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes of a shared store publish their versions. The doctor creates no store."""
    monkeypatch.setenv("OS_STORAGE__URI", valkey.uri)
    assert "skip  servers: There is no store" in run("doctor").said
    assert admin.dbsize() == 0
    support(monkeypatch, "0.1")
    with closing(connect(valkey.uri)) as storage:
        watches = [LevelWatch(storage, 8888, True)]
        assert (
            f"ok    servers: The servers of the store have the same version: {gethostname()}:8888" in run("doctor").said
        )
        support(monkeypatch, "0.1", "0.2")
        monkeypatch.setattr(level_watch, "__version__", "9.9")
        watches.append(LevelWatch(storage, 8889, True))
        said = run("doctor").said
        assert "warn  servers: Servers of different versions use the store: " in said
        assert f"{gethostname()}:8889 (zq 9.9, processes: 1)" in said
        assert "warn  level: The store has level 1, and zq" in said
        for watch in watches:
            watch.stop()


@pytest.mark.parametrize("denied", ["-eval", "-evalsha", "-publish", "-spublish", "-ssubscribe", "-del"])
def test_the_check_fails_for_a_user_without_a_command(
    valkey: RedisServer, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch, denied: str
) -> None:
    admin.execute_command(f"ACL SETUSER limited on nopass ~* &* +@all {denied}")
    monkeypatch.setenv("OS_STORAGE__URI", valkey.uri.replace("//", "//limited:x@"))
    done = run("--check")
    assert done.code == 2
    assert "denies this user permissions" in done.error
    admin.execute_command("ACL DELUSER limited")


def test_the_check_fails_if_redis_lacks_replicas(
    valkey: RedisServer, admin: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OS_STORAGE__URI", valkey.uri)
    admin.config_set("min-replicas-to-write", 1)
    done = run("--check")
    admin.config_set("min-replicas-to-write", 0)
    assert done.code == 2
    assert "fewer replicas" in done.error


def test_faults_of_mongodb_are_found_and_nothing_is_written(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "MAX_ROUND_TRIP", 60.0)  # the machine may be busy
    server = stores.mongodb()
    uri = server.uri_of("zq_doctor")
    sound = statuses(uri)
    assert len(sound) == 6
    assert {name for name, status in sound.items() if status != "ok"} == {"replica set"}
    assert statuses(f"{uri}&w=1")["write concern"] == "warn"
    assert statuses(uri, journal=False)["write concern"] == "warn"
    assert statuses(uri, ahead=-90)["store clock"] == "fail"
    monkeypatch.setattr(diagnosis, "MAX_ROUND_TRIP", 0.0)
    assert statuses(uri)["round trip"] == "warn"
    with server.client() as client:
        assert "zq_doctor" not in client.list_database_names()


def test_checks_that_a_user_with_readwrite_may_not_run_are_skipped_with_the_missing_roles(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("key" * 20)
    key.chmod(0o600)
    with MongoServer(*QUIET, "--keyFile", str(key)) as server:
        with server.client() as client:  # without users, a local client may create the first one
            client.admin.command("createUser", "chief", pwd="x", roles=["root"])
        with MongoClient(server.uri.replace("//", "//chief:x@") + "&authSource=admin") as client:
            roles = [{"role": "readWrite", "db": "zq"}]
            client.admin.command("createUser", "limited", pwd="x", roles=roles)
        uri = server.uri.replace("//", "//limited:x@") + "&authSource=admin"
        connect(uri).close()
        opened = diagnose(uri, local_time, {})
        assert opened is not None
        with opened as checks:
            found = {result.check: result for result in diagnosis.run(checks)}
        assert {name for name, result in found.items() if result.status == "fail"} == set()
        assert (found["oplog"].status, "clusterMonitor" in found["oplog"].found) == ("skip", True)
        with MongoClient(uri) as client, pytest.raises(NotAuthorized, match="replSetGetStatus"):
            run_command(client, "admin", {"replSetGetStatus": 1})


def test_a_standalone_mongodb_is_a_failure_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with MongoServer(replica_set="") as server:
        monkeypatch.setenv("OS_STORAGE__URI", server.uri)
        done = run("--check")
        assert done.code == 2
        assert "is a standalone" in done.error
        assert "--replSet" in run("doctor").said
