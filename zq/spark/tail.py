# SPDX-License-Identifier: Apache-2.0
"""The stream that takes nothing away: a queue with history, or a topic, read on from a position.

An offset is ``{"after": 1729, "seen": 1764000000}``: all up to this position was read, at this second of the server's
time. The same range can be read again, as long as records and messages are kept.
"""

import time
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from zq.client import Message
from zq.errors import Invalid, ZqError
from zq.spark.browse import Range, read
from zq.spark.logs import FAR, Log, split
from zq.spark.options import ReadingOptions

PAUSE: Final = 0.5
"""Seconds between two looks when there is nothing new."""
SURE: Final = 5
"""Seconds by which a record's life is taken to be shorter than it is."""
Offset = dict[str, Any]


class Lost(ZqError):
    """What was to be read may be gone."""


class Tail(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Of ``spark.readStream`` in mode tail. Its second self on the executors only reads."""

    def __init__(self, options: ReadingOptions, columns: list[str]) -> None:
        self.options = options
        self.columns = columns
        self.log = Log(options.connection, options.name, options.state, options.strict)
        self.begin: Offset | None = None
        self.last: int | None = None
        """Where AvailableNow ends; None without it."""
        self.looked: float | None = None
        """When this process knew last that it had seen everything, by its own clock."""
        self.kept: int | None = None
        """Seconds for which the queue keeps records."""

    def initialOffset(self) -> Offset:
        """The same whenever it is asked: Spark asks twice, and stores neither answer."""
        if self.begin is None:
            start = self.options.start
            self.begin = {"after": self.log.end(0, FAR) if start is None else start, "seen": 0}
        return self.begin

    def getDefaultReadLimit(self) -> ReadLimit:
        """So many messages in a batch."""
        return ReadMaxRows(self.options.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """What there is now."""
        self.last = self.log.end(0, FAR)

    def reportLatestOffset(self) -> Offset | None:
        """Where the log ends now; progress shows it beside the batch's end."""
        return {"after": self.log.end(0, FAR)}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Up to where the next batch reads. Waits for a message if there is none."""
        most = min(self.options.most, limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.most)
        ends = time.monotonic() + self.options.wait
        while True:
            self._check_kept()
            looked = time.monotonic()
            found = self.log.after(start["after"], 1)
            if found.end is not None:
                break
            self.looked = looked
            if self.last is not None or time.monotonic() + PAUSE > ends:
                return start
            time.sleep(PAUSE)
        seen = self._check_whole(start, found.end, found.messages[0])
        end = self.log.end(start["after"], most)
        self.looked = looked
        end = end if self.last is None else min(end, self.last)
        return {"after": end, "seen": seen} if end > start["after"] else start

    def partitions(self, start: Offset, end: Offset) -> list[Range]:
        """The range, in parts."""
        return [Range(*ends) for ends in split(start["after"], end["after"], self.options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        return read(self.log, self.options, self.columns, partition)

    def commit(self, end: Offset) -> None:
        """Nothing is taken away."""

    def stop(self) -> None:
        """Nothing is held."""

    def _check_kept(self) -> None:
        """A queue without history forgets what finishes between two batches. Raises ``Invalid``."""
        if self.options.state == "topic" or not self.options.strict or self.kept is not None:
            return
        self.kept = self.options.connection.client().queue(self.options.name).metadata().get("_history_ttl") or 0
        if not self.kept:
            raise Invalid(
                f"Queue {self.options.name} keeps no history, so a stream that does not claim would miss what finishes "
                "between two batches: set its _history_ttl, or option failOnDataLoss=false."
            )

    def _check_whole(self, start: Offset, found: int, message: Message) -> int:
        """The server's time. Raises ``Lost`` if records may have gone since everything was seen.

        They have not if the next position is there, or if less time has passed than they are kept.
        """
        assert message.created is not None
        now = int(message.created.timestamp()) + message.age
        passed = now - start["seen"] if self.looked is None else int(time.monotonic() - self.looked)
        late = self.kept is not None and start["seen"] and passed > self.kept - SURE
        if self.options.strict and late and found > start["after"] + 1:
            raise Lost(
                f"Queue {self.options.name} keeps records for {self.kept} seconds, and {passed} have passed since the "
                f"stream read up to {start['after']}: messages up to {found} may be gone. Option failOnDataLoss=false "
                "goes on with what is left."
            )
        return now
