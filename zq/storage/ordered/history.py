# SPDX-License-Identifier: Apache-2.0
"""The history of finished messages in an ordered store."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from zq.model import UNBOUNDED, HistoryEntry, Outcome, Page, QueueRef, Seconds, Span, take_portion
from zq.storage.ordered import due, layout
from zq.storage.ordered.changes import read_bodies
from zq.storage.ordered.handle import StoreHandle
from zq.storage.ordered.layout import StoredEntry
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.store import Store, binary_search

# A position and sequence above all others.
LAST_POSITION: Final = 1 << 62
# A time in seconds above all others.
LATEST_TIME: Final = 1e12
# Minimum number of entries that a combined listing of messages and history reads per lock.
MIN_RANGE_ENTRIES: Final = 256


class HistoryController:
    """The implementation of ``zq.storage.capabilities.HistoryController`` over an ordered store."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle

    def list(
        self,
        queue: QueueRef,
        marker: int,
        limit: int,
        span: Span | None,
        now: Seconds,
        max_bytes: int = UNBOUNDED,
        newest_first: bool = False,
    ) -> Page[HistoryEntry]:
        if span is None:
            return self._list_all(queue, marker, limit, now, max_bytes)
        with self._handle as (store, registry):
            state = registry.find(queue)
            if state is None:
                return Page([], None)
            if newest_first:
                records = _newest(store, state, min(marker, LAST_POSITION) or LAST_POSITION, span, layout.ms(now))
            else:
                start = _first_since(store, state, min(marker, LAST_POSITION) + 1, span.since)
                records = _scan_entries(store, state, start, span.until, layout.ms(now))
            items = list(take_portion(islice(records, limit), max_bytes, _size))
        return Page(items, str(items[-1].position) if items else None)

    def _list_all(self, queue: QueueRef, marker: int, limit: int, now: Seconds, max_bytes: int) -> Page[HistoryEntry]:
        items: list[HistoryEntry] = []
        start = min(marker, LAST_POSITION) + 1
        with self._handle as (store, registry):
            while len(items) < limit and start <= LAST_POSITION:
                with registry.locked(queue) as (state,):
                    if state is None:
                        break
                    left = max_bytes - sum(map(_size, items))
                    more, start = _read_range(store, state, start, limit - len(items), left, layout.ms(now))
                found = [*items, *more]
                items = list(take_portion(found, max_bytes, _size))
                if len(items) < len(found):
                    break
        return Page(items, str(items[-1].message.sequence) if items else None)

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Sequence[HistoryEntry]:
        with self._handle as (store, registry):
            state = registry.find(queue)
            if state is None:
                return []
            found = [_find_latest(store, state, message, layout.ms(now)) for message in dict.fromkeys(ids)]
        return [item for item in found if item is not None]


def _scan_entries(store: Store, state: QueueState, start: int, until: Seconds, now: int) -> Iterator[HistoryEntry]:
    end = layout.ms(min(until, LATEST_TIME))
    lower, upper = layout.pair.pack(state.history, start), layout.number.pack(state.history + 1)
    for key, value in store.scan("history", lower, upper):
        kept = layout.decode_entry(value)
        if kept.finished >= end:
            return
        if kept.expires > now:
            yield _build_entry(key, kept)


def _newest(store: Store, state: QueueState, end: int, span: Span, now: int) -> Iterator[HistoryEntry]:
    start = _first_since(store, state, 1, span.since)
    end = min(end, _first_since(store, state, 1, span.until))
    lower, upper = (layout.pair.pack(state.history, position) for position in (start, max(start, end)))
    for key, value in store.scan("history", lower, upper, backwards=True):
        kept = layout.decode_entry(value)
        if kept.expires > now:
            yield _build_entry(key, kept)


def _first_since(store: Store, state: QueueState, start: int, since: Seconds) -> int:
    begin = layout.ms(min(since, LATEST_TIME))
    end = state.tally.position + 1 if begin > 0 else start
    return binary_search(
        store, "history", state.history, start, end, lambda value: layout.decode_entry(value).finished < begin
    )


def _read_range(
    store: Store, state: QueueState, start: int, want: int, max_bytes: int, now: int
) -> tuple[list[HistoryEntry], int]:
    """Return up to ``want`` live messages and history entries, beginning at the sequence ``start``.

    Also return the sequence at which the next call must begin. The first item is returned even if it exceeds
    ``max_bytes``. The caller holds the queue's lock.
    """
    max_entries = max(want, MIN_RANGE_ENTRIES)
    lower, upper = layout.pair.pack(state.history, start), layout.number.pack(state.history + 1)
    kept = list(islice(store.scan("sequences", lower, upper), max_entries))
    living = list(islice(store.scan("messages", layout.pair.pack(state.number, start), state.bounds()[1]), max_entries))
    # Beyond the last entry of a full read, that family may have entries that were not read.
    reach = min(
        layout.pair.unpack(entries[-1][0])[1] if len(entries) == max_entries else LAST_POSITION
        for entries in (kept, living)
    )
    items: list[HistoryEntry] = []
    left = max_bytes
    found = {layout.pair.unpack(key)[1]: (_read_message, key, value) for key, value in living}
    found |= {layout.pair.unpack(key)[1]: (_read_entry, key, value) for key, value in kept}
    for sequence in sorted(found):
        if sequence > reach or len(items) == want:
            break
        read, key, value = found[sequence]
        item = read(store, state, key, value, now)
        if item is not None:
            left -= _size(item)
            if left < 0 and items:
                reach = items[-1].message.sequence
                break
            items.append(item)
    return items, (items[-1].message.sequence if len(items) == want else reach) + 1


def _read_message(store: Store, state: QueueState, key: bytes, value: bytes, now: int) -> HistoryEntry | None:
    record = layout.decode_record(value)
    if record.expires <= now:
        state.context.lazy_queue.offer([key], now)
        return None
    sequence = layout.pair.unpack(key)[1]
    [body] = read_bodies(store, state.number, [(sequence, record)])
    return None if body is None else HistoryEntry(layout.build_message(sequence, record, body, now))


def _read_entry(store: Store, state: QueueState, key: bytes, position: bytes, now: int) -> HistoryEntry | None:
    place = key[:8] + position
    value = store.get("history", place)
    kept = None if value is None else layout.decode_entry(value)
    return _build_entry(place, kept) if kept is not None and kept.expires > now else None


def _find_latest(store: Store, state: QueueState, message: str, now: int) -> HistoryEntry | None:
    prefix = due.ending_prefix(state.history, message)
    for key, _ in store.scan("endings", prefix, layout.prefix_end(prefix), backwards=True):
        item = _read_entry(store, state, key, key[-8:], now)
        if item is not None:
            return item
    return None


def _size(item: HistoryEntry) -> int:
    return item.message.size


def _build_entry(key: bytes, kept: StoredEntry) -> HistoryEntry:
    position = layout.pair.unpack(key)[1]
    message = layout.build_message(kept.sequence, kept.record, kept.body, kept.finished)
    return HistoryEntry(message, Outcome(kept.outcome), kept.finished / 1000, position, kept.expires / 1000)
