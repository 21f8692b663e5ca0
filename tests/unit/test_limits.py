# SPDX-License-Identifier: Apache-2.0
"""Limits: the last allowed value passes, and the next one raises an error that names the field and the limit."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from zq.errors import Invalid, InvalidBody, InvalidName, InvalidTopicName
from zq.model import QueueRef
from zq.model.limits import (
    MAX_IDS,
    Limits,
    check_body_size,
    check_count,
    check_nesting,
    check_range,
    is_long_queue_name,
    pattern,
    project_id,
    queue_ref,
    topic_ref,
)
from zq.model.topics import TopicRef
from zq.wire.numbers import check_numbers


def sentences(check: Callable[[Any], object], values: list[Any], error: type[Exception] = Invalid) -> list[str]:
    """Return the messages with which `check` refuses each of the values."""
    found = []
    for value in values:
        with pytest.raises(error) as refused:
            check(value)
        assert type(refused.value) is error
        found.append(str(refused.value))
    return found


def test_a_number_outside_its_bounds_is_refused_by_a_short_sentence():
    """Both limits are allowed; the error names the field and both limits."""

    def check(value: int) -> int:
        return check_range("The ttl", value, 60, 1209600)

    assert [check(value) for value in (60, 61, 1209599, 1209600)] == [60, 61, 1209599, 1209600]
    for sentence in sentences(check, [59, 0, -1, 1209601, 10**30, -(10**30)]):
        assert sentence.startswith("The ttl must be from 60 to 1209600")
        assert len(sentence) < 100
    with pytest.raises(InvalidBody):
        check_range("ttl", 0, 1, 2, InvalidBody)


def test_a_list_without_or_with_too_many_values_is_refused():
    """The error names the field, the limit and the number of values."""
    assert [check_count("ids", count, 20) for count in (1, 2, 20)] == [None] * 3
    counts = [0, 21, 1000000]
    told = sentences(lambda count: check_count("ids", count, 20), counts)
    assert all(
        f"ids must contain 1 to 20 values, not {count}" in text for count, text in zip(counts, told, strict=True)
    )


def test_a_body_may_be_exactly_as_large_as_allowed():
    """A body of exactly the limit is allowed, and one byte more is not (contract 6.3, 7.2)."""
    assert check_body_size(262144, 262144) is None
    with pytest.raises(Invalid, match="at most 262144 bytes; it is 262145"):
        check_body_size(262145, 262144)


def nested(depth: int, link: str) -> object:
    """Return a number nested in ``depth`` lists or objects."""
    value: object = 1
    for _ in range(depth):
        value = [value] if link == "list" else {"a": value}
    return value


@pytest.mark.parametrize("link", ["list", "object"])
def test_nesting_has_a_bound(link: str):
    """The deepest allowed document passes; one level more, or enough levels to exhaust the stack, are refused."""
    assert check_nesting("The metadata", nested(64, link)) is None
    for depth in (65, 5000):
        with pytest.raises(InvalidBody, match="The metadata must be nested at most 64 levels deep"):
            check_nesting("The metadata", nested(depth, link))


def test_a_wide_document_is_not_a_deep_one():
    assert check_nesting("The metadata", {str(at): [1, "a", None, [[]]] for at in range(1000)}) is None


def test_a_queue_name_has_1_to_64_letters_digits_underscores_hyphens_and_dots():
    """A trailing newline and digits of other scripts are refused (contract 1.7)."""
    good = ["a", "A-Z_0.9", "...", "-", "x" * 64]
    assert [queue_ref("acme", name) for name in good] == [QueueRef("acme", name) for name in good]
    bad = [
        "",
        "x" * 65,
        "Nice-Bo@t",
        "a b",
        "a/b",
        "a\n",
        "\na",
        "a\x00",
        "\u00e9",
        "\u0661",
        "\uff21",
        "a%20",
        "a,b",
        "*",
    ]
    assert all("queue name" in text for text in sentences(lambda name: queue_ref("acme", name), bad, InvalidName))
    strange: list[object] = [None, 1, True, b"jobs", ["jobs"], {"jobs": 1}]
    assert [name for name in [*good, *bad, *strange] if is_long_queue_name(name)] == [*good, "x" * 65]


def test_a_project_has_1_to_256_printable_characters():
    """Spaces and punctuation are allowed inside the id; the error names its length and the rule."""
    for project in ("a", "a b/c", "x" * 256, "~", "!", "a  b", "[a]", "%2F", "'$where'"):
        assert queue_ref(project, "jobs") == QueueRef(project, "jobs")
        assert project_id(project) == project
    bad = ["", " ", "a ", " a", "a,b", "a\\b", "a\x00", "a\t", "a\n", "\u00e9", "\x7f", "x" * 257]
    for check, error in ((queue_ref, InvalidName), (topic_ref, InvalidTopicName)):
        told = sentences(lambda project, check=check: check(project, "jobs"), bad, error)
        for project, text in zip(bad, told, strict=True):
            assert re.search(f"1 to 256 printable ASCII .* it has {len(project)}", text), project


def test_a_topic_is_named_as_a_queue_is():
    """An invalid topic name raises an error of its own, with its own title (contract 13)."""
    assert topic_ref("acme", "x" * 64) == TopicRef("acme", "x" * 64)
    for project, name in (("acme", "a*"), ("acme", "x" * 65), ("p" * 257, "news")):
        with pytest.raises(InvalidTopicName):
            topic_ref(project, name)
    with pytest.raises(InvalidTopicName, match="topic name"):
        topic_ref("acme", "")


def test_a_pattern_has_characters_of_a_name_and_at_most_two_stars_in_a_row():
    """The error names the parameter and the rule."""
    good = ["a", "news.*", "**", "*", "a.**.b", "**.*", "*a*b**", "x" * 63 + "*"]
    assert [pattern(text).text for text in good] == good
    bad = ["", "***", "a.***", "****", "a?", "[ab]", "a b", "a/b", "a\n", "x" * 65, "*" * 65, "\u00e9*", "{a,b}", "a,b"]
    for sentence in sentences(pattern, bad):
        assert re.search(r"match must be 1 to 64 characters from .* at most two", sentence)


def test_an_integer_in_a_body_has_64_bits():
    """A larger integer is refused as an invalid body, with an error of less than 200 characters (contract 1.6)."""
    for value in (0, 1, -1, 2**63 - 1, -(2**63)):
        check_numbers(b"%d" % value)
    bad = [b"%d" % value for value in (2**63, -(2**63) - 1, 10**400)]
    assert max(map(len, sentences(check_numbers, bad, InvalidBody))) < 200


def test_the_limits_are_those_of_the_contract():
    """The defaults are those of contract 16 and 6.1, with a limit in bytes instead of Zaqar's 20 messages."""
    limits = Limits()
    assert (limits.default_message_ttl, limits.max_message_ttl) == (3600, 1209600)
    assert (limits.default_message_delay, limits.max_message_delay) == (0, 900)
    assert (limits.default_claim_ttl, limits.max_claim_ttl) == (300, 43200)
    assert (limits.default_claim_grace, limits.max_claim_grace) == (60, 43200)
    assert (limits.max_queues_per_page, MAX_IDS) == (20, 20)
    assert (limits.max_messages_per_page, limits.max_messages_per_claim_or_pop) == (1000, 1000)
    assert limits.max_answer_bytes == 4 << 20
    assert (limits.max_queue_metadata, limits.max_messages_post_size) == (65536, 262144)
    assert (limits.min_length_client_id, limits.max_length_client_id) == (10, 36)
