# SPDX-License-Identifier: Apache-2.0
"""The streaming source in claim mode, which consumes messages. A batch consists of named claims.

An offset determines the claims of its batch: ``{"consumer": "etl", "run": 3, "batch": 17, "claims": 4}`` means the
claims etl.3.17.0 to etl.3.17.3. ``latestOffset`` creates the claims of the next batch and settles the claims of the
previous batch. Spark calls ``latestOffset`` only after the previous batch is in the commit log.

``run`` is the consumer's fencing token at the creation of the checkpoint, so different checkpoints have different claim
names.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from zq.client import Message
from zq.errors import ClaimNotFound, Fenced, Invalid
from zq.spark.claims import BatchClaimer, ClaimedBatch, Heartbeat, Prefetch
from zq.spark.options import ClaimingOptions
from zq.spark.rows import RowConverter

Offset = dict[str, Any]
_messages: Final = msgspec.json.Decoder(list[Message])


@dataclass
class ClaimsPartition(InputPartition):
    """The claims that a task reads."""

    names: list[str]
    inlined: dict[str, bytes]
    """Messages as JSON, for claims whose content the driver has sent with the task."""


class ClaimReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader for ``spark.readStream`` that claims and deletes messages (claim mode).

    Executors call only ``read``.
    """

    def __init__(self, options: ClaimingOptions, columns: list[str]) -> None:
        self.options = options
        self.columns = columns
        self.prefetch = Prefetch()
        self.claimer: BatchClaimer | None = None
        self.heartbeat: Heartbeat | None = None
        self.epoch = 0
        """Value of the fencing token; 0 = not acquired yet."""
        self.budget: int | None = None
        """Number of messages that the trigger AvailableNow may still claim; ``None`` for other triggers."""
        self.inlined: dict[str, bytes] = {}
        self.settled: Offset | None = None
        """Offset of the last batch whose claims are settled."""

    def initialOffset(self) -> Offset:
        """Return the initial offset. Spark calls the method twice and must get the same result."""
        return {"consumer": self.options.consumer, "run": 0, "batch": 0, "claims": 0, "before": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the messages in the queue now, including those that a crashed query has claimed."""
        self.budget = self.options.connection.client().queue(self.options.queue).stats().total

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Claim the next batch and return its end offset.

        ``start`` is the end offset of the previous batch, which Spark has committed. The method also settles the claims
        of the previous batch.
        """
        self._check(start)
        try:
            return self._next(start, limit)
        except Fenced:
            raise Fenced(
                f"Another query has started as consumer {self.options.consumer} of queue {self.options.queue}, so this "
                "one stops. Use a different consumer name for each query."
            ) from None

    def partitions(self, start: Offset, end: Offset) -> list[ClaimsPartition]:
        """Distribute the claims of a batch among tasks, and keep the claims alive."""
        names = _claim_names(end) if start != end else []
        if self.claimer:
            self._heartbeat().keep_alive(names)
        else:  # Spark repeats a batch after a restart
            self._heartbeat().keep_alive(names + _claim_names(start), at_once=True)
        share = -(-len(names) // self.options.partitions) or 1
        parts = [names[first : first + share] for first in range(0, len(names), share)]
        return [
            ClaimsPartition(part, {name: self.inlined[name] for name in part if name in self.inlined}) for part in parts
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the messages of the claims. A claim that no longer exists yields no rows."""
        if not isinstance(partition, ClaimsPartition):  # Spark also calls this for a source without partitions
            return
        queue = self.options.queue
        for name in partition.names:
            rows = RowConverter(self.columns, self.options.body, queue=queue, claim=f"{queue}/{name}")
            inlined = partition.inlined.get(name)
            yield from rows.convert(self._claimed_messages(name) if inlined is None else _messages.decode(inlined))

    def commit(self, end: Offset) -> None:
        """Do nothing: Spark calls ``commit`` late and never for the last batch. ``latestOffset`` settles the claims."""

    def stop(self) -> None:
        """Release the prefetched claims. Keep all other claims, because the checkpoint may refer to them."""
        left = self.prefetch.stop()
        if left is not None and self.claimer is not None:
            self.claimer.release(left)
        if self.heartbeat is not None:
            self.heartbeat.stop()

    def _next(self, start: Offset, limit: ReadLimit) -> Offset:
        claimer = self._begin(start)
        following = {**start, "run": start["run"] or self.epoch, "batch": start["batch"] + 1, "before": start["claims"]}
        batch = self.prefetch.take() or ClaimedBatch(_claim_prefix(following))
        max_messages = self.options.max_messages
        max_messages = min(max_messages, limit.max_rows) if isinstance(limit, ReadMaxRows) else max_messages
        to_settle = _claim_names(start) if start != self.settled else []
        if not batch.claims:
            claimer.settle(to_settle)  # before waiting for messages, which may take long
            to_settle, self.settled = [], start
        self._fill(claimer, batch, max_messages, self.options.wait)
        if not batch.claims:
            return start
        self.inlined = batch.inlined
        end = {**following, "claims": len(batch.claims)}
        self._start_prefetch(claimer, end, to_settle, max_messages if batch.messages >= max_messages else 0)
        return end

    def _start_prefetch(self, claimer: BatchClaimer, end: Offset, to_settle: list[str], max_messages: int) -> None:
        batch = ClaimedBatch(_claim_prefix({**end, "batch": end["batch"] + 1}))

        def fill() -> None:
            claimer.settle(to_settle)
            self._fill(claimer, batch, max_messages, wait=0)

        self.prefetch.start(batch, fill)

    def _fill(self, claimer: BatchClaimer, batch: ClaimedBatch, max_messages: int, wait: int) -> None:
        if self.budget is not None:
            max_messages, wait = min(max_messages, batch.messages + self.budget), 0
        before = batch.messages
        claimer.fill(batch, max_messages, wait)
        if self.budget is not None:
            self.budget -= batch.messages - before

    def _begin(self, start: Offset) -> BatchClaimer:
        """Return the object that claims messages for this query.

        The first call creates the object, and advances the consumer's fencing token to stop an earlier query of this
        consumer. It also settles the claims of the batch before the offset ``start``.
        """
        if self.claimer is None:
            _check_limits(self.options)
            fence = self.options.connection.client().fence(_fence_name(self.options))
            self._heartbeat().fence = fence
            self.epoch, self.claimer = fence.epoch, BatchClaimer(self.options, fence, self._heartbeat())
            self.claimer.settle(_previous_claim_names(start))
        return self.claimer

    def _heartbeat(self) -> Heartbeat:
        if self.heartbeat is None:
            options = self.options
            self.heartbeat = Heartbeat(options.connection, options.queue, options.ttl, options.ttl / 3)
        return self.heartbeat

    def _claimed_messages(self, name: str) -> list[Message]:
        try:
            return self.options.connection.client().queue(self.options.queue).get_claim(name).messages
        except ClaimNotFound:
            return []

    def _check(self, start: Offset) -> None:
        if start.get("consumer") != self.options.consumer:
            raise Invalid(
                f"The checkpoint belongs to consumer {start.get('consumer')}, but option consumer is "
                f"{self.options.consumer}. Use a new checkpoint for a new consumer."
            )


def _check_limits(options: ClaimingOptions) -> None:
    limits = options.connection.client().limits()
    bounds = {
        "claimSize": (options.claim_size or 1, "max_messages_per_claim_or_pop"),
        "claimTtl": (options.ttl, "max_claim_ttl"),
        "wait": (options.wait, "max_wait"),
    }
    for option, (value, limit) in bounds.items():
        if value > limits[limit]:
            raise Invalid(f"Option {option} must be at most {limits[limit]} (the server's {limit}), not {value}.")


def _fence_name(options: ClaimingOptions) -> str:
    """Return the name of the fencing token.

    The name contains a digest of the consumer and the queue, because the length of the name is limited.
    """
    return "stream." + hashlib.sha256(f"{options.consumer}/{options.queue}".encode()).hexdigest()[:40]


def _claim_prefix(offset: Offset) -> str:
    return f"{offset['consumer']}.{offset['run']}.{offset['batch']}"


def _claim_names(offset: Offset) -> list[str]:
    return [f"{_claim_prefix(offset)}.{number}" for number in range(offset["claims"])]


def _previous_claim_names(offset: Offset) -> list[str]:
    """Return the claim names of the batch before ``offset``.

    If the previous query crashed, these claims may still exist.
    """
    return _claim_names({**offset, "batch": offset["batch"] - 1, "claims": offset["before"]})
