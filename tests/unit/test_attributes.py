# SPDX-License-Identifier: Apache-2.0
"""Attributes of messages: the stored form, which servers of other versions read too, and the JSON form."""

import math

import msgspec
import pytest

from zq.client import Draft
from zq.client.posting import pack
from zq.errors import InvalidBody
from zq.model.attributes import NO_ATTRIBUTES, Attributes, AttributeValue, decode_attributes, encode_attributes
from zq.wire.attributes import JsonValue, attribute_values, format_attributes

# The stored form that version 0.1.0 wrote.
FORMER = (
    b'{"MessageAttributes":{"a":{"DataType":"String","StringValue":"x"},'
    b'"b":{"DataType":"Binary","BinaryValue":"eQ=="}},"MessageDeduplicationId":"once","AWSTraceHeader":"Root=1"}'
)
ATTRIBUTES = Attributes(
    {"a": AttributeValue("String", "x"), "b": AttributeValue("Binary", binary_value="eQ==")}, "once", "Root=1"
)


def test_the_stored_form_is_the_one_of_former_versions() -> None:
    assert encode_attributes(ATTRIBUTES) == FORMER
    assert decode_attributes(FORMER) == ATTRIBUTES


def test_no_attributes_are_stored_as_nothing() -> None:
    """A message without attributes stores no bytes for them; `{}` of version 0.1.0 is decoded to no attributes."""
    assert encode_attributes(NO_ATTRIBUTES) == b""
    assert decode_attributes(b"") == decode_attributes(b"{}") == NO_ATTRIBUTES


def test_members_of_a_later_version_are_ignored() -> None:
    assert decode_attributes(b'{"MessageDeduplicationId":"once","Later":{"a":[1]}}') == Attributes({}, "once")


def test_values_of_other_types_are_refused_by_the_client() -> None:
    for value in (True, None, [1], math.nan):
        with pytest.raises(InvalidBody):
            pack([Draft(1, attributes={"a": value})], None, None)


@pytest.mark.parametrize("text", ["7", "-7", "1.5", "1e+20", "0.10", "+5", "-0", ".5", "9" * 30, "1e400"])
def test_a_shown_number_is_posted_with_the_same_text(text: str) -> None:
    """A number is shown as a JSON number if that keeps its text, otherwise as a value with its type."""
    stored = {"a": AttributeValue("Number", text)}
    shown = msgspec.json.encode(format_attributes(Attributes(stored))["attributes"])
    assert attribute_values(msgspec.json.decode(shown, type=dict[str, JsonValue])) == stored
