# SPDX-License-Identifier: Apache-2.0
"""Backups of a RocksDB directory in a target folder.

    20261125T132152.345Z             a complete backup: the files of the directory, and MANIFEST.json, which lists them
    20261125T132152.345Z.partial     an incomplete backup, which is being created or removed, or was interrupted
    zq-backup.lock                   a file that is locked while a backup is created

Unchanged files are linked from earlier backups, so a backup needs space only for new files. The module does not use
RocksDB: it copies a snapshot, whose files do not change.
"""

import fcntl
import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from msgspec import Meta, MsgspecError, Struct, json, structs

from zq import __version__
from zq.errors import StartRefused
from zq.model.stats import Snapshot

NAME: Final = re.compile(r"[0-9]{8}T[0-9]{6}\.[0-9]{3}Z", re.ASCII)
PARTIAL: Final = ".partial"
MANIFEST: Final = "MANIFEST.json"
CURRENT: Final = "CURRENT"
LOCK: Final = "zq-backup.lock"
# File names that a manifest may list. They cannot be paths.
LISTED: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*", re.ASCII)
# Maximum size in bytes of a manifest.
MAX_MANIFEST_BYTES: Final = 64 << 20
# The last second of the year 9999, the latest time that a backup's name can have.
LATEST: Final = 253402300799
# Number of bytes that are copied at a time.
CHUNK: Final = 1 << 20


class File(Struct, frozen=True):
    """A file of a backup. ``size`` is in bytes, and ``sha256`` is in hexadecimal."""

    name: str
    size: Annotated[int, Meta(ge=0)]
    sha256: str


class Manifest(Struct, frozen=True, kw_only=True):
    """The description of a backup.

    ``moment`` is the time of the snapshot by the store's clock, as Unix time in seconds. ``sequence`` is the RocksDB
    sequence number up to which the backup contains all writes. ``checksum`` is the SHA-256 of the manifest with an
    empty checksum. The level of the store is not repeated here: it is in the store's files, and a restore checks it.
    """

    version: str
    layout: str
    moment: Annotated[float, Meta(ge=0, le=LATEST)]
    sequence: int
    files: list[File]
    checksum: str = ""


class NewBackup(NamedTuple):
    """A new backup; ``copied`` is the size in bytes of the files that were not linked to an earlier backup."""

    folder: Path
    size: int
    copied: int


def make(snapshot: Snapshot, target: Path, layout: str, keep: int | None) -> NewBackup:
    """Create a backup of ``snapshot`` in ``target``. Then remove all backups except the newest ``keep``.

    If ``keep`` is None or 0, remove no backups.
    """
    with _locked(target):
        partial = target / f"{_name_of(snapshot.moment)}{PARTIAL}"
        try:
            partial.mkdir(mode=0o700)
            made = _fill(partial, snapshot, layout, _known_files(target))
            folder = partial.with_suffix("")
            partial.rename(folder)
            sync(target)
        except FileNotFoundError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise StartRefused(
                f"{error.filename} disappeared while it was being copied. Was the server restarted?"
            ) from error
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise StartRefused(f"The backup failed: {_reason(error)}.") from error
        snapshot.is_complete = True
        try:
            for old in complete_backups(target)[: -keep if keep else 0]:
                _remove(old)
        except OSError as error:
            raise StartRefused(
                f"The backup {folder} is complete, but older backups could not be deleted: {_reason(error)}."
            ) from error
        return made._replace(folder=folder)


def check_target(target: Path, store: Path) -> None:
    """Raise ``StartRefused`` if the folder ``target`` does not exist or is part of the store."""
    if not target.is_dir():
        is_there = "is not a directory" if target.exists() else "does not exist"
        raise StartRefused(f"{target} {is_there}. Create a directory for the backups of this store.")
    if Path(os.path.realpath(target)).is_relative_to(os.path.realpath(store)):
        raise StartRefused(
            f"{target} is inside the store. Choose a directory outside it, so that a loss of the store does not affect "
            "the backups."
        )


def read(folder: Path) -> Manifest:
    """Read and check the manifest of a backup. Raises ``StartRefused`` if the folder is not a complete backup."""
    if os.path.realpath(folder).endswith(PARTIAL):
        raise StartRefused(f"{folder} is an incomplete backup.")
    try:
        with _open(folder / MANIFEST) as file:
            text = file.read(MAX_MANIFEST_BYTES)
    except OSError as error:
        known = complete_backups(folder) if isinstance(error, FileNotFoundError) and folder.is_dir() else []
        hint = f" It contains backups: name one of them, such as {known[-1]}." if known else ""
        raise StartRefused(f"{folder} is not a backup: {MANIFEST} cannot be read ({error.strerror}).{hint}") from error
    try:
        manifest = json.decode(text, type=Manifest)
    except MsgspecError as error:
        raise StartRefused(f"{folder / MANIFEST} is damaged: it is not in the format of zq.") from error
    if manifest.checksum != _checksum(manifest):
        raise StartRefused(f"{folder / MANIFEST} is damaged or was modified: its checksum is wrong.")
    for name in (file.name for file in manifest.files):
        if LISTED.fullmatch(name) is None or name == MANIFEST:
            raise StartRefused(f"{folder / MANIFEST} lists {name[:100]!r}, which is not a file of a store.")
    if not any(file.name == CURRENT for file in manifest.files):
        raise StartRefused(f"{folder / MANIFEST} does not list the file {CURRENT}, which every store has.")
    return manifest


def find_damage(folder: Path, manifest: Manifest, to: Path | None = None) -> list[str]:
    """Return one sentence for each missing or changed file of a backup.

    If ``to`` is given, also copy the files to this folder.
    """
    found = []
    for listed in manifest.files:
        try:
            source = _open(folder / listed.name)
        except OSError as error:
            found.append(f"{listed.name} cannot be read: {error.strerror}.")
            continue
        with source:
            size, digest = _copy(source, None if to is None else to / listed.name)
        if (size, digest) != (listed.size, listed.sha256):
            found.append(f"{listed.name} is damaged or was modified: its size or its SHA-256 hash has changed.")
    return found


def complete_backups(target: Path) -> list[Path]:
    """Return the complete backups in a folder, oldest first."""
    found = (path for path in target.iterdir() if NAME.fullmatch(path.name) and not path.is_symlink())
    return sorted(path for path in found if (path / MANIFEST).is_file())


def sync(folder: Path) -> None:
    """Sync a folder to disk, so that its entries survive a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Lock the folder against concurrent backups, and remove incomplete backups."""
    with ExitStack() as kept:
        try:
            lock = kept.enter_context((target / LOCK).open("a"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StartRefused(f"Another backup in {target} is running. Try again after it has finished.") from error
        except OSError as error:
            raise StartRefused(f"Cannot create a backup in {target}: {_reason(error)}.") from error
        for path in target.glob(f"*{PARTIAL}"):
            if NAME.fullmatch(path.stem):
                shutil.rmtree(path, ignore_errors=True)
        yield


def _fill(partial: Path, snapshot: Snapshot, layout: str, known: dict[tuple[str, int, str], Path]) -> NewBackup:
    """Write the files and the manifest of a backup to the folder ``partial``, and sync them to disk.

    ``known`` has the files of earlier backups by name, size and hash. A file in ``known`` is linked if possible.
    """
    files, copied = [], 0
    for source in sorted(Path(snapshot.folder).iterdir()):
        with _open(source) as content:
            size, digest = source.stat().st_size, hashlib.file_digest(content, "sha256").hexdigest()
            files.append(File(source.name, size, digest))
            if not _link(known.get((source.name, size, digest)), partial / source.name):
                content.seek(0)
                if _copy(content, partial / source.name) != (size, digest):
                    raise OSError(0, "it changed during the copy", str(source))
                copied += size
    manifest = Manifest(
        version=__version__, layout=layout, moment=snapshot.moment, sequence=snapshot.sequence, files=files
    )
    manifest = structs.replace(manifest, checksum=_checksum(manifest))
    with (partial / MANIFEST).open("xb") as file:
        file.write(json.format(json.encode(manifest), indent=1))
        file.flush()
        os.fsync(file.fileno())
    sync(partial)
    return NewBackup(partial, sum(file.size for file in files), copied)


def _known_files(target: Path) -> dict[tuple[str, int, str], Path]:
    found: dict[tuple[str, int, str], Path] = {}
    for folder in complete_backups(target):
        with suppress(StartRefused):
            found |= {(file.name, file.size, file.sha256): folder / file.name for file in read(folder).files}
    return found


def _link(former: Path | None, to: Path) -> bool:
    if former is None:
        return False
    with suppress(OSError):  # the file was removed, or the file system does not support another link
        os.link(former, to, follow_symlinks=False)
        return True
    return False


def _copy(source: BufferedReader, to: Path | None) -> tuple[int, str]:
    digest, size = hashlib.sha256(), 0
    with to.open("xb") if to is not None else open(os.devnull, "wb") as file:
        while chunk := source.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            file.write(chunk)
        if to is not None:
            file.flush()
            os.fsync(file.fileno())
    return size, digest.hexdigest()


def _open(path: Path) -> BufferedReader:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "It is not a file", str(path))
    return os.fdopen(descriptor, "rb")


def _remove(backup: Path) -> None:
    """Remove a backup. Rename the backup first, so that it does not seem complete if the removal is interrupted."""
    gone = backup.with_name(f"{backup.name}{PARTIAL}")
    backup.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def _checksum(manifest: Manifest) -> str:
    return hashlib.sha256(json.encode(structs.replace(manifest, checksum=""))).hexdigest()


def _name_of(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3] + "Z"


def _reason(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    hint = " The server's user must own the folder and its backups" if isinstance(error, PermissionError) else ""
    return f"{where}{(error.strerror or 'it failed').strip('.')}{'.' if hint else ''}{hint}"
