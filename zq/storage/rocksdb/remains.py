# SPDX-License-Identifier: Apache-2.0
"""What is left of logs where nobody reads: entries of ``topics`` and ``due`` of batches that fell off, and purged ones.

It is removed in steps; each begins where the last one ended, not with its tombstones.
"""

from collections.abc import Iterator
from itertools import chain, islice

from zq.expiry import Pace
from zq.storage.rocksdb import batches, layout
from zq.storage.rocksdb.keeper import Opened
from zq.storage.rocksdb.log import Log
from zq.storage.rocksdb.port import Store, Write

Looks = Iterator[tuple[bytes, list[Write]]]
"""(key in ``topics`` up to which has been looked, what is to be removed there)."""


class Remains:
    """Used by one thread."""

    def __init__(self) -> None:
        self._passes: dict[bytes, tuple[int, bytes]] = {}
        """(what had fallen off when the pass through a log's topics began, key to go on at), by the log's number."""
        self._turn = layout.FALLEN
        """The note of the log that was served last."""
        self._served: set[bytes] = set()
        """Notes of logs whose pass has ended in this round."""
        self._begin: dict[bytes, bytes] = {}
        """From which key on there is something left of a purged topic."""

    def clear_fallen(self, opened: Opened, size: int, pace: Pace) -> int:
        """Remove what leads to batches that fell off, in up to ``size`` looks; how many there were.

        A look goes through a log's living topics too, so logs take turns, and each is gone through once in a round.
        """
        scan, middle = opened.store.scan, self._turn + b"\0"
        notes = chain(scan("default", middle, layout.after(layout.FALLEN)), scan("default", layout.FALLEN, middle))
        found = 0
        for note, key in notes:
            log = None if note in self._served else opened.registry.logs.find(layout.project_of(key))
            if log is not None:
                self._turn = note
                found += self._clear_log(opened.store, log, note, size - found, pace) or 1
            if found >= size:
                return found
        self._served.clear()
        return found

    def clear_purged(self, opened: Opened, size: int, pace: Pace) -> int:
        """Remove what was purged, up to ``size`` batches; how many there were."""
        found = 0
        for key, value in opened.store.scan("floors", b"", layout.END * 3):
            log = opened.registry.logs.find(layout.project_of(value[layout.number.size :]))
            if log is not None:
                found += self._clear_topic(opened.store, log, (key, value), size - found, pace) or 1
            if found >= size:
                break
        return found

    def _clear_log(self, store: Store, log: Log, note: bytes, size: int, pace: Pace) -> int:
        number = layout.number.pack(log.history)
        dropped, begin = self._passes.get(number, (log.view.record.dropped, number))
        looks = list(islice(_fallen(store, number, begin, dropped), size))
        store.write([*chain.from_iterable(writes for _, writes in looks)])
        pace.removed(sum(1 for _, writes in looks if writes))
        if len(looks) == size:
            self._passes[number] = dropped, looks[-1][0]
        else:
            self._passes.pop(number, None)
            self._served.add(note)
            with log.lock:
                if dropped == log.view.record.dropped:
                    store.write([("default", note, None)])
        return len(looks)

    def _clear_topic(self, store: Store, log: Log, floor: tuple[bytes, bytes], size: int, pace: Pace) -> int:
        prefix, value = floor
        end = prefix + layout.number.pack(layout.number.unpack_from(value)[0] + 1)
        entries = list(islice(store.scan("topics", self._begin.get(prefix, prefix), end), size))
        store.write([*chain.from_iterable(batches.traces(*entry) for entry in entries)])
        pace.removed(len(entries))
        if len(entries) == size:
            self._begin[prefix] = entries[-1][0] + b"\0"
        else:
            self._begin.pop(prefix, None)
            with log.lock:
                if store.get("floors", prefix) == value:
                    store.write([("floors", prefix, None)])
                    log.forget_floor(batches.topic_of(prefix))
        return len(entries)


def _fallen(store: Store, number: bytes, begin: bytes, dropped: int) -> Looks:
    """Topic by topic, for what fell off stands in front of each. The batches themselves are gone already."""
    while (entry := next(store.scan("topics", begin, layout.after(number)), None)) is not None:
        topic = entry[0][:-8]
        for key, value in store.scan("topics", entry[0], topic + layout.number.pack(dropped + 1)):
            yield key + b"\0", [write for write in batches.traces(key, value) if write[0] != "batches"]
        begin = layout.after(topic)
        yield begin, []
