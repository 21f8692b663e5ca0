# SPDX-License-Identifier: Apache-2.0
"""What a store tells of itself: values, and one count; ``zq.metrics`` gives the measures to Prometheus."""

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


class Removals:
    """How many expired messages this process has removed, by layer. Safe for any number of threads."""

    def __init__(self, *layers: str) -> None:
        self._lock = threading.Lock()
        self._counts = dict.fromkeys(layers, 0)

    def add(self, layer: str, count: int) -> None:
        if count:
            with self._lock:
                self._counts[layer] += count

    def measures(self) -> list[Measure]:
        counts = dict(self._counts)
        return [Measure("expired_removed_total", count, (("layer", layer),)) for layer, count in counts.items()]


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
