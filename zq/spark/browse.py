# SPDX-License-Identifier: Apache-2.0
"""Reading by positions, without claiming anything: a queue's living messages, its history, or a topic; in a batch as a
table.

Every message has a position, and positions rise and may have gaps: its sequence, or in a queue's history the place of
its entry in the order of finishing. A range of positions is read the same way however often it is read.
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

from zq.client import Message, Stretch
from zq.errors import Invalid
from zq.spark.options import Connection, ReadingOptions
from zq.spark.rows import Rows

# A position that no message has.
FAR: Final = 2**62
# By filter, what is added to its number for the smallest that passes.
LOWEST: Final[Mapping[type[Filter], int]] = {EqualTo: 0, GreaterThanOrEqual: 0, GreaterThan: 1}
# By filter, what is added to its number for the largest that passes.
HIGHEST: Final[Mapping[type[Filter], int]] = {EqualTo: 0, LessThanOrEqual: 0, LessThan: -1}


class Gap(Invalid):
    """Messages of a topic are gone that were to be read."""


@dataclass(frozen=True)
class Walk:
    """A look along a log: where it ended, and over how many messages."""

    end: int
    rows: int
    last: Message | None
    whole: bool = False
    """Whether there was nothing behind its end."""
    looked: int | None = None
    """Of a topic, if so: up to where nothing is to be found, as far as the project's log reaches."""


@dataclass(frozen=True)
class Log:
    """``state``: live, all, history, or topic."""

    connection: Connection
    name: str
    state: str
    strict: bool = False
    """Whether messages of a topic that were trimmed raise ``Gap``."""
    since: datetime | None = None
    until: datetime | None = None

    def after(self, position: int, page: int) -> Stretch[Message]:
        """At most so many messages behind a position."""
        client = self.connection.client()
        if self.state == "topic":
            return self._whole(position, client.topic(self.name).stretch(position, page=page))
        queue = client.queue(self.name)
        if self.state == "live":
            return queue.stretch(position, page=page)
        living = self.state == "all"
        found = queue.history_stretch(position, page=page, living=living, since=self.since, until=self.until)
        return Stretch([*found.messages], found.end)

    def first(self, position: int) -> int | None:
        """Where the first message behind a position is."""
        return self.after(position, 1).end

    def beyond(self, position: int) -> int | None:
        """As ``first``, also behind the end of a topic's log, where it is an error to begin."""
        try:
            return self.first(position)
        except Gap:
            raise
        except Invalid:
            return None

    def walk(self, low: int, most: int) -> Walk:
        """The next so many messages behind a position, or all that there are."""
        page = self._page()
        end, rows, last = low, 0, None
        while rows < most:
            found = self.after(end, min(page, most - rows))
            if found.end is None:
                return Walk(end, rows, last, whole=True, looked=found.looked)
            end, rows, last = found.end, rows + len(found.messages), found.messages[-1]
        return Walk(end, rows, last)

    def last(self, low: int) -> int:
        """The position of the last message behind ``low``; ``low`` if there is none. Found by binary search."""
        found, step = self.beyond(low), 1
        if found is None:
            return low
        last = found
        while (found := self.beyond(last + step - 1)) is not None:
            last, step = found, step * 2
        none_beyond = last + step - 1
        while last < none_beyond:
            middle = (last + none_beyond + 1) // 2
            found = self.beyond(middle - 1)
            last, none_beyond = (last, middle - 1) if found is None else (found, max(found, none_beyond))
        return last

    def between(self, low: int, high: int) -> Iterator[Sequence[Message]]:
        """The messages behind ``low`` and up to ``high``, in pages."""
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
                page = len(found.messages) // 2  # the server gives only the position of a page's last record
                continue
            low = found.end

    def _page(self) -> int:
        most: int = self.connection.client().limits()["max_messages_per_page"]
        return most

    def _whole(self, position: int, found: Stretch[Message]) -> Stretch[Message]:
        if self.strict and position and found.gap is not None:
            raise Gap(
                f"Messages of topic {self.name} behind {position} were trimmed from the log before they were read. "
                "Option failOnDataLoss=false goes on with what is left."
            )
        return found


def split(low: int, high: int, parts: int) -> list[tuple[int, int]]:
    """A range of positions as at most so many of about the same width."""
    width = -(-(high - low) // parts) or 1
    return [(first, min(first + width, high)) for first in range(low, high, width)]


@dataclass
class Range(InputPartition):
    """Positions behind ``low`` and up to ``high``."""

    low: int
    high: int


class Browser(DataSourceReader):
    """Of ``spark.read``."""

    def __init__(self, options: ReadingOptions, columns: list[str]) -> None:
        self.options = options
        self.columns = columns
        self.log = Log(options.connection, options.name, options.state)
        self.low, self.high = 0, FAR

    def partitions(self) -> list[Range]:
        """What is there now, in ranges of about the same width."""
        first = self.log.beyond(self.low) if self.low else self.log.first(0)
        if first is None or first > self.high:
            return []
        low = first - 1
        high = min(self.high, self.log.last(low))
        return [Range(*ends) for ends in split(low, high, self.options.partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a range."""
        return read(self.log, self.options, self.columns, partition)


class FilteringBrowser(Browser):
    """As ``Browser``, reading less where filters allow it. Spark refuses such a reader unless its configuration has
    ``spark.sql.python.filterPushdown.enabled``; so it is chosen by option."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Narrows what is read; all of them are left to Spark, too, which so decides about each row."""
        for one in filters:
            column, value = getattr(one, "attribute", None), getattr(one, "value", None)
            if column == ("seq",) and self.options.state != "history" and isinstance(value, int):
                self._narrow(type(one), value)
            elif column == ("finished",) and self.options.state == "history" and isinstance(value, datetime):
                self._bound(type(one), value)
        return filters

    def _narrow(self, kind: type[Filter], value: int) -> None:
        if kind in LOWEST:
            self.low = max(self.low, value + LOWEST[kind] - 1)
        if kind in HIGHEST:
            self.high = min(self.high, value + HIGHEST[kind])

    def _bound(self, kind: type[Filter], value: datetime) -> None:
        """Only by what the server does not round."""
        if value.tzinfo is None:
            return
        if kind in (GreaterThan, GreaterThanOrEqual) and (self.log.since is None or value > self.log.since):
            self.log = replace(self.log, since=value.replace(microsecond=value.microsecond // 1000 * 1000))
        if kind is LessThan and not value.microsecond % 1000 and (self.log.until is None or value < self.log.until):
            self.log = replace(self.log, until=value)


def read(log: Log, options: ReadingOptions, columns: list[str], partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """The rows of a range of a log."""
    if not isinstance(partition, Range):  # Spark reads something of no partitions, too
        return
    place = {"topic" if options.state == "topic" else "queue": options.name}
    rows = Rows(columns, options.body, **place)
    for messages in log.between(partition.low, partition.high):
        yield from rows.of(messages)
