# SPDX-License-Identifier: Apache-2.0
"""Spark sessions for zq's programs: the session of ``spark-submit``, or a new session."""

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

# Default master: a local session that tries each task four times, as on a cluster.
MASTER: Final = "local[*,4]"
# Settings of a local session.
LOCAL: Final[Mapping[str, str]] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# Settings that disable Spark's web UI and its progress bar.
QUIET_SETTINGS: Final[Mapping[str, str]] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
# Setting of the log level. The default is off, because failures are raised as exceptions. Before the session has
# started, ``LOG_CONFIGURATION`` sets the level.
LEVEL: Final = "spark.log.level"
# Configuration file of Spark's log.
LOG_CONFIGURATION: Final = Path(__file__).with_name("log4j2.properties")
# A logger that ignores the log level and logs raised exceptions a second time.
LOGGER: Final = "DataFrameQueryContextLogger"


def start_session(name: str, master: str = MASTER, settings: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session whose workers can import zq. Raises ``StartRefused`` if there is no Java."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java and set the options
        return SparkSession.Builder().getOrCreate()
    _prepend("PYTHONPATH", str(Path(zq.__file__).parent.parent), os.pathsep)
    _prepend("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={LOG_CONFIGURATION.as_uri()}", " ")
    java.prepare()
    builder = SparkSession.Builder().appName(name).master(master)
    own: Mapping[str, str] = {}
    if master.startswith("local"):
        own = LOCAL
        os.environ.setdefault("SPARK_LOCAL_IP", LOCAL["spark.driver.host"])  # otherwise Spark guesses it and warns
    for setting, value in {**own, **QUIET_SETTINGS, **(settings or {})}.items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    if LEVEL not in (settings or {}):
        PySparkLogger.getLogger(LOGGER).disabled = True
        spark.sparkContext.setLogLevel("OFF")
    return spark


def _prepend(variable: str, text: str, between: str) -> None:
    """Insert text at the beginning of an environment variable. ``between`` separates it from an existing value."""
    # The user's own Java options come last and take precedence, because Java applies the last value of an option.
    os.environ[variable] = between.join(filter(None, [text, os.environ.get(variable)]))


def task_progress(spark: SparkSession) -> str:
    """Return the progress of the active tasks, such as "3 of 8 tasks", or "" if no task is active."""
    with suppress(*SPARK_ERRORS):  # the session is being stopped
        tracker = spark.sparkContext.statusTracker()
        stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
        if stages:
            failed = sum(stage.numFailedTasks for stage in stages)
            done, known = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
            return f"{done:,} of {known:,} tasks" + (f", {failed:,} failed and retried" if failed else "")
    return ""
