# SPDX-License-Identifier: Apache-2.0
"""The data source ``zq``: picks the reader or writer that the options ask for.

Spark calls its methods in processes of its own, by keyword, so the names of their parameters are Spark's.
"""

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from zq.spark import rows
from zq.spark.browse import Browser, FilteringBrowser
from zq.spark.claiming import ClaimingReader
from zq.spark.options import Given, body_type, claiming_options, claims, reading_options, sink_options, state
from zq.spark.staging import BatchWriter, StreamWriter
from zq.spark.tail import Tail


class ZqDataSource(DataSource):
    """Queues and topics as tables and streams: api-ref/spark.md."""

    @classmethod
    def name(cls) -> str:
        """What ``format()`` takes."""
        return "zq"

    def schema(self) -> StructType:
        """The columns of a source."""
        given = Given(self.options)
        return rows.schema(_columns(given), body_type(given))

    def reader(self, schema: StructType) -> Browser:
        """Of ``spark.read``."""
        given = self._given("spark.read")
        options = reading_options(given)
        rows.check_schema(schema, _columns(given), options.body)
        return (FilteringBrowser if options.filtered else Browser)(options, schema.names)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        """Of ``df.write``."""
        return BatchWriter(sink_options(self._given("the sink"), stream=False), schema, overwrite)

    def streamReader(self, schema: StructType) -> ClaimingReader | Tail:
        """Of ``spark.readStream``."""
        mode = Given(self.options).choice("mode", "claim", "tail")
        given = self._given(f"a stream in mode {mode}")
        rows.check_schema(schema, _columns(given), body_type(given))
        if mode == "tail":
            return Tail(reading_options(given), schema.names)
        return ClaimingReader(claiming_options(given), schema.names)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        """Of ``df.writeStream``."""
        return StreamWriter(sink_options(self._given("the sink"), stream=True), schema, overwrite)

    def _given(self, role: str) -> Given:
        given = Given(self.options)
        given.check_role(role)
        return given


def _columns(given: Given) -> tuple[str, ...]:
    """The columns that the options ask for. Spark does not say whether it is going to read a table or a stream."""
    if claims(given):
        return rows.CLAIMED
    kind = state(given)
    if kind == "topic":
        return rows.PUBLISHED
    return rows.LIVING if kind == "live" else rows.FINISHED
