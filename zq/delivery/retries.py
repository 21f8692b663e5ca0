# SPDX-License-Identifier: Apache-2.0
"""What became of a delivery, and when it is tried again (contract 9.8). Seconds, whole."""

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
# Of any policy: tries of one phase, and seconds between two tries.
MOST_TRIES: Final = 100
LONGEST: Final = 43200


class Outcome(Struct, frozen=True):
    """``status``: of the answer, 0 = none came; ``why``: what an operator sees of a failure; ``final``: another try
    is not made (contract 9.8: any status below 400 ends them)."""

    delivered: bool
    status: int = 0
    why: str = ""
    final: bool = False


def policy_of(own: Mapping[str, Any] | None, queues: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Which of both counts: the subscription's, unless it has none, or one of them says that the queue's does."""
    own, queues = own or {}, queues or {}
    overridden = own.get("ignore_subscription_override") or queues.get("ignore_subscription_override")
    return {**DEFAULTS, **(queues if overridden or not own else own)}


def waits(policy: Mapping[str, Any]) -> list[int]:
    """How long to wait before each try but the first."""
    low, high = _bounded(policy["minimum_delay"], LONGEST), _bounded(policy["maximum_delay"], LONGEST)
    return [
        *[0] * _bounded(policy["retries_with_no_delay"], MOST_TRIES),
        *[low] * _bounded(policy["minimum_delay_retries"], MOST_TRIES),
        *backoff(policy["retry_backoff_function"], low, high),
        *[high] * _bounded(policy["maximum_delay_retries"], MOST_TRIES),
    ]


def backoff(function: str, low: int, high: int) -> list[int]:
    """The waits that grow from the shortest to the longest, of which there is one for every five seconds between."""
    count = min((high - low) // 5, MOST_TRIES)
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


def _bounded(value: int, most: int) -> int:
    return max(0, min(value, most))
