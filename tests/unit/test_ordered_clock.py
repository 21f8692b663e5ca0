# SPDX-License-Identifier: Apache-2.0
"""The clock of the embedded store: a jump ahead of the machine's clock is not trusted until it has lasted."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers import wait_for
from zq.clock import StoreClock
from zq.model import ClaimRequest, Draft, Lease, ListFilter, QueueRef, new_ids
from zq.model.expiry import Expiry
from zq.storage.ordered import layout, startup
from zq.storage.ordered.startup import JUMP_TRUST_SECONDS, MAX_TRUSTED_JUMP, StorageClock
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import connect

HOUR = 3600.0
JOBS = QueueRef("acme", "jobs")


class Machine:
    """A machine whose clock can be set; ``ran``: its uptime in seconds."""

    def __init__(self) -> None:
        self.ran = 1000.0
        self.ahead = 1_800_000_000.0

    def wall(self) -> float:
        return self.ran + self.ahead

    def uptime(self) -> float:
        return self.ran

    def run(self, seconds: float, clock: StorageClock) -> float:
        """Advance the time, reading the clock every two seconds; return the last reading."""
        for _ in range(int(seconds / 2)):
            self.ran += 2
            told = clock.now()
        return told


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(time, "time", made.wall)
    monkeypatch.setattr(startup, "uptime", made.uptime)
    return made


@pytest.fixture
def clock(machine: Machine) -> StorageClock:
    clock = StorageClock()
    clock.now()
    return clock


@pytest.mark.parametrize("step", [0.0, 1.0, MAX_TRUSTED_JUMP, -1.0, -HOUR])
def test_a_small_step_and_a_step_back_are_followed_at_once(machine: Machine, clock: StorageClock, step: float) -> None:
    """A server's clock slews after a step back and knows its offset."""
    machine.ahead += step
    assert clock.now() == pytest.approx(machine.wall())
    assert clock.distrusted_lead == 0


def test_a_jump_is_trusted_when_it_has_lasted(machine: Machine, clock: StorageClock, caplog) -> None:
    """For five minutes the clock ignores the jump and reports the distrusted lead."""
    clock.now()
    machine.ahead += HOUR
    assert machine.run(JUMP_TRUST_SECONDS - 2, clock) == pytest.approx(machine.wall() - HOUR)
    assert clock.distrusted_lead == pytest.approx(HOUR)
    assert machine.run(6, clock) == pytest.approx(machine.wall())
    assert clock.distrusted_lead == 0
    assert [record.levelname for record in caplog.records if record.name.startswith("zq.storage")] == [
        "ERROR",
        "WARNING",
    ]


def test_a_jump_that_is_reverted_has_no_effect(machine: Machine, clock: StorageClock) -> None:
    """The jump changes neither the reported nor the stored time, and the next jump has to last the whole time again."""
    for _ in range(3):
        machine.ahead += HOUR
        machine.run(JUMP_TRUST_SECONDS - 4, clock)
        machine.ahead -= HOUR
        assert machine.run(4, clock) == pytest.approx(machine.wall())
        assert clock.latest == pytest.approx(machine.wall())
        assert clock.distrusted_lead == 0


def test_each_further_jump_restarts_the_wait(machine: Machine, clock: StorageClock) -> None:
    """Each further jump restarts the wait."""
    began = clock.now() - machine.ran
    for _ in range(3):
        machine.ahead += HOUR
        assert machine.run(JUMP_TRUST_SECONDS - 4, clock) == pytest.approx(machine.ran + began)
    assert clock.distrusted_lead == pytest.approx(3 * HOUR)


class Shifted:
    """The wall clock of this process, shifted, and the machine's uptime."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.shift = 0.0
        self.slept = 0.0
        true = time.time
        monkeypatch.setattr(time, "time", lambda: true() + self.shift + self.slept)
        uptime = startup.uptime
        monkeypatch.setattr(startup, "uptime", lambda: uptime() + self.slept)


@pytest.fixture
def shifted(monkeypatch: pytest.MonkeyPatch) -> Shifted:
    return Shifted(monkeypatch)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[[], OrderedStorage]]:
    """Yield a function that opens the store like a restarted process."""
    stores: list[OrderedStorage] = []

    def reopen() -> OrderedStorage:
        while stores:
            stores.pop().close()
        expiry = Expiry(compaction_filter_grace=0, compaction_interval=1)
        stores.append(connect(f"rocksdb://{tmp_path}/store", sync="never", expiry=expiry))
        return stores[0]

    yield reopen
    while stores:
        stores.pop().close()


# A body of a length that is stored apart from its message's record.
BODY = b'"%s"' % (layout.SHORT * b"x")


def post(storage: OrderedStorage, ttl: int, count: int = 1) -> list[str]:
    ids = new_ids(count, storage.now())
    storage.messages.post(JOBS, [Draft(id, BODY, ttl, 0, "alice") for id in ids], storage.now())
    return ids


def listed(storage: OrderedStorage) -> list[str]:
    return [
        message.id for message in storage.messages.list(JOBS, 0, 100, ListFilter(claimed=True), storage.now()).items
    ]


def test_a_temporary_jump_of_an_hour_loses_and_redelivers_nothing(opened, shifted: Shifted) -> None:
    """The test sweeps, reads, claims and restarts while the clock is wrong, and restarts once afterwards."""
    storage = opened()
    kept = post(storage, 1800, 3)
    storage.claims.create(JOBS, ClaimRequest(Lease("a.a", 1800, 60), 1), storage.now())
    storage.ping()
    shifted.shift = HOUR
    for _ in range(2):
        storage = opened()
        assert storage.clock_lead() == pytest.approx(HOUR, abs=5)
        assert storage.maintain(storage.now()) == 0
        assert listed(storage) == kept
        storage.ping()
    assert len(storage.claims.create(JOBS, ClaimRequest(Lease("a.b", 60, 60), 9), storage.now()).claim.messages) == 2
    late = post(storage, 600)
    storage.ping()
    shifted.shift = 0
    for _ in range(2):
        assert storage.now() == pytest.approx(time.time(), abs=5)
        assert storage.clock_lead() == 0
        assert listed(storage) == kept + late
        assert [message.id for message in storage.messages.pop(JOBS, 9, storage.now())] == late
        late = post(storage, 600)
        storage = opened()


def test_a_lasting_jump_is_trusted_across_a_start(opened, shifted: Shifted) -> None:
    """Messages that have expired by the new time are removed; the next start does not distrust the clock."""
    storage = opened()
    post(storage, 1800)
    storage.ping()
    shifted.shift = HOUR
    storage = opened()
    shifted.slept = JUMP_TRUST_SECONDS - 10
    assert storage.now() == pytest.approx(time.time() - HOUR, abs=5)
    shifted.slept = JUMP_TRUST_SECONDS + 60
    assert storage.now() == pytest.approx(time.time(), abs=5)
    assert listed(storage) == []
    storage.ping()
    assert opened().clock_lead() == 0


def test_a_boot_of_the_machine_resets_the_clock(opened, shifted: Shifted, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a boot, the stored time is not compared: a machine that was off for an hour has not jumped."""
    storage = opened()
    storage.ping()
    monkeypatch.setattr(startup, "read_boot_id", lambda: b"another")
    shifted.shift = HOUR
    assert opened().clock_lead() == 0


def test_a_servers_clock_reports_the_jump_and_continues(opened, shifted: Shifted) -> None:
    """The offset in the metric and in ``/readyz`` is the true one, an hour, from the first refresh on."""
    storage = opened()
    clock = StoreClock(storage.now, distrusted_lead=storage.clock_lead)
    for step, expected in ((HOUR, -HOUR), (-HOUR, 0), (-HOUR, HOUR)):
        before = clock.now()
        shifted.shift += step
        clock.refresh()
        assert clock.drift() == pytest.approx(expected, abs=5)
        assert clock.now() == pytest.approx(before, abs=5)


def test_no_compaction_drops_bodies_while_a_jump_is_distrusted(opened, shifted: Shifted) -> None:
    """RocksDB's filter uses the machine's clock, here an hour ahead of the store's.

    It drops the body as soon as the store trusts that time, and not before.
    """
    shifted.shift = -HOUR
    storage = opened()
    ids = post(storage, 600)
    shifted.shift = 0
    storage.now()

    def compacted() -> bool:
        with storage._handle as (store, _):
            store._views["bodies"].flush()
            store.compact_after("bodies", 1)
            return not list(store.scan("bodies", b"", b"\xff" * 64))

    for start in range(2):
        storage = opened() if start else storage
        until = time.monotonic() + 3
        while time.monotonic() < until:
            assert not compacted()
            time.sleep(0.2)
        assert listed(storage) == ids
        storage.ping()
    shifted.slept = JUMP_TRUST_SECONDS + 1
    storage.now()
    wait_for(compacted, 60, "the body is gone")
