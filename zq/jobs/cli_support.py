# SPDX-License-Identifier: Apache-2.0
"""Code that all Spark jobs share: command-line options, error handling and the Spark session."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from pyspark.sql import SparkSession

from zq.cli.failures import failure, run_to_exit
from zq.cli.progress import Progress
from zq.cli.session import Command, Session, option_values, print_client_logs
from zq.errors import ZqError
from zq.spark import register
from zq.spark.failures import SPARK_ERRORS, extract_error
from zq.spark.session import start_session, task_progress


class JobCommand(Command):
    """A Spark job as a command-line program that accepts the global options of ``zq``."""

    def main(self, args: Sequence[str] | None = None, *_: Any, **options: Any) -> Any:
        """Run the job and exit. Expected errors are printed as messages and determine the exit code."""
        run = super().main
        name = f"python -m zq.jobs.{self.name}"
        run_to_exit(lambda: run(args, **{**options, "prog_name": name, "standalone_mode": False}))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the job. By default, its client retries requests for up to a minute."""
        print_client_logs()
        ctx.obj = Session(option_values(ctx))
        ctx.obj.configure(patient=True)
        ctx.call_on_close(ctx.obj.close)
        try:
            return super().invoke(ctx)
        except (ZqError, OSError) as error:
            raise failure(error) from error
        except SPARK_ERRORS as error:
            raise failure(extract_error(error)) from error


def source_options(session: Session) -> dict[str, str]:
    """Return the session's connection settings as options for Spark's ``format("zq")``."""
    place = session.connection
    given = {"url": place.url, "project": place.project, "token": place.token, "clientId": place.client_id}
    return {name: value for name, value in given.items() if value} | {"retryFor": str(int(session.retry_for))}


@contextmanager
def spark_session(name: str, progress: Progress, **settings: str) -> Iterator[SparkSession]:
    """Yield the active Spark session, or a new session that is stopped at the end.

    ``format("zq")`` is registered, and the session's time zone is UTC.

    Args:
        settings: ``spark.sql`` settings that apply during the ``with`` block, with underscores in place of dots, such
            as ``shuffle_partitions`` for ``spark.sql.shuffle.partitions``.
    """
    running = SparkSession.getActiveSession()
    spark = running or start_session(name)
    wanted = {"spark.sql." + setting.replace("_", "."): value for setting, value in settings.items()}
    wanted["spark.sql.session.timeZone"] = "UTC"
    before = {setting: spark.conf.get(setting) for setting in wanted}
    register(spark)
    try:
        for setting, value in wanted.items():
            spark.conf.set(setting, value)
        with progress.follow_tasks(lambda: task_progress(spark)):
            yield spark
    finally:
        if running is None:
            spark.stop()
        else:
            for setting, old in before.items():
                spark.conf.set(setting, old or "")
