# SPDX-License-Identifier: Apache-2.0
"""What the report says, as functions of tables: of an archive's (``tables.py``) and of the backlog."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

HOME: Final = ["project", "queue"]
BACKLOG: Final = "seq long, created timestamp, ttl int, claim_count int, origin string, project string, queue string"
"""A row for each living message."""
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
EXACT: Final = 10_000
"""Percentiles are right to 1 part in so many of the messages."""
COUNTS: Final = (
    *("posted", "finished", "retried", "retries", "dead_lettered", "expired"),
    *("waiting", "expiring", "dead_letters"),
)
"""What is 0 rather than unknown where nothing was found."""
HOUR: Final = 3600
STEPS: Final = {1: 3, 5: 12, 15: 48, 60: 8 * 24, 360: 40 * 24}
"""Minutes of a step of the throughput that fits, and up to how many hours it does; beyond, a day does."""
DAY: Final = 1440
LAST: Final = "interval 1 minute"
"""By which the clocks of the server and of the archive's machine may differ."""


def throughput(posted: DataFrame, finished: DataFrame, seconds: int = HOUR) -> DataFrame:
    """``posted`` and ``finished`` of each step of so many seconds in which there was something, from ``at`` on."""

    def step(moment: str) -> Any:
        return F.timestamp_seconds(F.floor(F.unix_seconds(moment) / seconds) * seconds).alias("at")

    came = posted.select(*HOME, step("created"), F.lit(1).alias("in"), F.lit(0).alias("out"))
    went = finished.select(*HOME, step("finished"), F.lit(0), F.lit(1))
    both = came.unionAll(went).groupBy(*HOME, "at")
    return both.agg(F.sum("in").alias("posted"), F.sum("out").alias("finished")).orderBy(*HOME, "at")


def minutes_of(hours: Sequence[str]) -> int:
    """How long a step should be for a curve, given the hours in which there was something."""
    moments = [datetime.fromisoformat(hour) for hour in hours]
    span = (max(moments) - min(moments)).total_seconds() / HOUR + 1 if moments else 0
    return next((minutes for minutes, most in STEPS.items() if span <= most), DAY)


def queues(tables: Mapping[str, DataFrame], backlog: DataFrame, now: Any) -> DataFrame:
    """A row for each queue with all that is said of it. ``now``: a column with the moment to which ages count.

    ``tables``: ``posted`` and ``finished`` of the time that is reported, ``archived``, and as ``records`` all that has
    finished.
    """
    parts = [
        tables["posted"].groupBy(*HOME).agg(F.count("seq").alias("posted")),
        ended(tables["finished"]),
        dwell(tables["finished"]),
        expired(tables, backlog).groupBy(*HOME).agg(F.count("seq").alias("expired")),
        living(backlog, now),
        dead_letters(backlog),
    ]
    every = reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), parts)
    said = [name for name in every.columns if name not in HOME]  # each by one part; cheaper than joins
    joined = every.groupBy(*HOME).agg(*(F.max(name).alias(name) for name in said))
    return joined.fillna(0, list(COUNTS)).orderBy(*HOME)


def ended(finished: DataFrame) -> DataFrame:
    """How many finished, how many of them were claimed more than once and how often, and how many were buried."""
    again = F.greatest(F.col("claim_count") - 1, F.lit(0))
    return finished.groupBy(*HOME).agg(
        F.count("seq").alias("finished"),
        F.count_if(again > 0).alias("retried"),
        F.sum(again).alias("retries"),
        F.count_if(F.col("outcome") == "dead_lettered").alias("dead_lettered"),
    )


def dwell(finished: DataFrame) -> DataFrame:
    """Seconds from posting to finishing, within which so many percent finished; dead letters do not count."""
    seconds = (F.unix_millis("finished") - F.unix_millis("created")) / 1000
    good = finished.where("outcome <> 'dead_lettered'").withColumn("seconds", seconds)
    found = good.groupBy(*HOME).agg(F.percentile_approx("seconds", [*PERCENTILES.values()], EXACT).alias("all"))
    return found.select(*HOME, *(F.col("all")[number].alias(name) for number, name in enumerate(PERCENTILES)))


def expired(tables: Mapping[str, DataFrame], backlog: DataFrame) -> DataFrame:
    """What was posted, has neither finished nor lives, and whose time was over when the archive was last brought up."""
    due = F.col("created") + F.make_dt_interval(secs=F.col("ttl")) < F.col("at") - F.expr(LAST)
    gone = tables["posted"].join(tables["archived"], HOME).where(due).select(*HOME, "seq")
    key = [*HOME, "seq"]
    return gone.join(tables["records"].select(key), key, "left_anti").join(backlog.select(key), key, "left_anti")


def living(backlog: DataFrame, now: Any) -> DataFrame:
    """How many wait, for how many seconds the oldest does, and how many expire within the hour."""
    left = F.unix_seconds("created") + F.col("ttl") - F.unix_seconds(now)
    return backlog.groupBy(*HOME).agg(
        F.count("seq").alias("waiting"),
        F.max(F.unix_seconds(now) - F.unix_seconds("created")).alias("oldest"),
        F.count_if(left <= 3600).alias("expiring"),
    )


def dead_letters(backlog: DataFrame) -> DataFrame:
    """How many dead letters of a queue wait somewhere."""
    buried = backlog.where("origin is not null").select("project", F.col("origin").alias("queue"), "seq")
    return buried.groupBy(*HOME).agg(F.count("seq").alias("dead_letters"))
