# SPDX-License-Identifier: Apache-2.0
"""Pipelines: each message counts once, whatever fails."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.client.misbehaving import LOST_ANSWER, Proxy
from tests.spark.pipelines import Make, begun, bodies, doubled, mapped
from tests.spark.streams import SLOW
from zq.client import Client
from zq.errors import Fenced
from zq.testing import Server

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from zq.spark.pipeline import RoundFailed, Totals


def test_each_message_goes_through_the_stages_once(spark, client, make: Make) -> None:
    """The run has rounds of several claims; several actions and joins of a stage read the same messages."""
    client.queue("in").post_many(range(1000))
    told: list[int] = []

    def joined(frame: Any) -> Any:
        assert frame.count() in (600, 400)
        return frame.join(frame.selectExpr("id", "body as again"), "id").where("body = again")

    pipeline = make(joined, doubled, max_messages=600)
    totals = pipeline.run(spark, until_empty=True, progress=lambda done: told.append(done.taken))
    assert totals == Totals(rounds=2, taken=1000, published=1000, buried=0)
    assert told == [600, 1000]
    assert sorted(map(int, bodies(client))) == list(range(0, 2000, 2))
    assert client.queue("in").stats().total == 0


def test_stages_may_group_and_say_where_rows_go(spark, client, make: Make) -> None:
    """Stages may use wide transformations, and may name a queue for each row."""
    client.queue("in").post_many(range(300))

    def summed(frame: Any) -> Any:
        groups = frame.groupBy(F.expr("cast(body as int) % 3").alias("part")).agg(
            F.expr("sum(cast(body as int)) total")
        )
        return groups.selectExpr("cast(total as string) body", "case when part > 0 then 'part-' || part end queue")

    assert make(summed).run(spark, until_empty=True).published == 3
    assert [bodies(client, queue) for queue in ("out", "part-1", "part-2")] == [["14850"], ["14950"], ["15050"]]


def test_a_task_that_fails_once_doubles_nothing(spark, client, make: Make, tmp_path: Path, monkeypatch) -> None:
    """Spark retries the task, and no message is taken for poison; tasks read the messages of this round themselves."""
    monkeypatch.setattr("zq.spark.runner.INLINED_BYTES", 0)
    client.queue("in").post_many(range(300))

    def once(body: str) -> str:
        from pyspark import TaskContext

        if body == "250" and TaskContext.get().attemptNumber() == 0:
            (tmp_path / "failed").touch()
            raise ValueError("once")
        return body

    assert make(mapped(once)).run(spark, until_empty=True) == Totals(1, 300, 300, 0)
    assert (tmp_path / "failed").exists()
    assert sorted(map(int, bodies(client))) == list(range(300))


def test_a_commit_whose_answer_is_lost_counts(spark, client, make: Make, proxy: Proxy) -> None:
    """The commit is repeated, or the run queries the server for its result."""

    def troubled(frame: Any) -> Any:
        proxy.commits.append(LOST_ANSWER)
        return doubled(frame)

    for patience in (5, 0):
        client.queue("in").post_many(range(50))
        totals = make(troubled, url=proxy.url, retry_for=patience).run(spark, until_empty=True)
        assert not proxy.commits
        assert totals == Totals(1, 50, 50, 0)
    assert sorted(map(int, bodies(client))) == sorted([*range(0, 100, 2)] * 2)


def test_a_run_that_starts_when_claims_have_lapsed_takes_their_messages(spark, make: Make, timed: Server) -> None:
    """The messages were claimed by a run that died, which has an old fence."""
    pipeline = make(doubled, url=timed.url, claim_size=10, max_messages=20)
    with Client(timed.url, pipeline.project) as client:
        client.queue("in").post_many(range(20))
        died = begun(pipeline)
        assert len(died.claim().claims) == 2
        died._heartbeat.stop()
        timed.clock.advance(301)
        assert pipeline.run(spark, until_empty=True) == Totals(1, 20, 20, 0)
        assert sorted(int(message.body) for message in client.queue("out").list()) == list(range(0, 40, 2))
        with pytest.raises(Fenced):
            died.claim()


def test_a_second_run_of_the_same_name_stops_the_first(spark, client, make: Make) -> None:
    """The first run fails in a round, of which nothing is published; the second one processes the messages."""
    client.queue("in").post_many(range(10))
    working, go_on = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def slow(frame: Any) -> Any:
        working.set()
        assert go_on.wait(SLOW)
        return doubled(frame)

    def first() -> None:
        try:
            make(slow).run(spark)
        except Fenced as error:
            errors.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert working.wait(SLOW)

    def second(frame: Any) -> Any:
        go_on.set()
        thread.join(SLOW)
        return doubled(frame)

    assert make(second).run(spark, until_empty=True) == Totals(1, 10, 10, 0)
    assert "Another run of pipeline in.out was started" in str(errors[0])
    assert len(bodies(client)) == 10


def test_a_claim_that_is_gone_fails_the_round(spark, client, make: Make) -> None:
    """Another consumer may process its messages."""
    client.queue("in").post_many(range(250))

    def losing(frame: Any) -> Any:
        client.queue("in").release("in.out.1.1")
        return doubled(frame)

    with pytest.raises(RoundFailed, match=r"claim in\.out\.1\.1 has expired"):
        make(losing).run(spark)
    assert client.queue("in").stats().free == 250
    assert bodies(client) == []


def test_an_empty_queue_is_nothing_to_do(spark, client, make: Make) -> None:
    """The run creates no queue."""
    with pytest.warns(UserWarning, match="There is no queue in yet"):
        assert make(doubled).run(spark, until_empty=True) == Totals()
    assert not client.queue("out").exists()


def test_a_run_that_is_stopped_ends_after_its_round(spark, client, make: Make) -> None:
    """Messages that are claimed but not processed are released at once."""
    client.queue("in").post_many(range(20))

    def stopping(frame: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return doubled(frame)

    pipeline = make(stopping, max_messages=10)
    assert pipeline.run(spark) == Totals(1, 10, 10, 0)
    runner = begun(pipeline)
    batch = runner.claim()
    assert client.queue("in").stats().claimed == 10
    runner.stopped.set()
    assert not runner.work(batch)
    runner.end()
    assert client.queue("in").stats().free == 10
