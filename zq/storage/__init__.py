# SPDX-License-Identifier: Apache-2.0
"""Storage drivers behind one interface; the only ways to a driver are ``connect``, ``find``, ``prepare``, ``check``,
``salvage``, ``backups``, ``restore``, ``ship`` and ``owner``."""

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
    """What a driver does with backups. Every refusal is a ``StartRefused`` with a sentence."""

    def check_target(self, target: Path, uri: str) -> None:
        """Refuse a folder in which there can be no backups of this store."""
        ...

    def make(self, snapshot: Snapshot, target: Path, keep: int | None) -> Made:
        """A new backup in the folder; of all backups there the newest ``keep`` stay. None: all."""
        ...

    def verify(self, folder: Path) -> Report:
        """Read all of a backup, and compare the parts of its store with each other."""
        ...

    def restore(
        self, folder: Path, uri: str, shift: Postpone | None, force_clock: bool, use: Callable[[Storage], int]
    ) -> Restored:
        """Make a new store of a backup; with ``shift`` what lived expires later by the time since; it is asked for each
        document. ``use`` is called with the store, before it is in its place, and says how many tokens are in it."""
        ...


def connect(uri: str, options: Mapping[str, object] | None = None, expiry: Expiry | None = None) -> Storage:
    """Open the store that ``uri`` names; ``options`` are the settings of the driver's own section.

    ``expiry``: how it gives space back, until ``Storage.maintain`` is told otherwise.

    The scheme picks the driver among the entry points of the group ``zq.storage``.
    Raises ``StartRefused`` with a sentence when there is no such driver or the store cannot be used like this,
    ``Unavailable`` when it does not answer.
    """
    opened: Storage = find(uri)(uri, **(options or {}), expiry=expiry or Expiry())
    return opened


def find(uri: str) -> Callable[..., Any]:
    """What opens a store of this scheme. Raises ``StartRefused`` if there is no such driver, or it is not installed."""
    scheme, drivers = _scheme(uri), _drivers("zq.storage")
    if scheme not in drivers:
        raise StartRefused(
            f"No storage driver for {scheme or 'a URI without scheme'!r}: use one of {', '.join(sorted(drivers))}, "
            "as in rocksdb:///var/lib/zq."
        )
    driver: Callable[..., Any] = _loaded(drivers[scheme])
    return driver


def prepare(uri: str, options: Mapping[str, object] | None = None) -> bool:
    """Create what the store needs before its first use, where that takes an administrator's rights.

    False if the driver needs no such thing. Raises as ``connect`` does.
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
    """Write what a store in an object store was at a moment, or at a position of its log, into a new embedded one; the
    position reached, and its moment. A server may own the store meanwhile.

    None if the driver has no such thing. Raises as ``connect`` does.
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
    """Who owns a store in an object store, and how far that server has come.

    None if the driver has no such thing. Raises as ``connect`` does.
    """
    driver = _drivers("zq.storage.owner").get(_scheme(uri))
    known: Mapping[str, str | int] | None = _loaded(driver)(uri) if driver else None
    return known


@cache
def _drivers(group: str) -> Mapping[str, EntryPoint]:
    """By scheme. Looking for them reads what every installed package says of itself."""
    return {point.name: point for point in entry_points(group=group)}


def _loaded(driver: EntryPoint) -> Any:
    """What the entry point names. Raises ``StartRefused`` where the vendor's package is not installed."""
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
