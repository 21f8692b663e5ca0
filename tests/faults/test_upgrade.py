# SPDX-License-Identifier: Apache-2.0
"""``zq-server upgrade``: the level of a store rises once no server of an earlier version uses the store."""

import time
from argparse import Namespace
from contextlib import closing
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest
import redis

from tests.commands import run, run_apart
from tests.servers import ZqServer, ask, wait_for
from tests.stores import Stores, pooled
from zq.conformance.builders import OpenStore
from zq.conformance.test_levels import levelled, support
from zq.errors import StartRefused, Unavailable
from zq.model import levels
from zq.model.documents import DocumentRef
from zq.model.expiry import Expiry
from zq.model.levels import StoreLevel
from zq.serving import application, control, level_watch, lifecycle, upgrade_command
from zq.serving.application import _open_pool, wait_for_store
from zq.serving.level_watch import INTERVAL, TTL, LevelWatch, read_processes
from zq.serving.settings import Configuration
from zq.serving.upgrade_command import RECORD_WAIT, UpgradeControl, apply, describe
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.mongodb import MongoStorage

OLD, NEW = ("0.1",), ("0.1", "0.2")


@pytest.fixture
def old(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> LevelWatch:
    """Return a process of the earlier version. From now on, this process is of the new version."""
    support(monkeypatch, *OLD)
    watch = LevelWatch(storage, 8888, True)
    support(monkeypatch, *NEW)
    return watch


def reject(*_: object, **__: object) -> bool:
    raise Unavailable("The store rejects changes.")


def level_of(storage: Storage) -> StoreLevel:
    return levels.decode(levelled(storage).read_level())


def test_finish_raises_the_level_after_the_last_earlier_server_stops(storage: Storage, old: LevelWatch) -> None:
    """The refusal names the server and changes nothing. A repeated command has no effect."""
    new = LevelWatch(storage, 8889, True)
    assert [one.level for one in read_processes(storage.documents, storage.now())] == [1, 2]
    with pytest.raises(StartRefused, match=r"Servers of earlier versions are using the store: .*:8888 \(zq 0"):
        apply(storage, finish=True)
    assert levelled(storage).read_level() is None
    assert list(describe(apply(storage, finish=False)))[-1].startswith("Restart the servers of earlier versions")
    old.stop()
    assert "To finish the upgrade, run" in list(describe(apply(storage, finish=False)))[-1]
    for _ in range(2):
        assert apply(storage, finish=True).level == 2
    assert level_of(storage).level == 2
    assert list(describe(apply(storage, finish=False)))[-1].startswith("There is no upgrade to finish.")
    new.stop()
    assert read_processes(storage.documents, storage.now()) == []


def test_the_record_of_a_killed_server_expires(storage: Storage, old: LevelWatch) -> None:
    assert read_processes(storage.documents, storage.now() + TTL - 1) != []
    assert read_processes(storage.documents, storage.now() + TTL + 1) == []


def test_finish_finds_a_server_after_the_clock_of_the_store_jumps(
    storage: Storage, old: LevelWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record appears to have expired until the server publishes it again, with the time of the store."""
    now = storage.now
    monkeypatch.setattr(storage, "now", lambda: now() + 40)
    monkeypatch.setattr(upgrade_command, "sleep", lambda seconds: old.refresh() if seconds > INTERVAL else None)
    with pytest.raises(StartRefused, match="Servers of earlier versions"):
        apply(storage, finish=True, pause=RECORD_WAIT)
    assert level_of(storage) == StoreLevel()


def test_finish_is_repeated_after_a_kill(
    storage: Storage, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two writes, the earlier version does not start, and nothing is written at the new level."""
    support(monkeypatch, *NEW)
    replace = upgrade_command._replace

    def die(*arguments: object) -> None:
        raise KeyboardInterrupt

    def replace_once(*arguments: object) -> None:
        replace(*arguments)
        monkeypatch.setattr(upgrade_command, "_replace", die)

    monkeypatch.setattr(upgrade_command, "_replace", replace_once)
    with pytest.raises(KeyboardInterrupt):
        apply(storage, finish=True)
    monkeypatch.setattr(upgrade_command, "_replace", replace)
    assert (level_of(storage).level, level_of(storage).required) == (1, 2)
    assert "The upgrade is not complete: run" in list(describe(apply(storage, finish=False)))[-1]
    storage.close()
    support(monkeypatch, *OLD)
    with pytest.raises(StartRefused, match="upgraded to level 2"):
        open_store()
    support(monkeypatch, *NEW)
    with closing(open_store()) as again:
        assert apply(again, finish=True).level == 2


def test_a_server_that_starts_while_an_upgrade_is_finished_prevents_it(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record is found after the announcement, which the command withdraws."""
    support(monkeypatch, *NEW)
    check = upgrade_command._check_processes

    def check_and_start(given: Storage) -> None:
        monkeypatch.setattr(upgrade_command, "_check_processes", check)
        check(given)
        support(monkeypatch, *OLD)
        LevelWatch(storage, 8888, True)
        support(monkeypatch, *NEW)

    monkeypatch.setattr(upgrade_command, "_check_processes", check_and_start)
    with pytest.raises(StartRefused, match="Servers of earlier versions"):
        apply(storage, finish=True)
    assert level_of(storage) == StoreLevel()


def test_a_server_that_starts_after_an_announcement_ends(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server publishes its record before it checks the level, and does not leave the record behind."""
    put = storage.documents.put

    def put_and_announce(*arguments: Any, **terms: Any) -> bool:
        stored = put(*arguments, **terms)
        assert levelled(storage).replace_level(None, levels.encode(StoreLevel(1, 2, "0.2.0")))
        return stored

    monkeypatch.setattr(storage.documents, "put", put_and_announce)
    with pytest.raises(StartRefused, match="upgraded to level 2"):
        LevelWatch(storage, 8888, True)
    assert read_processes(storage.documents, storage.now()) == []


def test_a_refused_command_withdraws_the_announcement_of_an_interrupted_one(storage: Storage, old: LevelWatch) -> None:
    """Otherwise, the earlier servers could not be restarted."""
    assert levelled(storage).replace_level(None, levels.encode(StoreLevel(1, 2, "0.2.0")))
    with pytest.raises(StartRefused, match="Servers of earlier versions"):
        apply(storage, finish=True)
    assert level_of(storage) == StoreLevel()


def test_a_server_ends_if_the_level_was_raised_without_it(storage: Storage, old: LevelWatch) -> None:
    """For example, its machine may have been suspended for longer than its record is kept."""
    ended, seen = list[int](), list[int]()
    watch = LevelWatch(storage, 8888, True, seen.append, lambda: ended.append(1))
    watch.refresh()
    old.stop()
    levelled(storage).replace_level(None, levels.encode(StoreLevel(3, 3, "0.3.0")))
    watch.refresh()
    assert (seen, ended) == ([1, 1], [1])


def test_a_full_store_accepts_records(stores: Stores, tmp_path: Path) -> None:
    """Servers of a full Redis can be restarted, and ``--finish`` finds them."""
    uri = stores.empty("redis", tmp_path, "a")
    with closing(connect(uri)) as storage, redis.Redis.from_url(uri) as admin:
        admin.config_set("maxmemory", 1)
        try:
            with pytest.raises(Unavailable):
                storage.documents.put(DocumentRef("", "other", "a"), b"", storage.now())
            watch = LevelWatch(storage, 8888, True)
            watch.refresh()
            assert len(read_processes(storage.documents, storage.now())) == 1
            watch.stop()
        finally:
            admin.config_set("maxmemory", 0)


def test_a_server_that_cannot_publish_its_record_reads_the_level(
    storage: Storage, old: LevelWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[int]()
    watch = LevelWatch(storage, 8888, True, give_up=lambda: ended.append(1))
    levelled(storage).replace_level(None, levels.encode(StoreLevel(3, 3, "0.3.0")))
    monkeypatch.setattr(storage.documents, "put", reject)
    watch.refresh()
    assert ended == [1]
    with pytest.raises(Unavailable):
        LevelWatch(storage, 8889, True)


def test_a_start_waits_for_a_store_that_becomes_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may become unavailable after it was opened."""
    monkeypatch.setattr(application, "RETRY_INTERVAL", 0.0)
    outcomes = iter([Unavailable("gone"), None])

    def call() -> int:
        if error := next(outcomes):
            raise error
        return 1

    assert wait_for_store(True, call) == 1


def test_a_server_ends_at_once_if_the_level_is_not_supported_or_unreadable(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a deposed server, it serves no further requests."""
    ended = list[int]()
    monkeypatch.setattr(lifecycle.os, "_exit", ended.append)
    monkeypatch.setattr(lifecycle, "LAST_RESPONSES", 2.0)
    watch, began = LevelWatch(storage, 8888, True), time.monotonic()
    former: bytes | None = None
    for record in (levels.encode(StoreLevel(3, 3, "0.3.0")), b"?"):
        assert levelled(storage).replace_level(former, record)
        watch.refresh()
        former = record
    assert ended == [lifecycle.STORE_LOST_EXIT_CODE] * 2
    assert time.monotonic() - began < 2


def test_a_server_restores_a_level_that_the_store_has_lost(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failover may have undone the change."""
    support(monkeypatch, *NEW)
    raised, lost = (levels.encode(StoreLevel(level, 2, "0.2.0")) for level in (2, 1))
    assert levelled(storage).replace_level(None, raised)
    seen = list[int]()
    watch = LevelWatch(storage, 8888, True, seen.append)
    assert levelled(storage).replace_level(raised, lost)
    watch.refresh()
    assert (levelled(storage).read_level(), seen) == (raised, [2, 2])


def test_a_server_stops_although_the_store_does_not_answer(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits for the store only briefly, and lets its record expire."""
    monkeypatch.setattr(level_watch, "INTERVAL", 0.0)
    monkeypatch.setattr(level_watch, "STOP_TIMEOUT", 0.1)
    watch, called, released = LevelWatch(storage, 8888, True), Event(), Event()
    monkeypatch.setattr(storage, "read_level", lambda: (called.set(), released.wait(3), b"?")[2])
    monkeypatch.setattr(storage.documents, "delete", lambda *_: pytest.fail("The record is deleted."))
    watch._give_up = bool
    watch.start()
    assert called.wait(3)
    began = time.monotonic()
    watch.stop()
    assert time.monotonic() - began < 2
    released.set()


def test_a_server_removes_its_record_after_its_last_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Maintenance still removes expired messages until then."""
    monkeypatch.setenv("OS_STORAGE__URI", "memory:")
    registered = list[Any]()
    monkeypatch.setattr(application, "atexit", SimpleNamespace(register=registered.append))
    application.Application(Configuration())
    names = [call.__qualname__ for call in reversed(registered)]
    for call in reversed(registered):
        call()
    assert names.index("Upkeep.stop") < names.index("LevelWatch.stop") < names.index("OrderedStorage.close")


def test_mongodb_confirms_a_level_by_a_majority(stores: Stores, tmp_path: Path) -> None:
    """The write concern of the store may be weaker."""
    with closing(connect(stores.empty("mongodb", tmp_path, "a"), {"write_concern": "1"})) as storage:
        assert isinstance(storage, MongoStorage)
        with mock.patch.object(storage._client.database, "command", wraps=storage._client.database.command) as sent:
            assert storage.replace_level(None, b"a")
        assert sent.call_args.args[0]["writeConcern"]["w"] == "majority"


def test_finish_raises_the_level_of_each_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the store of a pool is unavailable, nothing changes."""
    with closing(pooled()) as storage:
        pool = storage.pools()["other"]
        assert pool is not None
        support(monkeypatch, *NEW)
        with monkeypatch.context() as patched:
            patched.setattr(storage, "pools", lambda: {"other": None})
            with pytest.raises(Unavailable, match="The store of the pool other is unavailable"):
                apply(storage, finish=True)
            assert level_of(storage.catalogue) == StoreLevel()
        assert apply(storage, finish=True).level == 2
        assert (level_of(storage.catalogue).level, level_of(pool).level) == (2, 2)


def test_a_new_pool_gets_the_level_of_the_catalogue(store_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier servers can use a pool that a new server adds before the upgrade is finished."""
    chosen: Any = SimpleNamespace(pooling=None)
    with closing(connect("memory:")) as catalogue:
        support(monkeypatch, *NEW)
        with closing(_open_pool(chosen, catalogue, store_uri, Expiry())) as pool:
            assert level_of(pool) == StoreLevel()
            apply(catalogue, finish=True)
        with closing(_open_pool(chosen, catalogue, store_uri, Expiry())) as pool:
            assert level_of(pool) == StoreLevel()


def test_a_driver_without_the_level_of_new_stores_opens_a_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(connect("memory:")) as storage:
        monkeypatch.setattr("zq.storage.find_driver", lambda _: lambda uri, expiry: storage)
        assert connect("sqlite:/store", initial=lambda: None) is storage


def test_a_refused_command_withdraws_the_announcement_although_a_pool_has_the_new_level(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with closing(pooled()) as storage:
        pool = storage.pools()["other"]
        assert pool is not None
        LevelWatch(storage, 8888, True)
        support(monkeypatch, *NEW)
        levelled(pool).replace_level(None, levels.encode(StoreLevel(2, 2, "0.2.0")))
        levelled(storage.catalogue).replace_level(None, levels.encode(StoreLevel(1, 2, "0.2.0")))
        with pytest.raises(StartRefused, match="Servers of earlier versions"):
            apply(storage, finish=True)
        assert (level_of(storage.catalogue), level_of(pool).level) == (StoreLevel(), 2)


def test_the_command_refuses_an_embedded_store_of_a_server_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server would otherwise answer that there is no upgrade to finish."""
    with closing(connect("memory:")) as storage:
        answer = UpgradeControl(storage, int)

        def operate(path: str, operation: str, body: object) -> object:
            with pytest.MonkeyPatch.context() as server:
                support(server, *OLD)
                return answer(msgspec.json.encode(body))

        monkeypatch.setattr(control, "operate", operate)
        given = Namespace(finish=True)
        assert upgrade_command.run(given, "control.sock", lambda: closing(storage), 0) == 0
        support(monkeypatch, *NEW)
        with pytest.raises(StartRefused, match=r"supports level 1, but this command .* Restart the server with zq"):
            upgrade_command.run(given, "control.sock", lambda: closing(storage), 0)


def test_finish_of_another_command_is_refused() -> None:
    """A missing name of the command does not start a server."""
    done = run("--finish", "--store", "memory:")
    assert done.code == 2
    assert "--status or --finish does not apply to this command" in done.error


def test_the_command_creates_no_store(store_uri: str) -> None:
    for _ in range(2):
        done = run_apart("upgrade", "--finish", "--store", store_uri)
        assert done.code == 2
        assert "There is no store at " in done.error
    assert not (store_uri.startswith("rocksdb:") and Path(store_uri.removeprefix("rocksdb://")).exists())


def test_the_command_lists_the_servers(store_uri: str) -> None:
    """The command queries an embedded store through its server, and directly after the server has stopped."""
    first = "The store has level 1. zq 0.1.0 supports level 1.\n"
    last = "There is no upgrade to finish. After you install a newer version, use its zq-server.\n"
    with ZqServer(store_uri) as server:
        assert b"zq_store_level 1.0" in ask(server.url, "GET", "/metrics").body
        done = run_apart("upgrade", "--finish", "--store", store_uri)
        listed = "" if store_uri.startswith("rocksdb") else f":{server.port} runs zq 0.1.0 in 1 process.\n"
        assert done.code == 0, done
        assert done.said.startswith(first)
        assert done.said.endswith(listed + last)
        assert server.terminate() == 0
    wait_for(lambda: run_apart("upgrade", "--store", store_uri).said == first + last, 5, "its record is gone")
