# SPDX-License-Identifier: Apache-2.0
"""Ownership of the store: the takeover by another server, its time, and the state of the deposed one."""

import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.commands import Done, run_apart
from tests.object.conftest import LEASE, Open
from tests.object.work import bodies, post
from tests.servers import ZqServer, wait_for
from zq.errors import Deposed, StartRefused, Unavailable
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.object import entries
from zq.storage.object.epochs import Head, Opening, log_name, newest, read, write
from zq.storage.object.objects import Objects

pytestmark = pytest.mark.slow

# The package has a function of the same name.
OWNER = import_module("zq.storage.object.owner")


def test_another_machine_has_all_that_was_acknowledged(machine: Open) -> None:
    """The other machine starts with an empty disk, while the first one still runs."""
    first = machine("first")
    for number in range(20):
        post(first, f"{number}", f"{number} too")
    assert bodies(machine("second")) == bodies_of(20)


def bodies_of(posts: int) -> list[str]:
    return [body for number in range(posts) for body in (f"{number}", f"{number} too")]


def test_a_deposed_owner_acknowledges_and_shows_nothing(machine: Open) -> None:
    """All requests to the deposed owner fail as soon as the next one serves."""
    first = machine("first")
    post(first, "before")
    second = machine("second")
    for _ in range(2):
        with pytest.raises(Deposed):
            bodies(first)
        with pytest.raises(Deposed):
            post(first, "after")
    assert bodies(second) == ["before"]


def test_the_upgrade_command_does_not_take_over_the_store(machine: Open, uri: str, tmp_path: Path) -> None:
    """Without the server's control socket the command is refused, even if there is no store."""
    config = tmp_path / "zq.conf"
    config.write_text(f"[storage]\nuri = {uri}\n[storage:object]\ncache = {tmp_path}/command\ntakeover = now\n")
    done = run_apart("upgrade", "--config", config)
    assert (done.code, "There is no store" in done.error) == (2, True), done
    first = machine("first")
    done = run_apart("upgrade", "--config", config)
    assert (done.code, "Another server owns the store" in done.error) == (2, True), done
    post(first, "after")
    assert bodies(first) == ["after"]
    first.close()
    assert run_apart("upgrade", "--config", config).said.startswith("The store has level 1.")


def test_a_token_is_not_created_on_the_store_of_another_owner(
    machine: Open, objects: Objects, uri: str, tmp_path: Path
) -> None:
    """The command needs neither a store nor a server, but it deposes no owner. The advice in its refusal works."""
    config = tmp_path / "zq.conf"
    config.write_text(
        f"[DEFAULT]\nauth_strategy = token\n[server]\ncontrol = {tmp_path}/control\n[storage]\nuri = {uri}\n"
        f"[storage:object]\ncache = {tmp_path}/command\ntakeover = now\nowner_timeout = 1\nlease = 1\n"
    )

    def create() -> Done:
        return run_apart("token", "create", "--project", "acme", "--config", config)

    assert create().code == 0
    first = machine("first")
    done = create()
    assert (done.code, "start a server with [storage:object] takeover = wait" in done.error) == (2, True), done
    post(first, "after")
    first.close()
    epoch = newest(objects)
    head = read(objects, f"head/{epoch}", Head)
    assert head is not None
    write(objects, f"head/{epoch}", replace(head, released=-1))  # as if the owner's machine had failed
    assert create().code == 2
    config.write_text(config.read_text().replace("takeover = now", "takeover = wait"))
    with ZqServer("", "--config", str(config)):
        assert create().code == 0


def test_an_owner_that_learns_of_it_by_its_own_commit(machine: Open) -> None:
    """The owner is within its lease and has not checked yet: the check after the commit finds the fence."""
    first = machine("first", lease=60)
    post(first, "before")
    with ThreadPoolExecutor(1) as other:
        second = other.submit(machine, "second", lease=1)
        with pytest.raises(Unavailable):
            post_on(first)
        kept = bodies(second.result())
    assert kept[0] == "before"
    assert len(kept) > 1


def post_on(storage: Storage) -> None:
    while True:
        post(storage, "more")


def test_a_record_stored_after_a_takeover_is_ignored(machine: Open, objects: Objects) -> None:
    """A deposed owner's upload is late: later owners agree with the one that did not find it."""
    first = machine("first")
    post(first, "kept")
    second = machine("second")
    opening = read(objects, "open/2", Opening)
    assert opening is not None
    (span,) = opening.chain
    last = entries.decode(objects.get(log_name(1, span.last)) or b"", "the last record")
    late, _ = entries.encode(1, span.last + 1, span.last, last.moment, last.checksum, last.batches)
    objects.put(log_name(1, span.last + 1), late)
    post(second, "kept too")
    second.close()
    assert bodies(machine("third")) == ["kept", "kept too"]


def test_one_of_several_concurrent_starts_serves(machine: Open) -> None:
    """The other servers are refused or deposed."""

    def started(number: int) -> Storage | None:
        try:
            return machine(f"machine {number}")
        except (StartRefused, Unavailable):
            return None

    with ThreadPoolExecutor(4) as machines:
        storages = [storage for storage in machines.map(started, range(4)) if storage is not None]
    assert len(list(filter(serves, storages))) == 1


def serves(storage: Storage) -> bool:
    try:
        post(storage, "mine")
    except Unavailable:
        return False
    return True


def test_a_takeover_waits_for_the_lease_of_an_owner_that_may_live(machine: Open) -> None:
    """Until then, the former owner may return messages that the new one removes."""
    machine("first")
    began = time.monotonic()
    machine("second")
    assert time.monotonic() - began >= LEASE


def test_a_clean_stop_leaves_nothing_to_wait_for(machine: Open, objects: Objects) -> None:
    """The next owner waits neither for the silence of the stopped one nor for its lease."""
    first = machine("first", lease=600)
    post(first, "kept")
    first.close()
    began = time.monotonic()
    second = machine("second", lease=600, takeover="wait", owner_timeout=600)
    assert time.monotonic() - began < 60
    assert bodies(second) == ["kept"]
    assert newest(objects) == 2


def test_a_start_is_refused_while_an_owner_runs(machine: Open, objects: Objects) -> None:
    """With ``takeover = refuse``, the error names the owner, which continues."""
    first = machine("first")
    opening = read(objects, "open/1", Opening)
    assert opening is not None
    with pytest.raises(StartRefused, match=opening.owner):
        machine("second", takeover="refuse")
    post(first, "undisturbed")
    assert newest(objects) == 1


def test_a_standby_waits_while_the_owner_lives(
    machine: Open, objects: Objects, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standby waits for longer than for a silent owner, and serves once the owner has stopped."""
    passed, real = 0, OWNER.uptime
    monkeypatch.setattr(OWNER, "uptime", lambda: real() + passed)
    first = machine("first", owner_timeout=3)
    with ThreadPoolExecutor(1) as other:
        second = other.submit(machine, "second", takeover="wait", owner_timeout=60)
        for number in range(5):
            spoken(objects)
            passed += 30
            post(first, f"{number}")
        assert not second.done()
        first.close()
        assert bodies(second.result(60)) == [f"{number}" for number in range(5)]


def spoken(objects: Objects) -> None:
    """Wait until the owner has written its head twice, and a standby had time to see it."""
    for _ in range(2):
        before = read(objects, "head/1", Head)
        wait_for(lambda: read(objects, "head/1", Head) != before, 60, "the owner's word")  # noqa: B023


def test_two_processes_do_not_share_a_local_directory(uri: str, tmp_path: Path) -> None:
    """The second process would empty the directory in which the first one works."""
    options = {"cache": str(tmp_path / "cache"), "lease": LEASE, "takeover": "now"}
    first = connect(uri, options)
    try:
        with pytest.raises(StartRefused, match="in use by another process"):
            connect(uri, options)
        post(first, "undisturbed")
    finally:
        first.close()
