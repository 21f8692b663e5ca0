# SPDX-License-Identifier: Apache-2.0
"""An ordered key-value store for the queue engine, over rocksdict.

This module is independent of queues. Only it, ``files``, ``survey`` and ``tuning`` import the binding, so that the
binding can be replaced. These measured properties of the binding shape the module:

- A write holds the GIL, including during its fsync; ``flush_wal`` does not. Therefore a write only appends to the log
  file, and one ``flush_wal`` serves all waiting threads.
- A write during a stall would block every thread. Therefore RocksDB refuses the write instead, and it is retried here.
- A failed write consumes its batch.
- All of the binding's errors are plain ``Exception``.
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
    is_damage,
    let_go,
    link_flushed,
    open_database,
    place_of,
    unavailable,
)
from zq.storage.rocksdb.tuning import Tuning

LOG = logging.getLogger(__name__)
# Seconds between two attempts of a write during a stall.
STALL_PAUSE: Final = 0.002
# Seconds of a stall after which a write fails.
STALL_PATIENCE: Final = 5.0
# Seconds of a stall after which a write on the event loop's thread fails, because that thread serves all requests.
INLINE_PATIENCE: Final = 0.05
# Seconds after a stall during which ``Store.prompt`` is false.
STALL_MEMORY: Final = 1.0
# The names in ``Store.totals`` of RocksDB's statistics.
COUNTED: Final = {
    "rocksdb.compaction.key.drop.user": "filtered",
    "rocksdb.compact.write.bytes": "compacted_bytes",
    "rocksdb.wal.synced": "syncs",
}


class _Turn:
    """A waiting thread. It is woken once, after its flush or to become the next leader."""

    __slots__ = ("gate", "leads", "served")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.leads = False
        self.served = False


class GroupSync:
    """A group sync: one leader flushes for all waiting threads.

    A thread becomes the leader if no flush is running. A flush covers all earlier writes.
    """

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._lock = threading.Lock()
        self._waiting: list[_Turn] = []
        self._busy = False

    def wait(self) -> None:
        """Wait for a flush that began after this call. Raises ``Unavailable`` if that flush failed."""
        with self._lock:
            turn = _Turn() if self._busy else None
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
    - ``interval``: every ``sync_interval`` seconds in the background. A power failure may lose the writes since then.
    - ``never``: when the operating system writes them.

    A killed process loses no writes in any mode, because a write returns after it was written to the log.
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

        Args:
            filtered: The family with the compaction filter, which ``let_filter`` enables; ``tuning`` explains the
                format of its values.
            damage: Damage that was found before the store was reopened.
            logged: False to write without a log file, because the writes are made durable elsewhere.
        """
        self._damage = damage or Damage()
        self._path = path
        self._always = sync == "always"
        self.failure: Exception | None = None
        """The first write error. After it, the store refuses writes and must be reopened."""
        tuned = Tuning()
        self._options = tuned.store()
        plain = {name: tuned.family(Options(raw_mode=True)) for name in families if name != filtered}
        special = {filtered: tuned.family(tuning.filtered_options())} if filtered else {}
        for name in self._damage.families & plain.keys():
            plain[name].set_disable_auto_compactions(True)
        self._db = open_database(path, self._options, plain | special)
        self.filtering = bool(filtered) and tuning.is_active(path, filtered)
        """Whether the compaction filter works."""
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
    def prompt(self) -> bool:
        """Whether verbs do not block, except on the disk. False during write stalls."""
        return time.monotonic() - self._stalled_at > STALL_MEMORY

    def get(self, family: str, key: bytes) -> bytes | None:
        """Return the value of a key, or None."""
        try:
            value: bytes | None = self._views[family].get(key)
        except Exception as error:
            raise self._unread(error, family, key) from error
        return value

    def get_many(self, family: str, keys: Sequence[bytes], spare: bool = False) -> list[bytes | None]:
        """Return the values of several keys, in order; with ``spare``, a damaged value is ``b""``, not an error."""
        get = self._views[family].get
        try:
            # The binding's multi-get is not faster for a page of keys, and it releases the GIL while a lock is held.
            return [get(key) for key in keys]
        except Exception as error:
            if not spare or not is_damage(error):
                raise self._unread(error, family, keys[0]) from error
        return [self._spared(family, key) for key in keys]

    def scan(
        self, family: str, lower: bytes, upper: bytes, backwards: bool = False, spare: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the items with ``lower <= key < upper`` in key order, from a snapshot at the start of the scan.

        With ``spare``, the scan ends at damage, which is noted, instead of raising an error.
        """
        bounds, view = ReadOptions(), self._views[family]
        bounds.set_iterate_upper_bound(upper)
        last: bytes | None = None
        try:
            items: Any = view.items(False, lower, bounds)
            if backwards:
                # The binding's parameter for the lower bound sets the upper bound. In an empty range, a backward scan
                # would continue through all tombstones below the range.
                backwards = next(iter(items), None) is not None
                items = view.items(True, None, bounds) if backwards else ()
                items = takewhile(lambda item: item[0] >= lower, items)
            for item in items:
                last = item[0]
                yield item
            # The binding's iterators end at a damaged block without an error, as at the end of the data.
            check_end(view.iter(bounds), lower, last, backwards)
        except Exception as error:
            refusal = self._unread(error, family, lower if last is None else last)
            if not spare or not isinstance(refusal, StoreDamaged):
                raise refusal from error

    def write(self, writes: Sequence[Write], gone: Sequence[Range] = ()) -> None:
        """Apply all writes and range removals in one step; the ranges contain none of the writes.

        When this method returns, the writes are visible to every thread and survive a kill of the process. Raises
        ``Unavailable``; then nothing is applied, and the store accepts no further writes.
        """
        if self.failure is not None:
            raise unavailable()
        deadline = time.monotonic() + (STALL_PATIENCE if inline.current() is None else INLINE_PATIENCE)
        while True:
            batch = self._batch(writes, gone)
            try:
                self._db.write(batch, self._write_options)
                return
            except Exception as error:
                if "stall" not in str(error):
                    self.failure = error
                    if is_damage(error):  # a compaction found it, and RocksDB refuses writes until it is reopened
                        self._damage.meet(error, self._family_of(place_of(error)[0]))
                    raise unavailable() from error
                if time.monotonic() > deadline:
                    raise Unavailable("The store is too busy to take writes. Try again later.") from error
            self._stalled_at = time.monotonic()
            time.sleep(STALL_PAUSE)
            self._stalled += STALL_PAUSE

    def wait_durable(self, always: bool = False) -> None:
        """Wait until this thread's writes are as durable as the sync mode requires, or on disk with ``always``.

        Raises ``Unavailable``.
        """
        if not (self._always or always):
            return
        if (ticket := inline.current()) is not None:
            ticket.defer(self._group_sync.wait)
        else:
            self._group_sync.wait()

    def let_filter(self, work: bool) -> None:
        """Enable the compaction filter, or pause its family's compactions.

        The filter removes data permanently. Running compactions continue. Raises ``Unavailable``.
        """
        if self.filtering:
            allowed = work and self.may_compact(self._filtered)
            self._set_options(self._filtered, tuning.GO if allowed else tuning.STOP)

    def may_compact(self, family: str) -> bool:
        """Return whether no damage was found in the family. A compaction of damaged data stops all writes."""
        return family not in self._damage.families

    def compact_after(self, family: str, seconds: int) -> None:
        """Compact each file of the family ``seconds`` after it was written; older files soon after this call.

        Raises ``Unavailable``.
        """
        self._set_options(family, tuning.schedule(seconds))

    def flush_removals(self, family: str) -> None:
        """Flush the removals of a family: compactions only consider removals in files. Raise ``Unavailable``."""
        try:
            if self.figure(family, "num-deletes-active-mem-table"):
                self._views[family].flush()
        except Exception as error:
            raise unavailable() from error

    def flush_beyond(self, most: int) -> None:
        """Flush the write buffers if they hold more than ``most`` bytes in total.

        A family with a small buffer is not flushed. Raises ``Unavailable``.
        """
        sizes = {family: self.figure(family, "cur-size-active-mem-table") for family in self._views}
        if sum(sizes.values()) <= most:
            return
        try:
            for family, size in sizes.items():
                if size > most // len(sizes):
                    self._views[family].flush()
        except Exception as error:
            raise unavailable() from error
        tuning.trim_heap()

    def link(self, folder: Path) -> tuple[float, int]:
        """Link the files with all earlier writes to a new folder.

        Return the seconds for which all threads were blocked, and the sequence number of the last included write.
        Raises ``Unavailable``.
        """
        return link_flushed(self._db, list(self._views.values()), folder)

    def compact_range(self, gone: Range) -> None:
        """Compact a removed range to free its space, and wait until that is done. Raises ``Unavailable``."""
        family, lower, upper = gone
        options = CompactOptions()
        options.set_exclusive_manual_compaction(False)
        try:
            self._views[family].compact_range(lower, upper, options)
        except Exception as error:
            raise unavailable() from error

    def compact(self, family: str) -> None:
        """Compact the whole family now."""
        options = CompactOptions()
        options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
        self._views[family].flush()
        self._views[family].compact_range(None, None, options)

    def figure(self, family: str, name: str) -> int:
        """Return a numeric RocksDB property of a family."""
        return int(self._views[family].property_int_value(f"rocksdb.{name}") or 0)

    def totals(self) -> Counter[str]:
        """Return counts, bytes and milliseconds of stalls since the store was opened."""
        if self._ended is not None:
            return self._ended
        lines = (line.split() for line in (self._options.get_statistics() or "").splitlines())
        totals = Counter({COUNTED[words[0]]: int(words[-1]) for words in lines if words and words[0] in COUNTED})
        totals["stalled_ms"] = round(self._stalled * 1000)
        totals["background_errors"] = self.figure("default", "background-errors")
        return totals

    def close(self) -> None:
        """Flush and close the directory. No other call may run at the same time or later."""
        self._ended = self.totals()
        self._closing.set()
        if self._syncer is not None:
            self._syncer.join()
        try:
            if self.failure is None:
                self._flush()
        finally:
            self.let_go()

    def _unread(self, error: Exception, family: str, key: bytes) -> Unavailable:
        """Return the error for a failed read."""
        if not is_damage(error):
            return unavailable()
        if self._damage.meet(error, family, key):
            with suppress(Unavailable):
                self._set_options(family, tuning.STOP)
        return StoreDamaged(UNREADABLE)

    def _spared(self, family: str, key: bytes) -> bytes | None:
        try:
            return self.get(family, key)
        except StoreDamaged:
            return b""

    def _family_of(self, file: int) -> str:
        """Return the family of a table file, or ""."""
        for name, view in self._views.items():
            if f" {file}:" in (view.property_value("rocksdb.sstables") or ""):
                return name
        return ""

    def let_go(self) -> None:
        """Close the directory, without a flush."""
        # The directory stays locked while any view or handle exists, even when closing one of them fails.
        parts = [*self._views.values(), self._db]
        self._views, self._handles = {}, {}
        del self._db
        while parts:
            close_part(parts.pop(0))
        gc.collect()
        let_go(self._path)

    def _batch(self, writes: Iterable[Write], gone: Iterable[Range]) -> WriteBatch:
        batch, handles = WriteBatch(raw_mode=True), self._handles
        for family, key, value in writes:
            if value is None:
                batch.delete(key, handles[family])
            else:
                batch.put(key, value, handles[family])
        for family, lower, upper in gone:
            batch.delete_range(lower, upper, handles[family])
        return batch

    def _set_options(self, family: str, options: dict[str, str]) -> None:
        try:
            self._views[family].set_options(options)
        except Exception as error:
            raise unavailable() from error

    def _flush(self) -> None:
        if self.failure is not None:  # the system may have dropped the pages that the failed flush was to write
            raise unavailable()
        try:
            self._db.flush_wal(True)
        except Exception as error:
            self.failure = error
            raise unavailable() from error

    def _sync_every(self, seconds: float) -> None:
        with suppress(Unavailable):
            while not self._closing.wait(seconds) and self.failure is None:
                self._flush()
