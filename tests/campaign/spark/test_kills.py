# SPDX-License-Identifier: Apache-2.0
"""Drivers and servers that are killed during a batch or a round: no message is lost or duplicated."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.campaign.spark.driver import copying
from tests.cli.conftest import COMMAND
from tests.servers import ZqServer, wait_for
from zq.client import Client
from zq.testing import Server

pytest.importorskip("pyspark")

from tests.spark.conftest import LIMITS, ROOT, SETTINGS
from tests.spark.pipelines import Make, bodies, doubled
from tests.spark.streams import SLOW, started, taking, writing
from zq.spark.pipeline import Totals


def test_a_killed_driver_goes_on_from_its_checkpoint(spark, timed: Server, project, tmp_path) -> None:
    """The driver of two streams dies during a batch; one stream is restarted at once, one after its claims expire."""
    queues = ["soon", "late"]
    for queue in queues:
        (tmp_path / queue).mkdir()
        (tmp_path / queue / "hold").touch()
    options = {"url": timed.url, "project": project, "retryFor": "30"}
    with Client(timed.url, project) as client:
        for queue in queues:
            client.queue(queue).post_many(range(100))
        kill_driver([timed.url, project, str(tmp_path), *queues], [tmp_path / queue / "reached" for queue in queues])
        for queue in queues:
            assert bodies(client, f"{queue}-out") == []
            (tmp_path / queue / "hold").unlink()
        for queue in queues:
            query = copying(spark, options, queue, str(tmp_path)).start()
            assert query.awaitTermination(SLOW)
            assert sorted(map(int, bodies(client, f"{queue}-out"))) == list(range(100))
            assert client.queue(queue).stats().total == 0
            timed.clock.advance(301)


def kill_driver(arguments: list[str], reached: list[Path]) -> None:
    """Start a driver and kill all its processes when the files exist."""
    driver = subprocess.Popen([sys.executable, "-m", "tests.campaign.spark.driver", *arguments], start_new_session=True)
    try:
        wait_for(lambda: driver.poll() is not None or all(map(Path.exists, reached)), SLOW, "a batch is in work")
        assert driver.poll() is None, "the driver ended by itself"
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(20)


def test_a_server_that_dies_and_comes_back_is_waited_for(spark, project, tmp_path) -> None:
    """The server dies during a stream; no message is lost or duplicated."""
    with ZqServer(f"rocksdb://{tmp_path}/store") as mortal, Client(mortal.url, project) as client:
        options = {"url": mortal.url, "project": project, "retryFor": "60"}
        stream = writing(taking(spark, options, maxMessagesPerBatch=40), options, ackColumn="claim")
        client.queue("in").post_many(range(400))
        stream = stream.option("checkpointLocation", f"{tmp_path}/checkpoint")
        query = started(stream, lambda: client.queue("in").stats().total < 400, "the first batch is done")
        try:
            mortal.kill()
            mortal.start()
            wait_for(lambda: client.queue("in").stats().total == 0, SLOW, "all batches are done")
            assert query.isActive
        finally:
            query.stop()
        assert sorted(map(int, bodies(client))) == list(range(400))


@pytest.mark.timeout(600)
def test_a_driver_that_was_killed_is_followed_by_another(spark, server, client, project, tmp_path, make) -> None:
    """The next run of a pipeline killed in its second round continues after its commit and finds its claims by name.

    ``zq pipeline run`` had already claimed the third round. The next run does not depend on its own claim size.
    """
    client.queue("in").post_many(range(60))
    (tmp_path / "hold").touch()
    given = ["--url", server.url, "--project", project, "pipeline", "run", "tests/campaign/spark/pipeline_driver.py"]
    settings = [f"--conf={name}={value}" for name, value in SETTINGS.items()]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYSPARK_PYTHON", "PYTHONPATH")}
    environment |= {"PIPELINE_FOLDER": str(tmp_path), "PATH": "/usr/bin:/bin"}
    driver = subprocess.Popen(
        [*COMMAND, *given, "--master=local[2,3]", *settings], cwd=ROOT, env=environment, start_new_session=True
    )
    try:
        reached = (tmp_path / "reached").exists
        wait_for(lambda: driver.poll() is not None or reached(), SLOW, "it is in its second round")
        assert driver.poll() is None, "the driver ended by itself"
        wait_for(lambda: client.queue("in").stats().claimed == 40, SLOW, "it has prefetched the third one's")
    finally:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.wait(20)
    assert len(bodies(client)) == 20
    assert make(doubled, claim_size=1000).run(spark, until_empty=True) == Totals(1, 40, 40, 0)
    assert sorted(map(int, bodies(client))) == [*range(20), *range(40, 120, 2)]
    assert client.queue("in").stats().total == 0


@pytest.mark.timeout(600)
def test_a_server_that_is_killed_in_a_round_is_waited_for(spark, make: Make, tmp_path: Path) -> None:
    """After the server's return, every message is processed once."""
    with ZqServer(f"rocksdb://{tmp_path}/store", config=LIMITS) as own:
        pipeline = make(lambda frame: (own.kill(), own.start(), doubled(frame))[2], url=own.url, retry_for=30)
        with Client(own.url, pipeline.project) as client:
            client.queue("in").post_many(range(50))
            assert pipeline.run(spark, until_empty=True) == Totals(1, 50, 50, 0)
            assert sorted(map(int, bodies(client))) == list(range(0, 100, 2))
            assert client.queue("in").stats().total == 0
