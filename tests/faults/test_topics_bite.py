# SPDX-License-Identifier: Apache-2.0
"""The judge of what readers of topics saw bites: it acquits sound topics in memory, and finds each planted fault."""

import pytest

from tests.faults import planted_topics
from tests.faults.planted_topics import MemoryTopics
from tests.faults.subscribers import Traffic

POSTS = 8
PATIENCE = 4.0
RUNS = 4

FAULTS = {
    # what is planted: words of the sentence that must tell it
    planted_topics.CounterRace: "missed",
    planted_topics.SharedCounter: "an id was given twice",
    planted_topics.ForgottenKey: "saw what nobody was told of",
    planted_topics.PieceByPiece: "an id was given twice",
    planted_topics.LateListener: "missed",
    planted_topics.ResumesAtLast: "saw again",
    planted_topics.LostPost: "missed",
    planted_topics.LeakyPattern: "us saw what nobody was told of",
}


def verdict(topics: MemoryTopics) -> list[str]:
    """A short traffic on them, judged."""
    with topics:
        traffic = Traffic([topics.url], "acme", posts=POSTS, patience=PATIENCE)
        with traffic:
            traffic.finish()
        return traffic.violations()


def test_sound_topics_are_acquitted() -> None:
    """Otherwise what follows would prove nothing."""
    assert verdict(MemoryTopics()) == []


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_planted_fault_is_found(fault: type[MemoryTopics]) -> None:
    """And told by its name; a race may miss its chance in a run so short, and gets a few."""
    found: list[str] = []
    for _ in range(RUNS):
        found = verdict(fault())
        if any(FAULTS[fault] in sentence for sentence in found):
            return
    pytest.fail(f"not found: {fault.__doc__} Instead: {found[:5]}")
