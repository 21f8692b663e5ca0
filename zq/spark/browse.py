# SPDX-License-Identifier: Apache-2.0
"""The batch source, which reads a queue, its history or a topic without claiming messages.

The position of a message is its sequence number. In a history, the position is the message's number in the order of
finishing. Positions increase and may have gaps. Repeated reads of a range return identical messages.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)

from zq.client import Message, MessagePage
from zq.errors import Invalid
from zq.spark.options import Connection, ReadingOptions
from zq.spark.rows import RowConverter

# A position after all messages.
END_POSITION: Final = 2**62
# Difference between the smallest matching integer and the filter's value, by filter type.
MIN_OFFSETS: Final[Mapping[type[Filter], int]] = {EqualTo: 0, GreaterThanOrEqual: 0, GreaterThan: 1}
# Difference between the largest matching integer and the filter's value, by filter type.
MAX_OFFSETS: Final[Mapping[type[Filter], int]] = {EqualTo: 0, LessThanOrEqual: 0, LessThan: -1}


class TrimmedMessages(Invalid):
    """An error for messages of a topic that were trimmed before Spark read them."""


@dataclass(frozen=True)
class Scan:
    """The result of ``Log.scan``.

    ``rows`` is the number of messages that were found. ``end`` is the position of the last message. If no message was
    found, ``end`` is the start position of the scan.
    """

    end: int
    rows: int
    last: Message | None
    whole: bool = False
    """Whether the scan has reached the end of the log."""
    position: int | None = None
    """Position up to which a topic was searched, if no messages were found."""


@dataclass(frozen=True)
class Log:
    """The messages of a queue or topic, ordered by position. ``state`` selects the messages to read."""

    connection: Connection
    name: str
    state: str
    strict: bool = False
    """Raise ``TrimmedMessages`` for trimmed messages of a topic."""
    since: datetime | None = None
    until: datetime | None = None

    def after(self, position: int, page: int) -> MessagePage[Message]:
        """Return up to ``page`` messages after a position, and the position of the last returned message."""
        client = self.connection.client()
        if self.state == "topic":
            return self._check_gap(position, client.topic(self.name).read_page(position, page=page))
        queue = client.queue(self.name)
        if self.state == "live":
            return queue.read_page(position, page=page)
        living = self.state == "all"
        found = queue.read_history_page(position, page=page, living=living, since=self.since, until=self.until)
        return MessagePage([*found.messages], found.end)

    def first(self, position: int) -> int | None:
        """Return the position of the first message after ``position``, or ``None`` if no message follows.

        Raises ``Invalid`` if ``position`` is beyond the end of the log.
        """
        return self.after(position, 1).end

    def find_first(self, position: int) -> int | None:
        """Return the position of the first message after ``position``, or ``None`` if no message follows.

        Unlike ``first``, this method does not raise ``Invalid`` if ``position`` is beyond the end of the log.
        """
        try:
            return self.first(position)
        except TrimmedMessages:
            raise
        except Invalid:
            return None

    def scan(self, low: int, max_rows: int) -> Scan:
        """Read up to ``max_rows`` messages after ``low``. Return their number, end position and last message."""
        page = self._page()
        end, rows, last = low, 0, None
        while rows < max_rows:
            found = self.after(end, min(page, max_rows - rows))
            if found.end is None:
                return Scan(end, rows, last, whole=True, position=found.position)
            end, rows, last = found.end, rows + len(found.messages), found.messages[-1]
        return Scan(end, rows, last)

    def last(self, low: int) -> int:
        """Find the position of the last message by binary search. Return ``low`` if no message follows ``low``."""
        found, step = self.find_first(low), 1
        if found is None:
            return low
        last = found
        while (found := self.find_first(last + step - 1)) is not None:
            last, step = found, step * 2
        none_beyond = last + step - 1
        while last < none_beyond:
            middle = (last + none_beyond + 1) // 2
            found = self.find_first(middle - 1)
            last, none_beyond = (last, middle - 1) if found is None else (found, max(found, none_beyond))
        return last

    def between(self, low: int, high: int) -> Iterator[Sequence[Message]]:
        """Yield pages of the messages after position ``low``, up to and including ``high``."""
        page = self._page()
        while low < high:
            found = self.after(low, min(page, high - low))
            if found.end is None:
                return
            if found.end <= high:
                yield found.messages
            elif self.state != "history":
                yield [message for message in found.messages if message.sequence <= high]
            elif len(found.messages) > 1:
                page = len(found.messages) // 2  # the server reports only the position of a page's last entry
                continue
            low = found.end

    def _page(self) -> int:
        page_size: int = self.connection.client().limits()["max_messages_per_page"]
        return page_size

    def _check_gap(self, position: int, found: MessagePage[Message]) -> MessagePage[Message]:
        if self.strict and position and found.gap is not None:
            raise TrimmedMessages(
                f"Messages of topic {self.name} after {position} were trimmed from the log before they were read. "
                "Set option failOnDataLoss=false to continue with the remaining messages."
            )
        return found


def split_range(low: int, high: int, parts: int) -> list[tuple[int, int]]:
    """Split a range of positions into up to ``parts`` ranges of equal width. The last range may be shorter."""
    width = -(-(high - low) // parts) or 1
    return [(first, min(first + width, high)) for first in range(low, high, width)]


@dataclass
class PositionRange(InputPartition):
    """A range of positions: after ``low``, up to and including ``high``."""

    low: int
    high: int


class BatchReader(DataSourceReader):
    """The reader of ``spark.read``."""

    def __init__(self, options: ReadingOptions, columns: list[str]) -> None:
        self.options = options
        self.columns = columns
        self.log = Log(options.connection, options.name, options.state)
        self.low, self.high = 0, END_POSITION

    def partitions(self) -> list[PositionRange]:
        """Split the range of existing messages into partitions."""
        first = self.log.find_first(self.low) if self.low else self.log.first(0)
        if first is None or first > self.high:
            return []
        low = first - 1
        high = min(self.high, self.log.last(low))
        return [PositionRange(*ends) for ends in split_range(low, high, self.options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_range(self.log, self.options, self.columns, partition)


class FilteringBatchReader(BatchReader):
    """A batch reader that uses filters of the query to read fewer messages (filter pushdown).

    Spark rejects this reader unless filter pushdown is enabled in Spark's configuration.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrow the range of messages to read. Return all filters, because Spark must still filter each row."""
        for one in filters:
            column, value = getattr(one, "attribute", None), getattr(one, "value", None)
            if column == ("seq",) and self.options.state != "history" and isinstance(value, int):
                self._narrow(type(one), value)
            elif column == ("finished",) and self.options.state == "history" and isinstance(value, datetime):
                self._bound(type(one), value)
        return filters

    def _narrow(self, kind: type[Filter], value: int) -> None:
        if kind in MIN_OFFSETS:
            self.low = max(self.low, value + MIN_OFFSETS[kind] - 1)
        if kind in MAX_OFFSETS:
            self.high = min(self.high, value + MAX_OFFSETS[kind])

    def _bound(self, kind: type[Filter], value: datetime) -> None:
        """Narrow the time range of the log to the messages that can pass a filter.

        The server compares milliseconds. The range may therefore also contain messages that do not pass the filter.
        """
        if value.tzinfo is None:
            return
        if kind in (GreaterThan, GreaterThanOrEqual) and (self.log.since is None or value > self.log.since):
            self.log = replace(self.log, since=value.replace(microsecond=value.microsecond // 1000 * 1000))
        if kind is LessThan and not value.microsecond % 1000 and (self.log.until is None or value < self.log.until):
            self.log = replace(self.log, until=value)


def read_range(
    log: Log, options: ReadingOptions, columns: list[str], partition: InputPartition
) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, PositionRange):  # Spark also calls this for a source without partitions
        return
    place = {"topic" if options.state == "topic" else "queue": options.name}
    rows = RowConverter(columns, options.body, **place)
    for messages in log.between(partition.low, partition.high):
        yield from rows.convert(messages)
