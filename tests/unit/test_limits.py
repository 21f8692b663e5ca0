# SPDX-License-Identifier: Apache-2.0
"""Bounds: the last allowed value passes, the next one is refused with a sentence that names field and bound."""

import pytest

from zq.errors import Invalid, InvalidBody, InvalidName, InvalidTopicName
from zq.limits import (
    MAX_IDS,
    Limits,
    body_size,
    count_within,
    integer_in_body,
    is_queue_name,
    nesting,
    pattern,
    project_id,
    queue_ref,
    topic_ref,
    within,
)
from zq.model import QueueRef
from zq.model.topics import TopicRef


@pytest.mark.parametrize("value", [60, 61, 1209599, 1209600])
def test_a_value_within_its_bounds_passes(value: int):
    """Both ends included; the value itself comes back."""
    assert within("ttl", value, 60, 1209600) == value


@pytest.mark.parametrize("value", [59, 0, -1, 1209601, 10**30, -(10**30)])
def test_a_value_outside_its_bounds_is_refused(value: int):
    """The sentence names the field and both bounds, and stays short for absurd numbers."""
    with pytest.raises(Invalid) as refused:
        within("The ttl", value, 60, 1209600)
    sentence = str(refused.value)
    assert sentence.startswith("The ttl must be from 60 to 1209600")
    assert len(sentence) < 100
    assert type(refused.value) is Invalid


def test_the_kind_of_refusal_may_be_chosen():
    """A value from a body is refused as a bad body."""
    with pytest.raises(InvalidBody):
        within("ttl", 0, 1, 2, InvalidBody)


@pytest.mark.parametrize("count", [1, 2, 20])
def test_a_list_of_allowed_length_passes(count: int):
    """One to the bound."""
    assert count_within("ids", count, 20) is None


@pytest.mark.parametrize("count", [0, 21, 1000000])
def test_a_list_of_none_or_too_many_is_refused(count: int):
    """The sentence names the field, the bound and the number found."""
    with pytest.raises(Invalid, match=f"ids must name 1 to 20 values; it names {count}"):
        count_within("ids", count, 20)


def test_a_body_may_be_exactly_as_large_as_allowed():
    """Contract 6.3, 7.2: equal is allowed, one byte more is not."""
    assert body_size(262144, 262144) is None
    with pytest.raises(Invalid, match="at most 262144 bytes; it is 262145"):
        body_size(262145, 262144)


def nested(depth: int, link: str) -> object:
    """A number in so many lists or objects within each other."""
    value: object = 1
    for _ in range(depth):
        value = [value] if link == "list" else {"a": value}
    return value


@pytest.mark.parametrize("link", ["list", "object"])
def test_nesting_has_a_bound(link: str):
    """The deepest allowed document passes, one level more is refused, and so is one that would exhaust the stack."""
    assert nesting("The metadata", nested(64, link)) is None
    for depth in (65, 5000):
        with pytest.raises(InvalidBody, match="The metadata must be nested at most 64 deep"):
            nesting("The metadata", nested(depth, link))


def test_a_wide_document_is_not_a_deep_one():
    """Breadth costs no depth."""
    assert nesting("The metadata", {str(at): [1, "a", None, [[]]] for at in range(1000)}) is None


@pytest.mark.parametrize("name", ["a", "A-Z_0.9", "...", "-", "x" * 64])
def test_a_queue_name_within_the_rules_passes(name: str):
    """Contract 1.7: 1 to 64 of letters, digits, underscore, hyphen and dot."""
    assert queue_ref("acme", name) == QueueRef("acme", name)
    assert is_queue_name(name) is True


@pytest.mark.parametrize(
    "name",
    ["", "x" * 65, "Nice-Bo@t", "a b", "a/b", "a\n", "\na", "a\x00", "\u00e9", "\u0661", "\uff21", "a%20", "a,b", "*"],
)
def test_a_queue_name_outside_the_rules_is_refused(name: str):
    """A trailing newline and digits of other scripts included."""
    with pytest.raises(InvalidName, match="queue name"):
        queue_ref("acme", name)
    assert is_queue_name(name) is False


@pytest.mark.parametrize("value", [None, 1, True, b"jobs", ["jobs"], {"jobs": 1}])
def test_only_text_can_name_a_queue(value: object):
    """Metadata may hold anything where a queue name is expected."""
    assert is_queue_name(value) is False


@pytest.mark.parametrize("project", ["a", "a b/c", "x" * 256, "~", "!", "a  b", "[a]", "%2F", "'$where'"])
def test_a_project_is_printable_text_of_256_characters(project: str):
    """Blanks within and signs are fine."""
    assert queue_ref(project, "jobs") == QueueRef(project, "jobs")
    assert project_id(project) == project


@pytest.mark.parametrize(
    "project", ["", " ", "a ", " a", "a,b", "a\\b", "a\x00", "a\t", "a\n", "\u00e9", "\x7f", "x" * 257]
)
def test_any_other_project_is_refused(project: str):
    """S14: with its length in characters and the rule in the sentence, for queues and topics."""
    for check in (queue_ref, topic_ref):
        with pytest.raises(InvalidName, match=f"1 to 256 printable ASCII .* it has {len(project)}"):
            check(project, "jobs")


def test_a_topic_is_named_as_a_queue_is():
    """Contract 13; what breaks the rules has an error of its own, and with it a title."""
    assert topic_ref("acme", "x" * 64) == TopicRef("acme", "x" * 64)
    for project, name in (("acme", "a*"), ("acme", "x" * 65), ("p" * 257, "news")):
        with pytest.raises(InvalidTopicName):
            topic_ref(project, name)
    with pytest.raises(InvalidTopicName, match="topic name"):
        topic_ref("acme", "")


@pytest.mark.parametrize("text", ["a", "news.*", "**", "*", "a.**.b", "**.*", "*a*b**", "x" * 63 + "*"])
def test_a_pattern_within_the_rules_passes(text: str):
    """Extensions 8: characters of a name, and stars."""
    assert pattern(text).text == text


@pytest.mark.parametrize(
    "text",
    ["", "***", "a.***", "****", "a?", "[ab]", "a b", "a/b", "a\n", "x" * 65, "*" * 65, "\u00e9*", "{a,b}", "a,b"],
)
def test_a_pattern_outside_the_rules_is_refused(text: str):
    """The sentence names the parameter and the rule."""
    with pytest.raises(Invalid, match=r"match must be 1 to 64 characters from .* at most two"):
        pattern(text)


@pytest.mark.parametrize("value", [0, 1, -1, 2**63 - 1, -(2**63)])
def test_an_integer_of_64_bits_passes(value: int):
    """Contract 1.6: signed, both ends included."""
    assert integer_in_body(value) == value


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, 10**400])
def test_an_integer_beyond_64_bits_is_refused(value: int):
    """As a bad body, and without printing 400 digits."""
    with pytest.raises(InvalidBody) as refused:
        integer_in_body(value)
    assert len(str(refused.value)) < 150


def test_the_limits_are_those_of_the_contract():
    """Contract 16 and 6.1: what a deployment gets that sets nothing; not Zaqar's 20 messages, but a bound in bytes."""
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
