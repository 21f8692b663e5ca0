# SPDX-License-Identifier: Apache-2.0
"""Posts on MongoDB whose numbers are drawn outside their transactions, in every interleaving; see ``numbering``."""

from typing import Any

import pytest

from tests.model.numbering import Beside, Budget, Model, search
from tests.rotation import CAMPAIGN

pytestmark = pytest.mark.one_store
SMALL = (((2,),), ((1,),))
SMALLEST = (((1,),), ((1,),))
# A post to two queues, and posts of the other server to one of them or to both.
TWO_QUEUES = (((1, 1),), ((0, 1),))
BOTH_QUEUES = (((1, 1),), ((1, 1),))
KILL, ELECTION, LATE = Budget(kills=1), Budget(elections=1), Budget(losses=1)
KILL_AND_ELECTION, LATE_AND_ELECTION = Budget(kills=1, elections=1), Budget(losses=1, elections=1)
# Maximum number of states of a short daily search and of a complete one.
MAX_STATES = 400_000
ALL_STATES = 20_000_000

PURGE: dict[str, Any] = {"beside": Beside.PURGE, "posts": SMALL, "budget": KILL_AND_ELECTION}
METADATA: dict[str, Any] = {"beside": Beside.METADATA, "posts": SMALL, "budget": KILL}
FAULTS: dict[str, dict[str, Any]] = {
    "never waits": {"budget": KILL_AND_ELECTION},
    "does not wait for the lane": {"budget": KILL_AND_ELECTION},
    "reads before the touch is durable": {"budget": KILL_AND_ELECTION},
    "reads the lanes after the messages": {"budget": KILL_AND_ELECTION},
    "reads lanes that are not durable": {"budget": KILL_AND_ELECTION},
    "reads messages that came after the view": {"budget": KILL_AND_ELECTION},
    "takes the last number for final": {"budget": KILL_AND_ELECTION},
    "remembers settled lanes by group": {"posts": (((1,), (1,)), ((1,),)), "budget": KILL},
    "settles by a view that is not durable": {"budget": KILL_AND_ELECTION},
    "draws before it holds the lane": {"budget": KILL_AND_ELECTION},
    "looks while the transaction is open": {"budget": KILL_AND_ELECTION},
    "a late draw counts": {"budget": LATE},
    "a change does not wait for the lanes": PURGE,
    "draws beside a held counter": {"exclusive": (1,), "budget": KILL_AND_ELECTION},
    "notes the range in the first queue only": {"posts": TWO_QUEUES},
    "commits each queue by itself": {"posts": TWO_QUEUES},
    "judges by the metadata before the draw": METADATA,
    "posts in exclusive mode by cached metadata": {**METADATA, "exclusive": (0, 1)},
    "a page of ready messages waits only for lower numbers": {"beside": Beside.READY, "delayed": (1,)},
}
# The faults whose search takes more than ten seconds.
RARE: dict[str, dict[str, Any]] = {
    "a purge goes on though its decision was lost": PURGE,
    "remembers settled lanes by first number": {"posts": (((1, 0), (0, 1)), ((1, 0), (0, 1)))},
    "takes a consumed page for the end": {"posts": (((2,), (1,)), ((1,),)), "budget": Budget(kills=1, pops=2)},
}

DESIGNS: dict[str, dict[str, Any]] = {
    "a reader": {"posts": SMALL},
    "a reader and a change of the primary": {"posts": SMALL, "budget": ELECTION},
    "a reader, both modes and a kill": {"posts": SMALLEST, "exclusive": (0, 1), "budget": KILL},
    "a reader and consumers": {"posts": SMALL, "budget": Budget(pops=2)},
    "a reader of two queues": {"posts": TWO_QUEUES},
    "a reader of ready messages": {"beside": Beside.READY, "delayed": (1,)},
    "a purge": {"beside": Beside.PURGE, "posts": SMALL},
    "a change of the metadata": METADATA,
    "a change of the metadata and both modes": {**METADATA, "posts": SMALLEST, "exclusive": (0, 1)},
}
LARGE: dict[str, dict[str, Any]] = {
    "a reader, a kill and a change of the primary": {"posts": SMALL, "budget": KILL_AND_ELECTION},
    "a reader, a change of the primary and a late draw": {"posts": SMALL, "budget": LATE_AND_ELECTION},
    "a reader, a kill and a late draw": {"posts": SMALL, "budget": Budget(kills=1, losses=1)},
    "a reader and two changes of the primary": {"posts": SMALL, "budget": Budget(elections=2)},
    "readers of two servers, and a kill": {"budget": Budget(kills=1, restarts=1)},
    "a reader, both modes, a kill and a change of the primary": {
        "posts": SMALL,
        "exclusive": (0, 1),
        "budget": KILL_AND_ELECTION,
    },
    "a reader, both modes and a late draw": {"exclusive": (0, 1), "budget": LATE},
    "a reader of two queues and a kill": {"posts": BOTH_QUEUES, "budget": KILL},
    "a reader of two queues and a late draw": {"posts": TWO_QUEUES, "budget": LATE},
    "a reader of two queues, both modes and a change of the primary": {
        "posts": TWO_QUEUES,
        "exclusive": (0, 1),
        "budget": ELECTION,
    },
    "a reader of ready messages and a kill": {"beside": Beside.READY, "delayed": (1,), "budget": KILL},
    "a reader, consumers and a change of the primary": {"posts": SMALL, "budget": Budget(elections=1, pops=2)},
    "a purge and a kill": {**PURGE, "budget": KILL},
    "a purge, both modes and a change of the primary": {
        "beside": Beside.PURGE,
        "posts": SMALL,
        "exclusive": (0, 1),
        "budget": ELECTION,
    },
    "a change of the metadata, a kill and a change of the primary": {**METADATA, "budget": KILL_AND_ELECTION},
    "a change of the metadata and a late draw": {**METADATA, "budget": LATE},
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
