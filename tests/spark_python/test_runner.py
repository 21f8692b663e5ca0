# SPDX-License-Identifier: Apache-2.0
"""Pipelines without Spark: what they accept, and which claims a run makes, adopts and releases."""

from typing import Any

import pytest

from tests.servers import wait_for
from tests.spark.pipelines import Make, begun, doubled
from zq.errors import Fenced, Invalid

pytest.importorskip("pyspark")

from zq.spark.pipeline import Pipeline, Totals


def test_claims_of_an_earlier_run_are_found_however_it_made_them(client, make: Make) -> None:
    """More and smaller ones than are made now, with gaps where all of a claim was buried; and the prefetched ones."""
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
    """If there is a backlog; a run that ends releases it. Names in use are not claimed a second time."""
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
    """At least: a fresh one in another claim counts."""
    client.queue("in").post_many(range(2))
    runner = begun(make(doubled, claim_size=2))
    for times in (1, 2):
        batch = runner.claim()
        assert batch.claim_count == times
        runner._claimer.release(batch)
    client.queue("in").post(3)
    assert runner.claim().claim_count == 1


def test_what_another_run_has_committed_does_not_count(client, make: Make) -> None:
    """The server says that the batch is committed; the fence says by whom not."""
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
    """Where they are given, before there is a session."""
    with pytest.raises(Invalid, match=sentence):
        Pipeline(**{"source": "in", "sink": "out", "stages": [doubled], **wrong})


def test_a_run_refuses_what_it_finds_out_late(client, make: Make, monkeypatch) -> None:
    """A project that nobody names, and another dead letter queue."""
    monkeypatch.delenv("ZQ_PROJECT", raising=False)
    with pytest.raises(Invalid, match="project is missing"):
        make(doubled, project=None).claiming_options()
    client.queue("in").create({"_dead_letter_queue": "dead"})
    with pytest.raises(Invalid, match="Queue in has dead as _dead_letter_queue, but the pipeline has elsewhere"):
        begun(make(doubled), "elsewhere")


def test_a_run_that_is_refused_or_fenced_changes_no_queue(client, make: Make) -> None:
    """The dead letter queue is set under the fence; what sends messages away by count is warned of."""
    with pytest.warns(UserWarning, match="There is no queue in yet"):
        begun(make(doubled), "dead")
    assert client.queue("in").metadata()["_dead_letter_queue"] == "dead"
    client.queue("in").update({"_max_claim_count": 3})
    with pytest.warns(UserWarning, match="Queue in has _max_claim_count: failed rounds count"):
        begun(make(doubled), "dead")
