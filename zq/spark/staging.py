# SPDX-License-Identifier: Apache-2.0
"""The sink: each task stores its rows as a stage (uncommitted messages), and the driver commits all stages of a batch.

Messages in a stage are invisible until the commit. Spark passes one stage per partition to the driver, from the task
that succeeded. The stages of failed tasks are dropped or expire. A repeated commit of a batch has no effect.

The option ``traceparent`` is the same for all batches of a stream. The sink sends no spans, so a context that it
derived for each batch would name a span that no collector has.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import DataType, IntegralType, MapType, StringType, StructType

from zq.client import Draft, PostStopped
from zq.errors import ClaimLapsed, Invalid, StageNotFound, ZqError
from zq.model import CommitResult, Fence
from zq.model.attributes import TRACE_NAMES
from zq.spark.options import SinkOptions
from zq.spark.rows import ATTRIBUTES, check_writable, parse_attributes, to_bodies
from zq.wire.attributes import JsonValue

# Error message for claims that have expired.
CLAIM_LAPSED_HINT: Final = (
    "Nothing of the batch was stored. A restarted query reads the batch again. If a stateful operator keeps rows of "
    "earlier batches, or the rows are from another project, remove option ackColumn."
)
# Maximum number of stages, and of claims, per commit (api-ref/transactions.md).
MAX_PER_COMMIT: Final = 1000


@dataclass
class StageResult(WriterCommitMessage):
    """The result of a task, which Spark passes to the driver."""

    stage: str | None
    """Name of the stage; ``None`` for an empty partition."""
    producer: str
    claims: list[tuple[str, str]]
    """Queue and id of each claim in the task's rows."""
    count: int = 0
    """Number of messages in the stage."""


class StagingWriter:
    """The base class of the batch and stream writers, which store rows as uncommitted messages."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        """Create the writer. Raises ``Invalid`` if the columns do not match the options."""
        if overwrite:
            raise Invalid("The sink supports only mode append, and output mode append in streams.")
        self.options = options
        self.body = _column(schema, "bodyColumn", options.body)
        check_writable(options.body, self.body)
        _column(schema, "ttlColumn", options.ttls, IntegralType)
        _column(schema, "delayColumn", options.delays, IntegralType)
        if options.attributes is not None:
            _check_attributes(options.attributes, _column(schema, "attributesColumn", options.attributes))
        _column(schema, "queueColumn", options.queues, StringType)
        _column(schema, "ackColumn", options.ack, StringType)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StageResult:
        """Store the rows of a partition as a stage (a group of uncommitted messages). Runs on an executor."""
        task = TaskContext.get()
        assert task is not None
        producer = self.options.producer or task.getLocalProperty("sql.streaming.queryId") or ""
        batch = task.getLocalProperty("streaming.sql.batchId") or "0"
        stage = f"{producer}.{batch}.{task.partitionId()}.{task.attemptNumber()}.{uuid4().hex[:8]}"
        claims: set[str] = set()
        try:
            count = self._store(stage, iterator, claims)
        except BaseException:
            self._drop([stage])
            raise
        return StageResult(stage if count else None, producer, [_parse_claim(value) for value in sorted(claims)], count)

    def publish(
        self,
        producer: str,
        batch: int,
        staged: Iterable[StageResult],
        held: Iterable[tuple[str, str]] = (),
        fence: Fence | None = None,
    ) -> CommitResult:
        """Publish the tasks' uncommitted messages and settle their claims in one commit. Runs on the driver.

        ``held`` contains further claims to settle, as pairs of queue and claim id. A repeated call has no effect.
        Raises ``Invalid`` if there are too many partitions or claims, or if the producer has already committed a later
        batch.
        """
        tasks = list(staged)
        stages = [(task.stage, task.count) for task in tasks if task.stage]
        claims = sorted({claim for task in tasks for claim in task.claims}.union(held))
        if len(stages) > MAX_PER_COMMIT:
            raise Invalid(
                f"{len(stages)} partitions have rows, but a commit accepts at most {MAX_PER_COMMIT}: "
                "coalesce the data first."
            )
        if len(claims) > MAX_PER_COMMIT:
            raise Invalid(
                f"{len(claims)} claims must be settled, but a commit accepts at most {MAX_PER_COMMIT}: "
                "increase claimSize."
            )
        client = self.options.connection.client()
        try:
            done = client.commit(producer, batch, publish=stages, settle=claims, fence=fence)
        except StageNotFound as error:
            raise StageNotFound(f"{error} A batch must complete within stage_ttl seconds.") from None
        if done.replayed and client.committed(producer).batch > batch:
            raise Invalid(
                f"Producer {producer} has committed batches after {batch}, so no message of this batch was stored. "
                "Another query or an earlier checkpoint uses the same producer. Use a different producer for each."
            )
        return done

    def drop(self, staged: Iterable[StageResult | None]) -> None:
        """Delete the uncommitted messages of a failed batch. Published messages are kept. Runs on the driver."""
        self._drop([task.stage for task in staged if task and task.stage])

    def _store(self, stage: str, batches: Iterator[pa.RecordBatch], claims: set[str]) -> int:
        client, options = self.options.connection.client(), self.options
        drafts = (pair for batch in batches for pair in self._drafts(batch, claims))
        count = 0
        for queue, some in (
            _group_by_queue(drafts) if options.queues else [(options.queue or "", (draft for _, draft in drafts))]
        ):
            settings: dict[str, Any] = {"ttl": options.ttl, "delay": options.delay}
            try:
                count += client.queue(queue).post_many(some, stage=stage, **settings)
            except PostStopped as stopped:
                raise stopped.__cause__ or stopped from None
        return count

    def _drafts(self, batch: pa.RecordBatch, claims: set[str]) -> Iterator[tuple[str, Any]]:
        options = self.options
        contents: Iterable[Any] = to_bodies(self.body, batch.column(options.body))
        if options.ack:
            claims.update(claim for claim in batch.column(options.ack).unique().to_pylist() if claim)
        if options.ttls or options.delays or options.attributes or options.trace:
            ttls = _column_values(batch, options.ttls, options.ttl)
            given = map(parse_attributes, _column_values(batch, options.attributes, None))
            parent: dict[str, JsonValue] = {TRACE_NAMES[0]: options.trace} if options.trace else {}
            attributes = (parent | (own or {}) for own in given) if parent else given
            contents = map(
                Draft, contents, ttls, _column_values(batch, options.delays, options.delay), repeat(None), attributes
            )
        queues = _column_values(batch, options.queues, options.queue)
        return zip((queue or _raise_no_queue() for queue in queues), contents, strict=True)

    def _drop(self, stages: Iterable[str]) -> None:
        client = replace(self.options.connection, retry_for=0).client()
        with suppress(ZqError):  # the server drops stages after stage_ttl seconds anyway
            for stage in stages:
                client.drop_stage(stage)


class BatchWriter(StagingWriter, DataSourceArrowWriter):
    """The writer of ``df.write``."""

    def commit(self, messages: list[StageResult]) -> None:  # type: ignore[override]
        """Publish the job's uncommitted messages in one commit.

        Raises ``Invalid`` if an earlier job used this job's idempotency key and stored a different number of messages.
        """
        assert self.options.producer is not None
        done = self.publish(self.options.producer, 0, messages)
        count = sum(task.count for task in messages)
        if done.replayed and done.published != count:
            raise Invalid(
                f"A job with idempotencyKey {self.options.producer} has already stored {done.published} messages, but "
                f"this job has {count}. None of this job's messages were stored. Use a different key "
                "for different data."
            )

    def abort(self, messages: list[StageResult | None]) -> None:  # type: ignore[override]
        """Delete the uncommitted messages of the job. ``messages`` contains ``None`` for each failed task."""
        self.drop(messages)


class StreamWriter(StagingWriter, DataSourceStreamArrowWriter):
    """The writer of ``df.writeStream``.

    Spark writes rows and commits batches with separate instances. The committing instance knows only the results of the
    tasks.
    """

    def commit(self, messages: list[StageResult], batchId: int) -> None:  # type: ignore[override]
        """Publish the uncommitted messages of a batch in one commit. If the batch is empty, send no request."""
        if any(task.stage or task.claims for task in messages):
            try:
                self.publish(messages[0].producer, batchId, messages)
            except ClaimLapsed as error:
                raise ClaimLapsed(f"{error} {CLAIM_LAPSED_HINT}") from None

    def abort(self, messages: list[StageResult | None], batchId: int) -> None:  # type: ignore[override]
        """Delete the uncommitted messages of a batch. ``messages`` contains ``None`` for each failed task."""
        self.drop(messages)


def _column(schema: StructType, option: str, name: str | None, kind: type[DataType] = DataType) -> DataType:
    if name is None:
        return StringType()
    if name not in schema.names:
        raise Invalid(
            f"Option {option} names the column {name}, but the data has {', '.join(schema.names) or 'no columns'}."
        )
    found: DataType = schema[name].dataType
    if not isinstance(found, kind):
        wanted = "integers" if kind is IntegralType else "text"
        raise Invalid(f"Option {option} requires a column of type {wanted}, but {name} is {found.simpleString()}.")
    return found


def _check_attributes(name: str, kind: DataType) -> None:
    values = kind.valueType if isinstance(kind, MapType) and isinstance(kind.keyType, StringType) else None
    named = isinstance(values, StructType) and {field.name: field.dataType for field in values.fields}
    if not (isinstance(values, StringType) or named == {"type": StringType(), "value": StringType()}):
        raise Invalid(
            f"Option attributesColumn requires a column of type map<string,string> or {ATTRIBUTES.simpleString()}, but "
            f"{name} is {kind.simpleString()}."
        )


def _column_values(batch: pa.RecordBatch, name: str | None, default: Any) -> Sequence[Any]:
    if name is None:
        return [default] * batch.num_rows
    return [default if value is None else value for value in batch.column(name).to_pylist()]


def _raise_no_queue() -> str:
    raise Invalid("A row has no queue: fill queueColumn, or set option queue for such rows.")


def _group_by_queue(pairs: Iterable[tuple[str, Any]], size: int = 10_000) -> Iterator[tuple[str, list[Any]]]:
    groups: dict[str, list[Any]] = {}
    for number, (queue, value) in enumerate(pairs, 1):
        groups.setdefault(queue, []).append(value)
        if number % size == 0:
            yield from groups.items()
            groups = {}
    yield from groups.items()


def _parse_claim(value: str) -> tuple[str, str]:
    queue, _, name = value.partition("/")
    if not queue or not name:
        raise Invalid("Option ackColumn requires the column claim of a claiming source, with values like queue/claim.")
    return queue, name
