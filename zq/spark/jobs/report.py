# SPDX-License-Identifier: Apache-2.0
"""``python -m zq.spark.jobs.report``: what an archive and the backlog say of each queue."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from zq.cli.output import note
from zq.cli.progress import QUIET, Progress, watching
from zq.cli.session import Session, pass_session
from zq.client import Client
from zq.errors import NotFound
from zq.spark.jobs import figures, tables
from zq.spark.jobs.edge import Job, source
from zq.spark.jobs.session import spark_session

MOMENT: Final = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"])
PAST: Final = ("posted", "finished", *figures.PERCENTILES, "retried", "retries", "dead_lettered", "expired")
PRESENT: Final = ("waiting", "oldest", "expiring", "dead_letters")
MOMENTS: Final = {"posted": "created", "finished": "finished"}
"""By which rows of a table belong to a time."""
SHOWN: Final = figures.BACKLOG.replace(", project string", "")
"""What is read of a message: no body, and whose it is is known."""
Rows = list[dict[str, Any]]


@click.command("report", cls=Job)
@click.argument("path")
@click.option("--queue", "queues", multiple=True, metavar="NAME", help="One or more; else all.")
@click.option("--since", type=MOMENT, metavar="TIME", help="Posted, or finished, then or later; UTC.")
@click.option("--until", type=MOMENT, metavar="TIME", help="Posted, or finished, before.")
@click.option("--backlog/--no-backlog", default=True, help="Without it the server is not asked; all projects.")
@click.option("--plots", type=click.Path(file_okay=False, path_type=Path), help="A folder for three pictures.")
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
    """Throughput, dwell, expiry, retries, dead letters and backlog of each queue.

    PATH is an archive.
    """
    by_step, minutes = Rows(), 0
    with watching("report", quiet) as progress, spark_session("zq-report", progress) as spark:
        project = session.connection.project if backlog else None
        kept = {table: wanted(tables.read(spark, path, table), project, queues) for table in tables.SCHEMAS}
        known = {"archived": kept["archived"], "records": kept["finished"]}
        known |= {name: during(kept[name], moment, **period) for name, moment in MOMENTS.items()}
        alive = spark.createDataFrame([], figures.BACKLOG)
        if backlog:  # one moment for all figures
            alive = living(spark, session.client, source(session), queues, progress).persist()
        progress.stage = "figures of each queue"
        by_queue = collected(wanted(figures.queues(known, alive, F.current_timestamp()), None, queues))
        alive.unpersist()
        progress.add(sum(row["posted"] for row in by_queue))
        progress.stage = "throughput"
        by_hour = collected(figures.throughput(known["posted"], known["finished"]))
        if plots:
            minutes = figures.minutes_of([row["at"] for row in by_hour])
            by_step = collected(figures.throughput(known["posted"], known["finished"], minutes * 60))
    show(session, by_queue, [{"hour": row.pop("at"), **row} for row in by_hour])
    if plots:
        draw(plots, by_queue, by_step, minutes)


def wanted(rows: DataFrame, project: str | None, queues: Sequence[str]) -> DataFrame:
    """Of this project and these queues."""
    if project is not None:
        rows = rows.where(F.col("project") == project)
    return rows.where(F.col("queue").isin(*queues)) if queues else rows


def during(rows: DataFrame, moment: str, since: datetime | None, until: datetime | None) -> DataFrame:
    """Of this time."""
    if since is not None:
        rows = rows.where(F.col(moment) >= F.lit(since.replace(tzinfo=UTC)))
    return rows if until is None else rows.where(F.col(moment) < F.lit(until.replace(tzinfo=UTC)))


def living(
    spark: SparkSession, client: Client, given: Mapping[str, str], queues: Sequence[str], progress: Progress
) -> DataFrame:
    """The backlog of a project: all living messages of these queues and their dead letters, or of all."""
    rows = spark.createDataFrame([], figures.BACKLOG)
    asked = with_dead_letters(client, queues) if queues else [found.name for found in client.queues()]
    for number, queue in enumerate(asked, 1):
        progress.stage = f"backlog of queue {number:,} of {len(asked):,}, {queue}"
        found = spark.read.schema(SHOWN).format("zq").options(**given, queue=queue).load()
        rows = rows.unionByName(found.withColumn("project", F.lit(given["project"])).select(rows.columns))
    return rows


def with_dead_letters(client: Client, queues: Sequence[str]) -> list[str]:
    """These queues and those of their dead letters, each once."""
    found = dict.fromkeys(queues)
    for queue in queues:
        with suppress(NotFound):
            found[client.queue(queue).metadata().get("_dead_letter_queue") or queue] = None
    return [*found]


def collected(rows: DataFrame) -> Rows:
    """All rows; moments as text."""
    moments = {name: F.date_format(name, "yyyy-MM-dd'T'HH:mm:ssX") for name, kind in rows.dtypes if kind == "timestamp"}
    return [row.asDict() for row in rows.withColumns(moments).collect()]


def show(session: Session, by_queue: Rows, by_hour: Rows) -> None:
    """Three tables, or lines of JSON that say what they are."""
    if not session.out.for_people:
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
    """The pictures, if what draws them is installed."""
    try:
        from zq.spark.jobs import plots
    except ModuleNotFoundError as error:
        note(f"There are no plots, since {error.name} is missing: pip install 'zq-queue[report]' brings matplotlib.")
        return
    for file in plots.draw(folder, by_queue, by_step, minutes):
        note(f"Drawn: {file}.")


if __name__ == "__main__":
    report()
