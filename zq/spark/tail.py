# SPDX-License-Identifier: Apache-2.0
"""The streaming source in mode tail, which consumes nothing: a queue with history, or a topic, read from a position on.

An offset is ``{"after": 1729, "seen": 1764000000, "rows": 40, "next": null}``. Everything up to position ``after`` was
read, with 40 rows in the last batch. All remaining messages finish at or after the server time ``seen``, except for
those that existed when the stream began. If a queue's history had more entries, ``next`` is the position of the next
one.

These values reveal whether entries may have expired unread, and whether a repeated range still has all its rows.
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
from zq.client.values import Finished
from zq.errors import Invalid, ZqError
from zq.spark.browse import Log, Range, Walk, read, split
from zq.spark.options import ReadingOptions

# Seconds between two polls without new messages.
POLL_PAUSE: Final = 0.5
# Seconds by which the lifetime of an entry is underestimated, for safety.
EXPIRY_MARGIN: Final = 5
# Seconds between two checks of values that rarely change.
CHECK_INTERVAL: Final = 60
# End of error sentences about a gap.
CONTINUE_HINT: Final = "Set option failOnDataLoss=false to continue with the remaining messages."
Offset = dict[str, Any]


class Lost(ZqError):
    """A range whose entries may have been lost."""


class Tail(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of ``spark.readStream`` in mode tail. Its copy on the executors only reads."""

    def __init__(self, options: ReadingOptions, columns: list[str]) -> None:
        self.options = options
        self.columns = columns
        self.log = Log(options.connection, options.name, options.state, options.strict)
        self.loose = replace(self.log, strict=False)
        self.is_topic = options.state == "topic"
        self.begin: Offset | None = None
        self.planned: Offset | None = None
        """End of the batch that this process has planned."""
        self.newest = 0
        """The last known position."""
        self.last: int | None = None
        """Position at which AvailableNow ends; ``None`` without AvailableNow."""
        self.kept = 0
        """Retention of the queue's history in seconds; 0 = irrelevant."""
        self.known: tuple[int, float] | None = None
        """A server time in seconds, and the monotonic time of this process at which it was valid."""
        self.done: dict[str, float] = {}
        """Time of the last of each action that is repeated every ``CHECK_INTERVAL`` seconds."""
        self.passed = 0
        """Position up to which the project's log has no unread messages of the topic."""

    def initialOffset(self) -> Offset:
        """Return the initial offset, which is always the same: Spark asks twice and stores neither answer."""
        if self.begin is None:
            start = self.options.start
            self.begin = offset(self._newest() if start is None else start)
        return self.begin

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the maximum number of messages per batch."""
        return ReadMaxRows(self.options.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """Record the current end."""
        self.last = self._newest()

    def reportLatestOffset(self) -> Offset | None:
        """Return the approximate end of the log, which progress shows next to the batch's end."""
        return {"after": self._newest() if self._due("report") else self.newest}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Return the end of the next batch. Waits for a message if there is none."""
        most = min(self.options.most, limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.most)
        ends = time.monotonic() + self.options.wait
        self._check_queue(start)
        if start == self.begin and self.options.start is None:  # so that a restart begins at the same position
            return offset(start["after"], self._now(start))
        enough = self.last is not None and start["after"] >= self.last
        while True:
            found = self.log.walk(max(start["after"], self.passed), 1 if enough else most)
            if found.rows:
                return start if enough else self._plan(start, found)
            noted = self._note(start, found)
            if noted != start or self.last is not None or time.monotonic() + POLL_PAUSE > ends:
                return noted
            time.sleep(POLL_PAUSE)

    def partitions(self, start: Offset, end: Offset) -> list[Range]:
        """Return the range in parts. Raises ``Lost`` if it is planned again and may have lost rows."""
        if end != self.planned and end["rows"] and self.options.strict:
            self._check_again(start, end)
        return [Range(*ends) for ends in split(start["after"], end["after"], self.options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        return read(self.log, self.options, self.columns, partition)

    def commit(self, end: Offset) -> None:
        """Do nothing, because nothing is consumed."""

    def stop(self) -> None:
        """Do nothing, because nothing is held."""

    def _plan(self, start: Offset, found: Walk) -> Offset:
        """Return the offset after the walk. Raises ``Lost``."""
        assert found.last is not None
        now = self._server_time(found.last)
        if self.options.strict and not self.is_topic:
            self._check_whole(start, found, now)
        self.newest = max(self.newest, found.end)
        following = None
        if not found.whole and self.options.strict and self.options.state == "history":
            following = self.log.first(found.end)
        seen = now if found.whole or not start["seen"] else max(start["seen"], self._moment(found.last))
        self.planned = offset(found.end, seen, found.rows, following)
        return self.planned

    def _note(self, start: Offset, found: Walk) -> Offset:
        """Return the offset after a walk without messages, which records the walk's end."""
        if self.is_topic:
            self.passed = max(self.passed, found.looked or 0)
            if self.passed > start["after"] and self._due("passed"):
                return offset(self.passed)
        elif self.kept:
            if start["next"] is not None:
                raise Lost(
                    f"{self._retention()}, and that at {start['next']} is gone before it was read. {CONTINUE_HINT}"
                )
            now = self._now(start)
            if not start["seen"] or self.kept / 4 < now - start["seen"] <= self.kept - EXPIRY_MARGIN:
                return offset(start["after"], now)
        return start

    def _check_whole(self, start: Offset, found: Walk, now: int) -> None:
        """Raise ``Lost`` if entries after ``start`` may have expired since the last check."""
        if start["next"] is not None:
            gone = self.log.first(start["after"]) != start["next"]
        else:
            gone = self._late(start, now) and found.rows < found.end - start["after"]
            if gone and self.options.state == "history":  # where entries expire in order
                gone = self.log.first(start["after"]) != start["after"] + 1
        if gone:
            raise Lost(
                f"{self._retention()}, and {now - start['seen']} have passed since the stream knew what comes behind "
                f"{start['after']}: messages up to {found.end} may be gone. {CONTINUE_HINT}"
            )

    def _check_again(self, start: Offset, end: Offset) -> None:
        """Raise ``Lost`` if a range planned by another process has fewer rows for a reason other than message ttls."""
        self._check_queue(start)
        rows = 0
        for messages in self.loose.between(start["after"], end["after"]):
            rows += len(messages)
            if messages:
                self._server_time(messages[-1])
        risky = not start["seen"] or self.options.state == "history" or self._late(start, self._now(end))
        if self.is_topic:
            risky = not start["after"]  # elsewhere the log reports gaps
        if rows < end["rows"] and risky:
            raise Lost(
                f"A batch that is done again had {end['rows']} messages behind {start['after']}, and {rows} are left. "
                f"{CONTINUE_HINT}"
            )

    def _check_queue(self, start: Offset) -> None:
        """Read the queue's retention, and check that it is still the same queue. Raises ``Invalid``, ``Lost``."""
        if self.is_topic or not self.options.strict or not self._due("queue"):
            return
        self.kept = self.options.connection.client().queue(self.options.name).metadata().get("_history_ttl") or 0
        if not self.kept:
            raise Invalid(
                f"Queue {self.options.name} keeps no history, so a stream that does not claim would miss what finishes "
                "between two batches: set its _history_ttl, or option failOnDataLoss=false."
            )
        first = self.log.after(0, 1)
        if not start["seen"] or first.end is None or first.end > start["after"]:
            return
        if self._moment(first.messages[0]) > start["seen"] + EXPIRY_MARGIN:
            raise Lost(
                f"Queue {self.options.name} was deleted and created again: its positions begin below {start['after']}, "
                "up to which the stream has read. Begin with another checkpoint."
            )

    def _late(self, start: Offset, now: int) -> bool:
        return bool(start["seen"]) and now - start["seen"] > self.kept - EXPIRY_MARGIN

    def _retention(self) -> str:
        return f"Queue {self.options.name} keeps records for {self.kept} seconds"

    def _now(self, start: Offset) -> int:
        """Return the server's time, from the message that was read last if it exists, otherwise from a local clock."""
        if self.known is None and not self.is_topic and start["after"]:
            for message in self.loose.after(start["after"] - 1, 1).messages:
                self._server_time(message)
        if self.known is None:
            return int(clock.own())
        second, when = self.known
        return second + int(time.monotonic() - when)

    def _server_time(self, message: Message) -> int:
        """Return and record the server time in seconds at which it returned a message."""
        assert message.created is not None
        second = int(message.created.timestamp()) + message.age
        self.known = second, time.monotonic()
        return second

    def _moment(self, message: Message) -> int:
        """Return the time in seconds that determined a message's position: of its post, or of its finish."""
        moment = message.finished if isinstance(message, Finished) else None
        if self.options.state != "history" or moment is None:
            moment = message.created
        assert moment is not None
        return int(moment.timestamp())

    def _newest(self) -> int:
        self.newest = self.loose.last(self.newest)
        return self.newest

    def _due(self, what: str) -> bool:
        """Return whether an action is due, and mark it as done."""
        now = time.monotonic()
        due = now - self.done.get(what, -CHECK_INTERVAL) >= CHECK_INTERVAL
        if due:
            self.done[what] = now
        return due


def offset(after: int, seen: int = 0, rows: int = 0, following: int | None = None) -> Offset:
    """Return an offset with its members in the order by which Spark compares them."""
    return {"after": after, "seen": seen, "rows": rows, "next": following}
