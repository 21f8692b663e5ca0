# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of the local directory in the object store, heartbeats of the owner, and the removal of old data.

A checkpoint limits the part of the log that the next owner must replay.
"""

import hashlib
import logging
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

from zq.errors import StoreDamaged, Unavailable
from zq.storage.object.epochs import CheckpointRef, Head, Proof, Span, log_name, read, write
from zq.storage.object.objects import Objects
from zq.storage.object.shipping import LogCut, Shipper

LOG = logging.getLogger(__name__)
# Maximum size in bytes of a file whose content is stored in the manifest.
MAX_INLINE_SIZE: Final = 4096
# Number of files that are read, written or deleted concurrently.
AT_ONCE: Final = 4
# Seconds between two checks for due work.
TICK: Final = 0.5
# Maximum age of the last checkpoint in seconds, if anything was written since.
MAX_CHECKPOINT_AGE: Final = 3600.0
# Seconds after a failed checkpoint until the next attempt.
RETRY_PAUSE: Final = 10.0
# Maximum number of log records that are removed per check for a fence.
REMOVED_AT_ONCE: Final = 200


class File(msgspec.Struct, frozen=True, array_like=True):
    """A file of a checkpoint. Small content is stored in ``value``, other content in the object ``sst/<digest>``."""

    name: str
    size: int
    digest: str
    value: bytes = b""


class Manifest(msgspec.Struct, frozen=True):
    """The manifest of a checkpoint, stored in ``checkpoint/<epoch>/<position>``.

    The files contain all changes of the log up to ``position``. ``moment`` is the creation time in milliseconds since
    the Unix epoch.
    """

    position: int
    epoch: int
    moment: int
    files: list[File]


class CheckpointRules(NamedTuple):
    """The rules for checkpoints and removals.

    Attributes:
        size: Bytes of log after which a checkpoint is due.
        records: Number of log records after which a checkpoint is due.
        keep: Seconds for which past states can be restored.
        beat: Seconds between two heartbeats.
        rest: Seconds after the takeover during which no log record is removed. During this time, a former owner that
            was suspended may still complete an upload; see ``Proof.after_put``.
    """

    size: int = 64 << 20
    records: int = 10_000
    keep: float = 86400.0
    beat: float = 10.0
    rest: float = 0.0


class Directory(Protocol):
    """The local directory of the store."""

    def snapshot(self, folder: Path) -> LogCut:
        """Hard-link the current files into a new folder, and return the point in the log at which they were linked."""
        ...


def checkpoint_name(mark: CheckpointRef) -> str:
    """Return the object name of a checkpoint's manifest."""
    return f"checkpoint/{mark.epoch}/{mark.position}"


def file_name(digest: str) -> str:
    """Return the object name of a checkpoint's file with this digest."""
    return f"sst/{digest}"


def describe_files(folder: Path, known: dict[str, File]) -> list[File]:
    """Return a ``File`` for each file in a folder.

    Table files of the last checkpoint (``known``, by name) are not read again, because RocksDB never changes a table
    file or reuses its name.
    """

    def one(path: Path) -> File:
        size = path.stat().st_size
        if (former := known.get(path.name)) is not None and former.size == size and path.suffix == ".sst":
            return former
        value = path.read_bytes()
        inline = size <= MAX_INLINE_SIZE and path.suffix != ".sst"
        return File(path.name, size, hashlib.sha256(value).hexdigest(), value if inline else b"")

    return [one(path) for path in sorted(folder.iterdir()) if path.is_file()]


def object_names(files: Sequence[File]) -> list[str]:
    """Return the object names of the files whose content is not in the manifest."""
    return [file_name(file.digest) for file in files if file.size and not file.value]


def upload(objects: Objects, folder: Path, files: Sequence[File], prove: Callable[[], object] = bool) -> None:
    """Upload the files whose content is not in the manifest.

    ``prove`` is called before each upload, and raises an exception if this server may no longer own the store.
    """

    def one(file: File) -> None:
        prove()
        objects.put(file_name(file.digest), (folder / file.name).read_bytes())

    with ThreadPoolExecutor(AT_ONCE, "zq-checkpoint") as writers:
        list(writers.map(one, (file for file in files if object_names([file]))))


def download(objects: Objects, mark: CheckpointRef, folder: Path) -> Manifest:
    """Download a checkpoint to a new folder. Raises ``StoreDamaged`` with the name of a missing or damaged object."""
    manifest = read(objects, checkpoint_name(mark), Manifest)
    if manifest is None:
        raise StoreDamaged(f"The object {checkpoint_name(mark)} is missing.")

    def one(file: File) -> None:
        names = object_names([file])
        value = objects.get(names[0]) if names else file.value
        if value is None:
            raise StoreDamaged(f"The object {names[0]} is missing.")
        if hashlib.sha256(value).hexdigest() != file.digest:
            name = names[0] if names else checkpoint_name(mark)
            raise StoreDamaged(f"The object {name} is damaged: its checksum is wrong.")
        (folder / file.name).write_bytes(value)

    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with ThreadPoolExecutor(AT_ONCE, "zq-restore") as readers:
        list(readers.map(one, manifest.files))
    return manifest


class Checkpointer:
    """The background threads of a store's owner, which create checkpoints, write heartbeats and remove old data."""

    def __init__(
        self,
        objects: Objects,
        proof: Proof,
        shipper: Shipper,
        directory: Directory,
        folder: Path,
        head: Head,
        chain: Sequence[Span],
        manifest: Manifest | None,
        rules: CheckpointRules,
        now: Callable[[], float],
    ) -> None:
        """Prepare the threads without starting them. ``folder`` must be on the file system of the store."""
        self._objects = objects
        self._proof = proof
        self._shipper = shipper
        self._directory = directory
        self._folder = folder
        self._head = head
        self._chain = chain
        self._known = {file.name: file for file in manifest.files} if manifest else {}
        self._rules = rules
        self._now = now
        self._last = manifest.position if manifest else head.removed
        self._last_bytes = 0
        self._began = self._made = self._tried = time.monotonic()
        self._closing = threading.Event()
        self._head_lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._repeat, args=(what, pause), name="zq-checkpoint", daemon=True)
            for what, pause in ((self._run_due, TICK), (self._write_head, rules.beat))
        ]

    def start(self) -> None:
        self._write_head()
        for thread in self._threads:
            thread.start()

    @property
    def head(self) -> Head:
        """The last progress record that this owner has written."""
        return self._head

    @property
    def age(self) -> float:
        """The time in seconds since this owner's last checkpoint, or since the takeover if it has no checkpoint yet."""
        return time.monotonic() - self._made

    def stop(self) -> None:
        """Stop the threads and wait until they end."""
        self._closing.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def release(self, position: int) -> None:
        """Give up ownership, so that a successor need not wait for the owner timeout. Ignore failures.

        ``position`` is the last log position of this owner. If it is negative, do nothing.
        """
        if position >= 0 and not self._proof.fenced:
            with suppress(Unavailable):
                self._write_head(released=position)

    def make(self) -> CheckpointRef:
        """Create a checkpoint of the current state. Raises ``Unavailable`` if a file or upload operation fails."""
        size = self._shipper.stored_bytes
        shutil.rmtree(self._folder, ignore_errors=True)
        try:
            position = self._shipper.wait_for_cut(self._directory.snapshot(self._folder))
            mark = CheckpointRef(position, int(self._now() * 1000), self._proof.epoch)
            files = describe_files(self._folder, self._known)
            names = [checkpoint_name(mark), *object_names(files)]
            self._write_head(unsettled=list(dict.fromkeys([*self._head.unsettled, *names])))
            new = [file for file in files if self._known.get(file.name) != file]
            upload(self._objects, self._folder, new, self._proof.check)
        except OSError as error:
            raise Unavailable from error
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)
        write(self._objects, checkpoint_name(mark), Manifest(position, mark.epoch, mark.moment, files))
        others = [known for known in self._head.checkpoints if checkpoint_name(known) != names[0]]
        left = [name for name in self._head.unsettled if name not in set(names)]
        self._write_head(checkpoints=[*others, mark], unsettled=left)
        self._known = {file.name: file for file in files}
        self._last, self._last_bytes, self._made = position, size, time.monotonic()
        LOG.info("Wrote a checkpoint of the log up to position %d.", position)
        return mark

    def remove(self) -> None:
        """Remove data that no restore needs: log records, old checkpoints, and the objects of incomplete checkpoints.

        Restores need the newest checkpoint and the data of the last ``keep`` seconds. Raises ``Unavailable`` if the
        object store does not respond.
        """
        marks = self._head.checkpoints
        oldest = int((self._now() - self._rules.keep) * 1000)
        old = [mark for mark in marks[:-1] if mark.moment <= oldest]
        if not old and (not self._head.unsettled or self._has_failed):
            return
        self._proof.check_fence()  # a deposed owner must remove nothing, because its successor may need the data
        if gone := old[:-1]:
            left = [mark for mark in marks if mark not in gone]
            names = [name for mark in gone for name in self._names(mark)]
            self._write_head(checkpoints=left, unsettled=list(dict.fromkeys([*self._head.unsettled, *names])))
        if self._head.unsettled:
            kept = {name for mark in self._head.checkpoints for name in self._names(mark)}
            self._delete([name for name in self._head.unsettled if name not in kept])
            self._write_head(unsettled=[])
        first, end = self._head.removed + 1, min(old[-1].position if old else 0, self._head.removed + REMOVED_AT_ONCE)
        if end >= first and time.monotonic() >= self._began + self._rules.rest:
            self._delete([self._log_name(position) for position in range(first, end + 1)])
            self._write_head(removed=end)

    def _names(self, mark: CheckpointRef) -> list[str]:
        manifest = read(self._objects, checkpoint_name(mark), Manifest)
        return [checkpoint_name(mark), *(object_names(manifest.files) if manifest else ())]

    def _delete(self, names: Sequence[str]) -> None:
        with ThreadPoolExecutor(AT_ONCE, "zq-remove") as removers:
            list(removers.map(self._objects.delete, names))

    def _log_name(self, position: int) -> str:
        own = Span(self._proof.epoch, position, self._shipper.by_position)
        span = next((span for span in self._chain if position <= span.last), own)
        return log_name(span.epoch, position, span.by_position)

    def _write_head(self, **changes: object) -> None:
        known = {"acknowledged": self._shipper.acknowledged, "moment": int(self._now() * 1000)}
        with self._head_lock:
            self._head = msgspec.structs.replace(self._head, **known, **changes)
            write(self._objects, f"head/{self._proof.epoch}", self._head)

    @property
    def _has_failed(self) -> bool:
        return self._tried > self._made

    def _is_due(self) -> bool:
        records = self._shipper.acknowledged - self._last
        size = self._shipper.stored_bytes - self._last_bytes
        if not records or time.monotonic() < self._tried + (RETRY_PAUSE if self._has_failed else 0.0):
            return False
        return records >= self._rules.records or size >= self._rules.size or self.age >= MAX_CHECKPOINT_AGE

    def _run_due(self) -> None:
        if self._is_due():
            self._tried = time.monotonic()
            self.make()
        self.remove()

    def _repeat(self, what: Callable[[], object], pause: float) -> None:
        while not self._closing.wait(pause) and not self._proof.fenced:
            try:
                what()
            except Unavailable as error:
                LOG.warning("Maintenance of the object store failed and will be retried: %s", error)
