# SPDX-License-Identifier: Apache-2.0
"""The job ``archive``, which appends new history entries of queues to Parquet files.

For each queue, one Spark stream archives the posted messages and another stream archives the finished messages. The
archive also contains the checkpoints of the streams. If a batch is repeated after a crash, the new files replace the
files of the first attempt.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import click
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F

from zq.cli.failures import Failure, error_message, exit_code
from zq.cli.output import note
from zq.cli.progress import QUIET, Progress, show_progress
from zq.cli.session import Session, pass_session
from zq.client import Client
from zq.errors import Invalid
from zq.jobs import tables
from zq.jobs.cli_support import JobCommand, source_options, spark_session
from zq.spark.failures import SPARK_ERRORS, extract_error

# Value of the source option ``state``, and time column, by table.
SOURCES: Final[Mapping[str, tuple[str, str]]] = {"posted": ("all", "created"), "finished": ("history", "finished")}
Counts = dict[str, Any]


@click.command("archive", cls=JobCommand)
@click.argument("path")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="NAME",
    help="Queue to archive; repeatable (default: all queues with a history).",
)
@click.option("--batch", type=click.IntRange(1), default=50_000, help="Messages per batch (default 50,000).")
@click.option(
    "--fail-on-data-loss",
    "strict",
    type=click.Choice(["true", "false"]),
    default="true",
    help="If false, continue even if entries may have expired since the last run.",
)
@QUIET
@pass_session
def archive(session: Session, /, path: str, queues: Sequence[str], batch: int, strict: str, quiet: bool) -> None:
    """Update an archive of queue histories.

    PATH is a folder in any file system that Spark supports.
    """
    failed: list[tuple[str, int]] = []
    given = source_options(session) | {"maxMessagesPerBatch": str(batch)}
    rows = []
    with show_progress("archive", quiet, "rows") as progress, spark_session("zq-archive", progress) as spark:
        named = queues or queues_with_history(session.client)
        for number, queue in enumerate(named, 1):
            progress.stage = f"queue {number:,} of {len(named):,}, {queue}"
            try:
                rows.append({"queue": queue, **archive_queue(spark, path, {**given, "queue": queue}, strict, progress)})
            except SPARK_ERRORS as error:
                cause = extract_error(error)
                note(f"{queue}: {error_message(cause)}")
                failed.append((queue, exit_code(cause)))
    columns = ("queue", *SOURCES)
    session.out.rows(columns, rows, lambda row: [row[column] for column in columns])
    if failed:
        raise Failure(f"These queues were not archived: {', '.join(queue for queue, _ in failed)}.", failed[0][1])


def queues_with_history(client: Client) -> list[str]:
    """Return the names of the queues with a history. Raises ``Invalid`` if the project has no such queue."""
    found = [queue.name for queue in client.queues(detailed=True) if (queue.metadata or {}).get("_history_ttl")]
    if not found:
        raise Invalid("No queue of the project keeps a history. Set _history_ttl on each queue that is to be archived.")
    return found


def archive_queue(
    spark: SparkSession, path: str, options: Mapping[str, str], strict: str, progress: Progress
) -> Counts:
    """Archive the new entries of a queue. Return the number of new rows by table.

    If ``strict`` is "true", the function fails if history entries may have expired before they were archived.
    """
    counts = {"posted": run_stream(spark, path, "posted", {**options, "failOnDataLoss": "false"}, progress)}
    [begun] = spark.sql("select unix_micros(current_timestamp()) at").collect()
    counts["finished"] = run_stream(spark, path, "finished", {**options, "failOnDataLoss": strict}, progress)
    known = spark.range(1).select(F.timestamp_micros(F.lit(begun.at)).alias("at"))
    tables.write(add_place(known, options), path, "archived")
    return counts


def run_stream(spark: SparkSession, path: str, table: str, options: Mapping[str, str], progress: Progress) -> int:
    """Archive all available entries of a table ("posted" or "finished"). Return the number of new rows."""
    state, _ = SOURCES[table]
    stream = spark.readStream.format("zq").options(**options, mode="tail", state=state, bodyType="binary").load()
    place = "/".join(f"{name}={quote(options[name], safe='')}" for name in ("project", "queue"))
    written: list[int] = []
    append = batch_function(path, table, options, written, progress)
    writer = stream.writeStream.foreachBatch(append).trigger(availableNow=True)
    writer.option("checkpointLocation", f"{path}/_checkpoints/{table}/{place}").start().awaitTermination()
    return sum(written)


def batch_function(
    path: str, table: str, options: Mapping[str, str], written: list[int], progress: Progress
) -> Callable[[DataFrame, int], None]:
    """Return the ``foreachBatch`` function of a stream, which writes each batch to a table of the archive.

    The function appends the number of rows of each batch to ``written``.
    """

    def append(rows: DataFrame, number: int) -> None:
        query = rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId") or ""
        seen = Observation()
        batch = f"{query[:8]}-{number}"
        shaped = to_rows(rows, table, options, batch)
        if not written:  # only the first batch of a run can repeat an earlier batch, possibly with fewer rows
            shaped = tables.add_former_rows(shaped, path, table, batch)
        shaped = shaped.repartition("day")
        tables.write(shaped.observe(seen, F.count(F.lit(1)).alias("rows")), path, table)
        written.append(seen.get["rows"])
        progress.add(written[-1])

    return append


def to_rows(rows: DataFrame, table: str, options: Mapping[str, str], batch: str) -> DataFrame:
    """Convert messages to rows of a table, with bodies as JSON text."""
    _, moment = SOURCES[table]
    shaped = rows.withColumns(
        {"body": F.col("body").cast("string"), "day": F.col(moment).cast("date"), "batch": F.lit(batch)}
    )
    return add_place(shaped, options).select(tables.column_names(table))


def add_place(rows: DataFrame, options: Mapping[str, str]) -> DataFrame:
    """Add the columns ``project`` and ``queue``. All rows get the values from ``options``."""
    return rows.withColumns({name: F.lit(options[name]) for name in ("project", "queue")})


if __name__ == "__main__":
    archive()
