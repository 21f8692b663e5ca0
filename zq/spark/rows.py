# SPDX-License-Identifier: Apache-2.0
"""Conversion between messages and Spark rows: columns, types and bodies."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Raw
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
    VariantVal,
)

from zq.client import Message
from zq.errors import Invalid, InvalidBody
from zq.wire.attributes import JsonValue, TypedValue, typed_value
from zq.wire.numbers import check_numbers

# Type of the column ``body`` by bodyType.
TYPES: Final[Mapping[str, DataType]] = {"string": StringType(), "binary": BinaryType(), "variant": VariantType()}
_checked: Final = msgspec.json.Decoder()
# Type of the column ``attributes``: the type and value of each attribute by name. Binary values are base64.
ATTRIBUTES: Final = MapType(
    StringType(), StructType([StructField("type", StringType()), StructField("value", StringType())])
)
# Type of each column, and the function that gets its value. ``body`` and ``PLACE_COLUMNS`` are not included.
COLUMNS: Final[Mapping[str, tuple[DataType, Callable[[Any], Any]]]] = {
    "id": (StringType(), lambda message: message.id),
    "seq": (LongType(), lambda message: message.sequence),
    "created": (TimestampType(), lambda message: message.created),
    "ttl": (IntegerType(), lambda message: message.ttl),
    "claim_count": (IntegerType(), lambda message: message.claim_count),
    "origin": (StringType(), lambda message: message.origin or None),
    "reason": (StringType(), lambda message: message.reason or None),
    "origin_claim_count": (IntegerType(), lambda message: message.origin_claim_count or None),
    "attributes": (ATTRIBUTES, lambda message: to_attribute_entries(message)),
    "outcome": (StringType(), lambda message: message.outcome or None),
    "finished": (TimestampType(), lambda message: message.finished),
}
# Columns with the message's claim, queue or topic.
PLACE_COLUMNS: Final = ("claim", "queue", "topic")
# Columns of a claimed message.
CLAIMED_COLUMNS: Final = ("id", "seq", "body", "created", "ttl", "claim_count", "claim", "queue", "attributes")
# Columns of a live message.
LIVE_COLUMNS: Final = (*CLAIMED_COLUMNS, "origin", "origin_claim_count", "reason")
# Columns of a finished message.
FINISHED_COLUMNS: Final = (*LIVE_COLUMNS, "outcome", "finished")
# Columns of a topic's message.
TOPIC_COLUMNS: Final = ("id", "seq", "body", "created", "ttl", "topic", "attributes")


def to_attribute_entries(message: Message) -> list[tuple[str, dict[str, str]]] | None:
    """Convert a message's attributes to entries of an Arrow map, or ``None`` if the message has no attributes."""
    entries = [(name, msgspec.structs.asdict(typed_value(value))) for name, value in message.attributes.items()]
    return entries or None


def parse_attributes(entries: Iterable[tuple[str, Any]] | None) -> dict[str, JsonValue] | None:
    """Convert the map entries of a row to message attributes. Leave out null values."""
    if entries is None:
        return None
    return {
        name: value if isinstance(value, str) else TypedValue(value["type"], value["value"])
        for name, value in entries
        if value is not None
    }


def as_string(raw: Raw) -> str | None:
    """Convert a JSON string to its text, null to ``None``, and any other value to JSON text."""
    content = bytes(raw)
    if content[:1] == b'"':
        text: str = msgspec.json.decode(content)
        return text
    return None if content == b"null" else content.decode()


def as_binary(raw: Raw) -> bytes:
    return bytes(raw)


def as_variant(raw: Raw) -> dict[str, bytes]:
    made = VariantVal.parseJson(bytes(raw).decode())
    return {"value": made.value, "metadata": made.metadata}


# Functions that convert a body to a column value, by bodyType.
CONVERTERS: Final[Mapping[str, Callable[[Raw], Any]]] = {
    "string": as_string,
    "binary": as_binary,
    "variant": as_variant,
}


def to_bodies(kind: DataType, column: pa.Array) -> list[Any]:
    """Convert a column of message bodies to JSON values. Binary and variant columns already contain JSON."""
    if isinstance(kind, BinaryType):
        return [value if value is None else _json(value, "binary") for value in column.to_pylist()]
    if isinstance(kind, VariantType):
        return [value if value is None else _from_variant(value) for value in column.to_pylist()]
    if isinstance(kind, StringType):
        texts: list[Any] = column.to_pylist()
        return texts
    # Convert times to UTC, because the JSON encoder truncates UTC offsets to minutes, which falsifies historical times.
    values: list[Any] = column.cast(_in_utc(column.type)).to_pylist(maps_as_pydicts="strict")
    return values


def _in_utc(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, "UTC")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_in_utc(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_in_utc(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(_in_utc(kind.key_type)), kind.item_field.with_type(_in_utc(kind.item_type))
        )
    return kind


def check_writable(name: str, kind: DataType) -> None:
    """Raise ``Invalid`` if a column's type cannot be converted to JSON."""
    if not isinstance(kind, VariantType) and "variant" in kind.simpleString():
        raise Invalid(
            f"Column {name} contains variants inside another type: convert it to a single variant, or use to_json."
        )


def check_json(content: bytes) -> None:
    """Validate JSON. Raises msgspec's errors, ``RecursionError``, or ``InvalidBody`` for a bad number."""
    _checked.decode(content)
    check_numbers(content, "body")


def _json(content: bytes, kind: str) -> Raw:
    try:
        check_json(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidBody(f"A body of type {kind} must contain JSON: {error}.") from error
    except RecursionError as error:
        raise InvalidBody(f"A body of type {kind} is nested too deeply.") from error
    return Raw(content)


def _from_variant(value: Mapping[str, bytes]) -> Raw:
    return _json(VariantVal(value["value"], value["metadata"]).toJson().encode(), "variant")


def schema(columns: Iterable[str], body: str) -> StructType:
    """Return the schema of the columns. ``body`` is the value of the option ``bodyType``."""
    return StructType([StructField(name, _type(name, body)) for name in columns])


def check_schema(schema: StructType, columns: Sequence[str], body: str) -> None:
    """Raise ``Invalid`` if a user's schema has a column that is not in ``columns``, or a column of the wrong type."""
    for column in schema.fields:
        if column.name not in columns:
            raise Invalid(
                f"The schema has a column {column.name}, but this source has only the columns {', '.join(columns)}."
            )
        if not column.nullable:
            raise Invalid(
                f"Column {column.name} of the schema must not be NOT NULL, because the source may have nulls."
            )
        if column.dataType != _type(column.name, body):
            kind = _type(column.name, body).simpleString()
            hint = " Option bodyType selects its type." if column.name == "body" else ""
            raise Invalid(f"Column {column.name} of the schema must be of type {kind}.{hint}")


class RowConverter:
    """A converter of messages to rows."""

    def __init__(self, columns: Sequence[str], body: str, **places: str) -> None:
        """Create the converter. ``places`` maps column names to values that are equal for all messages."""
        self._getters = [_getter(name, body, places) for name in columns]
        self._schema = to_arrow_schema(schema(columns, body), timezone="UTC")

    def convert(self, messages: Sequence[Message]) -> Iterator[pa.RecordBatch]:
        """Yield an Arrow batch with one row per message. Spark reads Arrow batches much faster than tuples."""
        if messages:
            columns = [
                pa.array([get(message) for message in messages], type=field.type)
                for get, field in zip(self._getters, self._schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _type(name: str, body: str) -> DataType:
    if name == "body":
        return TYPES[body]
    return StringType() if name in PLACE_COLUMNS else COLUMNS[name][0]


def _getter(name: str, body: str, places: Mapping[str, str]) -> Callable[[Any], Any]:
    if name in PLACE_COLUMNS:
        said = places.get(name)
        return lambda _: said
    if name == "body":
        read = CONVERTERS[body]
        return lambda message: read(message.raw)
    return COLUMNS[name][1]
