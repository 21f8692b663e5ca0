# SPDX-License-Identifier: Apache-2.0
"""The Spark session of a job: the one that there is, the one of ``spark-submit``, or one on this machine."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from zq.cli.progress import Progress
from zq.spark import register
from zq.spark.starting import started
from zq.spark.tasks import tasks


@contextmanager
def spark_session(name: str, progress: Progress, **settings: str) -> Iterator[SparkSession]:
    """A session that knows ``format("zq")`` and counts in UTC; ends with the block if it was made for it.

    ``progress`` follows it. ``settings``: of ``spark.sql``, with ``_`` for each dot, for the length of the block.
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
        with progress.following(lambda: tasks(spark)):
            yield spark
    finally:
        if running is None:
            spark.stop()
        else:
            for setting, old in before.items():
                spark.conf.set(setting, old or "")
