# SPDX-License-Identifier: Apache-2.0
"""The command ``zq pipeline``, which runs a Spark job between queues.

Spark is imported only when the command runs, because the import takes seconds.
"""

import importlib.util
import math
import os
import sys
import traceback
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from zq.cli.failures import Failure, exit_code, failure
from zq.cli.output import note
from zq.cli.progress import QUIET, Progress, show_progress
from zq.cli.session import Command, Group, Session, pass_session

if TYPE_CHECKING:
    from zq.spark.pipeline import Pipeline, Totals

# Module name of an imported job.
MODULE: Final = "zq_pipeline_job"
# Default Spark master, copied from ``zq.spark.session``, because that module imports Spark.
MASTER: Final = "local[*,4]"


@click.group("pipeline", cls=Group)
def pipeline_group() -> None:
    """Run Spark jobs that consume one queue and publish to others."""


@pipeline_group.command("run", cls=Command)
@click.argument("job", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="JOB.PY")
@click.option("--until-empty", is_flag=True, help="Stop when the queue is empty.")
@click.option("--master", default=MASTER, metavar="URL", help=f"Spark master (default {MASTER}).")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="A Spark configuration property; repeatable.")
@QUIET
@pass_session
def run(session: Session, job: Path, until_empty: bool, master: str, conf: tuple[str, ...], quiet: bool) -> None:
    """Run the pipeline in JOB.PY, which must define the variable "pipeline".

    If the job does not set url, project or token, the command line's values apply. SIGTERM and Ctrl-C end the pipeline
    after the current round.
    """
    settings = dict(map(_parse_setting, conf))
    try:
        from zq.spark.failures import SPARK_ERRORS, extract_error
        from zq.spark.session import start_session, task_progress
    except ModuleNotFoundError as error:
        raise Failure(f"The package {error.name} is missing. Install it with pip install 'zq-queue[spark]'.") from error
    pipeline = _with_settings(_load_pipeline(job), session)
    try:
        with show_progress(pipeline.full_name, quiet) as progress, _warnings_as_notes():
            spark = start_session(job.stem, master, settings)
            try:
                with progress.follow_tasks(lambda: task_progress(spark)):
                    progress.stage = "no round yet"
                    totals = pipeline.run(spark, until_empty, lambda done: _show_totals(progress, done))
            finally:
                spark.stop()
    except SPARK_ERRORS as error:
        raise failure(extract_error(error)) from error
    session.out.result(msgspec.to_builtins(totals))


def _show_totals(progress: Progress, done: "Totals") -> None:
    progress.stage = f"{done.rounds:,} rounds, {done.published:,} published, {done.buried:,} buried"
    progress.add(done.taken - progress.count)


@contextmanager
def _warnings_as_notes() -> Generator[None, None, None]:
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: note(str(message))
        yield


def _parse_setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--conf takes NAME=VALUE, not {text}.")
    return name, value


def _load_pipeline(job: Path) -> "Pipeline":
    """Import a job file. Its functions are pickled by value, because Spark workers cannot import the file."""
    from pyspark import cloudpickle

    from zq.spark.pipeline import Pipeline

    folder = str(job.resolve().parent)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    spec = importlib.util.spec_from_file_location(MODULE, job)
    if spec is None or spec.loader is None:
        raise click.UsageError(f"{job} is not a Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    _execute(module, spec.loader, job)
    pipeline: Any = getattr(module, "pipeline", None)
    if not isinstance(pipeline, Pipeline):
        raise click.UsageError(f"{job} does not define pipeline = Pipeline(…).")
    return pipeline


def _execute(module: ModuleType, loader: Any, job: Path) -> None:
    try:
        loader.exec_module(module)
    except SyntaxError as error:
        raise Failure(f"{error.filename or job}, line {error.lineno}: {error.msg}.") from error
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == job.resolve()]
        where = f"{job}, line {lines[-1]}" if lines else str(job)
        raise Failure(f"{where}: {type(error).__name__}: {error}", exit_code(error)) from error


def _with_settings(pipeline: "Pipeline", session: Session) -> "Pipeline":
    """Fill in connection settings that the job does not set. ``--retry`` overrides the job's ``retry_for``."""
    own = {name: getattr(pipeline, name) for name in ("url", "project", "token", "client_id")}
    connection = session.connection_with(own)
    return replace(
        pipeline,
        url=connection.url,
        project=connection.project,
        token=connection.token or None,
        client_id=connection.client_id or None,
        retry_for=pipeline.retry_for if session.retry is None else math.ceil(session.retry),
    )
