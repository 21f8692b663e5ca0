# SPDX-License-Identifier: Apache-2.0
"""Validation, checksums and selection of SQS message attributes."""

from base64 import b64decode
from binascii import Error as NotBase64
from collections.abc import Mapping, Sequence
from hashlib import md5
from typing import Any, Final

from zq.model.attributes import TRACE_NAMES, AttributeValue
from zq.model.limits import (
    ATTRIBUTE_NAME,
    ATTRIBUTE_NUMBER,
    ATTRIBUTE_TYPE,
    MAX_ATTRIBUTE_NAME,
    MAX_ATTRIBUTES,
    MAX_DIGITS,
    RESERVED_PREFIXES,
    is_allowed_text,
    is_attribute_number,
)
from zq.sqs import errors

# Names by which a consumer requests all attributes.
ALL_NAMES: Final = frozenset(("All", ".*", "*"))
# Suffix of a prefix by which a consumer requests attributes, as in "trace.*".
WILDCARD: Final = ".*"
# The only system attribute that a sender may set.
TRACE: Final = "AWSTraceHeader"
# Maximum length of a trace header, which does not count towards the size of its message.
MAX_TRACE: Final = 1024


class SentValue(AttributeValue, frozen=True, omit_defaults=True, rename="pascal"):
    """A message attribute in a request. As in AWS, an attribute with a list of values is rejected."""

    string_list_values: list[Any] | None = None
    binary_list_values: list[Any] | None = None


SentAttributes = Mapping[str, SentValue]


def validate(attributes: SentAttributes) -> int:
    """Validate a message's attributes and return their size in bytes. Raises ``SqsError``."""
    if (count := sum(name not in TRACE_NAMES for name in attributes)) > MAX_ATTRIBUTES:
        raise errors.invalid_parameter(
            f"Number of message attributes [{count}] exceeds the allowed maximum [{MAX_ATTRIBUTES}]."
        )
    return sum(_validate(name, value, "user") for name, value in attributes.items())


def validate_system(attributes: SentAttributes) -> str:
    """Validate a message's system attributes and return the trace header or "". Raises ``SqsError``."""
    for name, value in attributes.items():
        if name != TRACE:
            raise errors.invalid_parameter(f"Message system attribute name '{name}' is invalid.")
        if value.data_type != "String":
            raise errors.invalid_parameter(f"The message system attribute '{name}' must have the data type 'String'.")
        _validate(name, value, "system")
        if len(value.string_value or "") > MAX_TRACE:
            raise errors.invalid_parameter(
                f"The message system attribute '{name}' must have at most {MAX_TRACE} characters."
            )
        return value.string_value or ""
    return ""


def compute_checksum(attributes: Mapping[str, AttributeValue]) -> str:
    """Return the MD5 checksum of the attributes, which clients verify."""
    total = md5(usedforsecurity=False)
    for name, value in sorted((name.encode(), value) for name, value in attributes.items()):
        data_type = value.data_type.encode()
        if value.data_type.startswith("Binary"):
            kind, raw = b"\x02", b64decode(value.binary_value or "")
        else:
            kind, raw = b"\x01", (value.string_value or "").encode()
        total.update(b"".join((_length(name), name, _length(data_type), data_type, kind, _length(raw), raw)))
    return total.hexdigest()


def select(attributes: dict[str, AttributeValue], names: Sequence[str]) -> dict[str, AttributeValue]:
    """Return the attributes that match the requested names and wildcards."""
    if not attributes or not names:
        return {}
    if not ALL_NAMES.isdisjoint(names):
        return attributes
    prefixes = tuple(name.removesuffix(WILDCARD) for name in names if name.endswith(WILDCARD))
    return {name: value for name, value in attributes.items() if name in names or name.startswith(prefixes)}


def _validate(name: str, value: SentValue, owner: str) -> int:
    _check_name(name)
    data_type = value.data_type
    if not data_type:
        raise errors.invalid_parameter(
            f"The message attribute '{name}' must contain non-empty message attribute value."
        )
    matched = ATTRIBUTE_TYPE.fullmatch(data_type)
    if matched is None:
        raise errors.invalid_parameter(
            f"The message attribute '{name}' has an invalid message attribute type, the set of supported type prefixes "
            "is Binary, Number, and String."
        )
    if len(data_type) > MAX_ATTRIBUTE_NAME:
        raise errors.invalid_parameter(f"Message ({owner}) attribute types must be shorter than 256 Bytes")
    if value.string_list_values or value.binary_list_values:
        raise errors.invalid_parameter("Message attribute list values in SendMessage operation are not supported.")
    return len(name.encode()) + len(data_type.encode()) + _check_value(name, value, matched[1], owner)


def _check_name(name: str) -> None:
    if len(name) > MAX_ATTRIBUTE_NAME:
        raise errors.invalid_parameter(f"Message attribute name must be shorter than {MAX_ATTRIBUTE_NAME} bytes.")
    if not ATTRIBUTE_NAME.fullmatch(name):
        raise errors.invalid_parameter(
            f"The message attribute name '{name}' is invalid. Attribute name can contain A-Z, a-z, 0-9, "
            "underscore (_), hyphen (-), and period (.) characters."
        )
    if name.lower().startswith(RESERVED_PREFIXES):
        raise errors.invalid_parameter(
            f"Message attribute name '{name}' must not start with a reserved prefix: AWS. or Amazon."
        )


def _check_value(name: str, value: SentValue, kind: str, owner: str) -> int:
    given = value.binary_value if kind == "Binary" else value.string_value
    if not given:
        raise errors.invalid_parameter(
            f"Message ({owner}) attribute '{name}' must contain a non-empty value of type '{value.data_type}'."
        )
    if (value.string_value if kind == "Binary" else value.binary_value) is not None:
        raise errors.invalid_parameter(
            f"The message attribute '{name}' must have only the value field of its type '{value.data_type}'."
        )
    if kind == "Binary":
        try:
            return len(b64decode(given, validate=True))
        except (NotBase64, ValueError) as error:
            raise errors.invalid_parameter(f"The value of message attribute '{name}' is not base64.") from error
    if not is_allowed_text(given):
        raise errors.invalid_parameter(f"The value of message attribute '{name}' contains invalid characters.")
    if kind == "Number":
        _check_number(name, given, owner)
    return len(given.encode())


def _check_number(name: str, text: str, owner: str) -> None:
    if not ATTRIBUTE_NUMBER.fullmatch(text):
        raise errors.invalid_parameter(f"Can't cast the value of message ({owner}) attribute '{name}' to a number.")
    if not is_attribute_number(text):
        raise errors.invalid_parameter(
            f"Number attribute value {text[:MAX_ATTRIBUTE_NAME]} should be in range (-10**128..10**126), "
            f"with at most {MAX_DIGITS} digits."
        )


def _length(raw: bytes) -> bytes:
    return len(raw).to_bytes(4, "big")
