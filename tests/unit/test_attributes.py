# SPDX-License-Identifier: Apache-2.0
"""Attributes of messages: their stored form, which servers of other versions read, too."""

from zq.model.attributes import NO_ATTRIBUTES, Attributes, AttributeValue, decode_attributes, encode_attributes

# The stored form as 0.1.0 wrote it.
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
    """A message without attributes takes no room for them; an empty object, as 0.1.0 wrote it, means the same."""
    assert encode_attributes(NO_ATTRIBUTES) == b""
    assert decode_attributes(b"") == decode_attributes(b"{}") == NO_ATTRIBUTES


def test_members_of_a_later_version_are_ignored() -> None:
    assert decode_attributes(b'{"MessageDeduplicationId":"once","Later":{"a":[1]}}') == Attributes({}, "once")
