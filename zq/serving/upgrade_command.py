# SPDX-License-Identifier: Apache-2.0
"""``zq-server upgrade``: show the level of a store and the versions of its servers, or raise the level.

The level is the version of the store's data format. Servers of earlier versions of zq cannot use a store with a higher
level. The command raises the level to the highest level that its own version of zq supports.

If several servers can share the store, the command opens the store itself. If a server has an embedded store open, the
command uses the server's control socket.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from time import sleep
from typing import Final

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from zq import __version__, wire
from zq.errors import StartRefused, Unavailable
from zq.model import Seconds, levels
from zq.model.levels import StoreLevel
from zq.serving import control
from zq.serving.level_watch import INTERVAL, TTL, ProcessRecord, catalogue_of, read_processes
from zq.storage.api import Storage
from zq.storage.capabilities import LaidOutStorage, LevelledStorage
from zq.storage.pooling import PooledStorage

# Path of the operation of the control socket.
PATH: Final = "/upgrade"
# Seconds to wait in a shared store. Even if the records have expired early, because the store's clock has jumped, each
# process publishes its record again.
RECORD_WAIT: Final = INTERVAL + 2
CONFLICT: Final = "Another command changed the level at the same time. Repeat the command."


class UpgradeRequest(Struct, forbid_unknown_fields=True):
    """The body of an upgrade request."""

    finish: bool


class UpgradeStatus(Struct, frozen=True):
    """The state of an upgrade.

    Attributes:
        version: The version of zq that reports this status.
        supported: The highest level (version of the data format) that this version of zq supports.
        level: The level of the store; if there are pools, the lowest level of all stores.
        is_begun: Whether an upgrade to a higher level has begun, but not every store has this level yet.
        processes: The processes that use a shared store; empty if only one process can open the store.
        layout: The layout of the store, or "" if the server or the driver does not report it.
    """

    version: str
    supported: int
    level: int
    is_begun: bool
    processes: list[ProcessRecord]
    layout: str = ""

    @property
    def older(self) -> list[ProcessRecord]:
        """The processes that do not support the highest level of this version of zq."""
        return [one for one in self.processes if one.level < self.supported]


_decoder: Final = msgspec.json.Decoder(UpgradeRequest)


class UpgradeControl:
    """The control socket operation that shows the status or finishes the upgrade."""

    def __init__(self, storage: Storage, report: Callable[[int], object]) -> None:
        self._storage = storage
        self._report = report

    def __call__(self, body: bytes) -> object:
        status = apply(self._storage, wire.decode(_decoder, body).finish)
        self._report(status.level)
        return msgspec.to_builtins(status)


def apply(storage: Storage, finish: bool, pause: Seconds = 0) -> UpgradeStatus:
    """Finish the upgrade if ``finish`` is true, and return the status.

    To finish an upgrade, the function announces the new level (version of the data format), waits ``pause`` seconds,
    and checks that all server processes support the level. Then it sets the level.

    Raises ``StartRefused`` if the upgrade cannot be finished, and ``Unavailable`` if a store is unavailable. After an
    error, the level is unchanged, or another call can complete the change.
    """
    if finish and read_status(storage).level < levels.supported():
        try:
            _check_processes(storage)
            _announce(storage)
            sleep(pause)
            _check_processes(storage)
        except StartRefused:
            _withdraw(storage)
            raise
        for store in _stores(storage):
            record = store.read_level()
            level = levels.check(record)
            if level.required < levels.supported():  # another command has withdrawn the announcement
                raise StartRefused(CONFLICT)
            _replace(store, record, replace(level, level=levels.supported()))
    return read_status(storage)


def read_status(storage: Storage) -> UpgradeStatus:
    found = [levels.check(store.read_level()) for store in _stores(storage)]
    catalogue: object = catalogue_of(storage)
    return UpgradeStatus(
        __version__,
        levels.supported(),
        min(each.level for each in found),
        any(each.required > each.level for each in found),
        read_processes(storage.documents, storage.now()),
        catalogue.layout if isinstance(catalogue, LaidOutStorage) else "",
    )


def _announce(storage: Storage) -> None:
    """Announce the new level (version of the data format) in each store.

    After the announcement, servers of earlier versions of zq refuse to start.
    """
    for store in _stores(storage):
        record = store.read_level()
        level = levels.check(record)
        if level.required < levels.supported():
            _replace(store, record, StoreLevel(level.level, levels.supported(), __version__))


def _withdraw(storage: Storage) -> None:
    """Withdraw the announcement of the new level from each store that does not have this level yet.

    An announcement of an earlier, interrupted command is also withdrawn.
    """
    for store in reversed([*_stores(storage)]):  # the catalogue first, because all servers check it
        record = store.read_level()
        level = levels.check(record)
        if level.required > level.level:
            store.replace_level(record, levels.encode(levels.former()))


def _replace(store: LevelledStorage, former: bytes | None, new: StoreLevel) -> None:
    if not store.replace_level(former, levels.encode(new)):
        raise StartRefused(CONFLICT)


def _check_processes(storage: Storage) -> None:
    """Raise ``StartRefused`` if a process that uses the store does not support the new level."""
    older = read_status(storage).older
    if older:
        names = ", ".join(dict.fromkeys(f"{one.server} (zq {one.version})" for one in older))
        raise StartRefused(
            f"Servers of earlier versions are using the store: {names}. Restart them with zq {__version__}. If a "
            f"server was killed, wait {TTL:.0f} seconds."
        )


def _stores(storage: Storage) -> Iterator[LevelledStorage]:
    """Yield all stores that have a level: the stores of the pools, and then the catalogue.

    Without pools, the catalogue is the only store. Raises ``Unavailable`` if a pool is unavailable, and
    ``StartRefused`` if the driver does not support levels.
    """
    pools = storage.pools() if isinstance(storage, PooledStorage) else {}
    for name, pool in pools.items():
        if pool is None:
            raise Unavailable(f"The store of the pool {name} is unavailable.")
        if isinstance(pool, LevelledStorage):
            yield pool
    store: object = catalogue_of(storage)
    if not isinstance(store, LevelledStorage):
        raise StartRefused("The driver of the store does not support upgrade.")
    yield store


def run(
    args: argparse.Namespace,
    socket: str,
    open_storage: Callable[[], AbstractContextManager[Storage]],
    pause: Seconds,
) -> int:
    """Run ``zq-server upgrade`` and return its exit code.

    Args:
        socket: Path of the control socket of the server that may have the store open, or "" for a shared store.
        open_storage: Opens the store. Called if no server answers at the socket.
        pause: See ``apply``.

    Raises ``StartRefused`` if the upgrade cannot be finished, and ``Unavailable`` if the store is unavailable.
    """
    status = _ask(socket, args.finish, open_storage, pause)
    for line in describe(status):
        print(line)  # noqa: T201
    return 0


def _ask(
    socket: str, finish: bool, open_storage: Callable[[], AbstractContextManager[Storage]], pause: Seconds
) -> UpgradeStatus:
    if socket:
        try:
            status = ask_server(socket, finish=False)
            if (status.version, status.supported) != (__version__, levels.supported()):
                raise StartRefused(
                    f"The server runs zq {status.version}, which supports level {status.supported}, but this command "
                    f"belongs to zq {__version__}. Restart the server with zq {__version__}, and repeat the command."
                )
            return ask_server(socket, finish=True) if finish else status
        except Unavailable:
            pass  # no server has the store open
    with open_storage() as storage:
        return apply(storage, finish, pause)


def ask_server(socket: str, finish: bool) -> UpgradeStatus:
    """Request the upgrade status from the server at a control socket.

    If ``finish`` is true, the server finishes the upgrade first. Raises ``Unavailable`` if no server answers, and
    ``StartRefused`` if the upgrade cannot be finished.
    """
    return msgspec.convert(control.operate(socket, PATH, {"finish": finish}), UpgradeStatus)


def describe(status: UpgradeStatus) -> Iterator[str]:
    """Yield the lines that the command prints."""
    yield f"The store has level {status.level}. zq {status.version} supports level {status.supported}."
    counts = Counter((one.server, one.version) for one in status.processes)
    for (server, version), count in counts.items():
        yield f"{server} runs zq {version} in {count} process{'es' * (count > 1)}."
    if status.level == status.supported:
        yield "There is no upgrade to finish. After you install a newer version, use its zq-server."
    elif status.older:
        yield f"Restart the servers of earlier versions with zq {status.version}."
    else:
        former = levels.VERSIONS[status.level - 1]
        begun = "The upgrade is not complete: run" if status.is_begun else "To finish the upgrade, run"
        yield f"{begun} zq-server upgrade --finish. After that, zq {former} cannot use the store."
