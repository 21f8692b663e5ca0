# SPDX-License-Identifier: Apache-2.0
"""Ages, leases and ids of messages."""

import re

import pytest

from zq.model import Lease, age, new_ids

NOW = 1_800_000_000.0


def test_an_age_is_rounded_down_and_never_negative():
    """An age is in whole seconds, and 0 if another server's faster clock dated the message (contract 1.7)."""
    moments = [(0, 0.999), (0, 1.999), (0, 61.5), (1, 0.5), (NOW, NOW + 3600)]
    assert [age(since, now) for since, now in moments] == [0, 1, 61, 0, 3600]
    assert type(age(0, 61.5)) is int


@pytest.mark.parametrize(
    ("ttl", "claim_ttl", "grace", "lives"),
    [(120, 777, 0, 777), (120, 777, 23, 800), (120, 121, 22, 143), (120, 60, 30, 120), (120, 120, 60, 120)],
)
@pytest.mark.parametrize("second", [1, 1000])
def test_a_claim_lengthens_a_life_that_would_end_before_it(
    ttl: int, claim_ttl: int, grace: int, lives: int, second: int
):
    """The cases are those of contract 8.1, in seconds and in milliseconds."""
    posted = int(NOW) * second
    expires, ends = posted + ttl * second, posted + claim_ttl * second
    assert Lease("c1", claim_ttl, grace).extend(ttl, expires, ends, second) == (lives, posted + lives * second)


def test_a_life_is_lengthened_from_the_claim_s_end_on():
    """For a message that is old when it is claimed, TTL and expiry follow from the claim, not from the post."""
    assert Lease("c1", 60, 30).extend(120, NOW + 20, NOW + 60, 1.0) == (90, NOW + 90)


def test_ids_are_thirty_two_hex_digits_and_differ():
    """Ids contain no character that the client's parsing of hrefs cannot handle (contract 1.7)."""
    ids = new_ids(5000, NOW) + new_ids(1000, NOW)  # as if two servers created ids in one millisecond
    assert len(set(ids)) == 6000
    assert all(re.fullmatch("[0-9a-f]{32}", id) for id in ids)
    assert new_ids(0, NOW) == []


def test_ids_rise_with_time():
    """A later millisecond sorts later, so that stores insert nearly in order."""
    moments = [NOW, NOW + 0.001, NOW + 1, NOW + 86400, 4_000_000_000.0]
    ids = [new_ids(1, moment)[0] for moment in moments]
    assert ids == sorted(ids)
    assert [int(id[:12], 16) for id in ids] == [int(moment * 1000) for moment in moments]
