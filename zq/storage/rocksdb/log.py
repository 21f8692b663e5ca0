# SPDX-License-Identifier: Apache-2.0
"""Logs of topics in memory: one state for each project's.

Whoever appends or purges holds the log's lock from the first read to the write. Readers take no lock: ``Log.view`` is
replaced as a whole once the write is done, so it never tells of what is not in the store yet.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import structs

from zq.storage.rocksdb import batches, halving, layout
from zq.storage.rocksdb.batches import LogRecord
from zq.storage.rocksdb.port import Range, Store, Write
from zq.topics import Batch, Keep


class View(NamedTuple):
    """A log as it was at one moment. ``floors``: up to where topics were purged."""

    record: LogRecord
    floors: dict[str, int]

    def begin(self, topic: str) -> int:
        """Nothing of the topic is read up to there."""
        return max(self.record.dropped, self.floors.get(topic, 0))


class Log:
    """A project's log.

    ``line``: what followers are to be told, each with the last sequence that must be settled first; ``telling`` is held
    while it is told.
    """

    __slots__ = ("history", "key", "line", "lock", "project", "telling", "view")

    def __init__(self, project: str, view: View) -> None:
        self.project = project
        self.key = layout.project_prefix(project)
        self.history = view.record.number
        """The log's number; its idempotency keys go by it too."""
        self.view = view
        self.lock = threading.Lock()
        self.telling = threading.Lock()
        self.line: deque[tuple[int, Batch | None]] = deque()

    def append(self, store: Store, batch: Batch, keep: Keep, also: Sequence[Write]) -> None:
        """Store the batch and what goes with it in one step, in which what is not kept falls off."""
        old, floors = self.view
        grown = structs.replace(
            old, last=batch.last, size=old.size + batch.size, messages=old.messages + len(batch.entries)
        )
        record = _less_fallen(store, grown, old, keep)
        writes = [("logs", self.key, layout.encode(record)), *batches.writes(batch, old), *also]
        gone: list[Range] = []
        if record.dropped > old.dropped:
            writes.append(("default", layout.FALLEN + layout.number.pack(self.history), self.key))
            lower, upper = (layout.pair.pack(self.history, end + 1) for end in (old.dropped, record.dropped))
            gone.append(("batches", lower, upper))
        store.write(writes, gone)
        self.view = View(record, floors)

    def set_floor(self, store: Store, topic: str, floor: int) -> None:
        """From now on nothing of the topic is read up to there."""
        key = batches.key_of(self.history, topic)
        store.write([("floors", key, layout.number.pack(floor) + self.key)])
        self.view = self.view._replace(floors={**self.view.floors, topic: floor})

    def forget_floor(self, topic: str) -> None:
        """Nothing is left below it, nor is it in the store any more."""
        self.view = self.view._replace(floors={name: at for name, at in self.view.floors.items() if name != topic})


class Logs:
    """The logs of an open store; states are made when first asked for."""

    def __init__(self, store: Store, new_number: Callable[[], int]) -> None:
        self._store = store
        self._new_number = new_number
        self._lock = threading.Lock()
        self._logs: dict[str, Log] = {}

    def find(self, project: str) -> Log | None:
        """The project's log; None if nothing was ever published in it."""
        known = project in self._logs or self._store.get("logs", layout.project_prefix(project)) is not None
        return self.ensure(project) if known else None

    def ensure(self, project: str) -> Log:
        """The project's log. A new one is in the store once something has been appended."""
        log = self._logs.get(project)
        if log is None:
            with self._lock:
                log = self._logs.get(project)
                if log is None:
                    log = self._logs[project] = Log(project, self._load(project))
        return log

    def _load(self, project: str) -> View:
        stored = self._store.get("logs", layout.project_prefix(project))
        if stored is None:
            return View(LogRecord(self._new_number()), {})
        record = batches.decode_log(stored)
        prefix = layout.number.pack(record.number)
        floors = self._store.scan("floors", prefix, layout.after(prefix))
        return View(
            structs.replace(record, last=record.last + layout.LOST_TAIL),
            {batches.topic_of(key): layout.number.unpack_from(value)[0] for key, value in floors},
        )


def _less_fallen(store: Store, grown: LogRecord, old: LogRecord, keep: Keep) -> LogRecord:
    """The record of a log that has grown by one batch, which is not stored yet, once what is not kept has fallen off.

    Nothing falls off until an eighth more than is kept has gathered, then a slice of it: one removal for many batches.
    """
    size, messages = grown.size - old.gone_size, grown.messages - old.gone_messages
    if 8 * size <= 9 * keep.size and 8 * messages <= 9 * keep.messages:
        return grown

    def falls(value: bytes) -> bool:
        header = batches.decode_header(value)
        return grown.size - header.size > keep.size or grown.messages - header.messages > keep.messages

    first = halving.first(store, "batches", old.number, old.dropped + 1, old.last + 1, falls)
    bounds = layout.pair.pack(old.number, first), layout.pair.pack(old.number, old.last + 1)
    stays = next(store.scan("batches", *bounds), None)
    before = old if stays is None else batches.decode_header(stays[1])
    return structs.replace(grown, dropped=first - 1, gone_size=before.size, gone_messages=before.messages)
