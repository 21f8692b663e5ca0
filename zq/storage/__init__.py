# SPDX-License-Identifier: Apache-2.0
"""The entry points to storage drivers: opening, preparation, checks, backups and restores by URI scheme."""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol

from zq.errors import StartRefused
from zq.model import Seconds, store_uri
from zq.model.expiry import Expiry
from zq.model.stats import Postpone, Report, Restored, Salvaged, Snapshot
from zq.storage.api import Storage


class Made(Protocol):
    """A new backup: the folder, its bytes, and those that had to be copied."""

    @property
    def folder(self) -> Path: ...

    @property
    def size(self) -> int: ...

    @property
    def copied(self) -> int: ...


class Backups(Protocol):
    """The backup operations of a driver. Each refusal is a ``StartRefused``."""

    def check_target(self, target: Path, uri: str) -> None:
        """Refuse a folder in which there can be no backups of this store."""
        ...

    def make(self, snapshot: Snapshot, target: Path, keep: int | None) -> Made:
        """Create a backup in the folder, then remove all but the newest ``keep`` backups (None: keep all)."""
        ...

    def verify(self, folder: Path) -> Report:
        """Read all of a backup, and compare the parts of its store with each other."""
        ...

    def restore(
        self, folder: Path, uri: str, shift: Postpone | None, force_clock: bool, use: Callable[[Storage], int]
    ) -> Restored:
        """Restore a backup to a new store.

        ``shift`` extends the expiry of live data by the time since the backup; it is called for each document. ``use``
        is called with the restored store and returns its number of tokens.
        """
        ...


def connect(uri: str, options: Mapping[str, object] | None = None, expiry: Expiry | None = None) -> Storage:
    """Open the store at ``uri`` with the driver for its scheme, an entry point of the group ``zq.storage``.

    Args:
        options: The settings of the driver's section.
        expiry: Expiry settings until ``Storage.maintain`` gets others.

    Raises:
        StartRefused: There is no such driver, or the store cannot be used with these settings.
        Unavailable: The store is unavailable.
    """
    opened: Storage = find(uri)(uri, **(options or {}), expiry=expiry or Expiry())
    return opened


def find(uri: str) -> Callable[..., Any]:
    """Return the driver's function that opens a store. Raises ``StartRefused`` if there is no such driver."""
    scheme, drivers = _scheme(uri), _drivers("zq.storage")
    if scheme not in drivers:
        raise StartRefused(
            f"No storage driver for {scheme or 'a URI without scheme'!r}: use one of {', '.join(sorted(drivers))}, "
            "as in rocksdb:///var/lib/zq."
        )
    driver: Callable[..., Any] = _loaded(drivers[scheme])
    return driver


def prepare(uri: str, options: Mapping[str, object] | None = None) -> bool:
    """Create the tables and indexes of a store that needs administrator rights for them.

    Return False if the driver has no such step. Raises the errors of ``connect``.
    """
    driver = _drivers("zq.storage.prepare").get(_scheme(uri))
    if driver is None:
        return False
    _loaded(driver)(uri, **(options or {}))
    return True


def check(uri: str) -> Report | None:
    """Read the whole store, which no server may have open, and compare its parts with each other; nothing is changed.

    None if the driver has no such check. Raises as ``connect`` does.
    """
    driver = _drivers("zq.storage.check").get(_scheme(uri))
    report: Report | None = _loaded(driver)(uri) if driver else None
    return report


def salvage(uri: str, to: str) -> Salvaged | None:
    """Write what can be read of a store, which no server may have open, into a new one; the old one is not changed.

    None if the driver has no such thing. Raises as ``connect`` does.
    """
    driver = _drivers("zq.storage.salvage").get(_scheme(uri))
    salvaged: Salvaged | None = _loaded(driver)(uri, to) if driver else None
    return salvaged


def restore(uri: str, to: str, at: Seconds | None, position: int | None) -> tuple[int, Seconds] | None:
    """Restore a store in an object store to a new embedded store, as of a time or log position.

    Return the reached position and its time, or None if the driver does not support this. A server may own the store
    meanwhile. Raises the errors of ``connect``.
    """
    driver = _drivers("zq.storage.restore").get(_scheme(uri))
    restored: tuple[int, Seconds] | None = _loaded(driver)(uri, to, at, position) if driver else None
    return restored


def backups(uri: str) -> Backups | None:
    """Backups of stores of this scheme, which are made while a server serves; None if the driver has no such thing."""
    driver = _drivers("zq.storage.backups").get(_scheme(uri))
    found: Backups | None = _loaded(driver) if driver else None
    return found


def ship(uri: str, to: str) -> int | None:
    """Put an embedded store, which no server may have open, into an object store; how many files it has.

    None if the driver of ``to`` has no such thing. Raises as ``connect`` does.
    """
    driver = _drivers("zq.storage.ship").get(_scheme(to))
    shipped: int | None = _loaded(driver)(uri, to) if driver else None
    return shipped


def owner(uri: str) -> Mapping[str, str | int] | None:
    """Return the owner of a store in an object store and its progress.

    Return None if the driver has no owners. Raises the errors of ``connect``.
    """
    driver = _drivers("zq.storage.owner").get(_scheme(uri))
    known: Mapping[str, str | int] | None = _loaded(driver)(uri) if driver else None
    return known


@cache
def _drivers(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group by scheme. This reads the metadata of all installed packages."""
    return {point.name: point for point in entry_points(group=group)}


def _loaded(driver: EntryPoint) -> Any:
    """Load an entry point. Raises ``StartRefused`` if the vendor's package is not installed."""
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
    except ValueError:  # brackets that hold no IPv6 address
        raise StartRefused("The store's URI cannot be read.") from None
