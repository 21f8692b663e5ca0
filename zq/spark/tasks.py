# SPDX-License-Identifier: Apache-2.0
"""What Spark is at just now, in words."""

from contextlib import suppress

from pyspark.sql import SparkSession

from zq.spark.failures import SPARKS


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
