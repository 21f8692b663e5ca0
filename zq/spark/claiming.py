# SPDX-License-Identifier: Apache-2.0
"""The stream that takes messages away: a batch is what a few named claims hold.

An offset names its claims: ``{"consumer": "etl", "run": 3, "batch": 17, "claims": 4}`` is etl.3.17.0 to etl.3.17.3.
They are taken in ``latestOffset`` only, read as often as Spark likes without being taken again, and settled by the next
``latestOffset``, which Spark calls when the batch stands in its commit log. ``run`` is the fence's epoch at which the
checkpoint began, so that claims of another checkpoint are never met under the same name.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from zq.client import Message
from zq.errors import ClaimNotFound, Fenced, Invalid, ZqError
from zq.spark.heartbeat import Heartbeat
from zq.spark.options import ClaimingOptions
from zq.spark.rows import Rows
from zq.spark.taking import Taken, Taker, beside

PATIENCE: Final = 5.0
"""Seconds that the end of a query waits for what was done beside its last batch."""
Offset = dict[str, Any]
_messages: Final = msgspec.json.Decoder(list[Message])


@dataclass
class Claims(InputPartition):
    """Claims that one task reads."""

    names: list[str]
    carried: dict[str, bytes]
    """What the driver knows already that they hold, as JSON: it does not change while a claim lives."""


class ClaimingReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Of ``spark.readStream`` in mode claim. Its second self on the executors only reads."""

    def __init__(self, options: ClaimingOptions, columns: list[str]) -> None:
        self.options = options
        self.columns = columns
        self.taker: Taker | None = None
        self.heart: Heartbeat | None = None
        self.epoch = 0
        """Of the fence; 0 = none was taken yet."""
        self.budget: int | None = None
        """Messages that AvailableNow may still take; None without it."""
        self.carried: dict[str, bytes] = {}
        self.settled: Offset | None = None
        """Of which nothing is left to be settled."""
        self.ahead: Future[Taken] | None = None
        """What is done beside a batch: the one before is settled, and the next one taken if there is a backlog."""

    def initialOffset(self) -> Offset:
        """The same whenever it is asked: Spark asks twice, and stores neither answer."""
        return {"consumer": self.options.consumer, "run": 0, "batch": 0, "claims": 0, "before": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """So many messages in a batch."""
        return ReadMaxRows(self.options.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now: claimed messages count, since an attempt that crashed may hold some for this one."""
        self.budget = self.options.connection.client().queue(self.options.queue).stats().total

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Takes the next claims, and settles those up to ``start``, which are done for good."""
        self._check(start)
        try:
            return self._next(start, limit)
        except Fenced:
            raise Fenced(
                f"Another query has started as consumer {self.options.consumer} of queue {self.options.queue}, so this "
                "one stops: give each query a consumer name of its own."
            ) from None

    def partitions(self, start: Offset, end: Offset) -> list[Claims]:
        """The claims of a batch, also of one that is read again after a restart: they are kept alive from here on."""
        names = _names(end) if start != end else []
        if self.taker:
            self._heart().hold(names)
        else:  # a batch of an earlier process is read again
            self._heart().hold(names + _names(start), at_once=True)
        share = -(-len(names) // self.options.partitions) or 1
        parts = [names[first : first + share] for first in range(0, len(names), share)]
        return [Claims(part, {name: self.carried[name] for name in part if name in self.carried}) for part in parts]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What the claims hold. One that is gone has no rows: it was settled, or its messages will come again."""
        if not isinstance(partition, Claims):  # Spark reads something of no partitions, too
            return
        queue = self.options.queue
        for name in partition.names:
            rows = Rows(self.columns, self.options.body, queue=queue, claim=f"{queue}/{name}")
            carried = partition.carried.get(name)
            yield from rows.of(self._held(name) if carried is None else _messages.decode(carried))

    def commit(self, end: Offset) -> None:
        """Nothing: it comes a batch late, and never for the last one."""

    def stop(self) -> None:
        """Claims that a checkpoint may name are not released, only those that were taken ahead."""
        if self.ahead is not None and self.taker is not None:
            with suppress(ZqError, TimeoutError):
                self.taker.give_back(self.ahead.result(PATIENCE))
        if self.heart is not None:
            self.heart.stop()

    def _next(self, start: Offset, limit: ReadLimit) -> Offset:
        taker = self._begun(start)
        following = {**start, "run": start["run"] or self.epoch, "batch": start["batch"] + 1, "before": start["claims"]}
        taken, self.ahead = self.ahead.result() if self.ahead else Taken(_stem(following)), None
        most = self.options.most
        most = min(most, limit.max_rows) if isinstance(limit, ReadMaxRows) else most
        settling = _names(start) if start != self.settled else []
        if not taken.claims:
            taker.settle(settling)  # at once, for it may be long until there is another batch
            settling, self.settled = [], start
        self._fill(taker, taken, most, self.options.wait)
        if not taken.claims:
            return start
        self.carried = taken.carried
        end = {**following, "claims": len(taken.claims)}
        more = taken.messages >= most
        self.ahead = beside(lambda: self._go_ahead(taker, settling, end, most if more else 0))
        return end

    def _go_ahead(self, taker: Taker, settling: list[str], end: Offset, most: int) -> Taken:
        taker.settle(settling)
        taken = Taken(_stem({**end, "batch": end["batch"] + 1}))
        self._fill(taker, taken, most, wait=0)
        return taken

    def _fill(self, taker: Taker, taken: Taken, most: int, wait: int) -> None:
        if self.budget is not None:
            most, wait = min(most, taken.messages + self.budget), 0
        before = taken.messages
        taker.fill(taken, most, wait)
        if self.budget is not None:
            self.budget -= taken.messages - before

    def _begun(self, start: Offset) -> Taker:
        """The first call takes the fence: whoever was this consumer before cannot work on. What it left is settled."""
        if self.taker is None:
            _check_limits(self.options)
            fence = self.options.connection.client().fence(_fence_name(self.options))
            self._heart().fence = fence
            self.epoch, self.taker = fence.epoch, Taker(self.options, fence, self._heart())
            self.taker.settle(_names_before(start))
        return self.taker

    def _heart(self) -> Heartbeat:
        if self.heart is None:
            self.heart = Heartbeat(self.options.connection, self.options.queue, self.options.ttl, self.options.ttl / 3)
        return self.heart

    def _held(self, name: str) -> list[Message]:
        try:
            return self.options.connection.client().queue(self.options.queue).held(name).messages
        except ClaimNotFound:
            return []

    def _check(self, start: Offset) -> None:
        if start.get("consumer") != self.options.consumer:
            raise Invalid(
                f"The checkpoint is that of consumer {start.get('consumer')}, and option consumer is "
                f"{self.options.consumer}: a new consumer needs a new checkpoint."
            )


def _check_limits(options: ClaimingOptions) -> None:
    """Raises ``Invalid`` for what this server does not allow."""
    limits = options.connection.client().limits()
    asked = {
        "claimSize": (options.claim_size or 1, "max_messages_per_claim_or_pop"),
        "claimTtl": (options.ttl, "max_claim_ttl"),
        "wait": (options.wait, "max_wait"),
    }
    for option, (value, limit) in asked.items():
        if value > limits[limit]:
            raise Invalid(f"Option {option} is {value}, and the server allows {limits[limit]} ({limit}).")


def _fence_name(options: ClaimingOptions) -> str:
    """Both names may have any length up to 64, and dots."""
    return "stream." + hashlib.sha256(f"{options.consumer}/{options.queue}".encode()).hexdigest()[:40]


def _stem(offset: Offset) -> str:
    return f"{offset['consumer']}.{offset['run']}.{offset['batch']}"


def _names(offset: Offset) -> list[str]:
    return [f"{_stem(offset)}.{number}" for number in range(offset["claims"])]


def _names_before(offset: Offset) -> list[str]:
    """Of the batch before, which may not have been settled when the offset was written."""
    return _names({**offset, "batch": offset["batch"] - 1, "claims": offset["before"]})
