# SPDX-License-Identifier: Apache-2.0
"""Attributes of SQS messages: errors, sizes, checksums and filters."""

from base64 import b64decode, b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from moto.sqs.models import Message as Peer

from zq.model.limits import FORBIDDEN_CHARACTER, is_allowed_text
from zq.sqs.errors import SqsError
from zq.sqs.message_attributes import (
    SentValue,
    compute_checksum,
    select,
    validate,
    validate_system,
)


def text(value: str, kind: str = "String") -> SentValue:
    return SentValue(kind, value)


def binary(value: bytes) -> SentValue:
    return SentValue("Binary", binary_value=b64encode(value).decode())


def test_the_checksum_of_the_contract() -> None:
    """The test vector is a checksum that AWS returned."""
    assert compute_checksum({"MyAttribute": text("foobar")}) == "adb59cd4678ea5a855436b949cd07ab6"


VALUES = st.one_of(
    st.builds(text, st.text(st.characters(codec="utf-8"), min_size=1), st.sampled_from(("String", "String.x"))),
    st.builds(text, st.integers().map(str), st.sampled_from(("Number", "Number.java.lang.Long"))),
    st.builds(binary, st.binary(min_size=1)),
)


@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9_-]{1,9}", fullmatch=True), VALUES, min_size=1, max_size=10))
def test_checksums_equal_those_of_another_implementation(attributes: dict[str, SentValue]) -> None:
    """The other implementation is moto's, for any names, types and values."""
    peer = Peer("id", "body")
    for name, value in attributes.items():
        given = {"StringValue": value.string_value, "BinaryValue": b64decode(value.binary_value or "")}
        peer.message_attributes[name] = {"DataType": value.data_type, **given}
    assert compute_checksum(attributes) == peer.attribute_md5


@pytest.mark.parametrize(
    ("name", "value", "size"),
    [
        ("a", text("x"), 8),
        ("attr.1øßä", text("Valida"), 24),
        ("n", text("-1.5e2", "Number.float"), 19),
        ("n", text("1e126", "Number"), 12),
        ("n", text("9" * 38, "Number"), 45),
        ("b", binary(b"\x00\xff"), 9),
        ("x" * 256, text("€"), 265),
    ],
)
def test_name_type_and_value_count(name: str, value: SentValue, size: int) -> None:
    """The size is in bytes of UTF-8; binary values count decoded."""
    assert validate({name: value}) == size


WRONG = [
    ("", text("x")),
    ("a b", text("x")),
    (".a", text("x")),
    ("a.", text("x")),
    ("a..b", text("x")),
    ("AWS.a", text("x")),
    ("amazon.a", text("x")),
    ("a" * 257, text("x")),
    ("a", text("x", "")),
    ("a", text("x", "Text")),
    ("a", text("x", "String.")),
    ("a", text("x", "String." + "y" * 250)),
    ("a", text("")),
    ("a", text("\x00")),
    ("a", text("\ufffe")),
    ("a", text("x", "Binary")),
    ("a", SentValue("String", binary_value="eA==")),
    ("a", SentValue("String", "x", "eA==")),
    ("a", SentValue("Binary", binary_value="%")),
    ("a", SentValue("String", "x", string_list_values=["x"])),
    *(
        ("a", text(number, "Number"))
        for number in ("x", "1e", "0x1", "", "1e127", "-2e128", "9" * 39, "1e99999", "\u0661")
    ),
]


def test_a_wrong_name_type_or_value_is_refused() -> None:
    """All of them have the same error."""
    for name, value in WRONG:
        with pytest.raises(SqsError) as refused:
            validate({name: value})
        assert refused.value.shape == "InvalidParameterValueException", (name, value)


def test_ten_attributes_are_the_most() -> None:
    some = {f"a{at}": text("x") for at in range(10)}
    assert validate(some) == 10 * 9
    with pytest.raises(SqsError, match="exceeds the allowed maximum"):
        validate(some | {"b": text("x")})


def test_the_trace_is_the_only_system_attribute() -> None:
    """Its value must be a text; other system attributes are refused."""
    assert validate_system({}) == ""
    assert validate_system({"AWSTraceHeader": text("Root=1-2-3")}) == "Root=1-2-3"
    assert validate_system({"AWSTraceHeader": text("x" * 1024)}) == "x" * 1024
    for wrong in (
        {"Other": text("x")},
        {"AWSTraceHeader": binary(b"x")},
        {"AWSTraceHeader": text("")},
        {"AWSTraceHeader": text("x" * 1025)},
    ):
        with pytest.raises(SqsError):
            validate_system(wrong)


@pytest.mark.parametrize(
    ("names", "found"),
    [
        ([], ""),
        (["All"], "ab abc x"),
        ([".*"], "ab abc x"),
        (["*"], "ab abc x"),
        (["x", "All"], "ab abc x"),
        (["ab.*"], "ab abc"),
        (["abc.*", "x"], "abc x"),
        (["ab"], "ab"),
        (["AB", "none", "y.*"], ""),
    ],
)
def test_receivers_choose(names: list[str], found: str) -> None:
    """A receiver selects attributes by name, by prefix, or all."""
    attributes = {name: text("v") for name in ("ab", "abc", "x")}
    assert " ".join(select(attributes, names)) == found


ALLOWED = "\t\n\r \x7f\u0085\ud7ff\ue000\ufffd\U00010000\U0010ffff"


def test_a_body_holds_the_characters_that_xml_allows() -> None:
    """The cases are the bounds of the ranges and the characters beyond them."""
    assert [sign for sign in ALLOWED + "\x00\x08\x0b\x1f\ufffe\uffff" if is_allowed_text(f"a{sign}b")] == list(ALLOWED)


@given(st.characters(codec="utf-8"))
def test_printable_text_is_allowed(character: str) -> None:
    """Most bodies are printable and therefore need no second check."""
    assert is_allowed_text(character) == (FORBIDDEN_CHARACTER.search(character) is None)
