# SPDX-License-Identifier: Apache-2.0
"""Message attributes in JSON, in posts and in detailed listings, for server and client.

A JSON string is an attribute of type String, and a JSON number is an attribute of type Number. Every other attribute is
an object with ``type`` and ``value``:

- a Binary, in base64;
- a String or Number whose type has a label, such as ``String.uuid``;
- a Number such as ``1.50``, because a JSON number would not preserve its text.
"""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import msgspec
from msgspec import Struct

from zq.model.attributes import Attributes, AttributeValue
from zq.wire.numbers import MAX_BODY_NUMBER

# The types of attributes without a label.
STRING: Final = "String"
NUMBER: Final = "Number"
BINARY: Final = "Binary"


class TypedValue(Struct, frozen=True):
    """An attribute with an explicit type: String, Number or Binary, with an optional label as in ``String.uuid``."""

    type: str
    value: str
    """The text of a String or a Number, or the base64 of a Binary."""


JsonValue: TypeAlias = str | int | float | TypedValue
Attribute: TypeAlias = JsonValue | bytes
"""An attribute value in the client's API. Bytes become an attribute of type Binary."""


def typed_value(value: JsonValue) -> TypedValue:
    """Convert a string or number to a ``TypedValue``."""
    if isinstance(value, TypedValue):
        return value
    return TypedValue(STRING, value) if isinstance(value, str) else TypedValue(NUMBER, _encode(value).decode())


# The fields that an answer shows unchanged.
_MEMBERS: Final = tuple(name for name in Attributes.__struct_fields__ if name != "message_attributes")


def format_attributes(attributes: Attributes) -> dict[str, Any]:
    """Convert stored attributes to the members of an ``answers.Message``."""
    return {
        "attributes": format_values(attributes),
        **{name: getattr(attributes, name) for name in _MEMBERS},
    }


def format_values(attributes: Attributes) -> dict[str, JsonValue]:
    """Convert the sender's attributes and the trace context to JSON values."""
    return {name: _to_json(value) for name, value in attributes.message_attributes.items()}


def attribute_values(attributes: Mapping[str, JsonValue]) -> dict[str, AttributeValue]:
    """Convert posted attributes to their stored form."""
    return {name: _from_json(value) for name, value in attributes.items()}


def json_values(attributes: Mapping[str, Attribute]) -> dict[str, JsonValue]:
    """Convert attributes that a user passes to the Python client. Raises ``TypeError`` for an unsupported type."""
    return {name: _json_value(name, value) for name, value in attributes.items()}


def _json_value(name: str, value: Attribute) -> JsonValue:
    if isinstance(value, bytes):
        return TypedValue(BINARY, b64encode(value).decode())
    if isinstance(value, bool) or not isinstance(value, (str, int, float, TypedValue)):
        raise TypeError(f"Attribute {name} must be text, a number, bytes or a TypedValue, not {type(value).__name__}")
    return value


_encode: Final = msgspec.json.Encoder().encode
_decode_number: Final = msgspec.json.Decoder(int | float).decode


def _from_json(value: JsonValue) -> AttributeValue:
    typed = typed_value(value)
    if typed.type.partition(".")[0] == BINARY:
        return AttributeValue(typed.type, binary_value=typed.value)
    return AttributeValue(typed.type, typed.value)


def _to_json(value: AttributeValue) -> JsonValue:
    text = value.string_value
    if value.data_type == STRING and text is not None:
        return text
    number = _number(text) if value.data_type == NUMBER and text is not None else None
    return TypedValue(value.data_type, text or value.binary_value or "") if number is None else number


def _number(text: str) -> int | float | None:
    """Parse an attribute of type Number. Return ``None`` if a JSON number would not preserve the text."""
    try:
        number = _decode_number(text)
    except msgspec.DecodeError:
        return None
    if isinstance(number, int) and abs(number) > MAX_BODY_NUMBER:
        return None
    return number if _encode(number) == text.encode() else None
