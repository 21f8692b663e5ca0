# SPDX-License-Identifier: Apache-2.0
"""Self-test of the checker of topics' readers: the engine in memory passes, and each mutant is found."""

import pytest

from tests.campaign.histories import mutants_of_topics
from tests.campaign.histories.mutants_of_topics import Mutant, served
from tests.campaign.histories.subscribers import Traffic
from tests.rotation import rotated
from zq.storage.ordered.topics import TopicController

POSTS = 8
PATIENCE = 4.0
RUNS = 4

FAULTS = {
    # the planted fault: words of the violation that must report it
    mutants_of_topics.CounterRace: "missed",
    mutants_of_topics.SharedCounter: "an id was given twice",
    mutants_of_topics.ForgottenKey: "saw what nobody was told of",
    mutants_of_topics.PieceByPiece: "an id was given twice",
    mutants_of_topics.Overlooks: "missed",
    mutants_of_topics.ReadsAgain: "saw again",
    mutants_of_topics.LostPost: "missed",
    mutants_of_topics.LeakyPattern: "list saw what nobody was told of",
}


def violations_of(mutant: Mutant) -> list[str]:
    """Return the violations in short traffic on its topics."""
    with served(mutant) as url:
        traffic = Traffic([url], "acme", posts=POSTS, patience=PATIENCE)
        with traffic:
            traffic.finish()
        return traffic.violations()


def test_the_engine_passes() -> None:
    """Otherwise the test of the mutants would prove nothing."""
    assert violations_of(TopicController) == []


@pytest.mark.parametrize("fault", rotated(list(FAULTS), 1), ids=lambda fault: fault.__name__)
def test_a_mutant_is_found(fault: Mutant) -> None:
    """The violation describes the planted fault.

    A race may not occur in such a short run, so a fault gets a few runs.
    """
    found: list[str] = []
    for _ in range(RUNS):
        found = violations_of(fault)
        if any(FAULTS[fault] in sentence for sentence in found):
            return
    pytest.fail(f"not found: {fault.__doc__} Instead: {found[:5]}")
