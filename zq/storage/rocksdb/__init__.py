# SPDX-License-Identifier: Apache-2.0
"""The embedded store: the ordered engine over a RocksDB directory, owned by one process with many threads.

Here both are put together; no other file of this folder knows more of the engine than ``ordered.store``.
"""

import math
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from msgspec import structs

from zq.errors import StartRefused, StoreDamaged
from zq.model import store_uri
from zq.model.expiry import Expiry
from zq.model.stats import Measure, Report, Salvaged
from zq.storage.ordered import layout, startup
from zq.storage.ordered.integrity import Integrity
from zq.storage.ordered.salvage import Salvage
from zq.storage.ordered.startup import StorageClock
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.ordered.store import Housekeeping, Range
from zq.storage.rocksdb.files import Damage, hold_lock, refusal, warn_of_others
from zq.storage.rocksdb.rescue import Rescue
from zq.storage.rocksdb.store import SYNC_MODES, Store
from zq.storage.rocksdb.survey import Survey

# Bytes that the write buffers hold at most between two slices of a large commit; RocksDB itself lets them have 256 MiB.
MOST_BUFFERED: Final = 64 << 20
# Seconds between two looks at what is to be compacted.
LOOK: Final = 60.0
# Seconds of compacting after which no further range is compacted in the same look.
LONGEST: Final = 1.0


def connect(
    uri: str,
    sync: str = "always",
    sync_interval: float = 1.0,
    max_clock_jump: int = 172800,
    expiry: Expiry | None = None,
) -> OrderedStorage:
    """Open ``rocksdb:///absolute/path`` or ``rocksdb:relative/path``. Raises ``StartRefused`` with a sentence.

    ``sync``: see ``Store``. ``max_clock_jump``: seconds that the clock may be ahead of the store's last use.
    """
    if sync not in SYNC_MODES:
        raise StartRefused(f"[storage:rocksdb] sync must be one of {', '.join(SYNC_MODES)}; it is {sync!r}.")
    path, expiry = path_of(uri), expiry or Expiry()
    warn_of_others(path)
    directory = Directory(
        path, layout.FAMILIES, (sync, sync_interval), expiry, stamped=layout.STAMPED, trimmed=layout.TRIMMED
    )
    try:
        return OrderedStorage(directory.open, expiry, directory, max_clock_jump)
    except StoreDamaged as error:
        raise refusal(path, error.__cause__ or error) from error


def check(uri: str) -> Report:
    """Compare all parts of a store with each other. Raises ``StartRefused`` if it is in use, or not there."""
    path = path_of(uri)
    if not (path / "CURRENT").exists():
        raise StartRefused(f"There is no store in {path}.")
    try:
        survey = Survey(path)
    except StartRefused:
        raise
    except Exception as error:
        raise refusal(path, error) from error
    try:
        startup.check_readable(survey)
        report = Integrity(survey, _now()).report()
        return structs.replace(report, damage=survey.damage())
    finally:
        survey.close()


def salvage(uri: str, to: str) -> Salvaged:
    """Write what can be read of a store into a new one, a path or a URI.

    Raises ``StartRefused`` if that is there, or the old one is not, or is in use.
    """
    path = path_of(uri)
    with _replacement(path, path_of(to) if ":" in to else Path(to)) as folder:
        rescue = Rescue(path, folder, layout.FAMILIES)
        try:
            store = Store(folder / "store", layout.FAMILIES, "never", 0)
            try:
                done = Salvage(rescue, store, _now())
                done.run()
                store.wait_durable(always=True)
            finally:
                store.close()
            damage = rescue.survey.damage()
        finally:
            rescue.close()
        made = Survey(folder / "store")
        try:
            report = Integrity(made, _now()).report()
        finally:
            made.close()
    return Salvaged(dict(sorted(done.saved.items())), done.lost, damage, report)


@contextmanager
def _replacement(path: Path, to: Path) -> Iterator[Path]:
    """A folder for a new store called ``store``, which becomes ``to`` in the end, unless an error is raised."""
    unfinished = to.with_name(f"{to.name}.unfinished")
    for target in (to, unfinished):
        if target.exists():
            raise StartRefused(f"{target} is there already: a salvage makes a new store. Name another, or remove it.")
    if not path.is_dir() or (not any(path.glob("*.sst")) and not any(path.glob("*.log"))):
        raise StartRefused(f"There is no store in {path}.")
    hold_lock(path).close()  # said before anything is made
    try:
        unfinished.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise StartRefused(f"{unfinished} cannot be made: {error.strerror}.") from error
    try:
        yield unfinished
        (unfinished / "store").rename(to)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _now() -> int:
    return layout.ms(StorageClock().now())


def path_of(uri: str) -> Path:
    """The directory that a URI names."""
    parts = store_uri.split(uri)
    path = Path(unquote(parts.path))
    if parts.netloc or not parts.path or path == Path("/"):
        raise StartRefused(f"A RocksDB store is rocksdb:///absolute/path or rocksdb:relative/path; it is {uri!r}.")
    return path


class Directory(Housekeeping):
    """Upkeep of a RocksDB directory: its compactions, its figures and what is damaged in it.

    It outlasts the stores that are opened in the directory one after the other: ``open`` is called while no other one
    is open.
    """

    def __init__(
        self,
        path: Path,
        families: Sequence[str],
        sync: tuple[str, float],
        expiry: Expiry,
        stamped: str,
        trimmed: str,
    ) -> None:
        """``sync``: see ``Store``. ``stamped``: the family for the compaction filter; ``trimmed``: the one of which
        large ranges are removed."""
        self._path = path
        self._families = families
        self._sync = sync
        self._expiry = expiry
        self._stamped = stamped
        self._trimmed = trimmed
        self._damage = Damage()
        self._allowed = False
        self._looked = -math.inf
        self._former: Counter[str] = Counter()
        self._store: Store | None = None

    def open(self) -> Store:
        """Open the store. Raises ``StartRefused`` and ``Unavailable``."""
        if self._store is not None:
            self._former += self._store.totals()
        filtered = self._stamped if self._expiry.compaction_filter else ""
        store = self._store = self._make(filtered)
        store.let_filter(self._allowed)
        return store

    def _make(self, filtered: str) -> Store:
        return Store(self._path, self._families, *self._sync, filtered, self._damage)

    def allow_destruction(self, allowed: bool) -> None:
        self._allowed = allowed
        self._opened.let_filter(allowed)

    def configure(self, expiry: Expiry) -> bool:
        former, self._expiry = self._expiry, expiry
        self._looked = -math.inf
        return former.compaction_filter != expiry.compaction_filter

    def maintain(self, trimmed: Iterator[Range]) -> None:
        """Once a minute have the values compacted that the filter has not seen for long (see ``tuning``), and the
        ranges that were removed, whose entries are few and large: no file is full of them soon."""
        moment = time.monotonic()
        if moment - self._looked < LOOK:
            return
        self._looked = moment
        store = self._opened
        if store.filtering and store.may_compact(self._stamped):
            store.compact_after(self._stamped, self._expiry.compaction_interval)
        store.flush_removals(self._trimmed)
        for gone in trimmed if store.may_compact(self._trimmed) else ():
            store.compact_range(gone)
            if time.monotonic() > moment + LONGEST:
                break

    def bound_memory(self) -> None:
        self._opened.flush_beyond(MOST_BUFFERED)

    def measures(self) -> Iterator[Measure]:
        store = self._opened
        totals = self._former + store.totals()
        yield Measure("store_corruptions_total", self._damage.count)
        yield Measure("expired_removed_total", totals["filtered"], (("layer", "filter"),))
        yield Measure("compaction_filter_active", store.filtering)
        for family in self._families:
            size = store.figure(family, "total-sst-files-size") + store.figure(family, "cur-size-all-mem-tables")
            yield Measure("store_bytes", size, (("part", family),))
        pending = sum(store.figure(family, "estimate-pending-compaction-bytes") for family in self._families)
        yield Measure("store_pending_compaction_bytes", pending)
        yield Measure("store_running_compactions", store.figure("default", "num-running-compactions"))
        yield Measure("store_background_errors_total", totals["background_errors"])
        yield Measure("store_stall_seconds_total", totals["stalled_ms"] / 1000)
        yield Measure("store_compacted_bytes_total", totals["compacted_bytes"])
        yield Measure("store_syncs_total", totals["syncs"])

    def check(self) -> None:
        self._damage.check()

    @property
    def _opened(self) -> Store:
        assert self._store is not None, "the engine opens it first"
        return self._store
