# SPDX-License-Identifier: Apache-2.0
"""Starts a Spark session for a program of zq's: that of ``spark-submit``, or one with settings of ours."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import zq
from zq.spark import java

MASTER: Final = "local[*,4]"
"""On this machine; a task that fails is tried four times, as on a cluster."""
LOCAL: Final[Mapping[str, str]] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
LEVEL: Final = "spark.log.level"
QUIET: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    LEVEL: "OFF",
}
LOGGER: Final = "DataFrameQueryContextLogger"
"""Tells errors that are raised, too, with a trace each; the level above does not concern it."""


def started(name: str, master: str = MASTER, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A new session, whose workers are of this Python and find zq. Raises ``StartRefused`` without Java."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java, and its settings hold
        return SparkSession.Builder().getOrCreate()
    java.prepare()
    paths = [str(Path(zq.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    builder = SparkSession.Builder().appName(name).master(master)
    if LEVEL not in (settings or {}):
        PySparkLogger.getLogger(LOGGER).disabled = True
    own = LOCAL if master.startswith("local") else {}
    for setting, value in {**own, **QUIET, **(settings or {})}.items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()
