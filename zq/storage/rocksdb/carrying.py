# SPDX-License-Identifier: Apache-2.0
"""Carries open commits out, slice by slice: each is one write, which takes out of the commit's entry what it does.

The caller holds the producer's name.
"""

from collections.abc import Sequence
from itertools import islice
from typing import Final

from zq.model import Outcome, QueueRef
from zq.storage.rocksdb import layout, stages, unfinished
from zq.storage.rocksdb.change import Change, End
from zq.storage.rocksdb.keeper import Opened
from zq.storage.rocksdb.layout import Staged
from zq.storage.rocksdb.port import Store
from zq.storage.rocksdb.unfinished import Shelf, Unfinished

SLICE: Final = 500
"""Messages in one write at most, which holds up every thread for as long as it lasts: 8 to 35 microseconds for each."""
CAPACITY: Final = 4 << 20
"""Bytes of bodies after which a slice ends."""


def carry_on(opened: Opened, producer: bytes, most: int, now: int) -> bool:
    """One slice of the producer's open commit; whether anything of it is left."""
    commit = unfinished.find(opened.store, producer)
    if commit is None:
        return False
    if commit.pinned:
        _delete(opened, producer, commit, min(most, SLICE), now)
    else:
        _publish(opened, producer, commit, min(most, SLICE), now)
    return bool(commit.pinned or commit.shelves)


def _delete(opened: Opened, producer: bytes, commit: Unfinished, most: int, now: int) -> None:
    """Delete the next pinned messages; those of a queue that was purged or deleted are gone already."""
    store, registry = opened
    first = commit.pinned[0]
    part, first.sequences = first.sequences[:most], first.sequences[most:]
    if not first.sequences:
        del commit.pinned[0]
    state = registry.by_number(first.number)
    with registry.held(*([state.ref] if state is not None else [])) as held:
        change = Change(store)
        if state is not None and held == [state]:
            keys = [layout.pair.pack(first.number, sequence) for sequence in part]
            for sequence, value in zip(part, store.get_many("messages", keys), strict=True):
                if value is not None:
                    end = End(Outcome.DELETED, first.history, now)
                    change.finish(state, sequence, layout.decode_record(value), end)
        change.also(unfinished.write(producer, commit))
        change.commit()
        if state is not None:
            state.pinned.difference_update(part)


def _publish(opened: Opened, producer: bytes, commit: Unfinished, most: int, now: int) -> None:
    """Publish what comes next, with the queues locked; a queue that is missing is created first."""
    store, registry = opened
    keys, items = _next(store, commit.shelves[0], most)
    project = layout.project_of(layout.prefix_of(producer))
    refs = [QueueRef(project, name) for name in dict.fromkeys(item.queue for item in items)]
    _advance(commit, len(keys))
    while True:
        with registry.held(*refs) as found:
            states = {ref.name: state for ref, state in zip(refs, found, strict=True) if state is not None}
            if len(states) == len(refs):
                change = Change(store)
                for item in items:
                    change.post(states[item.queue], item.draft, now)
                change.also(*(("staged", key, None) for key in keys), unfinished.write(producer, commit))
                change.commit()
                return
        for ref in refs:
            registry.ensure(ref)


def _next(store: Store, shelf: Shelf, most: int) -> tuple[Sequence[bytes], Sequence[Staged]]:
    """The next messages of a stage, and their keys."""
    keys: list[bytes] = []
    items: list[Staged] = []
    size = 0
    entries = store.scan("staged", layout.pair.pack(shelf.number, shelf.at), layout.number.pack(shelf.number + 1))
    for key, value in islice(entries, most):
        item = stages.item(value)
        size += len(item.draft.body)
        if items and size > CAPACITY:
            break
        keys.append(key)
        items.append(item)
    return keys, items


def _advance(commit: Unfinished, count: int) -> None:
    """So many of the first stage are published."""
    shelf = commit.shelves[0]
    shelf.at += count
    if shelf.at >= shelf.end or not count:
        del commit.shelves[0]
