# SPDX-License-Identifier: Apache-2.0
"""The job ``report``, which computes throughput, dwell times, problems and backlog of queues from an archive."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, Final

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zq.cli.output import note
from zq.cli.progress import QUIET, Progress, show_progress
from zq.cli.session import Session, pass_session
from zq.client import Client
from zq.errors import NotFound
from zq.jobs import tables
from zq.jobs.cli_support import JobCommand, source_options, spark_session

# Columns that identify a queue.
QUEUE_COLUMNS: Final = ["project", "queue"]
# Schema of the backlog, which has a row for each live message.
BACKLOG: Final = "seq long, created timestamp, ttl int, claim_count int, origin string, project string, queue string"
# Percentiles of dwell times by column name.
PERCENTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
# Accuracy of percentiles: the relative error of their rank is at most 1/ACCURACY.
ACCURACY: Final = 10_000
# Columns with counts, which are 0 instead of null if a queue has no messages.
COUNTS: Final = (
    *("posted", "finished", "retried", "retries", "dead_lettered", "expired"),
    *("waiting", "expiring", "dead_letters"),
)
# Seconds in an hour.
HOUR: Final = 3600
# Maximum length of the period in hours, by throughput step in minutes.
STEPS: Final = {1: 3, 5: 12, 15: 48, 60: 8 * 24, 360: 40 * 24}
# Throughput step in minutes for longer periods.
DAY: Final = 1440
# Maximum clock skew between the server and the machine that runs the archive job.
MAX_DRIFT: Final = "interval 1 minute"
# Parameter type of times.
MOMENT: Final = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])
# Columns about the reported period.
PAST: Final = ("posted", "finished", *PERCENTILES, "retried", "retries", "dead_lettered", "expired")
# Columns about the current backlog.
PRESENT: Final = ("waiting", "oldest", "expiring", "dead_letters")
# Column with the time that must be in the reported period, by table.
TIME_COLUMNS: Final = {"posted": "created", "finished": "finished"}
# Schema for reading the backlog, which omits the body and the project.
SHOWN: Final = BACKLOG.replace(", project string", "")
# The rows of a DataFrame.
Rows = list[dict[str, Any]]


@click.command("report", cls=JobCommand)
@click.argument("path")
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="Queue to report; repeatable (default: all).")
@click.option("--since", type=MOMENT, metavar="TIME", help="Start of the period, in UTC.")
@click.option("--until", type=MOMENT, metavar="TIME", help="End of the period (exclusive), in UTC.")
@click.option(
    "--backlog/--no-backlog",
    default=True,
    help="Include the current backlog of the project (default). With --no-backlog, report on all projects in the "
    "archive instead.",
)
@click.option("--plots", type=click.Path(file_okay=False, path_type=Path), help="Folder for three plots.")
@QUIET
@pass_session
def report(
    session: Session,
    /,
    path: str,
    queues: Sequence[str],
    backlog: bool,
    plots: Path | None,
    quiet: bool,
    **period: datetime | None,
) -> None:
    """Report throughput, dwell times, expiry, retries, dead letters and backlog of each queue.

    PATH is the folder of an archive that the archive job created.
    """
    by_step, minutes = Rows(), 0
    with show_progress("report", quiet) as progress, spark_session("zq-report", progress) as spark:
        project = session.connection.project if backlog else None
        kept = {table: filter_queues(tables.read(spark, path, table), project, queues) for table in tables.SCHEMAS}
        known = {"archived": kept["archived"], "records": kept["finished"]}
        known |= {name: filter_period(kept[name], moment, **period) for name, moment in TIME_COLUMNS.items()}
        alive = spark.createDataFrame([], BACKLOG)
        if backlog:  # cached, so that all values refer to the same time
            alive = read_backlog(spark, session.client, source_options(session), queues, progress).persist()
        progress.stage = "figures of each queue"
        by_queue = collect(filter_queues(compute_queue_report(known, alive, F.current_timestamp()), None, queues))
        alive.unpersist()
        progress.add(sum(row["posted"] for row in by_queue))
        progress.stage = "throughput"
        by_hour = collect(compute_throughput(known["posted"], known["finished"]))
        if plots:
            minutes = step_minutes([row["at"] for row in by_hour])
            by_step = collect(compute_throughput(known["posted"], known["finished"], minutes * 60))
    show(session, by_queue, [{"hour": row.pop("at"), **row} for row in by_hour])
    if plots:
        draw(plots, by_queue, by_step, minutes)


def filter_queues(rows: DataFrame, project: str | None, queues: Sequence[str]) -> DataFrame:
    """Keep only the rows of a project and of some queues. ``None`` and an empty sequence keep all rows."""
    if project is not None:
        rows = rows.where(F.col("project") == project)
    return rows.where(F.col("queue").isin(*queues)) if queues else rows


def filter_period(rows: DataFrame, moment: str, since: datetime | None, until: datetime | None) -> DataFrame:
    """Keep only the rows from ``since`` (inclusive) to ``until`` (exclusive). ``None`` = no bound."""
    if since is not None:
        rows = rows.where(F.col(moment) >= F.lit(since.replace(tzinfo=UTC)))
    return rows if until is None else rows.where(F.col(moment) < F.lit(until.replace(tzinfo=UTC)))


def read_backlog(
    spark: SparkSession, client: Client, options: Mapping[str, str], queues: Sequence[str], progress: Progress
) -> DataFrame:
    """Read the live messages of the queues and of their dead-letter queues.

    If ``queues`` is empty, read the live messages of all queues.
    """
    rows = spark.createDataFrame([], BACKLOG)
    names = add_dead_letter_queues(client, queues) if queues else [found.name for found in client.queues()]
    for number, queue in enumerate(names, 1):
        progress.stage = f"backlog of queue {number:,} of {len(names):,}, {queue}"
        found = spark.read.schema(SHOWN).format("zq").options(**options, queue=queue).load()
        rows = rows.unionByName(found.withColumn("project", F.lit(options["project"])).select(rows.columns))
    return rows


def add_dead_letter_queues(client: Client, queues: Sequence[str]) -> list[str]:
    """Return the queues and their dead-letter queues, without duplicates."""
    found = dict.fromkeys(queues)
    for queue in queues:
        with suppress(NotFound):
            found[client.queue(queue).metadata().get("_dead_letter_queue") or queue] = None
    return [*found]


def collect(rows: DataFrame) -> Rows:
    """Collect the rows of a DataFrame, with times as ISO 8601 text."""
    moments = {name: F.date_format(name, "yyyy-MM-dd'T'HH:mm:ssX") for name, kind in rows.dtypes if kind == "timestamp"}
    return [row.asDict() for row in rows.withColumns(moments).collect()]


def show(session: Session, by_queue: Rows, by_hour: Rows) -> None:
    """Print three tables, or one JSON object per row and line.

    The member ``is`` of a JSON object is "queue" for a row of ``by_queue`` and "hour" for a row of ``by_hour``.
    """
    if not session.out.uses_tables:
        for what, rows in (("queue", by_queue), ("hour", by_hour)):
            for row in rows:
                session.out.line({"is": what, **row})
        return
    hours = ("hour", "posted", "finished")
    for columns, rows in ((PAST, by_queue), (PRESENT, by_queue), (hours, by_hour)):
        heads = ("project", "queue", *columns)
        session.out.rows(heads, rows, lambda row, heads=heads: [row[head] for head in heads])  # type: ignore[misc]
        click.echo()


def draw(folder: Path, by_queue: Rows, by_step: Rows, minutes: int) -> None:
    """Draw the plots, or print a note if matplotlib is missing."""
    try:
        from zq.jobs import plots
    except ModuleNotFoundError as error:
        note(f"Plots require {error.name}: pip install 'zq-queue[report]'.")
        return
    for file in plots.draw(folder, by_queue, by_step, minutes):
        note(f"Drawn: {file}.")


def compute_throughput(posted: DataFrame, finished: DataFrame, seconds: int = HOUR) -> DataFrame:
    """Count posted and finished messages per queue and time step. Omit steps without messages."""

    def step(moment: str) -> Any:
        return F.timestamp_seconds(F.floor(F.unix_seconds(moment) / seconds) * seconds).alias("at")

    came = posted.select(*QUEUE_COLUMNS, step("created"), F.lit(1).alias("in"), F.lit(0).alias("out"))
    went = finished.select(*QUEUE_COLUMNS, step("finished"), F.lit(0), F.lit(1))
    both = came.unionAll(went).groupBy(*QUEUE_COLUMNS, "at")
    return both.agg(F.sum("in").alias("posted"), F.sum("out").alias("finished")).orderBy(*QUEUE_COLUMNS, "at")


def step_minutes(hours: Sequence[str]) -> int:
    """Return a suitable time step in minutes for a plot of a period.

    ``hours`` contains hours of the period, including the first and the last, as ISO 8601 text.
    """
    moments = [datetime.fromisoformat(hour) for hour in hours]
    span = (max(moments) - min(moments)).total_seconds() / HOUR + 1 if moments else 0
    return next((minutes for minutes, max_span in STEPS.items() if span <= max_span), DAY)


def compute_queue_report(found: Mapping[str, DataFrame], backlog: DataFrame, now: Any) -> DataFrame:
    """Return one row per queue with all columns of the report."""
    parts = [
        found["posted"].groupBy(*QUEUE_COLUMNS).agg(F.count("seq").alias("posted")),
        finish_counts(found["finished"]),
        dwell_percentiles(found["finished"]),
        expired_messages(found, backlog).groupBy(*QUEUE_COLUMNS).agg(F.count("seq").alias("expired")),
        backlog_counts(backlog, now),
        dead_letter_counts(backlog),
    ]
    every = reduce(lambda some, more: some.unionByName(more, allowMissingColumns=True), parts)
    # Each column has values in only one part. A union with an aggregation is cheaper than joins.
    figures = [name for name in every.columns if name not in QUEUE_COLUMNS]
    joined = every.groupBy(*QUEUE_COLUMNS).agg(*(F.max(name).alias(name) for name in figures))
    return joined.fillna(0, list(COUNTS)).orderBy(*QUEUE_COLUMNS)


def finish_counts(finished: DataFrame) -> DataFrame:
    """Return one row per queue with counts of finished messages.

    The columns count all finished messages, the messages that were claimed more than once, their repeated claims, and
    the dead-lettered messages.
    """
    again = F.greatest(F.col("claim_count") - 1, F.lit(0))
    return finished.groupBy(*QUEUE_COLUMNS).agg(
        F.count("seq").alias("finished"),
        F.count_if(again > 0).alias("retried"),
        F.sum(again).alias("retries"),
        F.count_if(F.col("outcome") == "dead_lettered").alias("dead_lettered"),
    )


def dwell_percentiles(finished: DataFrame) -> DataFrame:
    """Return percentiles of the time from posting to finishing in seconds, per queue. Dead letters are excluded."""
    seconds = (F.unix_millis("finished") - F.unix_millis("created")) / 1000
    good = finished.where("outcome <> 'dead_lettered'").withColumn("seconds", seconds)
    found = good.groupBy(*QUEUE_COLUMNS).agg(
        F.percentile_approx("seconds", [*PERCENTILES.values()], ACCURACY).alias("all")
    )
    return found.select(*QUEUE_COLUMNS, *(F.col("all")[number].alias(name) for number, name in enumerate(PERCENTILES)))


def expired_messages(found: Mapping[str, DataFrame], backlog: DataFrame) -> DataFrame:
    """Return the posted messages that have expired.

    A message has expired if it is neither finished nor live, and its ttl ended before the last archive run.
    """
    due = F.col("created") + F.make_dt_interval(secs=F.col("ttl")) < F.col("at") - F.expr(MAX_DRIFT)
    gone = found["posted"].join(found["archived"], QUEUE_COLUMNS).where(due).select(*QUEUE_COLUMNS, "seq")
    key = [*QUEUE_COLUMNS, "seq"]
    return gone.join(found["records"].select(key), key, "left_anti").join(backlog.select(key), key, "left_anti")


def backlog_counts(backlog: DataFrame, now: Any) -> DataFrame:
    """Return one row per queue with counts of the live messages.

    The columns are the number of live messages, the age of the oldest one in seconds, and the number of messages that
    expire within an hour.
    """
    left = F.unix_seconds("created") + F.col("ttl") - F.unix_seconds(now)
    return backlog.groupBy(*QUEUE_COLUMNS).agg(
        F.count("seq").alias("waiting"),
        F.max(F.unix_seconds(now) - F.unix_seconds("created")).alias("oldest"),
        F.count_if(left <= 3600).alias("expiring"),
    )


def dead_letter_counts(backlog: DataFrame) -> DataFrame:
    """Return the number of dead letters in the backlog, per origin queue."""
    buried = backlog.where("origin is not null").select("project", F.col("origin").alias("queue"), "seq")
    return buried.groupBy(*QUEUE_COLUMNS).agg(F.count("seq").alias("dead_letters"))


if __name__ == "__main__":
    report()
