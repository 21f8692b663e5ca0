# SPDX-License-Identifier: Apache-2.0
"""Sessions of Spark for programs of zq's: that of ``spark-submit``, or one with settings of ours; and what one is at
just now.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

import zq
from zq.spark import java
from zq.spark.failures import SPARKS

# The master of a session on this machine; a task that fails is tried four times, as on a cluster.
MASTER: Final = "local[*,4]"
# Settings of a session on this machine alone.
LOCAL: Final[Mapping[str, str]] = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
# Settings that keep Spark from writing to the terminal.
QUIET: Final[Mapping[str, str]] = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
# The setting of the log's level. Off unless it is given, since work that fails raises why; until the session is up,
# the level is that of ``PROFILE``.
LEVEL: Final = "spark.log.level"
# The configuration of Spark's log.
PROFILE: Final = Path(__file__).with_name("log4j2.properties")
# The log that shows errors that are raised, too, with a trace each; the level above does not concern it.
LOGGER: Final = "DataFrameQueryContextLogger"


def started(name: str, master: str = MASTER, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A new session, whose workers are of this Python and find zq. Raises ``StartRefused`` without Java."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java, and its settings hold
        return SparkSession.Builder().getOrCreate()
    _prepend("PYTHONPATH", str(Path(zq.__file__).parent.parent), os.pathsep)
    _prepend("SPARK_SUBMIT_OPTS", f"-Dlog4j2.configurationFile={PROFILE.as_uri()}", " ")
    java.prepare()
    builder = SparkSession.Builder().appName(name).master(master)
    own: Mapping[str, str] = {}
    if master.startswith("local"):
        own = LOCAL
        os.environ.setdefault("SPARK_LOCAL_IP", LOCAL["spark.driver.host"])  # or Java looks for one, and warns
    for setting, value in {**own, **QUIET, **(settings or {})}.items():
        builder = builder.config(setting, value)
    spark = builder.getOrCreate()
    if LEVEL not in (settings or {}):
        PySparkLogger.getLogger(LOGGER).disabled = True
        spark.sparkContext.setLogLevel("OFF")
    return spark


def _prepend(variable: str, text: str, between: str) -> None:
    """Put a text in front of what a variable of the environment holds: Java takes the last one."""
    os.environ[variable] = between.join(filter(None, [text, os.environ.get(variable)]))


def tasks(spark: SparkSession) -> str:
    """Of the stages that it works on, with those that failed and were tried again; empty if there are none."""
    with suppress(*SPARKS):  # it is being stopped
        tracker = spark.sparkContext.statusTracker()
        stages = [stage for number in tracker.getActiveStageIds() if (stage := tracker.getStageInfo(number))]
        if stages:
            failed = sum(stage.numFailedTasks for stage in stages)
            done, known = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
            return f"{done:,} of {known:,} tasks" + (f", {failed:,} failed and tried again" if failed else "")
    return ""
