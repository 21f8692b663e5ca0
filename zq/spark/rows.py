# SPDX-License-Identifier: Apache-2.0
"""What sources make of messages: the columns that there are, which of them a source shows, and rows of those."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

from zq.client import Message
from zq.errors import Invalid
from zq.spark.bodies import READERS, TYPES

COLUMNS: Final[Mapping[str, tuple[DataType, Callable[[Any], Any]]]] = {
    "id": (StringType(), lambda message: message.id),
    "seq": (LongType(), lambda message: message.sequence),
    "created": (TimestampType(), lambda message: message.created),
    "ttl": (IntegerType(), lambda message: message.ttl),
    "claim_count": (IntegerType(), lambda message: message.claim_count),
    "origin": (StringType(), lambda message: message.origin or None),
    "reason": (StringType(), lambda message: message.reason or None),
    "origin_claim_count": (IntegerType(), lambda message: message.origin_claim_count or None),
    "outcome": (StringType(), lambda message: message.outcome or None),
    "finished": (TimestampType(), lambda message: message.finished),
}
"""Type of each, and its value in a message. ``body``, ``claim``, ``queue`` and ``topic`` are added below."""
PLACES: Final = ("claim", "queue", "topic")
CLAIMED: Final = ("id", "seq", "body", "created", "ttl", "claim_count", "claim", "queue")
LIVING: Final = (*CLAIMED, "origin", "origin_claim_count", "reason")
FINISHED: Final = (*LIVING, "outcome", "finished")
PUBLISHED: Final = ("id", "seq", "body", "created", "ttl", "topic")


def schema(columns: Iterable[str], body: str) -> StructType:
    """Of these columns; ``body``: one of the types of bodies."""
    return StructType([StructField(name, _type(name, body)) for name in columns])


def check_schema(wanted: StructType, columns: Sequence[str], body: str) -> None:
    """A schema of the user's own may leave columns out and order them. Raises ``Invalid`` for anything else."""
    for column in wanted.fields:
        if column.name not in columns:
            raise Invalid(f"The schema has a column {column.name}, and this source has {', '.join(columns)}.")
        if not column.nullable:
            raise Invalid(f"Column {column.name} of the schema must not be NOT NULL: what is read may lack it.")
        if column.dataType != _type(column.name, body):
            kind = _type(column.name, body).simpleString()
            hint = " Option bodyType chooses its type." if column.name == "body" else ""
            raise Invalid(f"Column {column.name} of the schema must be of type {kind}.{hint}")


class Rows:
    """Makes rows of messages, with the columns and in the order of a schema."""

    def __init__(self, columns: Sequence[str], body: str, **places: str) -> None:
        """``places``: what ``queue``, ``claim`` or ``topic`` say of all of the messages."""
        self._getters = [_getter(name, body, places) for name in columns]
        self._schema = to_arrow_schema(schema(columns, body), timezone="UTC")

    def of(self, messages: Sequence[Message]) -> Iterator[pa.RecordBatch]:
        """One of each, in batches; Spark needs several times as long to make them of tuples."""
        if messages:
            columns = [
                pa.array([get(message) for message in messages], type=field.type)
                for get, field in zip(self._getters, self._schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _type(name: str, body: str) -> DataType:
    if name == "body":
        return TYPES[body]
    return StringType() if name in PLACES else COLUMNS[name][0]


def _getter(name: str, body: str, places: Mapping[str, str]) -> Callable[[Any], Any]:
    if name in PLACES:
        said = places.get(name)
        return lambda _: said
    if name == "body":
        read = READERS[body]
        return lambda message: read(message.raw)
    return COLUMNS[name][1]
