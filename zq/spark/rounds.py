# SPDX-License-Identifier: Apache-2.0
"""A round of a pipeline: Spark reads the claimed messages, applies the stages and writes the results.

The commit that publishes the results also settles the claims. The data source ``RoundSource`` reads and writes the
messages. Its option ``round`` is a ``Round`` as JSON.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Struct, structs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from zq.client import Message
from zq.errors import Invalid, ZqError
from zq.model import Fence
from zq.spark import rows
from zq.spark.failures import SPARK_ERRORS, explain
from zq.spark.options import Connection, OptionParser, parse_body_type, parse_connection, parse_sink_options
from zq.spark.poison import ERROR, find_rejected, remove_rejected
from zq.spark.staging import BatchWriter, StageResult

# Name of the data source.
FORMAT: Final = "zq-round"
# Columns of the messages. ``queue`` is omitted, because in the results it names the target queue.
COLUMNS: Final = ("id", "seq", "body", "created", "ttl", "claim_count", "claim")
# Sink options that name columns, with the default columns.
COLUMN_OPTIONS: Final = {"bodyColumn": "body", "queueColumn": "queue", "ttlColumn": None, "delayColumn": None}
# Minimum number of rows per task, except for the last task.
MIN_ROWS: Final = 25
# Setting for the size in bytes up to which the driver computes a frame without tasks.
LOCAL_THRESHOLD: Final = "spark.sql.execution.arrow.localRelationThreshold"
Stage = Callable[[DataFrame], DataFrame]
# A function that takes the reasons of rejected messages by message id, and returns the round without the messages.
Rejected = Callable[[Mapping[str, str]], "Round"]
_messages: Final = msgspec.json.Decoder(list[Message])


class Round(Struct, frozen=True):
    """A description of one round of a pipeline, which Spark receives as JSON.

    ``batch`` is the batch number of the round. ``claims`` maps the name of each claim to the ids of the messages to
    process. If the value for a claim is ``None``, the round processes all messages of the claim.
    """

    name: str
    epoch: int
    batch: int
    queue: str
    claims: dict[str, list[str] | None]
    dry: bool = False
    """Whether this is a dry run, which drops the results after staging."""
    tasks: int = 64
    """Maximum number of reading tasks."""

    @property
    def fence(self) -> Fence:
        return Fence(self.name, self.epoch)


class RoundSource(DataSource):
    """The data source that reads claimed messages and writes the results of a round."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return rows.schema(COLUMNS, parse_body_type(_option_parser(self.options)))

    def reader(self, schema: StructType) -> "RoundReader":
        given = _option_parser(self.options)
        return RoundReader(parse_connection(given), parse_body_type(given), _decode_round(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        options = parse_sink_options(_option_parser(self.options), stream=False)
        return RoundWriter(options, schema, overwrite).with_round(_decode_round(self.options))


@dataclass
class RoundPartition(InputPartition):
    """The claims that a task reads."""

    names: list[str]


class RoundReader(DataSourceReader):
    """The reader for a round's claimed messages."""

    def __init__(self, place: Connection, body: str, of: Round) -> None:
        self.place = place
        self.body = body
        self.round = of

    def partitions(self) -> list[RoundPartition]:
        names = [name for name, ids in self.round.claims.items() if ids != []]
        share = -(-len(names) // self.round.tasks) or 1
        return [RoundPartition(names[first : first + share]) for first in range(0, len(names), share)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of a partition's claims. Raises ``ClaimNotFound`` if a claim has expired."""
        if not isinstance(partition, RoundPartition):  # Spark also calls this for a source without partitions
            return
        queue = self.place.client().queue(self.round.queue)
        for name in partition.names:
            wanted = self.round.claims[name]
            ids = None if wanted is None else frozenset(wanted)
            converter = rows.RowConverter(COLUMNS, self.body, claim=f"{queue.name}/{name}")
            yield from converter.convert(
                [message for message in queue.get_claim(name).messages if ids is None or message.id in ids]
            )


class RoundWriter(BatchWriter):
    """The writer of a round's results. Its commit also settles the claims of the round."""

    round: Round

    def with_round(self, this: Round) -> "RoundWriter":
        self.round = this
        return self

    def commit(self, messages: list[StageResult]) -> None:  # type: ignore[override]
        """Publish the results and settle the claims in one commit. In a dry run, drop the results."""
        this = self.round
        if this.dry:
            self.drop(messages)
            return
        held = [(this.queue, name) for name in this.claims]
        self.publish(this.name, this.batch, messages, held, this.fence)


def _decode_round(options: Mapping[str, str]) -> Round:
    return msgspec.json.decode(options["round"], type=Round)


def _option_parser(options: Mapping[str, str]) -> OptionParser:
    return OptionParser({name: value for name, value in options.items() if name.lower() != "round"})


class StageFailed(ZqError):
    """An error that a stage function raised on the driver. ``__cause__`` is the original error."""


# The errors that ``RoundExecutor.run`` raises if Spark or a stage fails.
FAILURES: Final = (*SPARK_ERRORS, StageFailed)


class RoundExecutor:
    """An object on the Spark driver that applies a pipeline's stages to the messages of a round."""

    def __init__(self, spark: SparkSession, stages: Sequence[Stage], options: Mapping[str, str], body: str) -> None:
        self._spark = spark
        self._stages = stages
        self._options = options
        self._body = body
        self.tasks = 2 * spark.sparkContext.defaultParallelism
        self.names_queues = False
        """Whether the last results had a column with target queues."""
        self.staged_to_named_queues = False
        """Whether the last dry run has staged rows with target queues."""

    def run(self, this: Round, inlined: Mapping[str, bytes], rejected: Rejected, keep: bool = True) -> None:
        """Run a round. If Spark or a stage fails, raise one of the exception types in ``FAILURES``.

        Args:
            inlined: The messages of some claims as JSON, by claim name. If a claim of the round is missing, the tasks
                request all messages from the server.
            rejected: Called with the messages that a stage has rejected, as a mapping from message id to reason.
                Returns the round without these messages.
            keep: Write the results to the sink. If false, compute and discard them.
        """
        kept: list[DataFrame] = []
        self.staged_to_named_queues = False
        try:
            frame = self._read(this, inlined)
            for stage in self._stages:
                frame = apply_stage(stage, frame)
                if ERROR in frame.columns:
                    kept.append(frame.persist())
                    found = find_rejected(frame, stage_name(stage))
                    this = rejected(found) if found else this
                    frame = remove_rejected(frame, found)
            if this.claims or this.dry:
                self._write(frame, this, keep)
        finally:
            for one in kept:
                one.unpersist()

    def _read(self, this: Round, inlined: Mapping[str, bytes]) -> DataFrame:
        """Return the messages of the round as a DataFrame.

        ``inlined`` maps claim names to messages as JSON. If it contains all claims of the round, Spark's tasks need not
        request messages from the server.
        """
        if not this.claims.keys() <= inlined.keys():
            shown = this if this.dry else _without_ids(this)
            return self._spark.read.format(FORMAT).options(**self._options).option("round", _encode(shown)).load()
        schema, batches = rows.schema(COLUMNS, self._body), list[pa.RecordBatch]()
        total = sum(len(ids) for ids in this.claims.values() if ids)
        size = max(MIN_ROWS, -(-total // self.tasks))
        for name, ids in this.claims.items():
            wanted = frozenset(ids or ())
            found = [message for message in _messages.decode(inlined[name]) if message.id in wanted]
            batches += rows.RowConverter(COLUMNS, self._body, claim=f"{this.queue}/{name}").convert(found)
        if not total:
            return self._spark.createDataFrame([], schema)
        table = pa.Table.from_batches(batches).combine_chunks()
        batches = [batch for first in range(0, total, size) for batch in table.slice(first, size).to_batches()]
        return self._local(pa.Table.from_batches(batches), schema)

    def _local(self, table: pa.Table, schema: StructType) -> DataFrame:
        before = self._spark.conf.get(LOCAL_THRESHOLD, None)
        self._spark.conf.set(LOCAL_THRESHOLD, "0")
        try:
            return self._spark.createDataFrame(table, schema)
        finally:
            if before is None:
                self._spark.conf.unset(LOCAL_THRESHOLD)
            else:
                self._spark.conf.set(LOCAL_THRESHOLD, before)

    def _write(self, frame: DataFrame, this: Round, keep: bool) -> None:
        columns = {option: self._options.get(option, own) for option, own in COLUMN_OPTIONS.items()}
        if "queueColumn" not in self._options and "queue" not in frame.columns:
            del columns["queueColumn"]
        needed = [name for name in columns.values() if name in frame.columns]
        self.names_queues = "queueColumn" in columns
        given = {option: name for option, name in columns.items() if name is not None}
        writer = (frame.select(*needed) if given["bodyColumn"] in needed else frame).write
        if keep:
            writer.format(FORMAT).options(**{**self._options, **given}).option("round", _encode(_without_ids(this)))
        else:
            writer.format("noop")
        writer.mode("append").save()
        if self.names_queues and keep and this.dry:
            self.staged_to_named_queues = not frame.isEmpty()


def apply_stage(stage: Stage, frame: DataFrame) -> DataFrame:
    """Apply a stage function.

    Raises ``StageFailed`` if the function raises an error, and ``Invalid`` if it returns no DataFrame.
    """
    try:
        made = stage(frame)
    except Exception as error:
        raise StageFailed(f"Stage {stage_name(stage)}: {_class_prefix(error)}{explain(error)}") from error
    if not isinstance(made, DataFrame):
        raise Invalid(f"Stage {stage_name(stage)} must return a DataFrame, not {type(made).__name__}.")
    return made


def stage_name(stage: Stage) -> str:
    return getattr(stage, "__name__", str(stage))


def _class_prefix(error: Exception) -> str:
    """Return the error's class name as a prefix for its message.

    Return "" for an error of Spark, because its message already contains the class name. Also return "" for an error
    without a message.
    """
    return "" if isinstance(error, SPARK_ERRORS) or not str(error) else f"{type(error).__name__}: "


def _without_ids(this: Round) -> Round:
    """Return a copy of the round without the message ids, so that the option ``round`` is short."""
    return structs.replace(this, claims=dict.fromkeys(this.claims))


def _encode(this: Round) -> str:
    return msgspec.json.encode(this).decode()
