# SPDX-License-Identifier: Apache-2.0
"""Default TTLs by queue name."""

from zq.core.rules import CACHE_SIZE, DefaultTtls

TABLE = [("mqtt-*", 100), ("mqtt-slow", 200), ("a?c", 300), ("*.tmp", 400)]


def test_the_first_pattern_that_matches_the_whole_name_counts() -> None:
    """``*`` matches any characters and ``?`` one; matching is case-sensitive; other names get the default."""
    default_ttls = DefaultTtls(3600, TABLE)
    expected = {"mqtt-": 100, "mqtt-slow": 100, "abc": 300, "x.tmp": 400, "abc.tmp": 400}
    expected |= dict.fromkeys(["MQTT-slow", "my-mqtt-slow", "ac", "abbc", "xatmp"], 3600)
    for _ in range(2):  # the second results are cached
        assert {queue: default_ttls.of(queue) for queue in expected} == expected


def test_a_new_table_applies_to_cached_names() -> None:
    """No cached TTL of the former table is used."""
    default_ttls = DefaultTtls(3600, TABLE)
    assert (default_ttls.of("abc"), default_ttls.of("x"), default_ttls.default) == (300, 3600, 3600)
    default_ttls.replace(60, [("x", 70)])
    assert (default_ttls.of("abc"), default_ttls.of("x"), default_ttls.default) == (60, 70, 60)


def test_names_beyond_the_cache_get_their_ttl() -> None:
    """The cache is bounded, but names beyond its size still get their TTL."""
    default_ttls = DefaultTtls(3600, [("q1*", 100)])
    names = [f"q{number}" for number in range(CACHE_SIZE + 1000)]
    assert {default_ttls.of(name) for name in names if name.startswith("q1")} == {100}
    assert default_ttls.of("q0") == default_ttls.of("q2") == 3600
