# SPDX-License-Identifier: Apache-2.0
"""The Spark session of a job: the one that there is, the one of ``spark-submit``, or one on this machine."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

import zq
from zq.spark import java, register

SETTINGS: Final[Mapping[str, str]] = {
    "spark.master": "local[*,4]",  # a task that fails is tried four times, as on a cluster
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Of a session on this machine."""


@contextmanager
def spark_session(name: str, **settings: str) -> Iterator[SparkSession]:
    """A session that knows ``format("zq")`` and counts in UTC; ends with the block if it was made for it.

    ``settings``: of ``spark.sql``, with ``_`` for each dot, for the length of the block.
    """
    running = SparkSession.getActiveSession()
    spark = running or started(name)
    wanted = {"spark.sql." + setting.replace("_", "."): value for setting, value in settings.items()}
    wanted["spark.sql.session.timeZone"] = "UTC"
    before = {setting: spark.conf.get(setting) for setting in wanted}
    register(spark)
    try:
        for setting, value in wanted.items():
            spark.conf.set(setting, value)
        yield spark
    finally:
        if running is None:
            spark.stop()
        else:
            for setting, old in before.items():
                spark.conf.set(setting, old or "")


def started(name: str) -> SparkSession:
    """A new session. Raises ``StartRefused`` without Java."""
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java, and its settings hold
        return SparkSession.Builder().getOrCreate()
    java.prepare()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    paths = [str(Path(zq.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    builder = SparkSession.Builder().appName(name)
    for setting, value in SETTINGS.items():
        builder = builder.config(setting, value)
    return builder.getOrCreate()
