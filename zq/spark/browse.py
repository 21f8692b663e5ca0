# SPDX-License-Identifier: Apache-2.0
"""Batch reading: living messages, history or a topic as a table. Nothing is claimed, nothing goes away."""

from collections.abc import Iterable, Iterator, Mapping
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

from zq.spark.logs import Log, split
from zq.spark.options import ReadingOptions
from zq.spark.rows import Rows

FAR: Final = 2**62
"""A position that no message has."""
LOWEST: Final[Mapping[type[Filter], int]] = {EqualTo: 0, GreaterThanOrEqual: 0, GreaterThan: 1}
"""What is to be added for the smallest number that passes."""
HIGHEST: Final[Mapping[type[Filter], int]] = {EqualTo: 0, LessThanOrEqual: 0, LessThan: -1}


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
