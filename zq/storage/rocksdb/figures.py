# SPDX-License-Identifier: Apache-2.0
"""What is in the queues and how the store is: figures for whoever watches it. No lock is taken."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Final

from zq.errors import StoreDamaged
from zq.measures import Depth, Measure
from zq.model import QueueRef
from zq.storage.rocksdb import layout
from zq.storage.rocksdb.keeper import Keeper, Opened
from zq.storage.rocksdb.port import Store
from zq.storage.rocksdb.registry import QueueState
from zq.storage.rocksdb.remover import Remover
from zq.storage.rocksdb.sweeper import Sweeper

MOST_WAITING: Final = 100_000
"""Expired messages counted at the most."""


class Figures:
    """Read from the store and from those who give its space back."""

    def __init__(self, keeper: Keeper, sweeper: Sweeper, remover: Remover) -> None:
        self._keeper = keeper
        self._sweeper = sweeper
        self._remover = remover

    def depths(self, now: int, queues: int, most: int) -> Sequence[tuple[QueueRef, Depth]]:
        """As ``zq.storage.api.Storage.depths``."""
        with self._keeper as opened:
            keys = [key for key, _ in islice(opened.store.scan("queues", b"", layout.END, spare=True), queues)]
            states = [state for key in keys if (state := opened.registry.find(layout.queue_ref(key))) is not None]
            due = islice(self._due(opened.store, now), min(most * len(states), MOST_WAITING))
            expired = Counter(key[8:16] for key in due)
            return [
                (state.ref, _depth(opened.store, state, expired[layout.number.pack(state.number)], now, most))
                for state in states
            ]

    def measures(self, now: int) -> list[Measure]:
        """As ``zq.storage.api.Storage.measures``."""
        with self._keeper as opened:
            totals = self._keeper.totals(opened.store)
            parts = self._expiry(opened, totals, now), _space(opened.store), _work(opened.store, totals)
            figures = [figure for part in parts for figure in _readable(part)]
            damage = opened.registry.around.damage
            return [*figures, Measure("store_corruptions_total", damage.count)]

    def _due(self, store: Store, now: int) -> Iterator[bytes]:
        """Entries of the expiry index that are due."""
        return (key for key, _ in store.scan("expiry", self._sweeper.position, layout.number.pack(now + 1), spare=True))

    def _expiry(self, opened: Opened, totals: Counter[str], now: int) -> Iterator[Measure]:
        layers = {"read": self._remover.removed, "sweep": self._sweeper.removed, "filter": totals["filtered"]}
        for layer, count in layers.items():
            yield Measure("expired_removed_total", count, (("layer", layer),))
        first = next(self._due(opened.store, now), None)
        waiting = sum(1 for _ in islice(self._due(opened.store, now), MOST_WAITING))
        yield Measure("expired_waiting", waiting)
        yield Measure("sweep_lag_seconds", (now - layout.number.unpack_from(first)[0]) / 1000 if first else 0)
        leftovers = opened.registry.around.leftovers
        yield Measure("delete_queue_length", len(leftovers))
        yield Measure("delete_queue_capacity", leftovers.capacity)
        yield Measure("delete_queue_dropped_total", leftovers.dropped)
        yield Measure("compaction_filter_active", opened.store.filtering)


def _readable(figures: Iterator[Measure]) -> Iterator[Measure]:
    """These, up to the first one that cannot be told for damage."""
    with suppress(StoreDamaged):
        yield from figures


def _space(store: Store) -> Iterator[Measure]:
    tallies = store.scan("tallies", b"", layout.END * 2)
    yield Measure("store_messages", sum(layout.decode_tally(value).count for _, value in tallies))
    for family in layout.FAMILIES:
        size = store.figure(family, "total-sst-files-size") + store.figure(family, "cur-size-all-mem-tables")
        yield Measure("store_bytes", size, (("part", family),))


def _work(store: Store, totals: Counter[str]) -> Iterator[Measure]:
    pending = sum(store.figure(family, "estimate-pending-compaction-bytes") for family in layout.FAMILIES)
    yield Measure("store_pending_compaction_bytes", pending)
    yield Measure("store_running_compactions", store.figure("default", "num-running-compactions"))
    yield Measure("store_background_errors_total", totals["background_errors"])
    yield Measure("store_stall_seconds_total", totals["stalled_ms"] / 1000)
    yield Measure("store_compacted_bytes_total", totals["compacted_bytes"])
    yield Measure("store_syncs_total", totals["syncs"])


def _depth(store: Store, state: QueueState, expired: int, now: int, most: int) -> Depth:
    """Of one queue. What is ready is what is nothing else, unless something else is more than is counted."""
    claimed, all_claims = _count(store.scan("claims", *state.bounds(), spare=True), now, most)
    present = layout.pair.pack(state.number, now + 1)
    later, all_later = _count(store.scan("available", present, state.bounds()[1], spare=True), now, 2 * most)
    came = state.front.entries(store, present)
    oldest = next((key for key, expires in islice(came, most) if layout.number.unpack(expires)[0] > now), None)
    if oldest is None:
        ready = 0
    elif all_claims and all_later and expired < most:
        ready = max(0, state.tally.count - expired - later)
    else:
        ready = _count(store.scan("available", oldest, present, spare=True), now, most)[0]
    moment = None if oldest is None else layout.triple.unpack(oldest)[1] / 1000
    delayed = max(0, later - claimed) if all_claims else _delayed(store, state, now, most)
    return Depth(ready, delayed, claimed, expired, moment)


def _delayed(store: Store, state: QueueState, now: int, most: int) -> int:
    """How many of the next messages that will be available are not claimed; for a queue with many claimed ones."""
    entries = store.scan("available", layout.pair.pack(state.number, now + 1), state.bounds()[1], spare=True)
    values = store.get_many("messages", [key[:8] + key[16:] for key, _ in islice(entries, most)])
    records = (layout.decode_record(value) for value in values if value is not None)
    return sum(1 for record in records if record.expires > now and not record.held(now))


def _count(entries: Iterator[tuple[bytes, bytes]], now: int, most: int) -> tuple[int, bool]:
    """How many of the entries have a moment after now, in ``most`` steps; whether that was all of them."""
    ends = [layout.number.unpack(value)[0] > now for _, value in islice(entries, most)]
    return sum(ends), len(ends) < most
