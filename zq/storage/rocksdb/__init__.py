# SPDX-License-Identifier: Apache-2.0
"""The embedded store: the queue engine over a RocksDB directory, which one process owns."""

import math
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from msgspec import structs

from zq.errors import StartRefused, StoreDamaged, Unavailable
from zq.model import Seconds, levels, store_uri
from zq.model.expiry import Expiry
from zq.model.levels import Initial
from zq.model.stats import Measure, Postpone, Report, RestoreResult, SalvageResult, Snapshot
from zq.storage.api import Storage
from zq.storage.options import RocksdbOptions, check_choices
from zq.storage.ordered import layout, resuming, startup
from zq.storage.ordered.integrity import Integrity
from zq.storage.ordered.salvage import Salvage
from zq.storage.ordered.startup import StorageClock
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.ordered.store import Housekeeping, Range
from zq.storage.rocksdb import admission, backups, write_ahead
from zq.storage.rocksdb.files import (
    Damage,
    create_directory,
    find_folder,
    hold_lock,
    hold_unfinished,
    is_open,
    open_error,
    salvage_error,
    warn_of_others,
)
from zq.storage.rocksdb.rescue import DamagedDirectory
from zq.storage.rocksdb.space import SpaceGuard
from zq.storage.rocksdb.store import Store
from zq.storage.rocksdb.survey import Survey

# Maximum size in bytes of the write buffers between two slices of a large commit. RocksDB's own limit is 256 MiB.
MAX_BUFFERED: Final = 64 << 20
# Name prefix of snapshot folders in the store.
SNAPSHOT: Final = ".zq-snapshot-"
# A file in the store. Its modification time is the time of the last complete backup.
BACKED_UP: Final = ".zq-backed-up"
# Seconds between two checks for due compactions.
CHECK_INTERVAL: Final = 60.0
# Seconds after which a check begins no further compaction.
MAX_COMPACTING: Final = 1.0


def connect(
    uri: str, expiry: Expiry | None = None, initial: Initial = levels.initial, **options: Any
) -> OrderedStorage:
    """Open the store at ``rocksdb:///absolute/path`` or ``rocksdb:relative/path``.

    Raises ``StartRefused`` if an option is invalid or the store cannot be opened.
    """
    chosen = RocksdbOptions(**options)
    check_choices(chosen)
    path = parse_path(uri)
    warn_of_others(path)
    try:
        is_new = not (path / "CURRENT").exists()
    except OSError as error:
        raise open_error(path, error) from error
    if is_new:
        initial()  # may prevent a new store, of which then not even the directory is created
        find_folder(path)
    return _open(path, chosen, expiry or Expiry(), initial)


def _open(path: Path, options: RocksdbOptions, expiry: Expiry, initial: Initial = levels.initial) -> OrderedStorage:
    sync = options.sync, options.sync_interval
    space = SpaceGuard(path, options.min_free_space)
    directory = Directory(path, layout.FAMILIES, sync, expiry, layout.STAMPED_FAMILY, layout.TRIMMED_FAMILY, space)
    try:
        storage = OrderedStorage(directory.open, expiry, directory, options.max_clock_jump, initial)
    except StoreDamaged as error:
        raise open_error(path, error.__cause__ or error) from error
    directory.forget_snapshots()  # safe now, because no other process has the store open
    return storage


def admit(path: Path) -> None:
    """Raise ``StartRefused`` if the directory must not be opened for writing; see ``admission.admit``."""
    admission.admit(path, startup.check_layout)


def check(uri: str) -> Report:
    """Check the integrity of a store. Raises ``StartRefused`` if the store is missing or cannot be opened."""
    return _check(parse_path(uri))


def _check(path: Path) -> Report:
    if "CURRENT" not in _files(path):
        raise StartRefused(f"There is no store in {path}.")
    try:
        survey = Survey(path)
    except StartRefused:
        raise
    except Exception as error:
        raise open_error(path, error) from error
    try:
        startup.check_readable(survey)
        report = Integrity(survey, _now()).report()
        return structs.replace(report, damage=survey.damage())
    finally:
        survey.close()


def salvage(uri: str, to: str) -> SalvageResult:
    """Copy the readable data of a store to a new store at ``to`` (path or URI), and report what was lost.

    Raises ``StartRefused`` if ``to`` exists, or if the damaged store does not exist or is in use.
    """
    path, new = parse_path(uri), parse_path(to) if ":" in to else Path(to)
    with _replacement(path, new) as folder:
        rescue = DamagedDirectory(path, folder, layout.FAMILIES)
        try:
            store = Store(folder / "store", layout.FAMILIES, "never", 0)
            try:
                done = Salvage(rescue, store, _now())
                done.run()
                store.wait_durable(always=True)
            except Unavailable as error:
                raise salvage_error(new, error.__cause__ or error) from error
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
    return SalvageResult(dict(sorted(done.saved.items())), done.lost, damage, report)


def _files(path: Path) -> list[str]:
    """Return the names of the files in a directory, if there is one. Raise ``StartRefused`` if it cannot be read."""
    try:
        return os.listdir(path)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise open_error(path, error) from error


@contextmanager
def _replacement(path: Path, to: Path) -> Iterator[Path]:
    """Provide a temporary folder for a salvage within a ``with`` block.

    If the block ends without an error, rename the subfolder ``store`` to ``to``. Remove the temporary folder in any
    case.
    """
    if not any(name.endswith((".sst", ".log")) for name in _files(path)):
        raise StartRefused(f"There is no store in {path}.")
    hold_lock(path).close()  # reject a store that is in use before anything is created
    with hold_unfinished(to, path) as unfinished:
        yield unfinished
        (unfinished / "store").rename(to)


class Backups:
    """Online backups of embedded stores."""

    @staticmethod
    def check_target(target: Path, uri: str) -> None:
        """Raise ``StartRefused`` if the folder ``target`` is not suitable for backups of the store."""
        backups.check_target(target, parse_path(uri))

    @staticmethod
    def is_open(uri: str) -> bool:
        """Return whether a process has the store open; see ``files.is_open``."""
        return is_open(parse_path(uri))

    @staticmethod
    def make(snapshot: Snapshot, target: Path, keep: int | None) -> backups.NewBackup:
        """Create a backup of ``snapshot`` in the folder ``target``; see ``backups.make``."""
        return backups.make(snapshot, target, layout.VERSION.decode(), keep)

    @staticmethod
    def verify(folder: Path) -> Report:
        """Check the files of a backup, and then the integrity of its store, without changing the backup.

        A missing or damaged file ends the check. Raises ``StartRefused`` if the folder is not a complete backup.
        """
        manifest = backups.read(folder)
        if found := backups.find_damage(folder, manifest):
            return Report({}, 0, [], found)
        with tempfile.TemporaryDirectory(prefix="zq-verify-") as made:
            for file in manifest.files:
                source, to = folder.resolve() / file.name, Path(made, file.name)
                # RocksDB never modifies table files. It may modify all other files when it opens the store.
                to.symlink_to(source) if to.suffix == ".sst" else shutil.copyfile(source, to)
            return _check(Path(made))

    @staticmethod
    def restore(
        folder: Path, uri: str, shift: Postpone | None, force_clock: bool, use: Callable[[Storage], int]
    ) -> RestoreResult:
        """Restore a backup to a new store.

        Args:
            shift: If given, all expiries are extended by the age of the backup; see ``resuming.resume``.
            force_clock: Whether to accept an implausible time of the machine's clock.
            use: Called with the restored store. Returns the number of access tokens in the store.

        Raises:
            StartRefused: The backup is incomplete or damaged, the target exists or is not writable, or the machine's
                clock is implausible. No store was created.
        """
        path, manifest = parse_path(uri), backups.read(folder)
        with create_directory(path, folder) as unfinished:
            try:
                found = backups.find_damage(folder, manifest, unfinished)
            except OSError as error:
                raise StartRefused(f"{path} cannot be written: {error.strerror}.") from error
            if found:
                raise StartRefused(f"{folder} is damaged. {' '.join(found)}")
            restored = _resume(unfinished, manifest, shift, force_clock)
            storage = _open(unfinished, RocksdbOptions(sync="never", max_clock_jump=0), Expiry(compaction_filter=False))
            try:
                restored = structs.replace(restored, tokens=use(storage))
            finally:
                storage.close()
            backups.sync(unfinished)
        backups.sync(path.parent)
        return restored


def _resume(path: Path, manifest: backups.Manifest, shift: Postpone | None, force_clock: bool) -> RestoreResult:
    admit(path)
    try:
        store = Store(path, layout.FAMILIES, "never", 0)
    except StoreDamaged as error:
        raise open_error(path, error) from error
    try:
        restored = resuming.resume(store, StorageClock(), manifest.moment, shift, force_clock)
        store.wait_durable(always=True)
    finally:
        store.close()
    return restored


def _now() -> int:
    return layout.ms(StorageClock().now())


def parse_path(uri: str) -> Path:
    """Return the directory that a store URI names. Raises ``StartRefused`` if the URI is malformed."""
    parts = store_uri.split(uri)
    path = Path(unquote(parts.path))
    if parts.netloc or not parts.path or path == Path("/"):
        raise StartRefused(
            f"The URI of an embedded store must be rocksdb:///absolute/path or rocksdb:relative/path, not {uri!r}."
        )
    return path


class Directory(Housekeeping):
    """The housekeeping of a RocksDB directory: compactions, snapshots, metrics and damage checks.

    The same object is used after the store is reopened. Close the store before you call ``open`` again.
    """

    def __init__(
        self,
        path: Path,
        families: Sequence[str],
        sync: tuple[str, float],
        expiry: Expiry,
        stamped: str,
        trimmed: str,
        space: SpaceGuard,
    ) -> None:
        """Create the object without opening the directory.

        Args:
            sync: The sync mode and the sync interval in seconds.
            stamped: The column family whose values end with their expiry time, for the compaction filter.
            trimmed: The column family from which key ranges are removed.
        """
        self._space = space
        self._path = path
        self._families = families
        self._sync = sync
        self._expiry = expiry
        self._stamped = stamped
        self._trimmed = trimmed
        self._damage = Damage()
        self._allowed = False
        self._checked_at = -math.inf
        self._former: Counter[str] = Counter()
        self._store: Store | None = None
        self._pause = 0.0
        """Seconds for which the last snapshot blocked all threads."""

    def open(self) -> Store:
        """Open the store. Raises ``StartRefused`` if the store is in use or cannot be opened for writing."""
        former = self._store
        if former is not None and "CURRENT" not in _files(self._path):  # never create an empty store in its place
            raise StartRefused(f"The store {self._path} is missing. Put it back, or stop the server.")
        filtered = self._stamped if self._expiry.compaction_filter else ""
        store = self._store = self._make(filtered)
        if former is not None:
            self._former += former.totals()
        store.set_filter_enabled(self._allowed)
        return store

    def _make(self, filtered: str) -> Store:
        admit(self._path)
        store = Store(self._path, self._families, *self._sync, filtered, self._damage)
        write_ahead.record_files(self._path)
        return store

    def has_low_space(self) -> bool:
        return self._space.is_low()

    def allow_destruction(self, allowed: bool) -> None:
        self._allowed = allowed
        self._opened.set_filter_enabled(allowed)

    def configure(self, expiry: Expiry) -> bool:
        former, self._expiry = self._expiry, expiry
        self._checked_at = -math.inf
        return former.compaction_filter != expiry.compaction_filter

    def maintain(self, trimmed: Iterator[Range]) -> None:
        """Compact removed key ranges, and files with expired bodies, at most once per minute.

        Without these calls, RocksDB would compact this data much later, because a removed range has only a few
        tombstones, and expired bodies do not trigger a compaction.
        """
        moment = time.monotonic()
        if moment - self._checked_at < CHECK_INTERVAL:
            return
        self._checked_at = moment
        write_ahead.record_files(self._path)
        store = self._opened
        if store.filtering and store.may_compact(self._stamped):
            store.compact_after(self._stamped, self._expiry.compaction_interval)
        store.flush_removals(self._trimmed)
        for gone in trimmed if store.may_compact(self._trimmed) else ():
            store.compact_range(gone)
            if time.monotonic() > moment + MAX_COMPACTING:
                break

    def bound_memory(self) -> None:
        self._opened.flush_beyond(MAX_BUFFERED)

    @contextmanager
    def snapshot(self, moment: Seconds) -> Iterator[Snapshot]:
        folder = self._path.resolve() / f"{SNAPSHOT}{os.urandom(4).hex()}"
        try:
            self._pause, sequence = self._opened.link(folder)
            snapshot = Snapshot(str(folder), moment, sequence, self._pause)
            yield snapshot
            if snapshot.is_complete:
                (self._path / BACKED_UP).touch()
        finally:
            for left in (folder, folder.with_name(f"{folder.name}.tmp")):
                shutil.rmtree(left, ignore_errors=True)

    def forget_snapshots(self) -> None:
        """Remove the snapshots that killed servers have left behind."""
        for left in self._path.glob(f"{SNAPSHOT}*"):
            shutil.rmtree(left, ignore_errors=True)

    def measures(self) -> Iterator[Measure]:
        store = self._opened
        with suppress(FileNotFoundError):
            made = (self._path / BACKED_UP).stat().st_mtime
            yield Measure("backup_age_seconds", max(0.0, StorageClock().now() - made))
        yield Measure("backup_pause_seconds", self._pause)
        with suppress(OSError):
            yield from self._space.measures()
        totals = self._former + store.totals()
        yield Measure("store_corruptions_total", self._damage.count)
        yield Measure("expired_removed_total", totals["filtered"], (("layer", "filter"),))
        yield Measure("compaction_filter_active", store.filtering)
        for family in self._families:
            size = store.get_property(family, "total-sst-files-size") + store.get_property(
                family, "cur-size-all-mem-tables"
            )
            yield Measure("store_bytes", size, (("part", family),))
        pending = sum(store.get_property(family, "estimate-pending-compaction-bytes") for family in self._families)
        yield Measure("store_pending_compaction_bytes", pending)
        yield Measure("store_running_compactions", store.get_property("default", "num-running-compactions"))
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
