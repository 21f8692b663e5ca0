# SPDX-License-Identifier: Apache-2.0
"""The arguments of ``zq-server migrate``, the stores that it opens, and its exit code."""

import argparse
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import unquote

from zq.errors import CommitRunning, StartRefused, Unavailable
from zq.logs import holds_password, without_secrets
from zq.model import store_uri
from zq.serving import settings
from zq.serving.migration.procedure import WATCH_SECONDS, Migration, Options, format_time
from zq.serving.migration.record import release
from zq.serving.migration.stores import RESUME_HINT, MigrationIncomplete, Store
from zq.serving.settings import Configuration
from zq.storage import connect, find_driver
from zq.storage.api import Storage

USAGE: Final = "zq-server migrate rocksdb:///var/lib/zq redis://127.0.0.1/0"
# Prefix of an argument that names a file with the URI.
FILE: Final = "@"
EMBEDDED: Final = "rocksdb"
NOT_MOVED: Final = {
    "memory": "A store in memory cannot be migrated: its data is lost when the server stops.",
    **dict.fromkeys(
        ("s3", "swift", "az", "gs"),
        "A store in an object store cannot be migrated directly. Migrate an embedded store: zq-server restore copies "
        "an object store to an embedded store, and zq-server ship copies an embedded store to an object store.",
    ),
}


def run(args: argparse.Namespace) -> int:
    """Run the command. Return 0, or 1 if the migration is not complete."""
    if args.store:
        raise StartRefused(f"--store does not apply to migrate: {USAGE}")
    if args.release:
        return _release(args)
    if len(args.names) != 2:
        raise StartRefused(f"Name the source and the target: {USAGE}")
    source, target = (_read_uri(name) for name in args.names)
    if source == target:
        raise StartRefused("The source and the target must be different stores.")
    with ExitStack() as opened:
        former = Store(opened.enter_context(closing(_open(source))), without_secrets(source))
        new = Store(opened.enter_context(closing(_open(target, is_new=True))), without_secrets(target))
        options = Options(args.project, args.resume, args.drop_stages, WATCH_SECONDS)
        report = partial(print, flush=True)
        try:
            return migrate(former, new, options, report)
        except KeyboardInterrupt:
            report(f"The migration was interrupted. {RESUME_HINT}")
            return 1


def _release(args: argparse.Namespace) -> int:
    """Delete the migration records of a store, so that servers can use the store again. Return 0."""
    if len(args.names) != 1 or args.project or args.resume or args.drop_stages:
        raise StartRefused("Name one store, without other options: zq-server migrate --release rocksdb:///var/lib/zq")
    with closing(_open(_read_uri(args.names[0]))) as storage:
        if not release(storage.documents, storage.now()):
            raise StartRefused("The store is not part of a migration, so servers can already use it.")
    print("Servers can use the store. Do not serve the moved projects from both stores of its migration.")  # noqa: T201
    return 0


def _read_uri(name: str) -> str:
    if not name.startswith(FILE):
        if holds_password(name):
            raise StartRefused(
                "The URI must not contain a password, because every user of this machine could read it: write the URI "
                "to a file, and name the file: @/etc/zq/target.uri."
            )
        return name
    try:
        return Path(name[len(FILE) :]).read_text().strip()
    except (OSError, ValueError) as error:
        raise StartRefused(f"The file {name[len(FILE) :]} with the URI of a store cannot be read.") from error


def _open(uri: str, is_new: bool = False) -> Storage:
    """Open a store. The store must exist, unless ``is_new`` is true.

    Raises ``StartRefused`` if the store does not exist or cannot be migrated.
    """
    find_driver(uri)  # raises for an unknown scheme
    parts = store_uri.split(uri)
    if parts.scheme in NOT_MOVED:
        raise StartRefused(NOT_MOVED[parts.scheme])
    folder = Path(unquote(parts.path))
    try:
        if parts.scheme == EMBEDDED and not is_new and not (folder / "CURRENT").exists():
            raise StartRefused(f"There is no store in {folder}.")
    except OSError as error:
        raise StartRefused(f"The store in {folder} cannot be read. Run the command as the server's user.") from error
    os.environ[settings.variable("storage", "uri")] = uri

    def reject() -> NoReturn:
        raise StartRefused(f"There is no store at {without_secrets(uri)}.")

    return connect(uri, Configuration().current.driver_options, initial=None if is_new else reject)


def migrate(source: Store, target: Store, options: Options, report: Callable[[str], object]) -> int:
    """Copy the projects of the source to the target, and compare the stores. ``report`` prints a line.

    Return 0 if the migration is complete, otherwise 1. If the check of the stores fails, the function raises
    ``StartRefused`` or ``Unavailable``.
    """
    began = time.monotonic()
    migration = Migration(source, target, options, report)
    try:
        record = migration.check()
    except CommitRunning as error:
        raise StartRefused("A commit is under way in one of the stores. Wait ten seconds, and try again.") from error
    checked = time.monotonic()
    try:
        if record.finished is not None:
            migration.finish(record)
            report(
                f"This migration was completed at {format_time(record.finished)}. Later changes to the stores are not "
                "compared."
            )
            return 0
        record = migration.begin(record)
        migration.copy(record)
        report(f"Copied in {time.monotonic() - checked:,.0f} seconds. Comparing both stores.")
        migration.compare(record)
        migration.finish(record)
    except (MigrationIncomplete, StartRefused) as error:
        report(str(error))
        return 1
    except Unavailable as error:
        report(f"{error} {RESUME_HINT}")
        return 1
    report(f"The migration took {time.monotonic() - began:,.0f} seconds.")
    moved = "the source" if options.projects is None else "these projects from the source"
    report(f"Serve the target from now on, and never {moved} again.")
    return 0
