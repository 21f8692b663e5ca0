# SPDX-License-Identifier: Apache-2.0
"""Delivery outcomes and retry policies (contract section 9.8). Delays are in whole seconds."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

DEFAULTS: Final[Mapping[str, Any]] = {
    "retries_with_no_delay": 3,
    "minimum_delay_retries": 3,
    "minimum_delay": 5,
    "maximum_delay": 30,
    "maximum_delay_retries": 3,
    "retry_backoff_function": "linear",
}
# Maximum number of retries in each phase of a policy.
MAX_ATTEMPTS: Final = 100
# Maximum delay between two attempts in seconds.
MAX_DELAY: Final = 43200


class Outcome(Struct, frozen=True):
    """The outcome of a delivery attempt.

    If ``is_final`` is true, the worker does not retry the delivery. If there was no response, ``status`` is 0.
    """

    delivered: bool
    status: int = 0
    why: str = ""
    is_final: bool = False


def merge_policies(
    subscription_policy: Mapping[str, Any] | None, queue_policy: Mapping[str, Any] | None
) -> Mapping[str, Any]:
    """Return the retry policy that applies to a subscription. Missing members have their defaults.

    The subscription's policy applies. If it is missing, or if either policy sets ``ignore_subscription_override``, the
    queue's policy applies instead.
    """
    subscription_policy, queue_policy = subscription_policy or {}, queue_policy or {}
    overridden = subscription_policy.get("ignore_subscription_override") or queue_policy.get(
        "ignore_subscription_override"
    )
    return {**DEFAULTS, **(queue_policy if overridden or not subscription_policy else subscription_policy)}


def compute_delays(policy: Mapping[str, Any]) -> list[int]:
    """Return the delay in seconds before each retry. ``policy`` is a result of ``merge_policies``."""
    low, high = _clamp(policy["minimum_delay"], MAX_DELAY), _clamp(policy["maximum_delay"], MAX_DELAY)
    return [
        *[0] * _clamp(policy["retries_with_no_delay"], MAX_ATTEMPTS),
        *[low] * _clamp(policy["minimum_delay_retries"], MAX_ATTEMPTS),
        *compute_backoff(policy["retry_backoff_function"], low, high),
        *[high] * _clamp(policy["maximum_delay_retries"], MAX_ATTEMPTS),
    ]


def compute_backoff(function: str, low: int, high: int) -> list[int]:
    """Return back-off delays in seconds, which grow from the minimum ``low`` to the maximum ``high``.

    ``function`` is "linear", "arithmetic", "geometric" or "exponential". The number of delays is at most
    ``(high - low) // 5``, and at most ``MAX_ATTEMPTS``.
    """
    count = min((high - low) // 5, MAX_ATTEMPTS)
    if count <= 0:
        return []
    steps = range(count)
    if function == "linear":
        return [low + 5 * step for step in steps if low + 5 * step < high]
    if function == "arithmetic":
        return [int(low + (step + 1) * step * (high - low) / (count * max(count - 1, 1))) for step in steps]
    ratio = (high / max(low, 1)) ** (1 / max(count - 1, 1))
    if function == "geometric":
        return [int(low * ratio**step) for step in steps]
    return [int(low / ratio * ratio ** (step + 1)) for step in steps]


def _clamp(value: int, maximum: int) -> int:
    return max(0, min(value, maximum))
