# SPDX-License-Identifier: Apache-2.0
"""The stream that takes messages away: a batch is what a few named claims hold.

An offset names its claims: ``{"consumer": "etl", "run": 3, "batch": 17, "claims": 4}`` is etl.3.17.0 to etl.3.17.3.
They are taken in ``latestOffset`` only, read as often as Spark likes without being taken again, and settled by the next
``latestOffset``, which Spark calls when the batch stands in its commit log. ``run`` is the fence's epoch at which the
checkpoint began, so that claims of another checkpoint are never met under the same name.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from zq.client import Message, Queue
from zq.errors import ClaimNotFound, Fenced, Invalid
from zq.model import Fence
from zq.spark.heartbeat import Heartbeat
from zq.spark.options import ClaimingOptions
from zq.spark.rows import Rows

MOST_CLAIMS: Final = 1000
"""Of one batch: a commit settles no more."""
CARRIED: Final = 8 * 2**20
"""Bytes that a batch's tasks get from the driver, which has them from the claim, without asking again."""
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
        self.fence: Fence | None = None
        self.heartbeat: Heartbeat | None = None
        self.budget: int | None = None
        """Messages that AvailableNow may still take; None without it."""
        self.carried: dict[str, bytes] = {}

    def initialOffset(self) -> Offset:
        """The same whenever it is asked: Spark asks twice, and stores neither answer."""
        return {"consumer": self.options.consumer, "run": 0, "batch": 0, "claims": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """So many messages in a batch."""
        return ReadMaxRows(self.options.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """What is there now: claimed messages count, since an attempt that crashed may hold some for this one."""
        self.budget = self._queue().stats().total

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Settles what was read up to ``start``, which is done for good, and takes the next claims."""
        self._check(start)
        try:
            fence = self._fence()
            self._settle(_names(start), fence)
            return self._take(start, limit, fence)
        except Fenced:
            raise Fenced(
                f"Another query has started as consumer {self.options.consumer} of queue {self.options.queue}, so this "
                "one stops: give each query a consumer name of its own."
            ) from None

    def partitions(self, start: Offset, end: Offset) -> list[Claims]:
        """The claims of a batch, also of one that is read again after a restart: they are kept alive from here on."""
        names = _names(end) if start != end else []
        self._heart().hold(names)
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
        """Claims are not released: the checkpoint may name them."""
        if self.heartbeat is not None:
            self.heartbeat.stop()

    def _take(self, start: Offset, limit: ReadLimit, fence: Fence) -> Offset:
        end = {**start, "run": start["run"] or fence.epoch, "batch": start["batch"] + 1, "claims": 0}
        left = min(self.options.most, limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.most)
        left = left if self.budget is None else min(left, self.budget)
        self.carried = {}
        size = self.options.claim_size or self.options.connection.client().limits()["max_messages_per_claim_or_pop"]
        while left > 0 and end["claims"] < MOST_CLAIMS:
            name = _name(end, end["claims"])
            messages = self._claim(name, min(size, left), fence, patient=end["claims"] == 0)
            if not messages:
                break
            self._heart().hold([name])
            self._carry(name, messages)
            left -= len(messages)
            self.budget = None if self.budget is None else self.budget - len(messages)
            end["claims"] += 1
        return end if end["claims"] else start

    def _claim(self, name: str, size: int, fence: Fence, patient: bool) -> list[Message]:
        """What it holds. The first one of a batch waits for messages to come."""
        wait = self.options.wait if patient and self.budget is None else 0
        asked = time.monotonic()
        claim = self._queue().claim(size, ttl=self.options.ttl, wait=wait, name=name, fence=fence)
        if wait and not claim.messages:
            # A server on which too many wait already answers at once; Spark would ask again without a pause.
            time.sleep(max(0.0, min(1.0, asked + wait - time.monotonic())))
        return claim.messages

    def _carry(self, name: str, messages: list[Message]) -> None:
        """Note what a claim holds, if there is room for it."""
        content = msgspec.json.encode(messages)
        if len(content) + sum(map(len, self.carried.values())) <= CARRIED:
            self.carried[name] = content

    def _held(self, name: str) -> list[Message]:
        try:
            return self._queue().held(name).messages
        except ClaimNotFound:
            return []

    def _settle(self, names: list[str], fence: Fence) -> None:
        for name in names:
            try:
                self._queue().settle(name, delete="*", fence=fence)
            except ClaimNotFound:
                continue  # the sink's commit has settled it, or it lapsed and its messages come again
            finally:
                self._heart().let_go([name])

    def _check(self, start: Offset) -> None:
        if start.get("consumer") != self.options.consumer:
            raise Invalid(
                f"The checkpoint is that of consumer {start.get('consumer')}, and option consumer is "
                f"{self.options.consumer}: a new consumer needs a new checkpoint."
            )

    def _fence(self) -> Fence:
        """Taken by the first call: whoever was this consumer before cannot work on."""
        if self.fence is None:
            self.fence = self.options.connection.client().fence(f"{self.options.consumer}.{self.options.queue}")
        return self.fence

    def _heart(self) -> Heartbeat:
        if self.heartbeat is None:
            ttl = self.options.ttl
            self.heartbeat = Heartbeat(self.options.connection, self.options.queue, ttl, pause=ttl / 3)
        return self.heartbeat

    def _queue(self) -> Queue:
        return self.options.connection.client().queue(self.options.queue)


def _names(offset: Offset) -> list[str]:
    return [_name(offset, number) for number in range(offset["claims"])]


def _name(offset: Offset, number: int) -> str:
    return f"{offset['consumer']}.{offset['run']}.{offset['batch']}.{number}"
