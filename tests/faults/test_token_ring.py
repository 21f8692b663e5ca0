# SPDX-License-Identifier: Apache-2.0
"""Moves between queues under concurrent claims, late holders and kills: no loss, no duplicate (L1, L2, L7).

Tokens are carried for a sixth of ``ZQ_HISTORY_SECONDS`` (default 12) on the storage verbs of each driver, and for a
quarter on its servers.
"""

import time
from contextlib import ExitStack
from threading import Thread

import pytest

from tests.faults import mutants_of_moves
from tests.faults.mutants import EngineInMemory, Mutant
from tests.faults.ring_targets import HttpRing, StorageRing
from tests.faults.test_history import SECONDS, SERVERS, embedded, logs_told
from tests.faults.token_ring import LEAST, Hold, Tally, find_faults, run_ring, shared
from tests.servers import ZqServer
from zq.storage.api import Storage

# Seconds between two kills.
PAUSE = 1.0

FAULTS = {
    # what is planted: words of the sentence that must tell it
    mutants_of_moves.CopyThenDelete: "is in several places",
    mutants_of_moves.DeleteThenCopy: "is lost",
    mutants_of_moves.IdleSettle: "hops, but was moved",
    mutants_of_moves.ForgottenKey: "is in several places",
    mutants_of_moves.FreeForAll: "is in several places",
}


def assert_in_place(found: list[str], tally: Tally) -> None:
    told = "\n".join(found[:10])
    assert not found, f"{len(found)} faults after {tally.settled} settlements:\n{told}"
    assert tally.settled >= LEAST, tally.settled


def test_tokens_stay_whole_on_the_storage_verbs(storage: Storage) -> None:
    """Claims lapse after a second, and some holders settle after that."""
    target = StorageRing(storage)
    tally = run_ring(target, SECONDS / 3)
    assert_in_place(find_faults(target, tally), tally)


def test_tokens_stay_whole_while_servers_are_killed(store_uri: str) -> None:
    """Whoever loses an answer asks again under the same key, of any server."""
    with ExitStack() as stack:
        count = 1 if embedded(store_uri) else SERVERS - 1
        servers = [stack.enter_context(ZqServer(store_uri)) for _ in range(count)]
        target = HttpRing([server.url for server in servers])
        until = time.monotonic() + SECONDS / 2
        killer = Thread(target=kill_in_turn, args=(servers, until))
        killer.start()
        with logs_told(servers):
            tally = run_ring(target, SECONDS / 2)
            killer.join()
            assert_in_place(find_faults(target, tally), tally)


def kill_in_turn(servers: list[ZqServer], until: float) -> None:
    while time.monotonic() + PAUSE < until:
        time.sleep(PAUSE)
        for server in servers:
            server.kill()
            server.start()


def test_the_engine_passes() -> None:
    """Otherwise what follows would prove nothing."""
    target = StorageRing(EngineInMemory())
    tally = run_ring(target, 2.5)
    assert_in_place(find_faults(target, tally), tally)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_mutant_is_found(fault: Mutant) -> None:
    """And told by its name."""
    found: list[str] = []
    for _ in range(3):
        target = StorageRing(EngineInMemory(fault))
        found = find_faults(target, run_ring(target, 1.5))
        if any(FAULTS[fault] in sentence for sentence in found):
            return
    pytest.fail(f"not found: {fault.__doc__} Instead: {found[:5]}")


def test_two_hands_at_once_are_told() -> None:
    """Of the same claim, or one after the other, they are none."""
    tally = Tally()
    tally.holds["sound"] = [Hold("1", 0, 2), Hold("1", 1, 2), Hold("2", 2, 3)]
    tally.holds["shared"] = [Hold("1", 0, 2), Hold("2", 1, 3)]
    assert list(shared(tally)) == ["shared was in two hands at once."]


def test_a_lost_key_is_not_the_only_proof() -> None:
    """A token that nobody posted is told as well."""
    target = StorageRing(EngineInMemory())
    tally = run_ring(target, 0, tokens=20)
    left = min(tally.posted - tally.deleted)  # carriers delete some
    tally.posted.remove(left)
    assert f"{left} was never posted and is there." in find_faults(target, tally)
