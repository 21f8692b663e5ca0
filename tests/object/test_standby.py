# SPDX-License-Identifier: Apache-2.0
"""A standby that follows the owner's log: the records that it applies, and a takeover that reads only the rest."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

import pytest

from tests.object.between import Between
from tests.object.conftest import LEASE, Open
from tests.object.test_checkpoints import head, numbers, posted
from tests.object.work import bodies, post
from tests.servers import wait_for
from zq.errors import Unavailable
from zq.storage.api import Storage
from zq.storage.object import entries
from zq.storage.object.entries import Batch, Entry
from zq.storage.object.epochs import Opening, log_name, newest, read
from zq.storage.object.following import Standby, yield_acknowledged
from zq.storage.object.objects import Objects
from zq.storage.object.store import ShippedStore

pytestmark = pytest.mark.slow

# The package has a function of the same name.
OWNER = import_module("zq.storage.object.owner")

WITHIN = 60


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    """Return the list of records that servers of this test apply, in order."""
    records: list[Entry] = []
    restore = ShippedStore.restore

    def noted(store: ShippedStore, record: Entry) -> None:
        restore(store, record)
        records.append(record)

    monkeypatch.setattr(ShippedStore, "restore", noted)
    return records


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the list of times at which standbys of this test look for the owner."""
    moments: list[float] = []
    look = OWNER.newest_opened

    def noted(objects: Objects, known: int = 0) -> tuple[int, Opening | None]:
        moments.append(time.monotonic())
        return look(objects, known)

    monkeypatch.setattr(OWNER, "newest_opened", noted)
    return moments


def some(looks: list[float]) -> None:
    """Wait for three looks that begin after the call and end."""
    before = len(looks)
    wait_for(lambda: len(looks) > before + 3, WITHIN, "some looks")


@contextmanager
def waiting(machine: Open, **options: object) -> Iterator[Future[Storage]]:
    """Run a standby; yield a future of its storage."""
    found: Future[Storage] = Future()

    def start() -> None:
        try:
            found.set_result(machine("standby", **{"takeover": "wait", "owner_timeout": 60, **options}))
        except BaseException as error:  # noqa: BLE001  # raised where the result is read
            found.set_exception(error)

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    yield found
    thread.join(WITHIN)


def reached(applied: list[Entry], objects: Objects, epoch: int = 1) -> int:
    """Wait until all acknowledged records are applied, and return the position of the last one."""
    last = 0

    def there() -> bool:
        nonlocal last
        last = head(objects, epoch).acknowledged
        return bool(applied) and applied[-1].position >= last > 0

    wait_for(there, WITHIN, "the standby has what its owner acknowledged")
    return last


def test_followed_records_are_not_read_again(machine: Open, objects: Objects, applied: list[Entry]) -> None:
    """The next owner has the records although they were removed from the log, and those that came last."""
    first = machine("first", owner_timeout=3)
    posted(first, 0, 20)
    with waiting(machine) as standby:
        time.sleep(1)  # the owner writes its position each second
        last = reached(applied, objects)
        for position in range(1, last + 1):
            objects.delete(log_name(1, position))
        posted(first, 20, 25)
        first.close()
        second = standby.result(WITHIN)
    assert bodies(second) == numbers(25)
    positions = [record.position for record in applied]
    assert positions == list(range(1, len(positions) + 1)), "each once, in order"
    posted(second, 25, 30)
    second.close()


def test_records_that_the_owner_removed_are_read_from_its_checkpoint(
    machine: Open, objects: Objects, applied: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow standby restarts from the checkpoint."""
    slow, follow = threading.Event(), Standby.follow

    def followed(standby: Standby, *arguments: object) -> None:
        if not slow.is_set():
            follow(standby, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Standby, "follow", followed)
    first = machine("first", owner_timeout=3, checkpoint_records=20)
    posted(first, 0, 10)
    with waiting(machine) as standby:
        reached(applied, objects)
        slow.set()
        posted(first, 10, 40)
        mark = wait_for(lambda: head(objects).checkpoints, WITHIN, "a checkpoint")[-1]
        posted(first, 40, 45)
        for position in range(1, mark.position + 1):
            objects.delete(log_name(1, position))
        before, sent = len(applied), 45
        slow.clear()
        deadline = time.monotonic() + WITHIN
        while len(applied) == before:  # records behind the newest checkpoint
            assert time.monotonic() < deadline
            posted(first, sent, sent + 1)
            sent += 1
            time.sleep(0.2)
        first.close()
        assert bodies(standby.result(WITHIN)) == numbers(sent)
    assert all(record.position > mark.position for record in applied[before:])


def test_unacknowledged_records_are_not_applied(
    machine: Open, objects: Objects, applied: list[Entry], looks: list[float]
) -> None:
    """Another record may replace it: the owner writes one after the standby has read the other."""
    first = machine("first", owner_timeout=3)
    posted(first, 0, 5)
    with waiting(machine) as standby:
        last = reached(applied, objects)
        doubtful = [Batch([("default", b"doubtful", b"")], [])]
        before = entries.decode(objects.get(log_name(1, last)) or b"", "the last record").checksum
        objects.put(log_name(1, last + 1), entries.encode(1, last + 1, last, 0, before, doubtful)[0])
        some(looks)
        assert applied[-1].position == last
        posted(first, 5, 10)
        first.close()
        second = standby.result(WITHIN)
    assert bodies(second) == numbers(10)
    assert not [record for record in applied if record.batches == doubtful]


def test_an_owner_that_changes_is_followed(machine: Open, objects: Objects, applied: list[Entry]) -> None:
    """The standby follows two owners; a late record behind the last valid one of the first owner is never applied."""
    first = machine("first", owner_timeout=3)
    posted(first, 0, 5)
    with waiting(machine) as standby:
        reached(applied, objects)
        third = machine("third", owner_timeout=3)
        opening = read(objects, "open/2", Opening)
        assert opening is not None
        last = opening.chain[-1].last
        late = entries.encode(1, last + 1, last + 1, 0, 0, [Batch([("default", b"late", b"")], [])])[0]
        objects.put(log_name(1, last + 1), late)
        posted(third, 5, 10)
        wait_for(lambda: applied[-1].epoch == 2, WITHIN, "the standby follows the new owner")
        third.close()
        second = standby.result(WITHIN)
    assert bodies(second) == numbers(10)
    positions = [record.position for record in applied if record.epoch == 1]
    assert max(positions) == last
    assert newest(objects) == 3


@pytest.mark.parametrize("uri", ["swift"], indirect=True)
def test_an_outage_is_no_silence(
    machine: Open, between: Between, looks: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an outage of the object store, the standby gives the owner time to write again.

    The outage lasts for longer than an owner may be silent.
    """
    passed, real = 0, OWNER.uptime
    monkeypatch.setattr(OWNER, "uptime", lambda: real() + passed)
    first = machine("first", owner_timeout=60)
    with waiting(machine, owner_timeout=60) as standby:
        wait_for((tmp_path / "standby").exists, WITHIN, "the standby follows")
        with between.doing(lambda _method, _path: 503):
            some(looks)
            passed = 61
            some(looks)
        for number in range(3):
            some(looks)
            post(first, f"{number}")
        assert not standby.done()
        first.close()
        assert bodies(standby.result(WITHIN)) == numbers(3)


def test_pending_records_are_bounded() -> None:
    """Unacknowledged records are not read without limit."""
    taken = []

    def records() -> Iterator[Entry]:
        for position in range(1, 1000):
            taken.append(position)
            yield Entry(1, position, 3, 0, 0, 0, [], b"")

    assert [record.position for record in yield_acknowledged(records(), 1)] == [1, 2, 3]
    assert len(taken) < 50


def test_a_lease_is_waited_for_all_the_same(machine: Open) -> None:
    """A silent owner may still run."""
    machine("first", owner_timeout=600)
    began = time.monotonic()
    with waiting(machine, owner_timeout=1) as standby:
        standby.result(WITHIN)
    assert time.monotonic() - began > 1 + LEASE


def test_a_disk_that_is_full_does_not_keep_a_standby_from_taking_over(
    machine: Open, looks: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standby has no copy, does not download one repeatedly, and takes over once there is space."""
    begun, full = [], True
    restore = ShippedStore.restore

    def restored(store: ShippedStore, record: Entry) -> None:
        if full:
            begun.append(record.position)
            store.failure = OSError("no space")
            raise Unavailable
        restore(store, record)

    monkeypatch.setattr(ShippedStore, "restore", restored)
    first = machine("first", owner_timeout=3)
    posted(first, 0, 5)
    with waiting(machine) as standby:
        wait_for(lambda: begun, WITHIN, "the standby begins")
        some(looks)
        full = False
        first.close()
        assert bodies(standby.result(WITHIN)) == numbers(5)
    assert begun == [1]
