# SPDX-License-Identifier: Apache-2.0
"""The stream in mode tail, which consumes nothing: a queue with history, or a topic, read on from a position.

An offset is ``{"after": 1729, "seen": 1764000000, "rows": 40, "next": null}``: all up to this position was read, 40
rows with the last batch. What is left finishes at second ``seen`` of the server's time or later, but for what was there
when the stream began; if a queue's history had more already, ``next`` is the position of the next record. So it can be
told whether records may have been forgotten meanwhile, and whether a range that is read again still has all its rows.
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

# Seconds between two looks when there is nothing new.
PAUSE: Final = 0.5
# Seconds by which a record's life is taken to be shorter than it is.
SURE: Final = 5
# Seconds between two looks at what rarely changes.
OFTEN: Final = 60
# The end of sentences about a gap.
GO_ON: Final = "Option failOnDataLoss=false goes on with what is left."
Offset = dict[str, Any]


class Lost(ZqError):
    """What was to be read may be gone."""


class Tail(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Of ``spark.readStream`` in mode tail. Its second self on the executors only reads."""

    def __init__(self, options: ReadingOptions, columns: list[str]) -> None:
        self.options = options
        self.columns = columns
        self.log = Log(options.connection, options.name, options.state, options.strict)
        self.loose = replace(self.log, strict=False)
        self.is_topic = options.state == "topic"
        self.begin: Offset | None = None
        self.planned: Offset | None = None
        """The end of the batch that this process has planned."""
        self.newest = 0
        """The last position that is known."""
        self.last: int | None = None
        """Where AvailableNow ends; None without it."""
        self.kept = 0
        """Seconds for which the queue keeps records; 0: it does not matter."""
        self.known: tuple[int, float] | None = None
        """A second of the server's time, and the moment of this process's monotonic clock at which it was that."""
        self.done: dict[str, float] = {}
        """When what is done only every ``OFTEN`` seconds was done last."""
        self.passed = 0
        """Up to where the project's log has nothing of the topic that was not read."""

    def initialOffset(self) -> Offset:
        """The same whenever it is asked: Spark asks twice, and stores neither answer."""
        if self.begin is None:
            start = self.options.start
            self.begin = offset(self._newest() if start is None else start)
        return self.begin

    def getDefaultReadLimit(self) -> ReadLimit:
        """So many messages in a batch."""
        return ReadMaxRows(self.options.most)

    def prepareForTriggerAvailableNow(self) -> None:
        """What there is now."""
        self.last = self._newest()

    def reportLatestOffset(self) -> Offset | None:
        """About where the log ends; progress shows it beside the batch's end."""
        return {"after": self._newest() if self._due("report") else self.newest}

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Up to where the next batch reads. Waits for a message if there is none."""
        most = min(self.options.most, limit.max_rows if isinstance(limit, ReadMaxRows) else self.options.most)
        ends = time.monotonic() + self.options.wait
        self._check_queue(start)
        if start == self.begin and self.options.start is None:  # so that a restart begins here, too
            return offset(start["after"], self._now(start))
        enough = self.last is not None and start["after"] >= self.last
        while True:
            found = self.log.walk(max(start["after"], self.passed), 1 if enough else most)
            if found.rows:
                return start if enough else self._plan(start, found)
            noted = self._note(start, found)
            if noted != start or self.last is not None or time.monotonic() + PAUSE > ends:
                return noted
            time.sleep(PAUSE)

    def partitions(self, start: Offset, end: Offset) -> list[Range]:
        """The range, in parts. Raises ``Lost`` if it is planned again and may have become less."""
        if end != self.planned and end["rows"] and self.options.strict:
            self._check_again(start, end)
        return [Range(*ends) for ends in split(start["after"], end["after"], self.options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        return read(self.log, self.options, self.columns, partition)

    def commit(self, end: Offset) -> None:
        """Nothing is taken away."""

    def stop(self) -> None:
        """Nothing is held."""

    def _plan(self, start: Offset, found: Walk) -> Offset:
        """The offset behind what was found. Raises ``Lost``."""
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
        """What to keep of a look that found nothing: that there was nothing; or how far the topic's log is passed."""
        if self.is_topic:
            self.passed = max(self.passed, found.looked or 0)
            if self.passed > start["after"] and self._due("passed"):
                return offset(self.passed)
        elif self.kept:
            if start["next"] is not None:
                raise Lost(f"{self._retention()}, and that at {start['next']} is gone before it was read. {GO_ON}")
            now = self._now(start)
            if not start["seen"] or self.kept / 4 < now - start["seen"] <= self.kept - SURE:
                return offset(start["after"], now)
        return start

    def _check_whole(self, start: Offset, found: Walk, now: int) -> None:
        """Raises ``Lost`` if records behind ``start`` may have gone since it was known what there is."""
        if start["next"] is not None:
            gone = self.log.first(start["after"]) != start["next"]
        else:
            gone = self._late(start, now) and found.rows < found.end - start["after"]
            if gone and self.options.state == "history":  # where records go in order
                gone = self.log.first(start["after"]) != start["after"] + 1
        if gone:
            raise Lost(
                f"{self._retention()}, and {now - start['seen']} have passed since the stream knew what comes behind "
                f"{start['after']}: messages up to {found.end} may be gone. {GO_ON}"
            )

    def _check_again(self, start: Offset, end: Offset) -> None:
        """Raises ``Lost`` if a range that another process had planned has fewer rows, and more than ttls may be why."""
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
                f"{GO_ON}"
            )

    def _check_queue(self, start: Offset) -> None:
        """How long the queue keeps records; and that it is the one of before. Raises ``Invalid``, ``Lost``."""
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
        if self._moment(first.messages[0]) > start["seen"] + SURE:
            raise Lost(
                f"Queue {self.options.name} was deleted and made anew: its positions begin below {start['after']}, "
                "up to which the stream has read. Begin with another checkpoint."
            )

    def _late(self, start: Offset, now: int) -> bool:
        return bool(start["seen"]) and now - start["seen"] > self.kept - SURE

    def _retention(self) -> str:
        return f"Queue {self.options.name} keeps records for {self.kept} seconds"

    def _now(self, start: Offset) -> int:
        """The server's time: by the message that was read last, as long as that is there, else by a clock of ours."""
        if self.known is None and not self.is_topic and start["after"]:
            for message in self.loose.after(start["after"] - 1, 1).messages:
                self._server_time(message)
        if self.known is None:
            return int(clock.own())
        second, when = self.known
        return second + int(time.monotonic() - when)

    def _server_time(self, message: Message) -> int:
        """The second of the server's time at which it showed a message; remembered."""
        assert message.created is not None
        second = int(message.created.timestamp()) + message.age
        self.known = second, time.monotonic()
        return second

    def _moment(self, message: Message) -> int:
        """The second that gave a message its position: it was posted, or it finished."""
        moment = message.finished if isinstance(message, Finished) else None
        if self.options.state != "history" or moment is None:
            moment = message.created
        assert moment is not None
        return int(moment.timestamp())

    def _newest(self) -> int:
        self.newest = self.loose.last(self.newest)
        return self.newest

    def _due(self, what: str) -> bool:
        """Whether it was not done for a while; then it is now."""
        now = time.monotonic()
        due = now - self.done.get(what, -OFTEN) >= OFTEN
        if due:
            self.done[what] = now
        return due


def offset(after: int, seen: int = 0, rows: int = 0, following: int | None = None) -> Offset:
    """With its members in their order, by which Spark compares."""
    return {"after": after, "seen": seen, "rows": rows, "next": following}
