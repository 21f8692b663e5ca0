# SPDX-License-Identifier: Apache-2.0
"""What the tests of pipelines share: stages, and looks at what came of them."""

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
    """A stage that puts bodies through a function of Python."""
    return lambda frame: frame.withColumn("body", F.udf(function, kind, useArrow=False)("body"))


def doubled(frame: Any) -> Any:
    return frame.selectExpr("cast(cast(body as int) * 2 as string) body")


def begun(pipeline: Pipeline, dead_letters: str | None = None) -> Runner:
    """A run of it without Spark."""
    runner = Runner(pipeline.claiming_options(), None, 1)  # type: ignore[arg-type]
    runner.begin(dead_letters)
    return runner
