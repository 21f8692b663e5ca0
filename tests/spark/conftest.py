# SPDX-License-Identifier: Apache-2.0
"""A Spark session with its Java, which all tests of this folder share; other fixtures are in ``spark_python``."""

import atexit
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.abilities import need
from tests.client.conftest import timed
from tests.rotation import CAMPAIGN
from tests.spark.streams import finished
from tests.spark_python.conftest import LIMITS, client, command, make, options, project, proxy, server

__all__ = ["LIMITS", "client", "command", "make", "options", "project", "proxy", "server", "timed"]
ROOT = Path(__file__).parent.parent.parent
# Options for a Java that runs for some minutes: little compilation, no verification, one thread for garbage collection.
SHORT = (
    "-XX:+UnlockDiagnosticVMOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-BytecodeVerificationRemote "
    "-Xshare:auto -XX:-UsePerfData"
)
# Settings that need little processor time.
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
    # On a busy machine, a Python worker takes longer to start than the default of 15 seconds.
    "spark.python.authenticate.socketTimeout": "120s",
}
if not CAMPAIGN:  # Compiling a program for each query takes longer than interpreting it for a few rows.
    SETTINGS |= {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}


def prepared() -> None:
    """Set the environment in which Spark finds Java, and its workers find zq and these tests.

    Skip the test if there is no Java.
    """
    from zq.spark import java

    need("java")
    java.prepare()
    if "SPARK_CONF_DIR" not in os.environ:
        os.environ["SPARK_CONF_DIR"] = _defaults()
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in dict.fromkeys(paths) if path)
    os.environ["PYSPARK_PYTHON"] = sys.executable


def _defaults() -> str:
    """Return a folder with Java settings for every session, also in programs that tests start."""
    folder = tempfile.mkdtemp(prefix="zq-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    Path(folder, "spark-defaults.conf").write_text(f"spark.driver.extraJavaOptions {SHORT}\n")
    return folder


def session(folder: str, master: str = "local[2,3]") -> Any:
    """Return a session that tries each task three times."""
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


@pytest.fixture
def finish(tmp_path: Path) -> Callable[[Any], None]:
    """Return a function that runs a stream until all messages are processed, with the test's checkpoint."""
    return lambda writer: finished(writer.option("checkpointLocation", f"{tmp_path}/checkpoint"))
