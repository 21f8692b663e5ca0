# SPDX-License-Identifier: Apache-2.0
"""Gives back the space of what has expired, and of purged and deleted queues.

The expiry index is read from the front and only as far as it is due, so a round costs what there is to remove, not what
lives. A message is removed under its queue's lock, and only if the index entry still tells its expiry. What else
expires goes the same way by the index ``due``, without locks but for stages.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from itertools import chain, islice

from zq.storage.rocksdb import due, layout, past, stages
from zq.storage.rocksdb.change import Change, traces
from zq.storage.rocksdb.keeper import Keeper, Opened
from zq.storage.rocksdb.port import Store, Write
from zq.storage.rocksdb.registry import QueueState
from zq.storage.rocksdb.stripes import Stripes

BATCH = 1000
BATCHES = 10
"""Batches in one scan: each scan of what was dropped begins with the tombstones of the ones before."""
MAX_DELETES = 100_000


class Sweeper:
    """One round at a time: ``sweep`` must not be called by two threads at once."""

    def __init__(self, keeper: Keeper, stripes: Stripes) -> None:
        self._keeper = keeper
        self._stripes = stripes
        self._position = self._due_position = b""
        """No entry of ``expiry`` and ``due`` that is due lies before these: what is written expires later than now."""
        self._keys_went = True
        """So that something hidden may have no key any more. True at first: the last server may have left some."""

    def sweep(self, now: int) -> int:
        """Remove up to ``MAX_DELETES`` messages that nobody can see any more, and as much else; how many messages."""
        removed = self._in_batches(lambda opened: _clear_doomed(opened) or self._remove_expired(opened, now))
        self._in_batches(lambda opened: self._remove_due(opened.store, now))
        if self._keys_went:
            self._keys_went = False
            with self._keeper as opened:
                _forget_hidden(opened)
        self._in_batches(lambda opened: _clear_dropped(opened.store))
        return removed

    def _in_batches(self, remove: Callable[[Opened], int]) -> int:
        removed = 0
        while removed < MAX_DELETES:
            with self._keeper as opened:
                count = remove(opened)
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
                        _remove_messages(opened.store, state, its_entries)
        self._position = entries[-1] + b"\0"
        return len(entries)

    def _remove_due(self, store: Store, now: int) -> int:
        entries = list(islice(store.scan("due", self._due_position, layout.number.pack(now + 1)), BATCH))
        if not entries:
            return 0
        writes: list[Write] = []
        for entry, note in entries:
            family, key = due.named(entry)
            writes += (("due", entry, None), (family, key, None))
            if family == "history":
                writes += past.traces(key, note)
            elif family == "keys":
                self._keys_went = True
            elif family == "stages":
                with self._stripes.held(stages.name(key[:-8])):  # no commit may be reading it
                    store.write([(family, key, None), ("default", layout.DROPPED + note, b"")])
        store.write(writes)
        self._due_position = entries[-1][0] + b"\0"
        return len(entries)


def _remove_messages(store: Store, state: QueueState, entries: list[bytes]) -> None:
    """Remove the messages of a locked queue that the index entries name, if they still expire when these say."""
    change = Change(store)
    for entry, value in zip(entries, store.get_many("messages", [entry[8:] for entry in entries]), strict=True):
        record = layout.decode_record(value) if value is not None else None
        if record is not None and record.expires == layout.number.unpack_from(entry)[0]:
            change.remove(state, layout.number.unpack_from(entry, 16)[0], record)
        else:
            change.also(("expiry", entry, None))  # it points at nothing
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


def _forget_hidden(opened: Opened) -> None:
    """Forget what is hidden in the place of queues and knows no key any more."""
    for key, _ in opened.store.scan("hidden", b"", layout.END):
        ref = layout.queue_ref(key)
        with opened.registry.known(ref) as state:
            if state is not None and state is opened.registry.hidden(ref):
                numbers = (layout.number.pack(state.history), layout.number.pack(state.history + 1))
                if next(opened.store.scan("keys", *numbers), None) is None:
                    opened.registry.drop(state)


def _clear_dropped(store: Store) -> int:
    """Remove a batch of what a history or a stage leaves that is not there any more; returns how many."""
    for dropped, _ in store.scan("default", layout.DROPPED, layout.after(layout.DROPPED)):
        remains = islice(_remains(store, dropped[len(layout.DROPPED) :]), BATCHES * BATCH)
        count = 0
        while batch := list(islice(remains, BATCH)):
            store.write([*chain.from_iterable(batch)])
            count += len(batch)
        if count:
            return count
        store.write([("default", dropped, None)])
    return 0


def _remains(store: Store, number: bytes) -> Iterator[list[Write]]:
    """The removal of each thing that belongs to a number of which nothing lives."""
    bounds = number, layout.number.pack(layout.number.unpack(number)[0] + 1)
    for key, value in store.scan("history", *bounds):
        kept = layout.decode_past(value)
        yield [*due.traces("history", key, kept.expires), *past.traces(key, past.note(kept))]
    for key, _ in store.scan("keys", *bounds):
        yield due.traces("keys", key, due.end_of(key))
    for key, _ in store.scan("staged", *bounds):
        yield [("staged", key, None)]
