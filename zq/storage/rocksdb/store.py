# SPDX-License-Identifier: Apache-2.0
"""The ordered key-value store over rocksdict, the Python binding of RocksDB.

The module does not depend on queues. These properties of the binding determine its design:

- A write holds the GIL, even during an fsync; ``flush_wal`` does not. Writes therefore only append to the log file, and
  one ``flush_wal`` serves all waiting threads.
- A write during a stall would block all threads. RocksDB therefore rejects such writes, and this module retries them.
- A failed write consumes its batch, so a retry builds a new batch.
- All errors of the binding are plain ``Exception``.
"""

import gc
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from rocksdict import BottommostLevelCompaction, CompactOptions, Options, ReadOptions, WriteBatch, WriteOptions

from zq.errors import StoreDamaged, Unavailable
from zq.storage import inline
from zq.storage.ordered import store as ordered
from zq.storage.ordered.store import UNREADABLE, Range, Write
from zq.storage.rocksdb import tuning
from zq.storage.rocksdb.files import (
    Damage,
    check_end,
    close_part,
    damage_location,
    is_damage,
    link_flushed,
    note_closed,
    open_database,
    unavailable_error,
)
from zq.storage.rocksdb.tuning import Tuning

LOG = logging.getLogger(__name__)
# Seconds between two attempts of a write during a stall.
STALL_PAUSE: Final = 0.002
# Seconds of a stall after which a write fails.
STALL_PATIENCE: Final = 5.0
# Seconds of a stall after which a write on the event loop's thread fails. That thread serves all requests.
INLINE_PATIENCE: Final = 0.05
# Seconds after a stall during which ``Store.is_prompt`` is false.
STALL_MEMORY: Final = 1.0
# Names in ``Store.totals`` by the name of RocksDB's statistic.
COUNTED: Final = {
    "rocksdb.compaction.key.drop.user": "filtered",
    "rocksdb.compact.write.bytes": "compacted_bytes",
    "rocksdb.wal.synced": "syncs",
}


class _Waiter:
    __slots__ = ("gate", "leads", "served")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.leads = False
        self.served = False


class GroupSync:
    """A group sync: one thread, the leader, flushes the log to disk for all waiting threads."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._lock = threading.Lock()
        self._waiting: list[_Waiter] = []
        self._busy = False

    def wait(self) -> None:
        """Wait for a flush that begins after this call. Raises ``Unavailable`` if that flush fails."""
        with self._lock:
            turn = _Waiter() if self._busy else None
            if turn is None:
                self._busy = True
            else:
                self._waiting.append(turn)
        if turn is not None:
            turn.gate.acquire()
            if turn.served:
                return
            if not turn.leads:
                raise Unavailable
        self._lead()

    def _lead(self) -> None:
        with self._lock:
            followers, self._waiting = self._waiting, []
        flushed = False
        try:
            self._flush()
            flushed = True
        finally:
            with self._lock:
                successor = self._waiting.pop(0) if self._waiting else None
                self._busy = successor is not None
            for turn in followers:
                turn.served = flushed
                turn.gate.release()
            if successor is not None:
                successor.leads = True
                successor.gate.release()


class Store(ordered.Store):
    """An open RocksDB directory with the given column families. Thread-safe.

    The sync mode determines when writes reach the disk:

    - ``always``: before ``wait_durable`` returns.
    - ``interval``: every ``sync_interval`` seconds, in the background.
    - ``never``: when the operating system writes them.

    If only the process is killed, no writes are lost in any mode.
    """

    def __init__(
        self,
        path: Path,
        families: Sequence[str],
        sync: str,
        sync_interval: float,
        filtered: str = "",
        damage: Damage | None = None,
        logged: bool = True,
    ) -> None:
        """Open the store.

        ``filtered`` is the name of the family with the compaction filter; "" means that no family has one. The
        compactions of this family are disabled until ``set_filter_enabled`` is called. If ``logged`` is False, the
        store has no write-ahead log, and the caller makes the writes durable.
        """
        self._damage = damage or Damage()
        self._path = path
        self._always = sync == "always"
        self.failure: Exception | None = None
        """The first write error. The store then rejects all writes until it is reopened."""
        tuned = Tuning()
        self._options = tuned.store()
        plain = {name: tuned.family(Options(raw_mode=True)) for name in families if name != filtered}
        special = {filtered: tuned.family(tuning.filtered_options())} if filtered else {}
        for name in self._damage.families & plain.keys():
            plain[name].set_disable_auto_compactions(True)
        self._db = open_database(path, self._options, plain | special)
        self.filtering = bool(filtered) and tuning.is_active(path, filtered)
        """Whether RocksDB has loaded the compaction filter."""
        if filtered and not self.filtering:
            LOG.critical(tuning.UNFILTERED)
        self._filtered = filtered
        self._stalled = 0.0
        self._stalled_at = -STALL_MEMORY
        self._views = {name: self._db.get_column_family(name) for name in families}
        self._handles = {name: self._db.get_column_family_handle(name) for name in families}
        self._write_options = WriteOptions()
        self._write_options.no_slowdown = True
        self._write_options.disable_wal = not logged  # type: ignore[assignment,method-assign]  # not as the stub says
        self._group_sync = GroupSync(self._flush)
        self._closing = threading.Event()
        self._ended: Counter[str] | None = None
        self._syncer: threading.Thread | None = None
        if sync == "interval":
            self._syncer = threading.Thread(target=self._sync_every, args=(sync_interval,), name="zq-sync", daemon=True)
            self._syncer.start()

    @property
    def is_prompt(self) -> bool:
        """Whether short reads may run on the event loop's thread.

        During a write stall and shortly after it, short reads must not run there.
        """
        return time.monotonic() - self._stalled_at > STALL_MEMORY

    def get(self, family: str, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._views[family].get(key)
        except Exception as error:
            raise self._read_error(error, family, key) from error
        return value

    def get_many(self, family: str, keys: Sequence[bytes], spare: bool = False) -> list[bytes | None]:
        """Return the value of each key, or None for a missing key; see ``ordered.Store.get_many``.

        If ``spare`` is true, the value of a damaged key is b"". Otherwise, raises ``StoreDamaged``.
        """
        get = self._views[family].get
        try:
            # The binding's multi-get is not faster for a page of keys, and it releases the GIL while a lock is held.
            return [get(key) for key in keys]
        except Exception as error:
            if not spare or not is_damage(error):
                raise self._read_error(error, family, keys[0]) from error
        return [self._get_spare(family, key) for key in keys]

    def scan(
        self, family: str, lower: bytes, upper: bytes, backwards: bool = False, spare: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield (key, value) pairs from a snapshot taken at the start of the scan; see ``ordered.Store.scan``.

        If ``spare`` is true, the scan ends at damaged data. Otherwise, raises ``StoreDamaged``.
        """
        bounds, view = ReadOptions(), self._views[family]
        bounds.set_iterate_upper_bound(upper)
        last: bytes | None = None
        try:
            items: Any = view.items(False, lower, bounds)
            if backwards:
                # The binding has no lower bound for backward scans. In an empty range, the scan would read all
                # tombstones below the range.
                backwards = next(iter(items), None) is not None
                items = view.items(True, None, bounds) if backwards else ()
                items = takewhile(lambda item: item[0] >= lower, items)
            for item in items:
                last = item[0]
                yield item
            # The binding's iterators end at a damaged block without an error, as at the end of the data.
            check_end(view.iter(bounds), lower, last, backwards)
        except Exception as error:
            failure = self._read_error(error, family, lower if last is None else last)
            if not spare or not isinstance(failure, StoreDamaged):
                raise failure from error

    def write(self, writes: Sequence[Write], removed_ranges: Sequence[Range] = ()) -> None:
        """Apply the writes and remove the key ranges ``removed_ranges`` atomically; see ``ordered.Store.write``.

        During a write stall, the write is retried for a few seconds, or more briefly on the event loop's thread. After
        any other error, the store accepts no further writes.
        """
        if self.failure is not None:
            raise unavailable_error(self.failure)
        deadline = time.monotonic() + (STALL_PATIENCE if inline.current() is None else INLINE_PATIENCE)
        while True:
            batch = self._batch(writes, removed_ranges)
            try:
                self._db.write(batch, self._write_options)
                return
            except Exception as error:
                if "stall" not in str(error):
                    self.failure = error
                    if is_damage(error):  # a compaction found it, and RocksDB rejects writes until it is reopened
                        self._damage.record(error, self._find_family(damage_location(error)[0]))
                    raise unavailable_error(error) from error
                if time.monotonic() > deadline:
                    raise Unavailable("The store is too busy for more writes. Try again later.") from error
            self._stalled_at = time.monotonic()
            time.sleep(STALL_PAUSE)
            self._stalled += STALL_PAUSE

    def wait_durable(self, always: bool = False) -> None:
        """Wait until this thread's writes are durable, or raise ``Unavailable``; see ``ordered.Store.wait_durable``."""
        if not (self._always or always):
            return
        if (ticket := inline.current()) is not None:
            ticket.defer(self._group_sync.wait)
        else:
            self._group_sync.wait()

    def set_filter_enabled(self, enabled: bool) -> None:
        """Enable the compactions that run the compaction filter, or disable them if ``enabled`` is false.

        The filter removes expired data permanently. Running compactions continue.
        """
        if self.filtering:
            allowed = enabled and self.may_compact(self._filtered)
            self._set_options(self._filtered, tuning.COMPACTIONS_ON if allowed else tuning.COMPACTIONS_OFF)

    def may_compact(self, family: str) -> bool:
        """Return whether the family has no known damage. A compaction of damaged data would stop all writes."""
        return family not in self._damage.families

    def compact_after(self, family: str, seconds: int) -> None:
        """Make RocksDB compact each file of the family ``seconds`` after it was written."""
        self._set_options(family, tuning.schedule(seconds))

    def flush_removals(self, family: str) -> None:
        """Flush the family's write buffer if it has removals, so that compactions take the removals into account."""
        try:
            if self.get_property(family, "num-deletes-active-mem-table"):
                self._views[family].flush()
        except Exception as error:
            raise unavailable_error() from error

    def flush_beyond(self, max_bytes: int) -> None:
        """Flush the largest write buffers if the write buffers of all families together exceed ``max_bytes``."""
        sizes = {family: self.get_property(family, "cur-size-active-mem-table") for family in self._views}
        if sum(sizes.values()) <= max_bytes:
            return
        try:
            for family, size in sizes.items():
                if size > max_bytes // len(sizes):
                    self._views[family].flush()
        except Exception as error:
            raise unavailable_error() from error
        tuning.trim_heap()

    def link(self, folder: Path) -> tuple[float, int]:
        """Flush the store and hard-link its files into a new folder; see ``link_flushed``."""
        return link_flushed(self._db, list(self._views.values()), folder)

    def compact_range(self, removed_range: Range) -> None:
        """Compact a removed range to free its space, and wait for the end of the compaction."""
        family, lower, upper = removed_range
        options = CompactOptions()
        options.set_exclusive_manual_compaction(False)
        try:
            self._views[family].compact_range(lower, upper, options)
        except Exception as error:
            raise unavailable_error() from error

    def compact(self, family: str) -> None:
        """Compact the whole family, and wait for the end of the compaction."""
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        self._views[family].flush()
        self._views[family].compact_range(None, None, options)

    def get_property(self, family: str, name: str) -> int:
        """Return a numeric RocksDB property of a family, or 0 if RocksDB has no property with this name."""
        return int(self._views[family].property_int_value(f"rocksdb.{name}") or 0)

    def totals(self) -> Counter[str]:
        """Return the store's counters by name, counted since the store was opened.

        After ``close``, return the last values.
        """
        if self._ended is not None:
            return self._ended
        lines = (line.split() for line in (self._options.get_statistics() or "").splitlines())
        totals = Counter({COUNTED[words[0]]: int(words[-1]) for words in lines if words and words[0] in COUNTED})
        totals["stalled_ms"] = round(self._stalled * 1000)
        totals["background_errors"] = self.get_property("default", "background-errors")
        return totals

    def close(self) -> None:
        """Flush and close the directory; see ``ordered.Store.close``."""
        self._ended = self.totals()
        self._closing.set()
        if self._syncer is not None:
            self._syncer.join()
        try:
            if self.failure is None:
                self._flush()
        finally:
            self.close_unflushed()

    def _read_error(self, error: Exception, family: str, key: bytes) -> Unavailable:
        """Return the error to raise for a failed read. Record damage and disable compactions of the damaged family."""
        if not is_damage(error):
            return unavailable_error()
        if self._damage.record(error, family, key):
            with suppress(Unavailable):
                self._set_options(family, tuning.COMPACTIONS_OFF)
        return StoreDamaged(UNREADABLE)

    def _get_spare(self, family: str, key: bytes) -> bytes | None:
        try:
            return self.get(family, key)
        except StoreDamaged:
            return b""

    def _find_family(self, file: int) -> str:
        for name, view in self._views.items():
            if f" {file}:" in (view.property_value("rocksdb.sstables") or ""):
                return name
        return ""

    def close_unflushed(self) -> None:
        # The directory stays locked as long as any view or handle exists, so all are closed even if one of them fails.
        parts = [*self._views.values(), self._db]
        self._views, self._handles = {}, {}
        del self._db
        while parts:
            close_part(parts.pop(0))
        gc.collect()
        note_closed(self._path)

    def _batch(self, writes: Iterable[Write], removed_ranges: Iterable[Range]) -> WriteBatch:
        batch, handles = WriteBatch(raw_mode=True), self._handles
        for family, key, value in writes:
            if value is None:
                batch.delete(key, handles[family])
            else:
                batch.put(key, value, handles[family])
        for family, lower, upper in removed_ranges:
            batch.delete_range(lower, upper, handles[family])
        return batch

    def _set_options(self, family: str, options: dict[str, str]) -> None:
        try:
            self._views[family].set_options(options)
        except Exception as error:
            raise unavailable_error() from error

    def _flush(self) -> None:
        if self.failure is not None:  # after a failed fsync, the operating system may have dropped the unwritten pages
            raise unavailable_error(self.failure)
        try:
            self._db.flush_wal(True)
        except Exception as error:
            self.failure = error
            raise unavailable_error(error) from error

    def _sync_every(self, seconds: float) -> None:
        with suppress(Unavailable):
            while not self._closing.wait(seconds) and self.failure is None:
                self._flush()
