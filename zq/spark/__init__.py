# SPDX-License-Identifier: Apache-2.0
"""The Spark data source and sink ``zq`` (extra ``zq-queue[spark]``). Reference: ``api-ref/spark.md``."""

import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ZqDataSource", "register"]


def register(spark: "SparkSession") -> None:
    """Register ``format("zq")`` in a Spark session. The workers must be able to import zq."""
    from zq.spark.source import ZqDataSource

    warn_of_speculation(spark)
    spark.dataSource.register(ZqDataSource)


def warn_of_speculation(spark: "SparkSession") -> None:
    """Warn if speculative execution is on.

    With speculative execution, Spark runs two attempts of a task. Only one attempt can commit, so the other one fails.
    """
    if spark.conf.get("spark.speculation", "false") == "true":
        warnings.warn(
            "spark.speculation is on. Only one of two attempts of a task that writes to zq can commit, so the other "
            "one fails. Messages are not duplicated, but turn spark.speculation off.",
            stacklevel=3,
        )


def __getattr__(name: str) -> Any:
    """Import ``ZqDataSource`` on first access, because it requires pyspark."""
    if name == "ZqDataSource":
        from zq.spark.source import ZqDataSource

        return ZqDataSource
    raise AttributeError(f"module {__name__} has no attribute {name}")
