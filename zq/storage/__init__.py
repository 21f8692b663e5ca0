# SPDX-License-Identifier: Apache-2.0
"""Access to storage drivers by URI scheme: open, prepare, check, diagnose, salvage, back up and restore stores."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from inspect import signature
from pathlib import Path
from typing import Any, Protocol

from zq.diagnosis import Check
from zq.errors import StartRefused
from zq.model import Seconds, store_uri
from zq.model.expiry import Expiry
from zq.model.levels import Initial
from zq.model.stats import Postpone, Report, RestoreResult, SalvageResult, Snapshot
from zq.storage.api import Storage


class NewBackup(Protocol):
    """A description of a backup that was just created.

    ``copied`` is the size in bytes of the copied files. The other files are hard links to files of earlier backups.
    """

    @property
    def folder(self) -> Path: ...

    @property
    def size(self) -> int: ...

    @property
    def copied(self) -> int: ...


class Backups(Protocol):
    """The operations of a driver that create, verify and restore backups. On failure, they raise ``StartRefused``."""

    def check_target(self, target: Path, uri: str) -> None:
        """Raise ``StartRefused`` if the folder ``target`` cannot store backups of the store at ``uri``."""
        ...

    def is_open(self, uri: str) -> bool:
        """Return whether a process has the store open, for example a server whose control socket is elsewhere."""
        ...

    def make(self, snapshot: Snapshot, target: Path, keep: int | None) -> NewBackup:
        """Create a backup in the folder, then remove all but the newest ``keep`` backups (None = keep all)."""
        ...

    def verify(self, folder: Path) -> Report:
        """Read the whole backup, check the integrity of its store, and return a report."""
        ...

    def restore(
        self, folder: Path, uri: str, shift: Postpone | None, force_clock: bool, use: Callable[[Storage], int]
    ) -> RestoreResult:
        """Restore a backup to a new store at ``uri``.

        Args:
            shift: If given, expiry times are postponed by the age of the backup. The function is called for each
                document with an expiry time. It returns the document's new value, with postponed times, or None to keep
                the document's expiry time.
            force_clock: Whether to trust the machine's clock even if its time is implausible.
            use: A function that counts or revokes the access tokens of the restored store. It returns their number,
                which becomes ``RestoreResult.tokens``.
        """
        ...


def connect(
    uri: str,
    options: Mapping[str, object] | None = None,
    expiry: Expiry | None = None,
    initial: Initial | None = None,
) -> Storage:
    """Open the store at ``uri`` with the driver for its scheme, an entry point of the group ``zq.storage``.

    ``options`` is the driver's section of the configuration. ``expiry`` applies until ``Storage.maintain`` receives new
    settings. ``initial`` returns the format level of a new store; by default, this is the highest level that this
    version of zq supports. A driver whose stores have no level ignores ``initial``.

    Raises ``StartRefused`` if there is no driver for the scheme, or the store cannot be used with these settings.
    """
    driver = find_driver(uri)
    level = {"initial": initial} if initial is not None and "initial" in signature(driver).parameters else {}
    opened: Storage = driver(uri, **(options or {}), expiry=expiry or Expiry(), **level)
    return opened


def find_driver(uri: str) -> Callable[..., Any]:
    """Return the driver's function that opens a store. Raises ``StartRefused`` if there is no driver for the scheme."""
    scheme, drivers = _scheme(uri), _drivers("zq.storage")
    if scheme not in drivers:
        raise StartRefused(
            f"No storage driver for {scheme or 'a URI without scheme'!r}: use one of {', '.join(sorted(drivers))}, "
            "as in rocksdb:///var/lib/zq."
        )
    driver: Callable[..., Any] = _load(drivers[scheme])
    return driver


def prepare(uri: str, options: Mapping[str, object] | None = None) -> bool:
    """Create the store's tables and indexes with administrator rights. Return False if the driver has no such step."""
    driver = _drivers("zq.storage.prepare").get(_scheme(uri))
    if driver is None:
        return False
    _load(driver)(uri, **(options or {}))
    return True


def check(uri: str) -> Report | None:
    """Check the integrity of a whole store that no server has open. Return None if the driver cannot check.

    The drivers of MongoDB and Redis have no check, because these servers verify their own files.
    """
    driver = _drivers("zq.storage.check").get(_scheme(uri))
    report: Report | None = _load(driver)(uri) if driver else None
    return report


def diagnose(
    uri: str, now: Callable[[], Seconds], options: Mapping[str, object] | None = None
) -> AbstractContextManager[Sequence[Check]] | None:
    """Return a context manager that provides the driver's diagnostic checks of the store.

    Return None if the driver has no diagnostic checks. The checks do not change the store. They do not open an embedded
    store, so a server may have the store open. The function and the context manager can raise the same errors as
    ``connect``.
    """
    find_driver(uri)
    driver = _drivers("zq.storage.doctor").get(_scheme(uri))
    opened: AbstractContextManager[Sequence[Check]] | None = (
        _load(driver)(uri, now, **(options or {})) if driver else None
    )
    return opened


def salvage(uri: str, to: str) -> SalvageResult | None:
    """Copy the readable data of the damaged store at ``uri`` to a new store at ``to``.

    No server may have the damaged store open. Return None if the driver cannot salvage stores.
    """
    driver = _drivers("zq.storage.salvage").get(_scheme(uri))
    salvaged: SalvageResult | None = _load(driver)(uri, to) if driver else None
    return salvaged


def restore(uri: str, to: str, at: Seconds | None, position: int | None) -> tuple[int, Seconds] | None:
    """Restore a store from an object store to a new embedded store at ``to``.

    By default, the latest state is restored; the Unix time ``at`` or the log position ``position`` selects an earlier
    state. A server may continue to use the store in the object store. Return the log position and the Unix time of the
    restored state. Return None if the driver cannot restore stores. Raises the same errors as ``connect``.
    """
    driver = _drivers("zq.storage.restore").get(_scheme(uri))
    restored: tuple[int, Seconds] | None = _load(driver)(uri, to, at, position) if driver else None
    return restored


def backups(uri: str) -> Backups | None:
    """Return the driver's operations for backups of open stores, or None if the driver has none."""
    driver = _drivers("zq.storage.backups").get(_scheme(uri))
    found: Backups | None = _load(driver) if driver else None
    return found


def ship(uri: str, to: str, check: Callable[[Storage], object]) -> int | None:
    """Upload an embedded store to the object store at ``to``. No server may have the embedded store open.

    ``check`` is called with the open store before the upload, and may raise an error.

    Return the number of files in the embedded store, or None if the driver of ``to`` cannot upload stores. Raises the
    same errors as ``connect``.
    """
    driver = _drivers("zq.storage.ship").get(_scheme(to))
    shipped: int | None = _load(driver)(uri, to, check) if driver else None
    return shipped


def owner(uri: str) -> Mapping[str, str | int] | None:
    """Return a mapping from label to value that describes the server that owns the store.

    Only a store in an object store has an owner. Return None if the driver does not use an object store.
    """
    driver = _drivers("zq.storage.owner").get(_scheme(uri))
    known: Mapping[str, str | int] | None = _load(driver)(uri) if driver else None
    return known


@cache
def _drivers(group: str) -> Mapping[str, EntryPoint]:
    """Return a mapping from URI scheme to entry point for the entry points of a group.

    The result is cached, because a search reads the metadata of all installed packages.
    """
    return {point.name: point for point in entry_points(group=group)}


def _load(driver: EntryPoint) -> Any:
    """Load a driver's entry point. Raises ``StartRefused`` if a package that the driver needs is not installed."""
    try:
        return driver.load()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("zq"):
            raise
        extra = driver.module.rpartition(".")[2]
        raise StartRefused(
            f"The driver for {driver.name}: stores is not installed: pip install 'zq-queue[{extra}]'."
        ) from error


def _scheme(uri: str) -> str:
    try:
        return store_uri.split(uri).scheme
    except ValueError:  # for example, brackets without an IPv6 address
        raise StartRefused("The store's URI is not valid.") from None
