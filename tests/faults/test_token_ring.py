# SPDX-License-Identifier: Apache-2.0
"""Moves between queues with concurrent claims and late holders: no loss, no duplicate (L1, L2, L7).

``tests/campaign/histories/test_ring_servers.py`` also kills servers.
"""

import pytest

from tests.campaign.histories import mutants_of_moves
from tests.campaign.histories.mutants import EngineInMemory, Mutant
from tests.campaign.histories.ring_targets import StorageRing
from tests.campaign.histories.runs import SECONDS
from tests.campaign.histories.token_ring import Hold, Tally, assert_in_place, find_faults, run_ring, shared
from tests.rotation import rotated
from zq.storage.api import Storage

FAULTS = {
    # the planted fault: words of the violation that must report it
    mutants_of_moves.CopyThenDelete: "is in several places",
    mutants_of_moves.DeleteThenCopy: "is lost",
    mutants_of_moves.IdleSettle: "hops, but was moved",
    mutants_of_moves.ForgottenKey: "is in several places",
    mutants_of_moves.FreeForAll: "is in several places",
}


def test_tokens_stay_whole_on_the_storage_verbs(storage: Storage) -> None:
    """Claims expire after a second, and some holders settle later."""
    target = StorageRing(storage)
    tally = run_ring(target, SECONDS / 3)
    assert_in_place(find_faults(target, tally), tally)


def test_the_engine_passes() -> None:
    """Otherwise the other tests would prove nothing."""
    target = StorageRing(EngineInMemory())
    tally = run_ring(target, 2.5)
    assert_in_place(find_faults(target, tally), tally)


@pytest.mark.parametrize("fault", rotated(list(FAULTS), 1), ids=lambda fault: fault.__name__)
def test_a_mutant_is_found(fault: Mutant) -> None:
    """The violation describes the planted fault."""
    found: list[str] = []
    for _ in range(3):
        target = StorageRing(EngineInMemory(fault))
        found = find_faults(target, run_ring(target, 1.5))
        if any(FAULTS[fault] in sentence for sentence in found):
            return
    pytest.fail(f"not found: {fault.__doc__} Instead: {found[:5]}")


def test_a_token_with_two_holders_is_reported() -> None:
    """Two holds by the same claim, or one after the other, are no violation."""
    tally = Tally()
    tally.holds["sound"] = [Hold("1", 0, 2), Hold("1", 1, 2), Hold("2", 2, 3)]
    tally.holds["shared"] = [Hold("1", 0, 2), Hold("2", 1, 3)]
    assert list(shared(tally)) == ["shared was in two hands at once."]


def test_a_lost_key_is_not_the_only_proof() -> None:
    """A token that was never posted is reported as well."""
    target = StorageRing(EngineInMemory())
    tally = run_ring(target, 0, tokens=20)
    left = min(tally.posted - tally.deleted)  # carriers delete some
    tally.posted.remove(left)
    assert f"{left} was never posted and is there." in find_faults(target, tally)
