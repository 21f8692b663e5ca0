# SPDX-License-Identifier: Apache-2.0
"""The sink on the driver without Spark: stages that are published, dropped and refused."""

import time
from typing import Any

import pytest

from zq.client import Queue, TypedValue
from zq.errors import Invalid, StageNotFound
from zq.wire.attributes import typed_value

pytest.importorskip("pyspark")

import pyarrow as pa
from msgspec.structs import asdict
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import MapType, StringType, StructField, StructType

from zq.spark.options import OptionParser, parse_sink_options
from zq.spark.rows import ATTRIBUTES, RowConverter
from zq.spark.staging import BatchWriter, StageResult, StreamWriter

SCHEMA = StructType([StructField("body", StringType())])


def bodies(queue: Queue) -> list[Any]:
    return [message.body for message in queue.list()]


def test_a_job_that_is_given_up_drops_what_its_tasks_have_stored(client, options) -> None:
    """Stages of successful tasks are dropped; those of failed tasks are unknown. Published stages stay."""
    schema = StructType([StructField("body", StringType())])
    writer = BatchWriter(
        parse_sink_options(OptionParser({**options, "queue": "out"}), stream=False), schema, overwrite=False
    )
    client.queue("out").stage("first", ["a"])
    client.queue("out").stage("second", ["b"])
    client.commit("job", 0, publish=[("first", 1)])
    writer.abort(
        [StageResult("first", "job", []), None, StageResult(None, "job", []), StageResult("second", "job", [])]
    )
    with pytest.raises(StageNotFound):
        client.commit("job", 1, publish=[("second", 1)])
    assert bodies(client.queue("out")) == ["a"]


def test_a_name_in_other_use_is_refused_and_stores_nothing(client, options) -> None:
    """A job's key has other data, or another query uses a stream's producer; no claim is settled."""
    schema = StructType([StructField("body", StringType())])
    job = BatchWriter(
        parse_sink_options(OptionParser({**options, "queue": "out", "idempotencyKey": "k"}), False), schema, False
    )
    stream = StreamWriter(
        parse_sink_options(OptionParser({**options, "queue": "out", "producer": "p"}), True), schema, False
    )
    for stage, count in (("one", 2), ("two", 3), ("three", 1), ("four", 1)):
        client.queue("out").stage(stage, range(count))
    job.commit([StageResult("one", "k", [], 2)])
    with pytest.raises(Invalid, match="has already stored 2 messages, but this job has 3"):
        job.commit([StageResult("two", "k", [], 3)])
    stream.commit([StageResult("three", "p", [], 1)], 57)
    with pytest.raises(Invalid, match="Producer p has committed batches after 0, so no message of this batch"):
        stream.commit([StageResult("four", "p", [], 1)], 0)
    assert len(bodies(client.queue("out"))) == 3


def test_stages_are_not_dropped_one_by_one_of_a_server_that_is_gone(project) -> None:
    """The stages expire after ``stage_ttl``; the job fails at once."""
    schema = StructType([StructField("body", StringType())])
    options = {"url": "http://127.0.0.1:9", "project": project, "queue": "out", "retryFor": "60"}
    writer = BatchWriter(parse_sink_options(OptionParser(options), stream=False), schema, overwrite=False)
    began = time.monotonic()
    writer.abort([StageResult(f"stage{number}", "job", []) for number in range(1000)])
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    ("kind", "entries", "expected"),
    [
        (MapType(StringType(), StringType()), [("a", "x")], {"a": "x"}),
        (ATTRIBUTES, [("a", {"type": "Number", "value": "7"})], {"a": 7}),
        (ATTRIBUTES, [("a", {"type": "Binary", "value": "AAEC"})], {"a": TypedValue("Binary", "AAEC")}),
        (ATTRIBUTES, None, {}),
    ],
)
def test_a_column_holds_the_attributes_of_messages(client, options, kind, entries, expected) -> None:
    """The sink accepts the source's column."""
    schema = StructType([StructField("body", StringType()), StructField("with", kind)])
    given = OptionParser({**options, "queue": "out", "attributesColumn": "with"})
    writer = BatchWriter(parse_sink_options(given, stream=False), schema, overwrite=False)
    batch = pa.RecordBatch.from_pylist([{"body": "b", "with": entries}], schema=to_arrow_schema(schema))
    writer._store("s", iter([batch]), set())
    client.commit("p", 0, publish=[("s", 1)])
    [message] = client.queue("out").list()
    assert message.attributes == expected
    [rows] = RowConverter(["attributes"], "string").convert([message])
    [read] = rows.column("attributes").to_pylist()
    typed = {name: asdict(typed_value(value)) for name, value in expected.items()}
    assert dict(read or []) == typed


def test_the_rows_of_a_batch_have_the_traceparent_of_an_option_unless_they_have_their_own(client, options) -> None:
    schema = StructType([StructField("body", StringType()), StructField("with", MapType(StringType(), StringType()))])
    parent, own = (f"00-{'1' * 32}-{digit * 16}-01" for digit in "12")
    given = OptionParser({**options, "queue": "out", "attributesColumn": "with", "traceparent": parent})
    writer = BatchWriter(parse_sink_options(given, stream=False), schema, overwrite=False)
    rows = [
        {"body": "a", "with": None},
        {"body": "b", "with": [("kind", "x")]},
        {"body": "c", "with": [("traceparent", own)]},
    ]
    batch = pa.RecordBatch.from_pylist(rows, schema=to_arrow_schema(schema))
    writer._store("s", iter([batch]), set())
    client.commit("p", 0, publish=[("s", 3)])
    assert [message.attributes for message in client.queue("out").list()] == [
        {"traceparent": parent},
        {"traceparent": parent, "kind": "x"},
        {"traceparent": own},
    ]


def test_a_traceparent_that_is_not_valid_is_refused(options) -> None:
    given = OptionParser({**options, "queue": "out", "traceparent": "none"})
    with pytest.raises(Invalid, match="Option traceparent must be valid under W3C Trace Context, not none"):
        parse_sink_options(given, stream=False)


def test_a_column_of_another_type_is_refused(options) -> None:
    schema = StructType([StructField("body", StringType()), StructField("with", StringType())])
    given = parse_sink_options(OptionParser({**options, "queue": "out", "attributesColumn": "with"}), stream=False)
    with pytest.raises(Invalid, match="attributesColumn requires a column of type map<string,string>"):
        BatchWriter(given, schema, overwrite=False)
