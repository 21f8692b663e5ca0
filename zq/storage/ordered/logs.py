# SPDX-License-Identifier: Apache-2.0
"""Logs of topics: the stored batches of published messages, and the state of each log in memory.

Publishing and purging hold the log's lock from the first read to the write. Readers need no lock, because each write
replaces the immutable ``Log.view``. There are two exceptions:

- A purge stores the last purged sequence of the topic, called the floor, in the current view.
- Before a trim is written, ``Log.dropped`` already includes its batches.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from cachetools import FIFOCache
from msgspec import Raw, Struct, msgpack, structs

from zq.errors import Unavailable
from zq.model.parcels import BatchParcel, LogParcel
from zq.model.topics import Batch, Entry, Retention
from zq.storage.ordered import due, layout, startup
from zq.storage.ordered.store import Range, Store, Write, binary_search


class LogRecord(Struct, array_like=True, frozen=True):
    """A log's entry in ``logs``.

    Attributes:
        number: The log's number, with which the keys of its batches begin.
        size: The total size of all batches ever published to the log, in bytes.
        messages: The number of all messages ever published to the log.
        dropped: The sequence up to which batches are trimmed.
        gone_size: The part of ``size`` that was trimmed.
        gone_messages: The part of ``messages`` that was trimmed.
        start: The boot epoch (number of starts) in which the entry was written; see ``startup.count_start``.
    """

    number: int
    last: int = 0
    size: int = 0
    messages: int = 0
    dropped: int = 0
    gone_size: int = 0
    gone_messages: int = 0
    start: int = 0


class Header(Struct, array_like=True):
    """The fields that precede the entries of a stored batch.

    Attributes:
        topic: The topic's name in UTF-8; not a ``str``, because msgpack cannot encode surrogates in text.
        created: The time of the publish operation, in Unix milliseconds.
        size: The log's total size in bytes before this batch.
        messages: The log's total message count before this batch.
    """

    topic: bytes
    sequence: int
    created: int
    size: int
    messages: int


class StoredBatch(Header, array_like=True):
    """A stored batch. Its entries are decoded on demand."""

    entries: Raw

    @property
    def batch(self) -> Batch:
        topic = self.topic.decode("utf-8", "surrogatepass")
        return Batch(topic, self.sequence, self.created / 1000, decode_entries(self.entries))


decode_log = msgpack.Decoder(LogRecord).decode
decode_header = msgpack.Decoder(Header).decode
decode_stored = msgpack.Decoder(StoredBatch).decode
decode_entries = msgpack.Decoder(list[Entry]).decode


def topic_key(number: int, topic: str) -> bytes:
    """Return the key prefix of a topic's batches in ``topics``. The prefix is also the topic's key in ``floors``."""
    return layout.number.pack(number) + layout.project_prefix(topic)


def decode_topic(key: bytes) -> str:
    return layout.decode_project(key[layout.number.size :])


def batch_writes(batch: Batch, before: LogRecord) -> list[Write]:
    """Return the writes that store a batch and its index entries.

    ``before`` is the log's record before the batch is appended.
    """
    topic = batch.topic.encode("utf-8", "surrogatepass")
    entries = Raw(layout.encode(batch.entries))
    created = layout.ms(batch.created)
    stored = StoredBatch(topic, batch.sequence, created, before.size, before.messages, entries)
    lives = [entry.ttl * 1000 for entry in batch.entries]
    expires, key = created + max(lives), layout.pair.pack(before.number, batch.last)
    index = topic_key(before.number, batch.topic)
    return [
        *due.writes("batches", key, layout.encode(stored), expires, index[8:]),
        ("topics", index + key[8:], layout.triple.pack(expires, batch.sequence, created + min(lives))),
    ]


def batch_entries(key: bytes, value: bytes) -> list[Write]:
    """Return the writes that store a batch and its index entries. ``key`` and ``value`` are its entry in ``batches``.

    The value is written as it is, because other versions of zq encode a batch differently.
    """
    stored = decode_stored(value)
    before = LogRecord(layout.pair.unpack(key)[0], size=stored.size, messages=stored.messages)
    _, *index = batch_writes(stored.batch, before)
    return [("batches", key, value), *index]


def batch_removal(key: bytes, value: bytes) -> list[Write]:
    """Return the writes that remove a batch, given its entry in the index ``topics``."""
    batch = key[:8] + key[-8:]
    return [("topics", key, None), *due.removals("batches", batch, layout.number.unpack_from(value)[0])]


def topic_removal(batch: bytes, note: bytes) -> Write:
    """Return the write that removes a batch's entry in ``topics``. ``note`` is the batch's value in ``due``."""
    return ("topics", batch[:8] + note + batch[8:], None)


# Maximum number of topics per log with a cached ``Log.head``.
MAX_HEADS: Final = 10_000
# Minimum number of bytes in a trimmed range that the store compacts on request.
MIN_COMPACTED: Final = 8 << 20


class LogView(NamedTuple):
    """The state of a log that readers use. A view is immutable, except that later purges update ``floors``.

    ``floors`` maps the name of each purged topic to the last purged sequence.
    """

    record: LogRecord
    floors: dict[str, int]


class Log:
    """The topic log of a project: one sequence of messages in memory and in the store, which all topics share.

    Attributes:
        pending: The notifications that are not sent yet, as (sequence, batch). A notification is sent when the log is
            durable up to this sequence. For a purge, the batch is None.
        notifying: The lock that a thread holds while it sends notifications.
    """

    __slots__ = (
        "_compacted",
        "_forgotten",
        "_heads",
        "_heads_lock",
        "_seen",
        "_trimming",
        "history",
        "key",
        "lock",
        "notifying",
        "pending",
        "project",
        "view",
    )

    def __init__(self, project: str, view: LogView) -> None:
        self.project = project
        self.key = layout.project_prefix(project)
        self.history = view.record.number
        """The log's number, which is also the history number of its idempotency keys."""
        self.view = view
        self.lock = threading.Lock()
        self.notifying = threading.Lock()
        self.pending: deque[tuple[int, Batch | None]] = deque()
        self._heads: FIFOCache[str | None, int] = FIFOCache(MAX_HEADS)
        self._heads_lock = threading.Lock()
        self._trimming = 0
        self._forgotten: set[str] = set()
        self._compacted = self._seen = LogRecord(self.history)

    @property
    def dropped(self) -> int:
        """The sequence up to which batches are trimmed or being trimmed.

        To notice a trim that may have removed batches during a scan, read this value after the scan.
        """
        return max(self._trimming, self.view.record.dropped)

    def cache_head(self, topic: str | None, head: int) -> None:
        """Record that a topic, or the whole log if ``topic`` is None, has no batches up to the sequence ``head``."""
        with self._heads_lock:
            self._heads[topic] = head

    def head(self, topic: str | None) -> int:
        """Return the cached sequence up to which a topic has no batches, or 0 if there is no cached sequence.

        If ``topic`` is None, return the sequence for the whole log.
        """
        try:  # not a check followed by a read, because another thread may remove the entry in between
            return self._heads[topic]
        except KeyError:
            return 0

    def append(self, store: Store, batch: Batch, keep: Retention, also: Sequence[Write]) -> None:
        """Store a batch, apply the writes ``also``, and trim the log to the retention ``keep``, all in one write."""
        old, floors = self.view
        grown = structs.replace(
            old, last=batch.last, size=old.size + batch.size, messages=old.messages + len(batch.entries)
        )
        record = _trim(store, grown, old, keep)
        writes = [("logs", self.key, layout.encode(record)), *batch_writes(batch, old), *also]
        gone: list[Range] = []
        if record.dropped > old.dropped:
            writes.append(("default", layout.TRIMMED_LOG + layout.number.pack(self.history), self.key))
            gone.append(self._range(old.dropped, record.dropped))
        self._trimming = record.dropped  # before the write, so that a reader that misses the batches reports the gap
        try:
            store.write(writes, gone)
        except Unavailable:
            self._trimming = old.dropped
            raise
        self.view = LogView(record, floors)

    def adopt(self, store: Store, state: LogParcel) -> None:
        """Set the state of an empty log to ``state``, the state of a log in another store."""
        record = LogRecord(
            self.history,
            max(self.view.record.last, state.last),
            state.bytes,
            state.messages,
            state.dropped,
            start=self.view.record.start,
        )
        store.write([("logs", self.key, layout.encode(record))])
        self.view = self.view._replace(record=record)

    def adopt_batches(self, store: Store, batches: Sequence[BatchParcel]) -> None:
        """Store batches from another store's log. Ignore batches that already exist."""
        keys = [layout.pair.pack(self.history, one.batch.last) for one in batches]
        known = store.get_many("batches", keys)
        before = [LogRecord(self.history, size=one.bytes, messages=one.messages) for one in batches]
        new = [(one.batch, its) for one, its, value in zip(batches, before, known, strict=True) if value is None]
        store.write([write for batch, its in new for write in batch_writes(batch, its)])

    def take_trimmed_range(self) -> Range | None:
        """Return the key range of trimmed batches that the caller should compact, or None.

        The range begins after the last returned range. The result is None if the range is small. The result is also
        None if the log was trimmed since the previous call, because the store then compacts the range without a
        request. Not thread-safe.
        """
        record, seen, former = self.view.record, self._seen, self._compacted
        self._seen = record
        if record.dropped != seen.dropped or record.gone_size - former.gone_size < MIN_COMPACTED:
            return None
        self._compacted = record
        return self._range(former.dropped, record.dropped)

    def _range(self, after: int, last: int) -> Range:
        lower, upper = (layout.pair.pack(self.history, end + 1) for end in (after, last))
        return "batches", lower, upper

    def set_floor(self, store: Store, topic: str, floor: int) -> None:
        """Hide the topic's messages up to the sequence ``floor`` from readers, and write this sequence to the store."""
        key = topic_key(self.history, topic)
        store.write([("floors", key, layout.number.pack(floor) + self.key)])
        self.view.floors[topic] = floor
        self._forgotten.discard(topic)

    def discard_floor(self, topic: str) -> None:
        """Discard the floor (last purged sequence) of a topic from memory, after the purged batches were deleted.

        Readers use the mapping of floors without a lock. The method therefore does not remove the floor from the
        mapping, but replaces the mapping when half of the floors are discarded.
        """
        self._forgotten.add(topic)
        floors = self.view.floors
        if 2 * len(self._forgotten) >= len(floors):
            kept = {name: floor for name, floor in floors.items() if name not in self._forgotten}
            self._forgotten.clear()
            self.view = self.view._replace(floors=kept)


class Logs:
    """The logs of an open store, loaded on first use."""

    def __init__(self, store: Store, new_number: Callable[[], int], start: int) -> None:
        self._store = store
        self._new_number = new_number
        self._start = start
        self._lock = threading.Lock()
        self._logs: dict[str, Log] = {}

    @property
    def origin(self) -> int:
        """The number below the first sequence of a new log. The first message gets the sequence ``origin + 1``."""
        return startup.initial_value(self._start)

    def find(self, project: str) -> Log | None:
        """Return the project's log, or None if nothing was ever published to it."""
        known = project in self._logs or self._store.get("logs", layout.project_prefix(project)) is not None
        return self.ensure(project) if known else None

    def take_trimmed_ranges(self) -> Iterator[Range]:
        return filter(None, (log.take_trimmed_range() for log in list(self._logs.values())))

    def ensure(self, project: str) -> Log:
        """Return the project's log. A missing log is created in memory and stored with its first batch."""
        log = self._logs.get(project)
        if log is None:
            with self._lock:
                log = self._logs.get(project)
                if log is None:
                    log = self._logs[project] = Log(project, self._load(project))
        return log

    def _load(self, project: str) -> LogView:
        stored = self._store.get("logs", layout.project_prefix(project))
        if stored is None:
            return LogView(LogRecord(self._new_number(), startup.initial_value(self._start), start=self._start), {})
        record = decode_log(stored)
        prefix = layout.number.pack(record.number)
        floors = self._store.scan("floors", prefix, layout.prefix_end(prefix))
        return LogView(
            structs.replace(
                record, last=record.last + startup.epoch_growth(record.start, self._start), start=self._start
            ),
            {decode_topic(key): layout.number.unpack_from(value)[0] for key, value in floors},
        )


def _trim(store: Store, grown: LogRecord, old: LogRecord, keep: Retention) -> LogRecord:
    """Compute the record that the log has after a trim to ``keep``. Do not write the record.

    The trim begins only when the log exceeds a limit by an eighth, so that one range removal covers many batches.
    """
    size, messages = grown.size - old.gone_size, grown.messages - old.gone_messages
    if 8 * size <= 9 * keep.size and 8 * messages <= 9 * keep.messages:
        return grown

    def is_trimmed(value: bytes) -> bool:
        header = decode_header(value)
        return grown.size - header.size > keep.size or grown.messages - header.messages > keep.messages

    first = binary_search(store, "batches", old.number, old.dropped + 1, old.last + 1, is_trimmed)
    bounds = layout.pair.pack(old.number, first), layout.pair.pack(old.number, old.last + 1)
    stays = next(store.scan("batches", *bounds), None)
    before = old if stays is None else decode_header(stays[1])
    return structs.replace(grown, dropped=first - 1, gone_size=before.size, gone_messages=before.messages)
