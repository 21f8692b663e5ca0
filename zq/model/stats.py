# SPDX-License-Identifier: Apache-2.0
"""What a store tells of itself: values, and one count; ``zq.serving.metrics`` gives the measures to Prometheus."""

import threading
from collections.abc import Callable

from msgspec import Struct

from zq.model import Seconds


class Depth(Struct, frozen=True):
    """The messages of a queue by state, each counted up to the bound that was asked for."""

    ready: int = 0
    delayed: int = 0
    claimed: int = 0
    expired: int = 0
    """Expired, and not removed yet."""
    oldest_ready: Seconds | None = None
    """The moment from which the first ready message could be claimed."""


class Measure(Struct, frozen=True):
    """One figure. ``name`` is Prometheus's without the prefix ``zq_``; names that end in ``_total`` only rise."""

    name: str
    value: float
    labels: tuple[tuple[str, str], ...] = ()


class Tally:
    """A counter of one process, with one label. Safe for any number of threads."""

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
    """Return the counter of expired messages that this process has removed, by layer."""
    return Tally("expired_removed_total", "layer", "read", "sweep")


class Report(Struct, frozen=True):
    """What a check of a whole store found: things counted by kind, how many contradictions, and the first of them."""

    counted: dict[str, int]
    contradictions: int
    examples: list[str]
    """A sentence each."""
    damage: list[str]
    """What cannot be read, a sentence each: all of it."""


class Snapshot(Struct):
    """A store's files as they stood together at one moment, in a folder of their own. ``sequence``: of the store's own
    count of writes, all up to which are in them; ``pause``: seconds for which every request stood still."""

    folder: str
    moment: Seconds
    sequence: int
    pause: Seconds
    whole: bool = False
    """Whether a backup has been made of it: set by whoever did."""


class Restored(Struct, frozen=True):
    """What a restore of a backup did."""

    moment: Seconds
    """When the backup was made."""
    now: Seconds
    expired: int
    """Messages of queues that expired in between."""
    fences: int
    tokens: int
    """Those that live."""


# (kind, value, seconds): what a document is that expires so much later; None = it expires when it was to.
Postpone = Callable[[str, bytes, Seconds], bytes | None]


class Salvaged(Struct, frozen=True):
    """What a salvage did. ``lost`` and ``damage``: a sentence each, all of them."""

    saved: dict[str, int]
    lost: list[str]
    damage: list[str]
    report: Report
    """Of the check of the new store."""
