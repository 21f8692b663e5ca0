# SPDX-License-Identifier: Apache-2.0
"""Back-off of deliveries (contract 9.8)."""

import pytest

from zq.subscriptions.delivery.retries import (
    DEFAULTS,
    MAX_ATTEMPTS,
    MAX_DELAY,
    compute_backoff,
    compute_delays,
    merge_policies,
)

OVERRIDES = {"ignore_subscription_override": True}


@pytest.mark.parametrize(
    ("function", "low", "high", "expected"),
    [
        ("linear", 5, 30, "5 10 15 20 25"),
        ("linear", 5, 31, "5 10 15 20 25"),
        ("geometric", 20, 80, "20 22 25 29 33 37 42 48 54 62 70 80"),
        ("exponential", 10, 60, "10 12 14 18 22 27 33 40 49 60"),
        ("arithmetic", 30, 100, "30 30 32 34 37 41 46 51 57 64 72 80 90 100"),
        *((function, 5, 9, "") for function in ("linear", "geometric", "exponential", "arithmetic")),
        *((function, 5, 10, "5") for function in ("linear", "geometric", "arithmetic")),
        ("exponential", 0, 5, "0"),
    ],
)
def test_the_vectors_of_the_contract(function: str, low: int, high: int, expected: str) -> None:
    """The cases include no attempt, one attempt and a minimum delay of 0."""
    assert " ".join(map(str, compute_backoff(function, low, high))) == expected


def test_the_phases_follow_each_other() -> None:
    assert compute_delays(DEFAULTS) == [0, 0, 0, 5, 5, 5, 5, 10, 15, 20, 25, 30, 30, 30]


@pytest.mark.parametrize(
    ("own", "queues", "tries"),
    [
        (None, None, 3),
        ({}, {}, 3),
        ({"retries_with_no_delay": 7}, None, 7),
        (None, {"retries_with_no_delay": 8}, 8),
        ({}, {"retries_with_no_delay": 8}, 8),
        ({"retries_with_no_delay": 7}, {"retries_with_no_delay": 8}, 7),
        ({"retries_with_no_delay": 7} | OVERRIDES, {"retries_with_no_delay": 8}, 8),
        ({"retries_with_no_delay": 7}, {"retries_with_no_delay": 8} | OVERRIDES, 8),
        ({"retries_with_no_delay": 7} | OVERRIDES, None, 3),
    ],
)
def test_the_subscriptions_policy_takes_precedence_unless_overridden(
    own: dict[str, object], queues: dict[str, object], tries: int
) -> None:
    """Either policy may set ``ignore_subscription_override`` (contract 9.8)."""
    assert merge_policies(own, queues)["retries_with_no_delay"] == tries


@pytest.mark.parametrize("function", ["linear", "geometric", "exponential", "arithmetic"])
def test_a_policy_of_any_size_is_bounded(function: str) -> None:
    given = dict.fromkeys(DEFAULTS, 10**12) | {"minimum_delay": 1, "retry_backoff_function": function}
    bounded = compute_delays(given)
    assert len(bounded) <= 4 * MAX_ATTEMPTS
    assert 0 <= min(bounded) <= max(bounded) <= MAX_DELAY
    assert bounded[-1] == MAX_DELAY
