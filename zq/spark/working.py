# SPDX-License-Identifier: Apache-2.0
"""The work on a round by Spark: read its claims, put the rows through the stages, write what comes out."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from zq.spark.poison import ERROR, marked, unmarked
from zq.spark.rounds import FORMAT, Round

FAILURES: Final = (PySparkException, Py4JError)
"""How Spark tells that work has failed."""
COLUMNS: Final = {"bodyColumn": "body", "queueColumn": "queue", "ttlColumn": None, "delayColumn": None}
"""Options of the sink that name columns, with the columns that need no naming."""
Stage = Callable[[DataFrame], DataFrame]
Rejected = Callable[[Mapping[str, str]], Round]
"""Told ids of messages that a stage has rejected, and why; gives the round that is left."""


class Work:
    """Of a pipeline; ``options``: those of reading and writing."""

    def __init__(self, spark: SparkSession, stages: Sequence[Stage], options: Mapping[str, str]) -> None:
        self._spark = spark
        self._stages = stages
        self._options = options

    def do(self, this: Round, rejected: Rejected, keep: bool = True) -> None:
        """All of a round; without ``keep``, all but the sink. Raises ``FAILURES``, or whatever a stage raises."""
        kept: list[DataFrame] = []
        try:
            frame = self._format(this).load()
            for stage in self._stages:
                frame = stage(frame)
                if ERROR in frame.columns:
                    kept.append(frame.persist())
                    found = marked(frame, getattr(stage, "__name__", str(stage)))
                    this = rejected(found) if found else this
                    frame = unmarked(frame, found)
            if this.claims or this.dry:
                self._write(frame, this, keep)
        finally:
            for one in kept:
                one.unpersist()

    def _format(self, this: Round) -> DataFrameReader:
        return self._spark.read.format(FORMAT).options(**self._options).option("round", _text(this))

    def _write(self, frame: DataFrame, this: Round, keep: bool) -> None:
        """Only the columns that the sink looks at."""
        columns = {option: self._options.get(option, own) for option, own in COLUMNS.items()}
        if "queueColumn" not in self._options and "queue" not in frame.columns:
            del columns["queueColumn"]
        needed = [name for name in columns.values() if name in frame.columns]
        given = {option: name for option, name in columns.items() if name is not None}
        writer = (frame.select(*needed) if given["bodyColumn"] in needed else frame).write
        if keep:
            writer.format(FORMAT).options(**{**self._options, **given}).option("round", _text(this))
        else:
            writer.format("noop")
        writer.mode("append").save()


def _text(this: Round) -> str:
    return msgspec.json.encode(this).decode()
