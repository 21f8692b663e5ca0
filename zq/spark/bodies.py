# SPDX-License-Identifier: Apache-2.0
"""Bodies between JSON, as messages carry them, and Spark's types, in both directions."""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa
from msgspec import Raw
from pyspark.sql.types import BinaryType, DataType, StringType, VariantType, VariantVal

from zq.errors import Invalid, InvalidBody

TYPES: Final[Mapping[str, DataType]] = {"string": StringType(), "binary": BinaryType(), "variant": VariantType()}
"""What option bodyType may be."""
_checked: Final = msgspec.json.Decoder()


def as_string(raw: Raw) -> str | None:
    """A JSON text without its quotes, null as None, anything else as JSON."""
    content = bytes(raw)
    if content[:1] == b'"':
        text: str = msgspec.json.decode(content)
        return text
    return None if content == b"null" else content.decode()


def as_binary(raw: Raw) -> bytes:
    """JSON as it travels."""
    return bytes(raw)


def as_variant(raw: Raw) -> dict[str, bytes]:
    """The value itself, as Arrow has it."""
    made = VariantVal.parseJson(bytes(raw).decode())
    return {"value": made.value, "metadata": made.metadata}


READERS: Final[Mapping[str, Callable[[Raw], Any]]] = {
    "string": as_string,
    "binary": as_binary,
    "variant": as_variant,
}


def bodies(kind: DataType, column: pa.Array) -> list[Any]:
    """A column as values that can be posted.

    Text as text, binary and variant as the JSON that they hold, a struct as an object of its fields.
    """
    if isinstance(kind, BinaryType):
        return [value if value is None else _json(value) for value in column.to_pylist()]
    if isinstance(kind, VariantType):
        return [value if value is None else _from_variant(value) for value in column.to_pylist()]
    if isinstance(kind, StringType):
        texts: list[Any] = column.to_pylist()
        return texts
    values: list[Any] = column.to_pylist(maps_as_pydicts="strict")
    return values


def check_writable(name: str, kind: DataType) -> None:
    """Raises ``Invalid`` for a type of which no JSON can be made."""
    if not isinstance(kind, VariantType) and "variant" in kind.simpleString():
        raise Invalid(f"Column {name} holds variants inside another type: make it one variant, or to_json of it.")


def _json(content: bytes) -> Raw:
    try:
        _checked.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidBody(f"A body of type binary must hold JSON: {error}.") from error
    except RecursionError as error:
        raise InvalidBody("A body of type binary is nested too deeply.") from error
    return Raw(content)


def _from_variant(value: Mapping[str, bytes]) -> Raw:
    return Raw(VariantVal(value["value"], value["metadata"]).toJson().encode())
