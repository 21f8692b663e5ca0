# SPDX-License-Identifier: Apache-2.0
"""Records of the processes that share a store, and a thread in each process that watches its level and migrations.

The level of a store is the version of its data format. ``zq-server upgrade --finish`` raises the level only if every
recorded process supports the new level. A starting process publishes its record and then checks the level. The command
announces the new level and then reads the records. Therefore, either the process does not start, or the command finds
the record of the process.

For the same reason, a starting process publishes its record and then reads the records of migrations. ``zq-server
migrate`` writes its records and then looks for records of processes. The thread ends the process when it finds the
record of a migration.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final
from uuid import uuid4

import msgspec
from msgspec import Struct

from zq import __version__
from zq.errors import StartRefused, Unavailable
from zq.model import Seconds, levels
from zq.model.documents import DocumentRef
from zq.serving import lifecycle
from zq.serving.migration.record import check_served
from zq.storage.api import DocumentController, Storage
from zq.storage.capabilities import LevelledStorage
from zq.storage.pooling import PooledStorage

LOG = logging.getLogger(__name__)
# Project and kind of the documents.
DEPLOYMENT: Final = ""
KIND: Final = "process"
# Seconds between two publications of a record, and seconds after which it expires.
INTERVAL: Final = 5.0
TTL: Final = 15.0
# Seconds after which a failed publication, or a read that would end the process, is repeated.
RETRY_INTERVAL: Final = 1.0
# Maximum seconds to wait for the thread to end.
STOP_TIMEOUT: Final = 1.0
END_AT_ONCE: Final = partial(lifecycle.give_up, waits=False)
# Number of records in one page.
PAGE: Final = 256


class ProcessRecord(Struct, frozen=True):
    """A record that a running process publishes in the store, so that an upgrade knows the process's version.

    Attributes:
        server: Host and port, which are the same for all processes of a server.
        level: The highest level (version of the data format) that the process supports.
    """

    server: str
    process: int
    version: str
    level: int


_decoder: Final = msgspec.json.Decoder(ProcessRecord)


def read_processes(documents: DocumentController, now: Seconds) -> list[ProcessRecord]:
    """Return the records of all processes. Raises ``Unavailable`` if the store is unavailable."""
    found, after = list[ProcessRecord](), ""
    while True:
        page = documents.list(DEPLOYMENT, KIND, "", after, PAGE, now)
        found += [_decoder.decode(document.value) for document in page.items]
        if len(page.items) < PAGE:
            return sorted(found, key=lambda one: (one.server, one.process))
        after = page.items[-1].ref.name


def catalogue_of(storage: Storage) -> Storage:
    """Return the store that contains the documents: the catalogue of a pooled store, or the store itself."""
    return storage.catalogue if isinstance(storage, PooledStorage) else storage


class LevelWatch:
    """A thread that updates the record of this process, and reads the store's level (version of the data format).

    Args:
        server: The port of the server, or the name of the program.
        is_shared: Whether other processes may use the store. If not, there is no record and no thread.
        report: Called with the level after each read.

    Raises:
        StartRefused: This version does not support the level of the store, or ``check_served`` rejects the
            store. The record of this process is deleted.
        Unavailable: The store is unavailable.
    """

    def __init__(
        self,
        storage: Storage,
        server: int | str,
        is_shared: bool,
        report: Callable[[int], object] = int,
        give_up: Callable[[], object] = END_AT_ONCE,
    ) -> None:
        self._store = catalogue_of(storage)
        self._ref = DocumentRef(DEPLOYMENT, KIND, uuid4().hex)
        name = f"{socket.gethostname()}:{server}"
        self._record = msgspec.json.encode(ProcessRecord(name, os.getpid(), __version__, levels.supported()))
        self._report = report
        self._give_up = give_up
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._published: Seconds | None = None
        try:
            if is_shared:
                self._publish()
                self._check_migrations()
                self._thread = threading.Thread(target=self._run, name="zq-level", daemon=True)
            self._seen = self._read()
            report(levels.check(self._seen).level)
        except (StartRefused, Unavailable):
            self.stop()
            raise

    def start(self) -> None:
        if self._thread is not None:
            self._thread.start()

    def stop(self) -> None:
        """End the thread and delete the record, so that an upgrade need not wait until the record expires.

        If the last refresh has failed or has not ended, the method does not delete the record, because the
        store may be slow. The record then expires.
        """
        self._stopping.set()
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(STOP_TIMEOUT)
        if self._published is not None:
            with suppress(Unavailable):
                self._store.documents.delete(self._ref, self._published)

    def _run(self) -> None:
        pause = 0.0  # the process may have been suspended since the constructor checked the store
        while not self._stopping.wait(pause):
            pause = RETRY_INTERVAL
            try:
                self.refresh()
                pause = INTERVAL
            except Unavailable as error:
                LOG.warning("The level of the store cannot be read: %s", error)
            except Exception:  # the thread must survive every failure
                LOG.critical("Unexpected error while reading the level of the store.", exc_info=True)

    def refresh(self) -> None:
        """Read the store's level (version of the data format) and update the record of this process.

        If this version of zq does not support the level, or if a migration has begun, end the process at once. Raises
        ``Unavailable`` if the store is unavailable.
        """
        # The store is read first, so that the process ends even if the store rejects writes. While a process was paused
        # or partitioned, its record may have expired, and an upgrade or a migration may have finished. The process can
        # then use the store until it reads the new level or the record of the migration.
        self._published = None
        try:
            self._check_migrations()
            level = self._find_level()
        except StartRefused as refusal:
            LOG.critical("The process ends: %s", refusal)
            self._give_up()
            return
        self._report(level)
        self._publish()

    def _check_migrations(self) -> None:
        """Raise ``StartRefused`` if a migration has begun.

        Look twice, because a migration that finds the record of this process removes its own records again.
        """
        try:
            check_served(self._store.documents, self._store.now())
        except StartRefused:
            self._stopping.wait(RETRY_INTERVAL)
            check_served(self._store.documents, self._store.now())

    def _find_level(self) -> int:
        """Return the store's level (version of the data format).

        If the level is lower than the last level that this process has read, a failover of the store has lost a change.
        In this case, write the higher level again. Raises ``StartRefused`` if this version of zq cannot decode or does
        not support the level.
        """
        record = self._read()
        level = levels.decode(record).level
        if level > levels.supported():
            raise StartRefused(f"The store has level {level}, and zq {__version__} does not support it.")
        seen = levels.decode(self._seen).level
        if level < seen and isinstance(self._store, LevelledStorage):
            LOG.warning("The store has lost a change of its level. The change is repeated.")
            self._store.replace_level(record, self._seen or b"")
            return seen
        self._seen = record
        return level

    def _read(self) -> bytes | None:
        return self._store.read_level() if isinstance(self._store, LevelledStorage) else None

    def _publish(self) -> None:
        self._published, now = None, self._store.now()  # not the server's clock, which follows the store's clock slowly
        self._store.documents.put(self._ref, self._record, now, expires=now + TTL, is_vital=True)
        self._published = now
