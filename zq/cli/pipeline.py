# SPDX-License-Identifier: Apache-2.0
"""``zq pipeline``: runs a job of Spark between queues. Spark is imported by the command alone."""

import importlib.util
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from zq.cli.failures import Failure
from zq.cli.output import progress
from zq.cli.session import Command, Group, Session, pass_session

if TYPE_CHECKING:
    from zq.spark.pipeline import Pipeline

MODULE: Final = "zq_pipeline_job"
QUIET: Final = {"spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false"}
TRIES: Final = "local[*,4]"
"""On this machine; a task is tried four times, as on a cluster."""


@click.group("pipeline", cls=Group)
def pipeline_group() -> None:
    """Pipelines: Spark jobs that take from one queue and publish to others."""


@pipeline_group.command("run", cls=Command)
@click.argument("job", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="JOB.PY")
@click.option("--until-empty", is_flag=True, help="End when nothing is left.")
@click.option("--master", default=TRIES, metavar="URL", help=f"Where Spark runs; {TRIES}.")
@click.option("--conf", multiple=True, metavar="NAME=VALUE", help="Of Spark's configuration; may be repeated.")
@pass_session
def run(session: Session, job: Path, until_empty: bool, master: str, conf: tuple[str, ...]) -> None:
    """Run the pipeline that JOB.PY defines as "pipeline".

    What it leaves open of url, project and token is that of the command line. SIGTERM and Ctrl-C end it after the round
    in hand.
    """
    settings = [_setting(one) for one in conf]
    try:
        from pyspark.sql import SparkSession

        from zq.spark import java
    except ModuleNotFoundError as error:
        raise Failure(f"The package {error.name} is missing: pip install 'zq[spark]' brings it.") from error
    pipeline = _completed(_load(job), session)
    java.prepare()
    builder = SparkSession.builder.master(master).appName(job.stem)
    for name, value in [*QUIET.items(), *settings]:
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    try:
        with progress("messages", None) as bar:
            totals = pipeline.run(spark, until_empty, lambda done: bar(done.rounds, done.taken))
    finally:
        spark.stop()
    session.out.thing(msgspec.to_builtins(totals))


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise click.UsageError(f"--conf takes NAME=VALUE, not {text}.")
    return name, value


def _load(job: Path) -> "Pipeline":
    """What the file calls ``pipeline``. Spark's workers get the file's functions by value, and find what lies beside
    it."""
    from pyspark import cloudpickle

    from zq.spark.pipeline import Pipeline

    folder = str(job.resolve().parent)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    spec = importlib.util.spec_from_file_location(MODULE, job)
    if spec is None or spec.loader is None:
        raise click.UsageError(f"{job} is no file of Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    spec.loader.exec_module(module)
    pipeline: Any = getattr(module, "pipeline", None)
    if not isinstance(pipeline, Pipeline):
        raise click.UsageError(f"{job} does not define pipeline = Pipeline(…).")
    return pipeline


def _completed(pipeline: "Pipeline", session: Session) -> "Pipeline":
    if pipeline.url and pipeline.project:
        return pipeline
    place = session.connection
    return replace(
        pipeline,
        url=pipeline.url or place.url,
        project=pipeline.project or place.project,
        token=pipeline.token or place.token or None,
    )
