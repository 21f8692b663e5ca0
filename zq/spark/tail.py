# SPDX-License-Identifier: Apache-2.0
"""The streaming source in tail mode, which reads a topic or a queue's history without consuming messages.

An offset is ``{"after": 1729, "seen": 1764000000, "rows": 40, "next": null}``:

- ``after``: position up to which all messages were read.
- ``seen``: a server time in Unix seconds; 0 = unknown. Messages after position ``after`` were posted after this time
  (in a history: finished after this time). Messages that existed when the stream began may be older.
- ``rows``: number of rows in the last batch.
- ``next``: position of the first history entry after ``after``; null if unknown.

From these values, the reader detects whether messages have expired unread and whether a repeated batch is complete.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from zq import clock
from zq.client import Message
from zq.client.values import FinishedMessage
from zq.errors import Invalid, ZqError
from zq.spark.browse import Log, PositionRange, Scan, read_range, split_range
from zq.spark.options import ReadingOptions

# Seconds between two polls without new messages.
POLL_PAUSE: Final = 0.5
# Safety margin in seconds before a history entry expires.
EXPIRY_MARGIN: Final = 5
# Minimum interval in seconds between two checks of the same kind.
CHECK_INTERVAL: Final = 60
# End of error messages about lost messages.
CONTINUE_HINT: Final = "Set option failOnDataLoss=false to continue with the remaining messages."
Offset = dict[str, Any]


class MessagesLost(ZqError):
    """An error for messages that may have expired before Spark read them."""


class TailReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming reader in tail mode, which reads messages without consuming them.

    Spark's executors call only the method ``read``.
    """

    def __init__(self, options: ReadingOptions, columns: list[str]) -> None:
        self.options = options
        self.columns = columns
        self.log = Log(options.connection, options.name, options.state, options.strict)
        self.lenient_log = replace(self.log, strict=False)
        self.is_topic = options.state == "topic"
        self.begin: Offset | None = None
        self.planned: Offset | None = None
        """End offset of the batch that this process has planned."""
        self.newest = 0
        """Last known position of the log's end."""
        self.last: int | None = None
        """Position at which the trigger AvailableNow ends; ``None`` for other triggers."""
        self.kept = 0
        """Retention of the queue's history in seconds; 0 = not checked."""
        self.known: tuple[int, float] | None = None
        """A server time in seconds, and the local monotonic time at which it was received."""
        self.done: dict[str, float] = {}
        """Monotonic time of the last check, by check name."""
        self.passed = 0
        """Position up to which the topic was searched without finding further messages."""

    def initialOffset(self) -> Offset:
        """Return the initial offset. Spark calls the method twice and must get the same result."""
        if self.begin is None:
            start = self.options.start
            self.begin = make_offset(self._newest() if start is None else start)
        return self.begin

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self.options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the query to the messages that exist now."""
        self.last = self._newest()

    def reportLatestOffset(self) -> Offset | None:
        """Return the approximate end of the log, which Spark shows in the query's progress."""
        return {"after": self._newest() if self._is_due("report") else self.newest}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Wait for messages. Return the end of the next batch. Raises ``MessagesLost`` if messages expired unread."""
        max_rows = min(
            self.options.max_messages, limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.max_messages
        )
        ends = time.monotonic() + self.options.wait
        self._check_queue(start)
        if start == self.begin and self.options.start is None:  # so that a restart begins at the same position
            return make_offset(start["after"], self._now(start))
        enough = self.last is not None and start["after"] >= self.last
        while True:
            found = self.log.scan(max(start["after"], self.passed), 1 if enough else max_rows)
            if found.rows:
                return start if enough else self._plan(start, found)
            noted = self._offset_without_messages(start, found)
            if noted != start or self.last is not None or time.monotonic() + POLL_PAUSE > ends:
                return noted
            time.sleep(POLL_PAUSE)

    def partitions(self, start: Offset, end: Offset) -> list[PositionRange]:
        """Split the positions between two offsets into partitions.

        Raises ``MessagesLost`` if Spark repeats a batch and messages of this batch may have been lost.
        """
        if end != self.planned and end["rows"] and self.options.strict:
            self._check_repeated(start, end)
        return [PositionRange(*ends) for ends in split_range(start["after"], end["after"], self.options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self.log, self.options, self.columns, partition)

    def commit(self, end: Offset) -> None:
        """Do nothing, because the stream consumes no messages."""

    def stop(self) -> None:
        """Do nothing, because the stream holds no claims."""

    def _plan(self, start: Offset, found: Scan) -> Offset:
        """Return the end offset of a batch that contains the messages in ``found``."""
        assert found.last is not None
        now = self._server_time(found.last)
        if self.options.strict and not self.is_topic:
            self._check_complete(start, found, now)
        self.newest = max(self.newest, found.end)
        following = None
        if not found.whole and self.options.strict and self.options.state == "history":
            following = self.log.first(found.end)
        seen = now if found.whole or not start["seen"] else max(start["seen"], self._moment(found.last))
        self.planned = make_offset(found.end, seen, found.rows, following)
        return self.planned

    def _offset_without_messages(self, start: Offset, found: Scan) -> Offset:
        """Return the offset after a scan that has found no messages.

        Spark runs a batch for each new offset. To avoid empty batches, usually return ``start``. Raises
        ``MessagesLost`` if the history entry at ``start["next"]`` no longer exists.
        """
        if self.is_topic:
            self.passed = max(self.passed, found.position or 0)
            if self.passed > start["after"] and self._is_due("passed"):
                return make_offset(self.passed)
        elif self.kept:
            if start["next"] is not None:
                raise MessagesLost(
                    f"{self._retention()}, and the record at {start['next']} was removed before it was read. "
                    f"{CONTINUE_HINT}"
                )
            now = self._now(start)
            if not start["seen"] or self.kept / 4 < now - start["seen"] <= self.kept - EXPIRY_MARGIN:
                return make_offset(start["after"], now)
        return start

    def _check_complete(self, start: Offset, found: Scan, now: int) -> None:
        if start["next"] is not None:
            gone = self.log.first(start["after"]) != start["next"]
        else:
            gone = self._is_late(start, now) and found.rows < found.end - start["after"]
            if gone and self.options.state == "history":  # entries of a history expire in order
                gone = self.log.first(start["after"]) != start["after"] + 1
        if gone:
            raise MessagesLost(
                f"{self._retention()}, but the stream last read the queue {now - start['seen']} seconds ago. Messages "
                f"after position {start['after']}, up to position {found.end}, may have been lost. {CONTINUE_HINT}"
            )

    def _check_repeated(self, start: Offset, end: Offset) -> None:
        """Raise ``MessagesLost`` if messages of a repeated batch may have been lost.

        Spark repeats a batch if the process that started the batch ended before the batch was complete.
        """
        self._check_queue(start)
        rows = 0
        for messages in self.lenient_log.between(start["after"], end["after"]):
            rows += len(messages)
            if messages:
                self._server_time(messages[-1])
        risky = not start["seen"] or self.options.state == "history" or self._is_late(start, self._now(end))
        if self.is_topic:
            risky = not start["after"]  # after any other position, the log itself reports gaps
        if rows < end["rows"] and risky:
            raise MessagesLost(
                f"A repeated batch had {end['rows']} messages after position {start['after']}, but now has only "
                f"{rows}. {CONTINUE_HINT}"
            )

    def _check_queue(self, start: Offset) -> None:
        """Check at most once per ``CHECK_INTERVAL`` that the queue keeps a history and is still the original queue.

        Raises ``Invalid`` if the queue keeps no history. Raises ``MessagesLost`` if the queue was deleted and created
        again.
        """
        if self.is_topic or not self.options.strict or not self._is_due("queue"):
            return
        self.kept = self.options.connection.client().queue(self.options.name).metadata().get("_history_ttl") or 0
        if not self.kept:
            raise Invalid(
                f"Queue {self.options.name} keeps no history, so a stream in mode tail would miss messages that finish "
                "between two batches. Set its _history_ttl, or option failOnDataLoss=false."
            )
        first = self.log.after(0, 1)
        if not start["seen"] or first.end is None or first.end > start["after"]:
            return
        if self._moment(first.messages[0]) > start["seen"] + EXPIRY_MARGIN:
            raise MessagesLost(
                f"Queue {self.options.name} was deleted and created again, and its positions began again below the "
                f"stream's position {start['after']}. Use a new checkpoint."
            )

    def _is_late(self, start: Offset, now: int) -> bool:
        return bool(start["seen"]) and now - start["seen"] > self.kept - EXPIRY_MARGIN

    def _retention(self) -> str:
        return f"Queue {self.options.name} keeps records for {self.kept} seconds"

    def _now(self, start: Offset) -> int:
        """Return the server's Unix time in seconds, estimated from a message that the server returned.

        If there is no such message, return the local time.
        """
        if self.known is None and not self.is_topic and start["after"]:
            for message in self.lenient_log.after(start["after"] - 1, 1).messages:
                self._server_time(message)
        if self.known is None:
            return int(clock.local_time())
        second, when = self.known
        return second + int(time.monotonic() - when)

    def _server_time(self, message: Message) -> int:
        """Record and return the server's Unix time in seconds, from a message that the server has just returned."""
        assert message.created is not None
        second = int(message.created.timestamp()) + message.age
        self.known = second, time.monotonic()
        return second

    def _moment(self, message: Message) -> int:
        moment = message.finished if isinstance(message, FinishedMessage) else None
        if self.options.state != "history" or moment is None:
            moment = message.created
        assert moment is not None
        return int(moment.timestamp())

    def _newest(self) -> int:
        self.newest = self.lenient_log.last(self.newest)
        return self.newest

    def _is_due(self, what: str) -> bool:
        """Return whether the check named ``what`` is due, and record the time of a due check.

        A check is due if its last run was at least ``CHECK_INTERVAL`` seconds ago.
        """
        now = time.monotonic()
        due = now - self.done.get(what, -CHECK_INTERVAL) >= CHECK_INTERVAL
        if due:
            self.done[what] = now
        return due


def make_offset(after: int, seen: int = 0, rows: int = 0, following: int | None = None) -> Offset:
    """Return an offset with members in a fixed order, because Spark compares offsets as text."""
    return {"after": after, "seen": seen, "rows": rows, "next": following}
