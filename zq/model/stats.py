# SPDX-License-Identifier: Apache-2.0
"""Results of measurements and maintenance of a store, such as metrics, integrity checks and snapshots."""

import threading
from collections.abc import Callable

from msgspec import Struct

from zq.model import Seconds


class Depth(Struct, frozen=True):
    """The number of a queue's messages in each state. Each count stops at the requested limit."""

    ready: int = 0
    delayed: int = 0
    claimed: int = 0
    expired: int = 0
    """Expired messages that have not been removed yet."""
    oldest_ready: Seconds | None = None
    """The available-at time of the first ready message."""


class Measure(Struct, frozen=True):
    """A metric value."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


class Tally:
    """A metric counter of this process, with one label. Thread-safe."""

    def __init__(self, name: str, label: str, *values: str) -> None:
        self._name = name
        self._label = label
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(values, 0)

    def add(self, value: str, count: int = 1) -> None:
        if count:
            with self._lock:
                self._counts[value] += count

    def measures(self) -> list[Measure]:
        counts = dict(self._counts)
        return [Measure(self._name, count, ((self._label, value),)) for value, count in counts.items()]


def removals() -> Tally:
    """Create a metric counter for expired messages that this process removes during reads and sweeps."""
    return Tally("expired_removed_total", "layer", "read", "sweep")


class Report(Struct, frozen=True):
    """The result of an integrity check of a store: item counts by kind, inconsistencies and unreadable data."""

    counted: dict[str, int]
    contradictions: int
    examples: list[str]
    damage: list[str]


class Snapshot(Struct):
    """A consistent copy of a store's files in a separate directory.

    Attributes:
        sequence: Store sequence number up to which all writes are included.
        pause: Seconds for which requests were blocked.
    """

    folder: str
    moment: Seconds
    sequence: int
    pause: Seconds
    is_complete: bool = False
    """Whether the backup of this snapshot is complete. Set by the backup."""


class RestoreResult(Struct, frozen=True):
    """The result of a restore from a backup."""

    moment: Seconds
    """Time at which the backup was made."""
    now: Seconds
    expired: int
    """Number of messages that have expired since the backup."""
    fences: int
    tokens: int
    """Number of valid tokens."""


# Returns a document's value after its expiry was postponed, given its kind, its value and the seconds. ``None`` = the
# expiry must not be postponed.
Postpone = Callable[[str, bytes, Seconds], bytes | None]


class SalvageResult(Struct, frozen=True):
    """The result of a salvage: the recovery of readable data from a damaged store."""

    saved: dict[str, int]
    lost: list[str]
    damage: list[str]
    report: Report
    """Result of the integrity check of the new store."""
