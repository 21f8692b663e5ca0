# SPDX-License-Identifier: Apache-2.0
"""The data source ``zq``, which selects a reader or writer by the options.

Spark calls the methods in other processes and passes arguments by name, so the parameters must have Spark's names.
"""

from typing import Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from zq.spark import rows
from zq.spark.browse import BatchReader, FilteringBatchReader
from zq.spark.claiming import ClaimReader
from zq.spark.options import (
    OptionParser,
    is_claim_mode,
    parse_body_type,
    parse_claiming_options,
    parse_reading_options,
    parse_sink_options,
    parse_source_state,
)
from zq.spark.staging import BatchWriter, StreamWriter
from zq.spark.tail import TailReader


class ZqDataSource(DataSource):
    """The data source for queues and topics; see ``api-ref/spark.md``."""

    @classmethod
    def name(cls) -> str:
        return "zq"

    def schema(self) -> StructType:
        given = OptionParser(self.options)
        return rows.schema(_columns(given), parse_body_type(given))

    def reader(self, schema: StructType) -> BatchReader:
        given = self._given("spark.read")
        options = parse_reading_options(given)
        rows.check_schema(schema, _columns(given), options.body)
        return (FilteringBatchReader if options.filtered else BatchReader)(options, schema.names)

    def writer(self, schema: StructType, overwrite: bool) -> Any:
        return BatchWriter(parse_sink_options(self._given("the sink"), stream=False), schema, overwrite)

    def streamReader(self, schema: StructType) -> ClaimReader | TailReader:
        mode = OptionParser(self.options).choice("mode", "claim", "tail")
        given = self._given(f"a stream in mode {mode}")
        rows.check_schema(schema, _columns(given), parse_body_type(given))
        if mode == "tail":
            return TailReader(parse_reading_options(given), schema.names)
        return ClaimReader(parse_claiming_options(given), schema.names)

    def streamWriter(self, schema: StructType, overwrite: bool) -> Any:
        return StreamWriter(parse_sink_options(self._given("the sink"), stream=True), schema, overwrite)

    def _given(self, role: str) -> OptionParser:
        given = OptionParser(self.options)
        given.check_role(role)
        return given


def _columns(parser: OptionParser) -> tuple[str, ...]:
    if is_claim_mode(parser):
        return rows.CLAIMED_COLUMNS
    kind = parse_source_state(parser)
    if kind == "topic":
        return rows.TOPIC_COLUMNS
    return rows.LIVE_COLUMNS if kind == "live" else rows.FINISHED_COLUMNS
