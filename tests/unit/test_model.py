# SPDX-License-Identifier: Apache-2.0
"""The values and the rules that need nothing but them."""

import re

import msgspec
import pytest

from zq.model import Draft, Lease, ListFilter, Message, Page, QueueRef, Stats, age, new_ids

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("since", "now", "expected"),
    [
        (0, 0, 0),
        (0, 0.999, 0),
        (0, 1, 1),
        (0, 1.999, 1),
        (0, 61.5, 61),
        (1, 0.5, 0),
        (100, 0, 0),
        (NOW, NOW + 3600, 3600),
    ],
)
def test_an_age_is_rounded_down_and_never_negative(since: float, now: float, expected: int):
    """Contract 1.7: whole seconds, and 0 for what another server's faster clock has created."""
    assert age(since, now) == expected
    assert type(age(since, now)) is int
    assert Message("id", b"1", 60, since, since + 60, since, 1, "alice").age(now) == expected


@pytest.mark.parametrize(
    ("ttl", "claim_ttl", "grace", "lives"),
    [(120, 777, 0, 777), (120, 777, 23, 800), (120, 121, 22, 143), (120, 60, 30, 120), (120, 120, 60, 120)],
)
@pytest.mark.parametrize("second", [1, 1000])
def test_a_claim_lengthens_a_life_that_would_end_before_it(
    ttl: int, claim_ttl: int, grace: int, lives: int, second: int
):
    """The table of contract 8.1, in seconds and in milliseconds."""
    posted = int(NOW) * second
    expires, ends = posted + ttl * second, posted + claim_ttl * second
    assert Lease("c1", claim_ttl, grace).extend(ttl, expires, ends, second) == (lives, posted + lives * second)


def test_a_life_is_lengthened_from_the_claim_s_end_on():
    """For a message that was old when it was claimed, ttl and expiry follow from the claim, not from the post."""
    assert Lease("c1", 60, 30).extend(120, NOW + 20, NOW + 60, 1.0) == (90, NOW + 90)


def test_ids_are_thirty_two_hex_digits_and_differ():
    """Free of everything that the client's parsing of hrefs trips over (contract 1.7)."""
    ids = new_ids(5000, NOW)
    assert len(set(ids)) == 5000
    assert all(re.fullmatch("[0-9a-f]{32}", id) for id in ids)
    assert new_ids(0, NOW) == []


def test_ids_of_one_moment_differ_between_calls():
    """Two servers at the same millisecond give different ids."""
    assert not set(new_ids(1000, NOW)) & set(new_ids(1000, NOW))


def test_ids_rise_with_time():
    """Stores insert nearly in order: a later millisecond sorts later, far into the future too."""
    moments = [NOW, NOW + 0.001, NOW + 1, NOW + 86400, 4_000_000_000.0]
    ids = [new_ids(1, moment)[0] for moment in moments]
    assert ids == sorted(ids)
    assert len({id[:12] for id in ids}) == len(moments)


def test_an_id_begins_with_its_moment():
    """Twelve digits: milliseconds since the epoch."""
    assert int(new_ids(1, NOW + 0.25)[0][:12], 16) == 1_800_000_000_250


def test_a_queue_is_named_by_project_and_name_together():
    """Names that would be equal when glued are different queues."""
    assert len({QueueRef("a", "bc"), QueueRef("ab", "c"), QueueRef("a", "bc")}) == 2
    assert QueueRef("a", "b") != QueueRef("b", "a")


@pytest.mark.parametrize(
    "value", [Draft("id", b"1", 60, 0, "alice"), Lease("c1", 60, 60), ListFilter(), Stats(), Page([], None)], ids=repr
)
def test_values_do_not_change(value: msgspec.Struct):
    """What travels between the layers cannot be altered on the way."""
    field = value.__struct_fields__[0]
    with pytest.raises(AttributeError):
        setattr(value, field, getattr(value, field))


def test_a_fresh_view_hides_claimed_and_delayed_messages_of_nobody():
    """The defaults are those of a listing without parameters, but for echo."""
    assert ListFilter() == ListFilter(without="", claimed=False, delayed=False)
    assert Stats() == Stats(claimed=0, free=0, oldest=None, newest=None)
