# SPDX-License-Identifier: Apache-2.0
"""Values of topics: matching of patterns, live messages of a batch, and the syntax of patterns."""

import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.rotation import examples
from zq.model import topics
from zq.model.topics import EVERYTHING, PATTERN, Batch, Entry, Pattern

NOW = 1_800_000_000.0
PIECES = st.sampled_from(["a", "b", "A", "-", "_", ".", "*", "**", "***", "****"])
NAMES = st.text("abA-_.", max_size=12)


def regular(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for it: from the left, ``**`` matches anything and ``*`` anything without a dot."""
    parts = (part if "*" in part else re.escape(part) for part in re.split(r"(\*\*|\*)", pattern))
    return re.compile("".join({"**": ".*", "*": r"[^.]*"}.get(part, part) for part in parts))


@settings(max_examples=examples(150))
@given(st.lists(PIECES, min_size=1, max_size=8).map("".join), st.lists(NAMES, min_size=1, max_size=5))
@example("***", ["", "a", "a.b"])
@example("*.", ["a.", ".", "a.."])
def test_a_pattern_matches_like_its_regular_expression(pattern: str, names: list[str]):
    """Each name is matched twice, because results are cached."""
    built, oracle = Pattern(pattern), regular(pattern)
    for name in [*names, *names, pattern.replace("*", "a"), pattern.replace("*", "")]:
        assert built.matches(name) == bool(oracle.fullmatch(name))


@pytest.mark.parametrize(
    ("pattern", "meant", "others"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "axb", "A.B", ""]),
        ("*", ["a", "", "a-b"], ["a.b", "."]),
        ("a.*", ["a.b", "a."], ["a", "a.b.c", "ab.c", "b.a.c"]),
        ("*.b", ["a.b", ".b"], ["b", "a.a.b", "a.bb"]),
        ("a*c", ["ac", "abc"], ["a.c", "ab", "bc"]),
        ("a.**", ["a.b", "a.b.c", "a."], ["a", "b.a.c"]),
        ("**.c", ["a.c", "a.b.c", ".c"], ["c", "a.cc"]),
        ("a**c", ["ac", "abc", "a.b.c"], ["a", "a.b.cd"]),
        ("*.*", ["a.b", "."], ["a", "a.b.c"]),
        (EVERYTHING, ["", "a", "a.b.c", "."], []),
    ],
)
def test_one_star_matches_between_dots_and_two_match_across(pattern: str, meant: list[str], others: list[str]):
    """The cases are the examples of the documentation."""
    built = Pattern(pattern)
    assert built.topic == ("" if "*" in pattern else pattern)
    assert [name for name in [*meant, *others] if built.matches(name)] == meant


@pytest.mark.parametrize("pattern", ["a*" * 32, "*a" * 32, "**a" * 21, "*" * 64, "*." * 32, "**." * 21, "***a" * 16])
def test_no_pattern_is_slow(pattern: str):
    """A backtracking matcher would not end on these patterns."""
    built = Pattern(pattern)
    started = time.thread_time()
    for at in range(10):
        built.matches("a" * 60 + f"{at:04}")
        built.matches("a." * 30 + f"{at:04}")
    assert time.thread_time() - started < 2.0


def test_the_cache_of_a_pattern_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """The cache of results is bounded, whatever the number of names, and the results stay correct."""
    monkeypatch.setattr(topics, "MAX_CACHED", 10)
    built = Pattern("a*")
    for at in range(100):
        assert built.matches(f"a{at}")
        assert not built.matches(f"b{at}")
        assert built.matches.cache_info().currsize <= 10


@pytest.mark.parametrize("text", ["", "a b", "a/b", "a?", "[a]", "é", "a\n", "x" * 65, "a\x00", "a,b"])
def test_an_invalid_pattern_is_refused(text: str):
    """A pattern has at most 64 characters, those of topic names and stars."""
    assert PATTERN.fullmatch(text) is None


@pytest.mark.parametrize("text", ["a", "*", "**", "a.*-b_C.**", "x" * 64, "*" * 64])
def test_a_valid_pattern_is_accepted(text: str):
    assert PATTERN.fullmatch(text)


def test_a_batch_has_its_end_and_its_size():
    """The end is computed from the number of messages, the size from their bodies."""
    batch = Batch("news", 7, NOW, [Entry(b"1", 60), Entry(b"\xc3\xa9", 60), Entry(b"", 60)])
    assert (batch.last, batch.size) == (9, 3)


def test_a_batch_returns_live_messages_above_the_marker():
    """Each message is returned with its sequence until its own TTL ends."""
    ttls = [60, 600, 61, 60]
    batch = Batch("news", 7, NOW, [Entry(b"%d" % at, ttl) for at, ttl in enumerate(ttls)])

    def numbers(after: int, seconds: float) -> list[int]:
        return [message.sequence for message in batch.messages(after, NOW + seconds)]

    assert numbers(0, 0) == numbers(6, 59.999) == [7, 8, 9, 10]
    assert numbers(7, 0) == [8, 9, 10]
    assert numbers(0, 60) == [8, 9]
    assert numbers(8, 60) == [9]
    assert numbers(0, 61) == [8]
    assert numbers(0, 600) == numbers(10, 0) == numbers(99, 0) == []
    [message] = batch.messages(9, NOW)
    assert (message.topic, message.created, message.entry) == ("news", NOW, batch.entries[3])
