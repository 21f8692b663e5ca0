# SPDX-License-Identifier: Apache-2.0
"""The removal of data that is invisible to all operations.

- Pending deletes: the data of purged and deleted queues, of their histories, and of removed stages.
- The index entries of trimmed batches, in the families ``topics`` and ``due``.
- The batches of purged topics.

The data is removed in steps. Each step begins at the key where the last one ended. A scan from the beginning would read
the tombstones that earlier steps have left in the store. The removals are reported to ``pace``, the pace of the removal
round.
"""

from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import NamedTuple

from zq.model.expiry import Pace
from zq.storage.ordered import due, layout, logs
from zq.storage.ordered.entries import message_removal, record_entries, removal
from zq.storage.ordered.group_index import group_entry
from zq.storage.ordered.handle import Session
from zq.storage.ordered.logs import Log
from zq.storage.ordered.store import Store, Write


class Removal(NamedTuple):
    """The writes that remove one record and its index entries."""

    family: str
    key: bytes
    writes: list[Write]


class PendingDeletes:
    """The removal of the data of purged and deleted queues, and of removed histories and stages."""

    def __init__(self) -> None:
        self._next_keys: dict[tuple[str, bytes], bytes] = {}
        """The key from which the next call continues, by family and number."""

    def clear_queues(self, store: Store, size: int, pace: Pace) -> int:
        """Remove up to ``size`` messages of purged and deleted queues. An empty queue counts as one removal."""
        return self._clear(store, layout.PENDING_QUEUE, self._messages, size, pace)

    def clear_numbers(self, store: Store, size: int, pace: Pace) -> int:
        """Remove up to ``size`` records of removed histories and stages.

        An empty history or stage counts as one record.
        """
        return self._clear(store, layout.PENDING_NUMBER, self._records, size, pace)

    def _clear(
        self,
        store: Store,
        kind: bytes,
        removals: Callable[[Store, bytes, bytes], Iterator[Removal]],
        size: int,
        pace: Pace,
    ) -> int:
        found = 0
        for note, value in store.scan("default", kind, layout.prefix_end(kind)):
            number = note[len(kind) :]
            batch = list(islice(removals(store, number, value), size - found))
            writes = [*chain.from_iterable(each.writes for each in batch)]
            last = len(batch) < size - found
            if last:
                writes.append(("default", note, None))
                if kind == layout.PENDING_NUMBER:  # a queue's first number is also the number of its history
                    writes.append(("default", layout.REMOVED + number, None))
            store.write(writes)
            if batch:
                pace.removed(len(batch))
            self._next_keys |= {(each.family, number): each.key + b"\0" for each in batch}
            if last:
                self._next_keys = {place: key for place, key in self._next_keys.items() if place[1] != number}
            found += len(batch) or 1
            if found >= size:
                break
        return found

    def _messages(self, store: Store, number: bytes, queue_key: bytes) -> Iterator[Removal]:
        queue = layout.number.unpack(number)[0]
        project = layout.extract_project_prefix(queue_key)
        for key, value in self._rest(store, "messages", number):
            record = layout.decode_record(value)
            writes = message_removal(project, key, record)
            if record.claim:
                writes.append(("claims", layout.claim_key(queue, record.claim, record.group), None))
            yield Removal("messages", key, writes)
        for key, head in self._rest(store, "lines", number):
            entry: list[Write] = [("available", group_entry(key, head)[0], None)] if head else []
            yield Removal("lines", key, [*entry, ("lines", key, None)])

    def _records(self, store: Store, number: bytes, _: bytes) -> Iterator[Removal]:
        for key, value in self._rest(store, "history", number):
            yield Removal("history", key, removal(record_entries("history", key, value)))
        for key, _ in self._rest(store, "keys", number):
            yield Removal("keys", key, due.removals("keys", key, due.parse_expiry(key)))
        for key, _ in self._rest(store, "staged", number):
            yield Removal("staged", key, [("staged", key, None)])

    def _rest(self, store: Store, family: str, number: bytes) -> Iterator[tuple[bytes, bytes]]:
        return store.scan(family, self._next_keys.get((family, number), number), layout.prefix_end(number))


def delete_unused_hidden(session: Session) -> None:
    """Delete each hidden state without idempotency keys.

    A hidden state keeps the idempotency keys of a deleted queue.
    """
    for key, _ in session.store.scan("hidden", b"", layout.END):
        ref = layout.decode_queue_key(key)
        with session.registry.locked_or_hidden(ref) as state:
            if state is not None and state is session.registry.find_hidden(ref):
                numbers = (layout.number.pack(state.history), layout.number.pack(state.history + 1))
                if next(session.store.scan("keys", *numbers), None) is None:
                    session.registry.delete(state)


# (key in ``topics`` from which a scan continues, removals before that key)
Steps = Iterator[tuple[bytes, list[Write]]]


class BatchReclaim:
    """The removal of purged batches and of the index entries of trimmed batches. Not thread-safe."""

    def __init__(self) -> None:
        self._passes: dict[bytes, tuple[int, bytes]] = {}
        """The progress of the scan of each log, by log number: the trimmed sequence at its start, and the next key."""
        self._last_note = layout.TRIMMED_LOG
        """The key in ``default`` of the log that was processed last."""
        self._done_notes: set[bytes] = set()
        """The keys in ``default`` of the logs whose scan has ended in this round."""
        self._next_keys: dict[bytes, bytes] = {}
        """The key from which the next call continues, by the key of a purged topic."""

    def clear_trimmed(self, session: Session, size: int, pace: Pace) -> int:
        """Remove index entries of trimmed batches in up to ``size`` steps. Return the number of steps.

        A step removes the entries of one batch, or proceeds to the next topic. A log without such entries counts as one
        step.
        """
        scan, middle = session.store.scan, self._last_note + b"\0"
        notes = chain(
            scan("default", middle, layout.prefix_end(layout.TRIMMED_LOG)), scan("default", layout.TRIMMED_LOG, middle)
        )
        found = 0
        for note, key in notes:
            log = None if note in self._done_notes else session.registry.logs.find(layout.decode_project(key))
            if log is not None:
                self._last_note = note
                found += self._clear_log(session.store, log, note, size - found, pace) or 1
            if found >= size:
                return found
        self._done_notes.clear()
        return found

    def clear_purged(self, session: Session, size: int, pace: Pace) -> int:
        """Remove up to ``size`` batches of purged topics. A topic without batches counts as one batch."""
        found = 0
        for key, value in session.store.scan("floors", b"", layout.END * 3):
            log = session.registry.logs.find(layout.decode_project(value[layout.number.size :]))
            if log is not None:
                found += self._clear_topic(session.store, log, (key, value), size - found, pace) or 1
            if found >= size:
                break
        return found

    def _clear_log(self, store: Store, log: Log, note: bytes, size: int, pace: Pace) -> int:
        number = layout.number.pack(log.history)
        dropped, begin = self._passes.get(number, (log.view.record.dropped, number))
        steps = list(islice(_trimmed_entries(store, number, begin, dropped), size))
        store.write([*chain.from_iterable(writes for _, writes in steps)])
        pace.removed(sum(1 for _, writes in steps if writes))
        if len(steps) == size:
            self._passes[number] = dropped, steps[-1][0]
        else:
            self._passes.pop(number, None)
            self._done_notes.add(note)
            with log.lock:
                if dropped == log.view.record.dropped:
                    store.write([("default", note, None)])
        return len(steps)

    def _clear_topic(self, store: Store, log: Log, floor: tuple[bytes, bytes], size: int, pace: Pace) -> int:
        prefix, value = floor
        end = prefix + layout.number.pack(layout.number.unpack_from(value)[0] + 1)
        entries = list(islice(store.scan("topics", self._next_keys.get(prefix, prefix), end), size))
        store.write([*chain.from_iterable(logs.batch_removal(*entry) for entry in entries)])
        pace.removed(len(entries))
        if len(entries) == size:
            self._next_keys[prefix] = entries[-1][0] + b"\0"
        else:
            self._next_keys.pop(prefix, None)
            with log.lock:
                if store.get("floors", prefix) == value:
                    store.write([("floors", prefix, None)])
                    log.discard_floor(logs.decode_topic(prefix))
        return len(entries)


def _trimmed_entries(store: Store, number: bytes, begin: bytes, dropped: int) -> Steps:
    while (entry := next(store.scan("topics", begin, layout.prefix_end(number)), None)) is not None:
        topic = entry[0][:-8]
        for key, value in store.scan("topics", entry[0], topic + layout.number.pack(dropped + 1)):
            yield key + b"\0", [write for write in logs.batch_removal(key, value) if write[0] != "batches"]
        begin = layout.prefix_end(topic)
        yield begin, []
