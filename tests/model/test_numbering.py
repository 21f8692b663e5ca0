# SPDX-License-Identifier: Apache-2.0
"""Posts on MongoDB whose numbers are drawn beside their transactions, in every interleaving; see ``numbering``."""

from typing import Any

import pytest

from tests.model.numbering import Budget, Model, search
from tests.rotation import CAMPAIGN

pytestmark = pytest.mark.one_store
SMALL = ((2,), (1,))
SMALLEST = ((1,), (1,))
KILL, ELECTION, LATE = Budget(kills=1), Budget(elections=1), Budget(losses=1)
KILL_AND_ELECTION, LATE_AND_ELECTION = Budget(kills=1, elections=1), Budget(losses=1, elections=1)
# States of a daily search that is cut short, and of a complete one.
MAX_STATES = 400_000
ALL_STATES = 20_000_000

FAULTS: dict[str, dict[str, Any]] = {
    "never waits": {"budget": KILL_AND_ELECTION},
    "does not wait for the lane": {"budget": KILL_AND_ELECTION},
    "reads before the touch is durable": {"budget": KILL_AND_ELECTION},
    "reads the lanes after the messages": {"budget": KILL_AND_ELECTION},
    "reads lanes that are not durable": {"budget": KILL_AND_ELECTION},
    "reads messages that came after the view": {"budget": KILL_AND_ELECTION},
    "takes the last number for final": {"budget": KILL_AND_ELECTION},
    "remembers settled lanes by group": {"posts": ((1, 1), (1,)), "budget": KILL},
    "settles by a view that is not durable": {"budget": KILL_AND_ELECTION},
    "draws before it holds the lane": {"budget": KILL_AND_ELECTION},
    "looks while the transaction is open": {"budget": KILL_AND_ELECTION},
    "a late draw counts": {"budget": LATE},
    "a purge does not wait for the lanes": {"purges": True, "posts": SMALL, "budget": KILL_AND_ELECTION},
    "draws beside a held counter": {"exclusive": (1,), "budget": KILL_AND_ELECTION},
}
# The fault whose search takes more than a minute.
RARE = {"a purge goes on though its decision was lost": {"purges": True, "posts": SMALL, "budget": KILL_AND_ELECTION}}

DESIGNS: dict[str, dict[str, Any]] = {
    "a reader": {"posts": SMALL},
    "a reader and a change of the primary": {"posts": SMALL, "budget": ELECTION},
    "a reader, both modes and a kill": {"posts": SMALLEST, "exclusive": (0, 1), "budget": KILL},
    "a purge": {"posts": SMALL, "purges": True},
}
LARGE: dict[str, dict[str, Any]] = {
    "a reader, a kill and a change of the primary": {"posts": SMALL, "budget": KILL_AND_ELECTION},
    "a reader, a change of the primary and a late draw": {"posts": SMALL, "budget": LATE_AND_ELECTION},
    "a reader, a kill and a late draw": {"budget": Budget(kills=1, losses=1)},
    "a reader and two changes of the primary": {"posts": SMALL, "budget": Budget(elections=2)},
    "readers of two servers, and a kill": {"budget": Budget(kills=1, restarts=1)},
    "a reader, both modes, a kill and a change of the primary": {
        "posts": SMALL,
        "exclusive": (0, 1),
        "budget": KILL_AND_ELECTION,
    },
    "a reader, both modes and a late draw": {"exclusive": (0, 1), "budget": LATE},
    "a purge, a kill and a change of the primary": {"posts": SMALL, "purges": True, "budget": KILL_AND_ELECTION},
    "a purge, both modes and a change of the primary": {
        "posts": SMALL,
        "purges": True,
        "exclusive": (0, 1),
        "budget": ELECTION,
    },
}


@pytest.mark.parametrize("fault", [*FAULTS, *(RARE if CAMPAIGN else [])])
def test_search_with_a_deliberate_fault_finds_a_violation(fault: str) -> None:
    found = search(Model(fault, **(FAULTS | RARE)[fault]), ALL_STATES if fault in RARE else MAX_STATES)
    assert found.violation


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [*DESIGNS, *(LARGE if CAMPAIGN else [])])
def test_search_of_the_protocol_finds_no_violation(name: str) -> None:
    found = search(Model(**(DESIGNS | LARGE)[name]), ALL_STATES)
    assert found.violation == ""
    assert found.is_complete
