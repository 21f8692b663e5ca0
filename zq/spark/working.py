# SPDX-License-Identifier: Apache-2.0
"""The work on a round by Spark: its messages as rows, through the stages, and what comes out to the sink."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec
import pyarrow as pa
from msgspec import structs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from zq.client import Message
from zq.errors import Invalid, ZqError
from zq.spark import rows
from zq.spark.failures import SPARKS, why
from zq.spark.poison import ERROR, marked, unmarked
from zq.spark.rounds import COLUMNS, FORMAT, Round

WRITTEN: Final = {"bodyColumn": "body", "queueColumn": "queue", "ttlColumn": None, "delayColumn": None}
"""Options of the sink that name columns, with the columns that need no naming."""
FEWEST: Final = 25
"""Rows of a task, but for the last."""
THRESHOLD: Final = "spark.sql.execution.arrow.localRelationThreshold"
"""Below so many bytes the driver itself would compute narrow stages, without tasks."""
Stage = Callable[[DataFrame], DataFrame]
Rejected = Callable[[Mapping[str, str]], Round]
"""Told ids of messages that a stage has rejected, and why; gives the round that is left."""
_messages: Final = msgspec.json.Decoder(list[Message])


class StageFailed(ZqError):
    """A stage has raised on the driver; the cause is chained."""


FAILURES: Final = (*SPARKS, StageFailed)
"""How work fails."""


class Work:
    """Of a pipeline; ``options``: those of reading and writing."""

    def __init__(self, spark: SparkSession, stages: Sequence[Stage], options: Mapping[str, str], body: str) -> None:
        self._spark = spark
        self._stages = stages
        self._options = options
        self._body = body
        self.tasks = 2 * spark.sparkContext.defaultParallelism

    def do(self, this: Round, carried: Mapping[str, bytes], rejected: Rejected, keep: bool = True) -> None:
        """All of a round; without ``keep``, all but the sink. ``carried``: content of claims that is known already.

        Raises ``FAILURES``.
        """
        kept: list[DataFrame] = []
        try:
            frame = self._read(this, carried)
            for stage in self._stages:
                frame = staged(stage, frame)
                if ERROR in frame.columns:
                    kept.append(frame.persist())
                    found = marked(frame, called(stage))
                    this = rejected(found) if found else this
                    frame = unmarked(frame, found)
            if this.claims or this.dry:
                self._write(frame, this, keep)
        finally:
            for one in kept:
                one.unpersist()

    def _read(self, this: Round, carried: Mapping[str, bytes]) -> DataFrame:
        """From the driver if it knows all, which is quicker; else tasks ask the server."""
        if not this.claims.keys() <= carried.keys():
            told = this if this.dry else _named(this)
            return self._spark.read.format(FORMAT).options(**self._options).option("round", _text(told)).load()
        schema, batches = rows.schema(COLUMNS, self._body), list[pa.RecordBatch]()
        total = sum(len(ids) for ids in this.claims.values() if ids)
        size = max(FEWEST, -(-total // self.tasks))
        for name, ids in this.claims.items():
            wanted = frozenset(ids or ())
            found = [message for message in _messages.decode(carried[name]) if message.id in wanted]
            batches += rows.Rows(COLUMNS, self._body, claim=f"{this.queue}/{name}").of(found)
        if not total:
            return self._spark.createDataFrame([], schema)
        table = pa.Table.from_batches(batches).combine_chunks()
        batches = [batch for first in range(0, total, size) for batch in table.slice(first, size).to_batches()]
        return self._local(pa.Table.from_batches(batches), schema)

    def _local(self, table: pa.Table, schema: StructType) -> DataFrame:
        """Each batch is a partition."""
        before = self._spark.conf.get(THRESHOLD, None)
        self._spark.conf.set(THRESHOLD, "0")
        try:
            return self._spark.createDataFrame(table, schema)
        finally:
            if before is None:
                self._spark.conf.unset(THRESHOLD)
            else:
                self._spark.conf.set(THRESHOLD, before)

    def _write(self, frame: DataFrame, this: Round, keep: bool) -> None:
        """Only the columns that the sink looks at."""
        columns = {option: self._options.get(option, own) for option, own in WRITTEN.items()}
        if "queueColumn" not in self._options and "queue" not in frame.columns:
            del columns["queueColumn"]
        needed = [name for name in columns.values() if name in frame.columns]
        given = {option: name for option, name in columns.items() if name is not None}
        writer = (frame.select(*needed) if given["bodyColumn"] in needed else frame).write
        if keep:
            writer.format(FORMAT).options(**{**self._options, **given}).option("round", _text(_named(this)))
        else:
            writer.format("noop")
        writer.mode("append").save()


def staged(stage: Stage, frame: DataFrame) -> DataFrame:
    """What a stage makes of it. Raises ``StageFailed``, and ``Invalid`` if that is no DataFrame."""
    try:
        made = stage(frame)
    except Exception as error:
        raise StageFailed(f"Stage {called(stage)}: {_kind(error)}{why(error)}") from error
    if not isinstance(made, DataFrame):
        raise Invalid(f"Stage {called(stage)} must return a DataFrame, not {type(made).__name__}.")
    return made


def called(stage: Stage) -> str:
    """For people."""
    return getattr(stage, "__name__", str(stage))


def _kind(error: Exception) -> str:
    """Spark's own errors tell theirs."""
    return "" if isinstance(error, SPARKS) or not str(error) else f"{type(error).__name__}: "


def _named(this: Round) -> Round:
    """Without the ids, for who needs only the claims' names, or all that they hold."""
    return structs.replace(this, claims=dict.fromkeys(this.claims))


def _text(this: Round) -> str:
    return msgspec.json.encode(this).decode()
