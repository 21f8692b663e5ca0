# SPDX-License-Identifier: Apache-2.0
"""The commands ``zq-server backup``, ``backup verify`` and ``restore``.

Only the server that has the store open can create a consistent snapshot. ``backup`` requests the snapshot through the
server's control socket. The command then copies the files itself, so that the server's performance does not suffer.
"""

import argparse
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import Final, ParamSpec

from zq.auth.tokens import Tokens
from zq.clock import StoreClock
from zq.errors import StartRefused, Unavailable
from zq.model import store_uri
from zq.serving import control
from zq.serving.features import postpone_expiry
from zq.serving.offline import print_report
from zq.serving.settings.options import OBJECT_SCHEMES
from zq.storage import Backups, backups, find_driver
from zq.storage.api import Storage

P = ParamSpec("P")
# URI scheme of stores that zq can back up.
EMBEDDED: Final = "rocksdb:"
VERIFY: Final = "verify"
DIRECTORY_HINT: Final = "Name the backup directory: zq-server backup /srv/backups --store rocksdb:///var/lib/zq"
BACKUP_HINT: Final = "Name the backup: zq-server backup verify /srv/backups/20261125T100000.000Z"
NO_BACKUPS: Final = {
    "memory": "A store in memory cannot be backed up: its data is lost when the server stops.",
    **dict.fromkeys(
        OBJECT_SCHEMES,
        "A store in an object store needs no separate backup: zq-server restore --at 2026-11-25T10:00:00Z --to "
        "rocksdb:///new restores it as of a point in time.",
    ),
}
OWN_BACKUP: Final = "zq cannot back up a {}: store. Use the tools of the store; backup.md has the commands."
IN_USE: Final = "A server has the store open: add --config with its configuration file."
NOT_RUNNING: Final = (
    "Start the server, which creates the backup. If you do not want to start it, copy the store directory instead."
)
# Number of tokens read per page.
PAGE: Final = 100


def check(args: argparse.Namespace) -> None:
    """Raise ``StartRefused`` if an argument does not apply to the command."""
    of_backup = args.command == "restore" and args.names
    for what, unused in (
        (
            f"{' '.join(args.names)[:100]!r}",
            args.names and args.command not in ("backup", "mode", "restore", "migrate"),
        ),
        ("--keep", args.keep and args.command != "backup"),
        ("--project", args.project and args.command != "migrate"),
        ("--resume", args.resume and args.command != "migrate"),
        ("--drop-stages", args.drop_stages and args.command != "migrate"),
        ("--release", args.release and args.command != "migrate"),
        ("--shift-time", args.shift_time and not of_backup),
        ("--revoke-tokens", args.revoke_tokens and not of_backup),
        ("--json", args.json and args.command != "doctor"),
        ("--check", args.check and args.command),
        ("--wait", args.wait is not None and args.command != "drain"),
        ("--undo", args.undo and args.command != "drain"),
        ("--status or --finish", (args.status or args.finish) and args.command != "upgrade"),
        ("--to, --at or --position", of_backup and (args.to or args.at or args.position is not None)),
    ):
        if unused:
            raise StartRefused(f"{what} does not apply to this command; see zq-server --help.")


def convert_file_errors(command: Callable[P, int]) -> Callable[P, int]:
    """Decorate a command so that it raises ``StartRefused`` instead of ``OSError``."""

    @wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> int:
        try:
            return command(*args, **kwargs)
        except OSError as error:
            raise StartRefused(
                f"{error.filename or 'A file'}: {(error.strerror or str(error)).rstrip('.')}."
            ) from error

    return run


@convert_file_errors
def backup(args: argparse.Namespace, uri: str, socket: str) -> int:
    """Create or verify a backup. Return the exit code. ``socket`` is "" if the server has no control socket."""
    names = args.names
    if names[:1] == [VERIFY]:
        if len(names) != 2 or args.keep:
            raise StartRefused(BACKUP_HINT)
        return print_report(_backups(EMBEDDED).verify(Path(names[1])))
    if len(names) != 1:
        raise StartRefused(DIRECTORY_HINT)
    target, made_of = Path(names[0]), _backups(uri)
    made_of.check_target(target, uri)
    if not socket:
        raise StartRefused("A backup needs the server's control socket, but [server] control is none.")
    try:
        with control.snapshot(socket) as snapshot:
            made = made_of.make(snapshot, target, args.keep)
    except control.NoServer as absence:
        raise StartRefused(f"{absence} {IN_USE if made_of.is_open(uri) else NOT_RUNNING}") from absence
    except Unavailable as failure:
        raise StartRefused(str(failure)) from failure
    print(f"{made.folder} has {made.size:,} bytes, of which {made.copied:,} were copied.")  # noqa: T201
    print(f"Requests were paused for {snapshot.pause * 1000:.0f} ms.")  # noqa: T201
    return 0


@convert_file_errors
def restore(args: argparse.Namespace) -> int:
    """Create a new store from a backup. Return the exit code."""
    if len(args.names) != 1 or not args.store:
        raise StartRefused("Name the backup and the new store: zq-server restore BACKUP --store rocksdb:///var/lib/zq")
    if not args.store.startswith(EMBEDDED):
        raise StartRefused("A backup can be restored only to an embedded store: --store rocksdb:///var/lib/zq.")
    folder = Path(args.names[0])
    shift = postpone_expiry if args.shift_time else None
    use = revoke_tokens if args.revoke_tokens else count_tokens
    done = _backups(args.store).restore(folder, args.store, shift, args.force_clock, use)
    then = datetime.fromtimestamp(done.moment, UTC).isoformat(" ", "seconds")
    since = timedelta(seconds=max(0, round(done.now - done.moment)))
    print(f"{args.store} contains the data as of {then}, {since} ago.")  # noqa: T201
    if args.shift_time:
        print(f"All expiry times except those of tokens were extended by {since}.")  # noqa: T201
    else:
        print(f"{done.expired:,} messages have expired since the backup and were dropped.")  # noqa: T201
    if args.revoke_tokens:
        print(f"{done.tokens:,} tokens were revoked. Create new ones with zq-server token create.")  # noqa: T201
    else:
        print(f"{done.tokens:,} tokens are valid as of the backup, including tokens revoked since.")  # noqa: T201
    print(f"{done.fences:,} fences are restored as of the backup: stop all holders of epochs that were issued since.")  # noqa: T201
    return 0


def count_tokens(storage: Storage) -> int:
    return _each_token(storage, lambda _tokens, _id: None)


def revoke_tokens(storage: Storage) -> int:
    return _each_token(storage, lambda tokens, id: tokens.revoke(id))


def _each_token(storage: Storage, do: Callable[[Tokens, str], object]) -> int:
    tokens = Tokens(storage.documents, StoreClock(storage.now, distrusted_lead=storage.clock_lead))
    count = 0
    after: str | None = ""
    while after is not None:
        page = tokens.list("", after, PAGE)
        for token in page.items:
            do(tokens, token.id)
        count, after = count + len(page.items), page.next
    return count


def _backups(uri: str) -> Backups:
    found = backups(uri)
    if found is None:
        find_driver(uri)  # raises for an unknown scheme
        scheme = store_uri.split(uri).scheme
        raise StartRefused(NO_BACKUPS.get(scheme, OWN_BACKUP.format(scheme)))
    return found
