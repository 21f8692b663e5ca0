# SPDX-License-Identifier: Apache-2.0
"""What an engine turned away before the application saw it, by reason: counted here, shown by ``zq.metrics``."""

import threading
from collections.abc import Mapping
from enum import StrEnum


class Reason(StrEnum):
    """Why; the label of the metric."""

    HEAD = "head_timeout"
    BODY = "body_timeout"
    ANSWER = "send_timeout"
    IDLE = "idle_timeout"
    QUEUE = "overload"
    CONNECTIONS = "connections"
    MEMORY = "memory"
    MALFORMED = "malformed"


_lock = threading.Lock()
_counts: dict[str, int] = dict.fromkeys(Reason, 0)


def note(reason: Reason) -> None:
    """One more."""
    with _lock:
        _counts[reason] += 1


def counts() -> Mapping[str, int]:
    """How many so far in this process, by reason."""
    with _lock:
        return {str(reason): count for reason, count in _counts.items()}
