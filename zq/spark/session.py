# SPDX-License-Identifier: Apache-2.0
"""Spark sessions of zq programs: that of ``spark-submit``, or a local one; and their current tasks."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import zq
from zq.spark import java
from zq.spark.failures import SPARK_ERRORS

# Master of a local session. A failed task is tried four times, as on a cluster.
MASTER: Final = "local[*,4]"
# Settings of a local session.
LOCAL: Final[Mapping[str, str]] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# Settings that keep Spark from writing to the terminal.
QUIET: Final[Mapping[str, str]] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
# Setting of the log level. The default is off, because failures are raised; before the session is up, ``PROFILE`` sets
# the level.
LEVEL: Final = "spark.log.level"
# The configuration of Spark's log.
PROFILE: Final = Path(__file__).with_name("log4j2.properties")
# The logger that also logs raised errors with a traceback, regardless of the level above.
LOGGER: Final = "DataFrameQueryContextLogger"


def started(name: str, master: str = MASTER, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session whose workers use this Python and find zq. Raises ``StartRefused`` without Java."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java and set the options
        return SparkSession.Builder().getOrCreate()
    _prepend("PYTHONPATH", str(Path(zq.__file__).parent.parent), os.pathsep)
    _prepend("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={PROFILE.as_uri()}", " ")
    java.prepare()
    builder = SparkSession.Builder().appName(name).master(master)
    own: Mapping[str, str] = {}
    if master.startswith("local"):
        own = LOCAL
        os.environ.setdefault("SPARK_LOCAL_IP", LOCAL["spark.driver.host"])  # avoids a search and a warning
    for setting, value in {**own, **QUIET, **(settings or {})}.items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    if LEVEL not in (settings or {}):
        PySparkLogger.getLogger(LOGGER).disabled = True
        spark.sparkContext.setLogLevel("OFF")
    return spark


def _prepend(variable: str, text: str, between: str) -> None:
    """Prepend text to an environment variable, because Java uses the last value."""
    os.environ[variable] = between.join(filter(None, [text, os.environ.get(variable)]))


def tasks(spark: SparkSession) -> str:
    """Return the progress of active stages, with failed and retried tasks; "" if there are none."""
    with suppress(*SPARK_ERRORS):  # the session is being stopped
        tracker = spark.sparkContext.statusTracker()
        stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
        if stages:
            failed = sum(stage.numFailedTasks for stage in stages)
            done, known = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
            return f"{done:,} of {known:,} tasks" + (f", {failed:,} failed and retried" if failed else "")
    return ""
