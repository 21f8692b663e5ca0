# SPDX-License-Identifier: Apache-2.0
"""Scopes: grammar, permissions, and which patterns cover which (tenancy 2)."""

import random
import re
import time
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zq.errors import Invalid
from zq.model.scopes import MAX_SCOPES, Kind, Scopes, Verb, covers, overlap, parse, scopes_exceed
from zq.model.topics import Pattern

NAMES = ["".join(letters) for length in range(1, 6) for letters in product("a.b", repeat=length)]
"""All names of three characters, up to a length that distinguishes short patterns."""
GLOBS = st.text(alphabet="ab.*", min_size=1, max_size=5).filter(lambda glob: "***" not in glob)


def matched(glob: str) -> set[str]:
    return set(filter(Pattern(glob).fits, NAMES))


@given(GLOBS, GLOBS)
def test_a_glob_covers_another_if_it_matches_all_its_names(outer: str, inner: str) -> None:
    """Enumeration confirms the result; patterns with names beyond the enumerated length may be judged not covered."""
    told = covers(Pattern(outer), Pattern(inner))
    assert not told or matched(inner) <= matched(outer)
    longer = [glob for glob in (outer, inner) if len(glob) > 3]
    assert longer or told == (matched(inner) <= matched(outer))


@given(GLOBS, GLOBS)
def test_globs_overlap_exactly_if_a_name_matches_both(one: str, other: str) -> None:
    told = overlap(Pattern(one), Pattern(other))
    assert told or not matched(one) & matched(other)
    assert told is overlap(Pattern(other), Pattern(one))
    assert not told or len(one) + len(other) > 5 or matched(one) & matched(other)


@given(GLOBS, GLOBS, GLOBS)
def test_covering_is_transitive(one: str, two: str, three: str) -> None:
    if covers(Pattern(one), Pattern(two)) and covers(Pattern(two), Pattern(three)):
        assert covers(Pattern(one), Pattern(three))


def test_an_undecided_pattern_is_not_covered() -> None:
    """For patterns that are hard to compare, the check ends soon and returns False."""
    hard = "*a" + "*b*a" * 15
    assert not covers(Pattern(hard + "*c"), Pattern("**"))
    assert covers(Pattern("**"), Pattern(hard))


@pytest.mark.parametrize(
    ("scope", "verb", "kind", "name", "allowed"),
    [
        ("produce:orders.*", "produce", "queue", "orders.eu", True),
        ("produce:orders.*", "produce", "topic", "orders.eu", True),
        ("produce:orders.*", "produce", "work", "orders.eu", False),
        ("produce:orders.*", "consume", "queue", "orders.eu", False),
        ("produce:orders.*", "produce", "queue", "orders.eu.de", False),
        ("produce:orders.*", "produce", "queue", "orders", False),
        ("consume+observe:queue/jobs.**", "observe", "queue", "jobs.a.b", True),
        ("consume+observe:queue/jobs.**", "observe", "topic", "jobs.a.b", False),
        ("produce+consume:work/etl-*", "consume", "work", "etl-17", True),
        ("*:secrets", "manage", "queue", "secrets", True),
        ("*:**", "manage", "work", "x", False),
    ],
)
def test_a_scope_allows_its_verbs_on_its_names(scope: str, verb: str, kind: str, name: str, allowed: bool) -> None:
    assert Scopes([scope]).allows(Verb(verb), Kind(kind), name) is allowed


NO_SCOPES = [
    *("", "produce", "produce:", ":x", "produce:queue/", "produce:queues/x", "produce+:x", "+produce:x"),
    *("produce+produce:x", "write:x", "Produce:x", "produce,consume:x", "*+produce:x", "produce:a/b", "produce:é"),
    *("produce:***", "produce:x:y", "produce:x y", "produce:" + "x" * 81, "produce:x\n", " produce:x"),
]


def test_an_invalid_scope_is_refused() -> None:
    for text in NO_SCOPES:
        with pytest.raises(Invalid, match=r"A scope must have the form VERBS:PATTERN"):
            Scopes([text])


def test_scopes_are_bounded() -> None:
    """A list has at most 20 scopes and 2 kB; an empty list does not restrict a credential."""
    assert Scopes([f"produce:q{number}" for number in range(MAX_SCOPES)])
    with pytest.raises(Invalid, match="1 to 20 scopes, not 21"):
        Scopes([f"produce:q{number}" for number in range(MAX_SCOPES + 1)])
    with pytest.raises(Invalid, match="at most 2000 bytes"):
        Scopes(["produce+consume+observe+manage:queue/" + "x" * 64] * MAX_SCOPES)
    assert parse(None) is None
    assert parse([]) is None


@pytest.mark.parametrize(
    ("own", "asked", "exceeds"),
    [
        (None, None, False),
        (None, ["*:**"], False),
        (["*:**"], None, True),
        (["*:**"], ["produce:a"], False),
        (["*:**"], ["produce:work/a"], True),
        (["*:queue/**"], ["produce:a"], True),
        (["produce:a.*"], ["produce:a.b"], False),
        (["produce:a.*"], ["produce:a.**"], True),
        (["produce:a.*"], ["produce+consume:a.b"], True),
        (["produce:a.*", "consume:a.*"], ["produce+consume:a.b"], False),
        (["produce:queue/**", "produce:topic/**"], ["produce:x"], False),
    ],
)
def test_a_credential_never_makes_one_that_exceeds_it(
    own: list[str] | None, asked: list[str] | None, exceeds: bool
) -> None:
    assert scopes_exceed(parse(asked), parse(own)) is exceeds


@given(st.lists(GLOBS, min_size=1, max_size=3), st.lists(GLOBS, min_size=1, max_size=3))
def test_scopes_that_do_not_exceed_others_allow_nothing_more(own: list[str], asked: list[str]) -> None:
    """The check covers all enumerated names."""
    mine, theirs = (Scopes([f"produce:queue/{glob}" for glob in globs]) for globs in (own, asked))
    if not scopes_exceed(theirs, mine):
        for name in NAMES:
            granted = (scopes.allows(Verb.PRODUCE, Kind.QUEUE, name) for scopes in (theirs, mine))
            assert not next(granted) or next(granted)


def test_a_pattern_is_covered_completely_or_partly() -> None:
    """A stream is allowed completely, filtered, or refused."""
    scopes = Scopes(["observe:topic/orders.*"])
    assert scopes.covers(Verb.OBSERVE, Kind.TOPIC, "orders.eu")
    assert not scopes.covers(Verb.OBSERVE, Kind.TOPIC, "**")
    assert scopes.overlaps(Verb.OBSERVE, Kind.TOPIC, "**")
    assert not scopes.overlaps(Verb.OBSERVE, Kind.TOPIC, "secrets.*")
    assert not scopes.overlaps(Verb.OBSERVE, Kind.QUEUE, "**")


def test_everything_of_a_project_is_all_three_kinds() -> None:
    assert Scopes(["manage:**", "manage:work/**"]).allow_everywhere(Verb.MANAGE)
    assert not Scopes(["manage:**"]).allow_everywhere(Verb.MANAGE)


def test_equal_scopes_are_read_once() -> None:
    assert parse(["produce:x"]) is parse(("produce:x",))


def test_no_glob_is_slow_to_compare() -> None:
    """A slow pattern must not block other requests.

    The owner of a token may choose patterns, in a stream's match and in the scopes of a new token. With 4,096 states
    for each pair, a check took more than a minute.
    """
    chance = random.Random(1)

    def hostile() -> str:
        return re.sub(r"\*\*+", "**", "".join(chance.choice("abcdefgh***") for _ in range(64)))

    own = Scopes([*(f"*:{hostile()}" for _ in range(18)), "*:**", "*:work/**"])
    asked = Scopes([f"produce+consume+observe+manage:{hostile()}" for _ in range(20)])
    began = time.thread_time()
    assert own.allow_all_of(asked)
    for _ in range(5):
        own.overlaps(Verb.PRODUCE, Kind.QUEUE, hostile())
        own.covers(Verb.PRODUCE, Kind.QUEUE, hostile())
    assert time.thread_time() - began < 3
