# SPDX-License-Identifier: Apache-2.0
"""Stages and results that the tests of pipelines share."""

from collections.abc import Callable
from typing import Any

import pytest

from zq.client import Client

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from zq.spark.pipeline import Pipeline
from zq.spark.runner import Runner

Make = Callable[..., Pipeline]


def bodies(client: Client, queue: str = "out") -> list[Any]:
    return sorted(message.body for message in client.queue(queue).list(page=1000))


def buried(client: Client) -> dict[str, str]:
    return {str(message.body): message.reason for message in client.queue("dead").list()}


def mapped(function: Any, kind: str = "string") -> Any:
    """Return a stage that applies a Python function to bodies."""
    return lambda frame: frame.withColumn("body", F.udf(function, kind, useArrow=False)("body"))


def doubled(frame: Any) -> Any:
    return frame.selectExpr("cast(cast(body as int) * 2 as string) body")


def begun(pipeline: Pipeline, dead_letters: str | None = None) -> Runner:
    """Begin a run of the pipeline without Spark."""
    runner = Runner(pipeline.claiming_options(), None, 1)  # type: ignore[arg-type]
    runner.begin(dead_letters)
    return runner
