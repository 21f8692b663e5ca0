# SPDX-License-Identifier: Apache-2.0
"""Logs of topics in memory: one state for each project's.

Whoever appends or purges holds the log's lock from the first read to the write. Readers take no lock: ``Log.view`` is
replaced as a whole once the write is done, so it never tells of what is not in the store yet; but floors join the table
that it has, and what falls off is told before.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import structs

from zq.errors import Unavailable
from zq.storage.rocksdb import batches, halving, layout, starts
from zq.storage.rocksdb.batches import LogRecord
from zq.storage.rocksdb.port import Range, Store, Write
from zq.topics import Batch, Keep

MOST_HEADS: Final = 10_000
MUCH: Final = 8 << 20
"""Bytes that must have fallen off, to be compacted."""


class View(NamedTuple):
    """A log as it was at one moment. ``floors``: up to where topics were purged, and may be since."""

    record: LogRecord
    floors: dict[str, int]


class Log:
    """A project's log.

    ``line``: what followers are to be told, each with the last sequence that must be settled first; ``telling`` is held
    while it is told. ``heads``: up to where nothing lives of a topic, or (None) of all, as far as readers have found.
    """

    __slots__ = (
        "_compacted",
        "_falling",
        "_forgotten",
        "_seen",
        "heads",
        "history",
        "key",
        "line",
        "lock",
        "project",
        "telling",
        "view",
    )

    def __init__(self, project: str, view: View) -> None:
        self.project = project
        self.key = layout.project_prefix(project)
        self.history = view.record.number
        """The log's number; its idempotency keys go by it too."""
        self.view = view
        self.lock = threading.Lock()
        self.telling = threading.Lock()
        self.line: deque[tuple[int, Batch | None]] = deque()
        self.heads: dict[str | None, int] = {}
        self._falling = 0
        self._forgotten: set[str] = set()
        self._compacted = self._seen = LogRecord(self.history)

    @property
    def dropped(self) -> int:
        """What has fallen off, and what may be doing so now: asked after a look at the store, none of it was missed."""
        return max(self._falling, self.view.record.dropped)

    def learn(self, topic: str | None, head: int) -> None:
        """A reader has found that nothing lives of a topic, or (None) of all, up to there; nothing ever will."""
        if len(self.heads) >= MOST_HEADS:
            self.heads.clear()
        self.heads[topic] = head

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
            gone.append(self._range(old.dropped, record.dropped))
        self._falling = record.dropped  # before the store shows it: no reader finds it gone and knows of no gap
        try:
            store.write(writes, gone)
        except Unavailable:
            self._falling = old.dropped
            raise
        self.view = View(record, floors)

    def waste(self) -> Range | None:
        """What fell off since it was told last; asked now and then, by one thread. None while more falls off, for then
        RocksDB compacts by itself, and while it is little."""
        record, seen, told = self.view.record, self._seen, self._compacted
        self._seen = record
        if record.dropped != seen.dropped or record.gone_size - told.gone_size < MUCH:
            return None
        self._compacted = record
        return self._range(told.dropped, record.dropped)

    def _range(self, after: int, last: int) -> Range:
        lower, upper = (layout.pair.pack(self.history, end + 1) for end in (after, last))
        return "batches", lower, upper

    def set_floor(self, store: Store, topic: str, floor: int) -> None:
        """From now on nothing of the topic is read up to there."""
        key = batches.key_of(self.history, topic)
        store.write([("floors", key, layout.number.pack(floor) + self.key)])
        self.view.floors[topic] = floor
        self._forgotten.discard(topic)

    def forget_floor(self, topic: str) -> None:
        """Nothing is left below it, nor is it in the store any more. Readers under way may still need it, so many are
        forgotten at once, by a new table."""
        self._forgotten.add(topic)
        floors = self.view.floors
        if 2 * len(self._forgotten) >= len(floors):
            kept = {name: floor for name, floor in floors.items() if name not in self._forgotten}
            self._forgotten.clear()
            self.view = self.view._replace(floors=kept)


class Logs:
    """The logs of an open store; states are made when first asked for."""

    def __init__(self, store: Store, new_number: Callable[[], int], start: int) -> None:
        self._store = store
        self._new_number = new_number
        self._start = start
        self._lock = threading.Lock()
        self._logs: dict[str, Log] = {}

    @property
    def origin(self) -> int:
        """Above all sequences of a log that earlier starts made and lost."""
        return starts.origin(self._start)

    def find(self, project: str) -> Log | None:
        """The project's log; None if nothing was ever published in it."""
        known = project in self._logs or self._store.get("logs", layout.project_prefix(project)) is not None
        return self.ensure(project) if known else None

    def wastes(self) -> Iterator[Range]:
        """See ``Log.waste``; of all logs that were asked for."""
        return filter(None, (log.waste() for log in list(self._logs.values())))

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
            return View(LogRecord(self._new_number(), starts.origin(self._start), start=self._start), {})
        record = batches.decode_log(stored)
        prefix = layout.number.pack(record.number)
        floors = self._store.scan("floors", prefix, layout.after(prefix))
        return View(
            structs.replace(record, last=record.last + starts.skipped(record.start, self._start), start=self._start),
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
