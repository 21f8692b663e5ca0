# SPDX-License-Identifier: Apache-2.0
"""Gives back the space of what has expired, and of purged and deleted queues.

The expiry index is read from the front and only as far as it is due, so a round costs what there is to remove, not what
lives. A message is removed under its queue's lock, and only if the index entry still tells its expiry. Later issues add
the other layers of expiry beside this one: nothing else knows how expired messages go.
"""

from collections import defaultdict
from itertools import islice

from zq.storage.rocksdb import layout
from zq.storage.rocksdb.change import Change, traces
from zq.storage.rocksdb.keeper import Keeper, Opened
from zq.storage.rocksdb.port import Store, Write
from zq.storage.rocksdb.registry import QueueState

BATCH = 1000
MAX_DELETES = 100_000


class Sweeper:
    """One round at a time: ``sweep`` must not be called by two threads at once."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._position = b""
        """No index entry that is due lies before this key: what is posted expires later than now."""

    def sweep(self, now: int) -> int:
        """Remove up to ``MAX_DELETES`` messages that nobody can see any more; returns how many."""
        removed = 0
        while removed < MAX_DELETES:
            with self._keeper as opened:
                count = _clear_doomed(opened) or self._remove_expired(opened, now)
            if not count:
                break
            removed += count
        return removed

    def _remove_expired(self, opened: Opened, now: int) -> int:
        due = opened.store.scan("expiry", self._position, layout.number.pack(now + 1))
        entries = [key for key, _ in islice(due, BATCH)]
        if not entries:
            return 0
        by_queue: defaultdict[int, list[bytes]] = defaultdict(list)
        for entry in entries:
            by_queue[layout.number.unpack_from(entry, 8)[0]].append(entry)
        for number, its_entries in by_queue.items():
            state = opened.registry.by_number(number)
            if state is not None:
                with opened.registry.held(state.ref) as (held,):
                    if held is state:
                        _remove_due(opened.store, state, its_entries)
        self._position = entries[-1] + b"\0"
        return len(entries)


def _remove_due(store: Store, state: QueueState, entries: list[bytes]) -> None:
    """Remove the messages of a locked queue that the index entries name, if they still expire when these say."""
    change = Change(store)
    for entry, value in zip(entries, store.get_many("messages", [entry[8:] for entry in entries]), strict=True):
        record = layout.decode_record(value) if value is not None else None
        if record is not None and record.expires == layout.number.unpack_from(entry)[0]:
            change.remove(state, layout.number.unpack_from(entry, 16)[0], record)
        else:
            change.drop("expiry", entry)
    change.commit()


def _clear_doomed(opened: Opened) -> int:
    """Remove a batch of messages of a purged or deleted queue, which no verb reaches any more; returns how many."""
    store = opened.store
    for doomed, queue_key in store.scan("default", layout.DOOMED, layout.after(layout.DOOMED)):
        queue = layout.number.unpack(doomed[len(layout.DOOMED) :])[0]
        writes: list[Write] = []
        found = store.scan("messages", layout.number.pack(queue), layout.number.pack(queue + 1))
        project = layout.prefix_of(queue_key)
        batch = list(islice(found, BATCH))
        for key, value in batch:
            writes += traces(queue, project, layout.number.unpack_from(key, 8)[0], layout.decode_record(value))
        store.write(writes or [("default", doomed, None)])
        if batch:
            return len(batch)
    return 0
