# SPDX-License-Identifier: Apache-2.0
"""Which topics a pattern means: ``*`` within a part between dots, ``**`` across them (extensions 8)."""

import re
import time
from itertools import product

import pytest

from zq.model.topics import MOST_REMEMBERED, Pattern


@pytest.mark.parametrize(
    ("text", "topics", "others"),
    [
        ("news", ["news"], ["new", "news2", "News", "news."]),
        ("*", ["news", "a-b", "_"], ["a.b", ".", "a."]),
        ("**", ["news", "a.b", ".", "a..b"], []),
        ("news.*", ["news.eu", "news.", "news.a-b"], ["news", "news.eu.de", "xnews.eu"]),
        ("news.**", ["news.eu", "news.eu.de", "news."], ["news", "newsx"]),
        ("*.eu", ["news.eu", ".eu"], ["eu", "a.news.eu"]),
        ("**.eu", ["news.eu", "a.news.eu", ".eu"], ["eu", "news.eux"]),
        ("a.*.c", ["a.b.c", "a..c"], ["a.c", "a.b.b.c"]),
        ("a.**.c", ["a.b.c", "a.b.b.c", "a..c"], ["a.c"]),
        ("n*s", ["news", "ns", "nesss"], ["n.s", "newsx"]),
        ("a-_.b", ["a-_.b"], ["a-_xb"]),
    ],
)
def test_a_pattern_means_these_topics_and_no_others(text: str, topics: list[str], others: list[str]) -> None:
    """The dot stands for itself, letters are told apart by case, and the whole name must fit."""
    pattern = Pattern(text)
    assert [topic for topic in topics + others if pattern.matches(topic)] == topics
    assert [topic for topic in topics + others if pattern.matches(topic)] == topics, "remembered"


def test_every_small_pattern_agrees_with_regular_expressions() -> None:
    """All patterns of up to four signs against all names of up to four, from an alphabet of a letter and the dot."""
    names = ["".join(name) for size in range(1, 5) for name in product("a.", repeat=size)]
    for size in range(1, 5):
        for signs in product(["a", ".", "*", "**"], repeat=size):
            text = "".join(signs)
            if "***" in text:
                continue
            expression = re.escape(text).replace(r"\*\*", "[a.]*").replace(r"\*", "[a]*")
            pattern = Pattern(text)
            for name in names:
                assert pattern.matches(name) is (re.fullmatch(expression, name) is not None), (text, name)


def test_no_pattern_is_slow() -> None:
    """The worst that 64 characters allow: matching them naively would take longer than the world has stood."""
    pattern = Pattern("*a" * 31 + "*b")
    began = time.thread_time()
    assert not any(pattern.matches("a" * (64 - tail) + "c" * tail) for tail in range(1, 20))
    assert time.thread_time() - began < 1


def test_what_is_remembered_is_bounded() -> None:
    """A reader of all topics does not grow with their number."""
    pattern = Pattern("a*")
    for number in range(MOST_REMEMBERED + 10):
        pattern.matches(f"b{number}")
    assert pattern.matches.cache_info().currsize == MOST_REMEMBERED
    assert pattern.matches("abc")
