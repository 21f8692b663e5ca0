# SPDX-License-Identifier: Apache-2.0
"""Pipelines: each message counts once, whatever fails, and what cannot be worked on is buried with the reason."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import COMMAND
from tests.client.misbehaving import LOST_ANSWER, Proxy
from tests.servers import wait_for
from tests.spark.conftest import ROOT, SETTINGS, prepared
from tests.spark.pipelines import Make, bodies, doubled, mapped
from zq.errors import Fenced, Invalid

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from tests.spark.pipeline_driver import copying
from zq.spark.pipeline import RoundFailed, Totals
from zq.spark.runner import Runner


def test_each_message_goes_through_the_stages_once(spark, client, make: Make) -> None:
    """In rounds of several claims; several actions and joins of a stage read the same messages."""
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
    """Wide transformations, and a queue of its own for each row."""
    client.queue("in").post_many(range(300))

    def summed(frame: Any) -> Any:
        groups = frame.groupBy(F.expr("cast(body as int) % 3").alias("part")).agg(
            F.expr("sum(cast(body as int)) total")
        )
        return groups.selectExpr("cast(total as string) body", "case when part > 0 then 'part-' || part end queue")

    assert make(summed).run(spark, until_empty=True).published == 3
    assert [bodies(client, queue) for queue in ("out", "part-1", "part-2")] == [["14850"], ["14950"], ["15050"]]


def test_a_task_that_fails_once_doubles_nothing(spark, client, make: Make, tmp_path: Path) -> None:
    """It is tried again by Spark, and nothing is taken for poison."""
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
    """Whether it is repeated, or the run finds out from the server."""

    def troubled(frame: Any) -> Any:
        proxy.commits.append(LOST_ANSWER)
        return doubled(frame)

    for patience in (5, 0):
        client.queue("in").post_many(range(50))
        totals = make(troubled, url=proxy.url, retry_for=patience).run(spark, until_empty=True)
        assert not proxy.commits
        assert totals == Totals(1, 50, 50, 0)
    assert sorted(map(int, bodies(client))) == sorted([*range(0, 100, 2)] * 2)


@pytest.mark.timeout(200)
def test_a_driver_that_was_killed_is_followed_by_another(spark, server, client, tmp_path) -> None:
    """In the middle of a round, whose claims are found by their names, and just after a commit."""
    for queue in ("inside", "after"):
        (tmp_path / queue).mkdir()
        client.queue(queue).post_many(range(100))
    (tmp_path / "inside" / "hold").touch()
    project = client.transport._settings.headers["X-Project-ID"]
    arguments = [sys.executable, "-m", "tests.spark.pipeline_driver", server.url, project, str(tmp_path)]
    driver = subprocess.Popen(arguments, start_new_session=True)
    try:
        reached = [tmp_path / "inside" / "reached", tmp_path / "after" / "committed"]
        wait_for(lambda: driver.poll() is not None or all(map(Path.exists, reached)), 150, "both are where they stay")
        assert driver.poll() is None, "the driver ended by itself"
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(20)
    (tmp_path / "inside" / "hold").unlink()
    assert [len(bodies(client, queue)) for queue in ("inside-out", "after-out")] == [0, 60]
    assert client.queue("inside").stats().claimed == 60
    for queue, taken in (("inside", 100), ("after", 40)):
        totals = copying(queue, server.url, project, str(tmp_path)).run(spark, until_empty=True)
        assert totals.taken == taken
        assert sorted(map(int, bodies(client, f"{queue}-out"))) == list(range(100))
        assert client.queue(queue).stats().total == 0


def test_a_second_run_of_the_same_name_stops_the_first(spark, client, make: Make) -> None:
    """With a sentence, in the middle of a round, of which nothing is published; the second one does it."""
    client.queue("in").post_many(range(10))
    working, go_on = threading.Event(), threading.Event()
    errors: list[Exception] = []

    def slow(frame: Any) -> Any:
        working.set()
        assert go_on.wait(60)
        return doubled(frame)

    def first() -> None:
        try:
            make(slow).run(spark)
        except Fenced as error:
            errors.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert working.wait(30)

    def second(frame: Any) -> Any:
        go_on.set()
        thread.join(60)
        return doubled(frame)

    assert make(second).run(spark, until_empty=True) == Totals(1, 10, 10, 0)
    assert "Another run of pipeline in.out was started" in str(errors[0])
    assert len(bodies(client)) == 10


def test_a_claim_that_is_gone_fails_the_round(spark, client, make: Make) -> None:
    """Its messages may be at work elsewhere."""
    client.queue("in").post_many(range(250))

    def losing(frame: Any) -> Any:
        client.queue("in").release("in.out.1.1")
        return doubled(frame)

    with pytest.raises(RoundFailed, match=r"claim in\.out\.1\.1 has lapsed"):
        make(losing).run(spark)
    assert client.queue("in").stats().free == 250
    assert bodies(client) == []


def test_an_empty_queue_is_nothing_to_do(spark, client, make: Make) -> None:
    """And makes no other."""
    assert make(doubled).run(spark, until_empty=True) == Totals()
    assert not client.queue("out").exists()


def test_a_run_that_is_told_to_stop_ends_after_its_round(spark, client, make: Make) -> None:
    """What is claimed and not begun is given back at once."""
    client.queue("in").post_many(range(20))

    def stopping(frame: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return doubled(frame)

    pipeline = make(stopping, max_messages=10)
    assert pipeline.run(spark) == Totals(1, 10, 10, 0)
    runner = Runner(pipeline.taking(), None, 1)  # type: ignore[arg-type]
    runner.begin(None)
    claims = runner.reserve()
    assert client.queue("in").stats().claimed == 10
    runner.stopped.set()
    assert not runner.work(claims)
    runner.end()
    assert client.queue("in").stats().free == 10


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"name": "a/b"}, "Option consumer must have 1 to 64 characters"),
        ({"claim_ttl": 1}, "Option claimTtl must be an integer from 60"),
        ({"project": ""}, "Option project is missing"),
        ({"sink_options": {"ackColumn": "claim"}}, "not ackColumn"),
        ({"dead_letters": "elsewhere"}, "Queue in has dead as _dead_letter_queue, and the pipeline elsewhere"),
    ],
)
def test_wrong_settings_are_refused_by_name(spark, client, make: Make, monkeypatch, wrong, sentence: str) -> None:
    """Before anything is claimed."""
    monkeypatch.delenv("ZQ_PROJECT", raising=False)
    client.queue("in").create({"_dead_letter_queue": "dead"})
    with pytest.raises(Invalid, match=sentence):
        make(doubled, **wrong).run(spark)


@pytest.mark.timeout(120)
def test_the_command_line_runs_the_sample_until_it_is_told_to_stop(server, client, tmp_path: Path) -> None:
    """The job in api-ref/pipelines.md, as a process of its own."""
    prepared()
    page = (ROOT / "api-ref" / "pipelines.md").read_text()
    [sample] = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "job.py").write_text(sample)
    client.queue("raw").post_many([{"item": "lamp", "price": 20, "count": 3}, {"price": 1}])
    project = client.transport._settings.headers["X-Project-ID"]
    settings = [f"--conf={name}={value}" for name, value in SETTINGS.items()]
    words = ["--url", server.url, "--project", project, "pipeline", "run", "job.py", "--master=local[2,3]", *settings]
    process = subprocess.Popen([*COMMAND, *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(lambda: process.poll() is not None or client.queue("clean").stats().total, 100, "it has worked")
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert json.loads(told) == {"rounds": 1, "taken": 2, "published": 1, "buried": 1}
    assert bodies(client, "clean") == [{"item": "lamp", "total": 60.0}]
    assert [message.reason for message in client.queue("raw-dlq").list()] == ["no order with an item"]
