# SPDX-License-Identifier: Apache-2.0
"""Pipelines without Spark: their settings, and the claims that a run makes, adopts and releases."""

from typing import Any

import pytest

from tests.servers import wait_for
from tests.spark.pipelines import Make, begun, doubled
from zq.errors import Fenced, Invalid

pytest.importorskip("pyspark")

from zq.spark.pipeline import Pipeline, Totals


def test_claims_of_an_earlier_run_are_found_however_it_made_them(client, make: Make) -> None:
    """The earlier run made more and smaller claims, one of which was settled, and prefetched others."""
    client.queue("in").post_many(range(60))
    died = begun(make(doubled, claim_size=5, max_messages=30))
    first = died.claim()
    died._start_prefetch(first)
    died._prefetch.take()
    died._heartbeat.stop()
    client.queue("in").settle("in.out.1.2", delete="*")
    found = begun(make(doubled, claim_size=1000, max_messages=10)).claim()
    assert found.messages == 55
    assert [*found.claims] == [f"in.out.1.{n}" for n in (0, 1, 3, 4, 5)] + [f"in.out.2.{n}" for n in range(6)]


def test_a_run_prefetches_the_next_round(client, make: Make) -> None:
    """The next round is prefetched if there is a backlog, and released when the run ends.

    A name in use is not claimed a second time.
    """
    client.queue("in").post_many(range(50))
    runner = begun(make(doubled, max_messages=20))
    first = runner.claim()
    runner._start_prefetch(first)
    wait_for(lambda: client.queue("in").stats().claimed == 40, 60, "two rounds are claimed")
    second = runner.claim()
    assert [*second.claims] == ["in.out.2.0"]
    runner._start_prefetch(second)
    assert runner._prefetch.take() is None
    runner._claimer.release(first)
    runner._prefetch.start(second, lambda: None)
    runner.end()
    assert client.queue("in").stats().free == 50


def test_a_round_knows_how_often_its_messages_were_handed_out(client, make: Make) -> None:
    """The count of a round is the smallest of its messages: a new message in another claim counts."""
    client.queue("in").post_many(range(2))
    runner = begun(make(doubled, claim_size=2))
    for times in (1, 2):
        batch = runner.claim()
        assert batch.claim_count == times
        runner._claimer.release(batch)
    client.queue("in").post(3)
    assert runner.claim().claim_count == 1


def test_a_commit_of_another_run_does_not_count(client, make: Make) -> None:
    """The server reports the batch as committed; the fence shows that another run did it."""
    client.queue("in").post_many(range(2))
    runner = begun(make(doubled))
    runner.claim()
    client.fence(runner.name)
    client.commit(runner.name, 1)
    with pytest.raises(Fenced):
        runner._committed()
    assert runner.totals == Totals()
    runner.end()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"name": "a/b"}, "name must be 1 to 64 characters"),
        ({"source": "q" * 64}, "name must be 1 to 64 characters"),
        ({"sink": "in"}, "source and sink must be two queues"),
        ({"stages": doubled}, "stages must be a list of functions"),
        ({"stages": []}, "stages must be a list of functions"),
        ({"stages": ["parse"]}, "stages must be functions, not 'parse'"),
        ({"claim_ttl": 1}, "claim_ttl must be an integer from 60"),
        ({"max_messages": 0}, "max_messages must be an integer from 1"),
        ({"most_poison": -1}, "most_poison must be an integer from 0"),
        ({"body_type": "text"}, "body_type must be one of string, binary, variant"),
        ({"sink_options": {"ackColumn": "claim"}}, "not ackColumn"),
    ],
)
def test_wrong_settings_are_refused_by_name(wrong: dict[str, Any], sentence: str) -> None:
    """The settings are checked before there is a session."""
    with pytest.raises(Invalid, match=sentence):
        Pipeline(**{"source": "in", "sink": "out", "stages": [doubled], **wrong})


def test_a_run_refuses_settings_that_are_checked_late(client, make: Make, monkeypatch) -> None:
    """The cases are a missing project and another dead-letter queue."""
    monkeypatch.delenv("ZQ_PROJECT", raising=False)
    with pytest.raises(Invalid, match="project is missing"):
        make(doubled, project=None).claiming_options()
    client.queue("in").create({"_dead_letter_queue": "dead"})
    with pytest.raises(Invalid, match="Queue in has dead as _dead_letter_queue, but the pipeline has elsewhere"):
        begun(make(doubled), "elsewhere")


def test_a_run_that_is_refused_or_fenced_changes_no_queue(client, make: Make) -> None:
    """The dead-letter queue is set under the fence; a rule that dead-letters by claim count causes a warning."""
    with pytest.warns(UserWarning, match="There is no queue in yet"):
        begun(make(doubled), "dead")
    assert client.queue("in").metadata()["_dead_letter_queue"] == "dead"
    client.queue("in").update({"_max_claim_count": 3})
    with pytest.warns(UserWarning, match="Queue in has _max_claim_count: failed rounds count"):
        begun(make(doubled), "dead")
