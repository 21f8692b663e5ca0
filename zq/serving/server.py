# SPDX-License-Identifier: Apache-2.0
"""``zq-server``: its command line, and the start of the application under Granian or gunicorn.

``zq.serving.server:app`` also runs under other WSGI servers, with settings from the environment and the file in
``ZQ_CONFIG``. Each serving process opens the store itself, because an embedded store cannot be used after a fork.
"""

import argparse
import atexit
import logging
import os
import signal
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec import structs

from zq import __version__, audit, logs
from zq.auth.policy import Policy
from zq.clock import StoreClock
from zq.core.modes import Modes
from zq.errors import Deposed, StartRefused, Unavailable
from zq.events import NO_EVENTS
from zq.http.app import create_app
from zq.http.application import App
from zq.http.commands import Command, SendRequest, request
from zq.model import levels
from zq.model.levels import Initial
from zq.serving import (
    backup_command,
    control,
    credential_commands,
    doctor,
    draining,
    lifecycle,
    listening,
    mode_command,
    offline,
    settings,
    startup,
    systemd,
    upgrade_command,
)
from zq.serving.application import Application, make_broker, open_store, open_stores
from zq.serving.draining import Drain, DrainControl
from zq.serving.features import COMMANDS as FEATURE_COMMANDS
from zq.serving.features import command_features, create_followers
from zq.serving.metrics import multiprocess
from zq.serving.migration import command as migration
from zq.serving.mode_command import ModeControl
from zq.serving.requirements import read_secrets
from zq.serving.settings import Configuration, Settings
from zq.serving.settings.options import OBJECT_SCHEMES
from zq.serving.supervisor import Supervisor
from zq.serving.tls import ServerTls
from zq.storage import find_driver, owner, prepare
from zq.storage.api import Storage

if TYPE_CHECKING:
    from zq.serving import granian

LOG = logging.getLogger(__name__)
PRIVATE = 0o077
"""The umask of the server. Its files are private, because an embedded store contains the messages of all tenants."""

CLOSE_TIMEOUT: Final = 10.0
"""Seconds that a worker gets to close its store after the graceful timeout."""

OFFLINE: Final[dict[str, Callable[[str, argparse.Namespace], int]]] = {
    "check-store": lambda uri, _: offline.check_store(uri),
    "owner": lambda uri, _: offline.print_owner(uri),
    "restore": lambda uri, given: (
        backup_command.restore(given) if given.names else offline.restore_store(uri, given.to, given.at, given.position)
    ),
    "salvage": lambda uri, given: offline.salvage_store(uri, given.to),
    "ship": lambda uri, given: offline.ship_store(uri, given.to),
}
"""Commands that open the store themselves, by name."""
COMMANDS: Final[dict[str, Command]] = {
    command.name: command for command in (credential_commands.COMMAND, *FEATURE_COMMANDS)
}
"""Commands that administer credentials, by name."""


def _open(configuration: Configuration, tls: ServerTls | None, drain: Drain) -> Application:
    chosen = configuration.current
    logs.configure(chosen.log.format, chosen.log.level)
    try:
        made = Application(configuration, tls, drain)
    except Deposed as error:  # another server has taken over the store
        LOG.critical("%s", error)
        lifecycle.give_up()
    if chosen.server.control:
        operations: dict[str, control.Operation] = {
            draining.PATH: DrainControl(drain, chosen.server.engine == "granian"),
            mode_command.PATH: ModeControl(made.broker.modes),
            upgrade_command.PATH: made.upgrade(),
        }
        control.serve(chosen.server.control, made.app, made.snapshot, operations)
    return made


def open_app(
    configuration: Configuration, tls: ServerTls | None = None, drain: Drain | None = None
) -> Callable[..., Iterable[bytes]]:
    """Open the store and return the WSGI application.

    Call this function only for an HTTP server that has its own signal handlers.
    """
    made = _open(configuration, tls, drain or Drain())
    end = partial(lifecycle.begin_stopping, 0, made.broker.end_waiting)
    calls: dict[signal.Signals, Callable[[], object]] = dict.fromkeys(lifecycle.END_SIGNALS, end)
    if not lifecycle.listen(calls | {lifecycle.RELOAD: partial(startup.reload, configuration, made.apply)}):
        LOG.warning("Waiting requests will delay shutdown, because the application was not loaded in the main thread.")
    return made.outermost()


def _open_worker_application(
    configuration: Configuration, tls: ServerTls | None, drain: Drain
) -> "granian.WorkerApplication":
    from zq.serving import granian

    made = _open(configuration, tls, drain)
    reload = partial(startup.reload, configuration, made.apply)
    return granian.WorkerApplication(
        made.outermost(), made.app, made.features, made.broker.end_waiting, reload, drain, tls
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``zq-server`` and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    os.umask(PRIVATE)
    if arguments and arguments[0] in COMMANDS:
        return _run_credential_command(COMMANDS[arguments[0]], arguments[1:])
    given = _parser().parse_intermixed_args(arguments)
    if given.command or given.init_store or given.check:
        lifecycle.allow_reload()  # a command does not reload, so SIGHUP from a closed terminal must end it
    if given.sample_config:
        settings.print_sample()
        return 0
    try:
        _export_options(given)
        backup_command.check(given)
        if given.command == "doctor":
            logs.configure("text", "ERROR")  # the checks report the drivers' warnings
            return doctor.examine(Configuration, given.json)
        configuration = Configuration()
    except StartRefused as refusal:
        return _reject(refusal)
    chosen = configuration.current
    logs.configure(chosen.log.format, chosen.log.level)
    try:
        if given.check:
            return doctor.check_start(chosen)
        if given.command == "migrate":
            return migration.run(given)
        if given.command == "backup":
            return backup_command.backup(given, chosen.storage.uri, chosen.server.control)
        if given.command == "drain":
            return draining.run(given, chosen.server.control)
        if given.command == "mode":
            return mode_command.run(given, chosen.server.control, partial(_open_modes, chosen))
        if given.command == "upgrade":
            socket, pause = ("", upgrade_command.RECORD_WAIT) if chosen.shared_store else (chosen.server.control, 0)
            return upgrade_command.run(given, socket, lambda: closing(_open_existing(chosen)), pause)
        if given.command in OFFLINE:
            return OFFLINE[given.command](chosen.storage.uri, given)
        if given.command == "rekey":
            return _rekey(chosen)
        if given.init_store:
            prepared = prepare(chosen.storage.uri, chosen.driver_options)
            print("The store is prepared." if prepared else "This store needs no preparation.")  # noqa: T201
            return 0
        return _serve(configuration)
    except (StartRefused, Unavailable) as refusal:
        code = _reject(refusal)
        return lifecycle.START_REFUSED_EXIT_CODE if given.command else code


def _serve(configuration: Configuration) -> int:
    systemd.adopt()
    chosen = configuration.current
    tls = ServerTls(chosen.server) if chosen.server.tls_cert else None
    _check_start(configuration)
    if chosen.shared_store:  # several processes may serve the store
        multiprocess.begin()
    reload, lost, drain = partial(startup.reload, configuration), multiprocess.forget, Drain()
    if chosen.server.engine == "granian":
        patience = chosen.server.drain_delay + chosen.server.graceful_timeout + CLOSE_TIMEOUT
        work = partial(_run_worker, configuration, tls, drain)
        return Supervisor(chosen.server.workers, work, reload, lost, patience).run()
    from zq.serving import gunicorn

    return gunicorn.run(chosen, partial(open_app, configuration, tls, drain), reload, lost, drain.is_leaving, tls)


def _run_worker(configuration: Configuration, tls: ServerTls | None, drain: Drain, number: int) -> int:
    from zq.serving import granian

    try:
        opens = partial(_open_worker_application, configuration, tls, drain)
        return granian.serve(configuration.current, opens, number)
    except (StartRefused, Unavailable) as refusal:
        return _reject(refusal)


def _run_credential_command(command: Command, arguments: Sequence[str]) -> int:
    lifecycle.allow_reload()  # a command does not reload, so SIGHUP from a closed terminal must end it
    given = credential_commands.parse(command, arguments)
    try:
        _export_options(given)
        chosen = Configuration().current
        logs.configure(chosen.log.format, "WARNING")
        return credential_commands.run(command, given, _connect(chosen, may_create=given.verb == "create"))
    except (StartRefused, Unavailable) as refusal:
        return _reject(refusal)


def _open_in_process(chosen: Settings, may_create: bool) -> App:
    audit.configure(chosen.log.audit)
    storage = _open_or_create(chosen) if may_create else _open_existing(chosen, open_store)
    atexit.register(storage.close)
    clock = StoreClock(storage.now, distrusted_lead=storage.clock_lead)
    broker = make_broker(chosen, storage, clock, NO_EVENTS, create_followers(chosen, storage, clock))
    atexit.register(broker.trail.finish)  # must run before the store is closed
    broker.modes.refresh(has_low_space=False)
    return create_app(broker, features=command_features(broker, chosen))


def _open_or_create(chosen: Settings) -> Storage:
    """Open the store. If it is new, print a line to standard error, because its URI may be a typo."""
    created = list[bytes | None]()

    def initial() -> bytes | None:
        created.append(levels.initial())
        return created[-1]

    storage = open_store(_without_takeover(chosen), initial)
    if created:
        line = f"Created the store {chosen.storage.uri}. Servers on other stores reject this credential."
        print(logs.without_secrets(line), file=sys.stderr)  # noqa: T201
    return storage


@contextmanager
def _open_modes(chosen: Settings) -> Iterator[Modes]:
    with closing(_open_existing(chosen, open_store)) as storage:
        yield Modes(storage.documents, StoreClock(storage.now, distrusted_lead=storage.clock_lead))


def _open_existing(chosen: Settings, opens: Callable[[Settings, Initial], Storage] = open_stores) -> Storage:
    """Open the existing store and, by default, its pools.

    Raises ``StartRefused`` if there is no store, or if the store is in an object store and a running server owns it.
    """
    owner(chosen.storage.uri)  # raises the error if there is no store in the object store

    def reject() -> NoReturn:
        raise StartRefused(f"There is no store at {logs.without_secrets(chosen.storage.uri)}.")

    return opens(_without_takeover(chosen), reject)


def _without_takeover(chosen: Settings) -> Settings:
    """Return the settings of a command, which must not depose a server that owns a store in an object store."""
    if chosen.storage.uri.partition(":")[0] not in OBJECT_SCHEMES:
        return chosen
    return structs.replace(chosen, driver_options=chosen.driver_options | {"takeover": "refuse"})


def _connect(chosen: Settings, may_create: bool = False) -> SendRequest:
    """Return a function that sends requests to the running server, or to an application that opens the store.

    ``may_create`` allows a new store: the first credential may be created before the first start of a server.
    """
    return credential_commands.connect(chosen.server.control, partial(_open_in_process, chosen, may_create))


def _rekey(chosen: Settings) -> int:
    """Wrap all data keys with the first master key. Return the exit code: 1 if data keys need another master key."""
    done = request(_connect(chosen), "POST", "/v2/admin/rekey")
    print(f"The keys of {done['projects']} projects are encrypted with the master key {done['master_key']}.")  # noqa: T201
    if done["left"]:
        print(  # noqa: T201
            f"{done['left']} of these projects also have data keys that need another master key. Keep all master keys, "
            "and look for damaged data keys in the log. If there are none, a server still encrypts with another master "
            "key: send HUP to all servers, and repeat the command."
        )
    return int(done["left"] > 0)


def _check_start(configuration: Configuration) -> None:
    chosen = configuration.current
    warnings = [*startup.check_exposure(chosen), *settings.misspelt_variables(os.environ)]
    startup.check_engine(chosen.server.engine)
    find_driver(chosen.storage.uri)
    Policy(chosen.auth.policy_file)
    audit.configure(chosen.log.audit)
    read_secrets(chosen)
    listening.check(chosen.server.bind, chosen.server.port)
    for line in startup.startup_lines(chosen):
        LOG.info(line)
    for warning in [*warnings, *startup.find_address_conflicts(chosen)]:
        LOG.warning(warning)
    lifecycle.defer_reload()  # until the HTTP server can handle it
    if chosen.shared_store:
        # Report an error once here, not once per worker.
        with closing(open_store(chosen)) as storage:
            startup.log_options(configuration, storage)


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors do not contain passwords."""

    def error(self, message: str) -> NoReturn:
        super().error(logs.without_secrets(message))


# The commands with their operands, as shown in the help.
_SUMMARIES: Final = {
    "backup DIRECTORY": "create a backup of an embedded store in the directory, through the running server",
    "backup verify BACKUP": "check that a backup is complete and unchanged",
    "check-store": "check that an embedded store without a running server is readable and consistent",
    "doctor": "check the configuration, the machine, the server and the store, and print what to do",
    "drain": "report that the server is not ready, and return when no request is in progress",
    "migrate SOURCE TARGET": "copy a store to an empty store; both are URIs, and no server may use them",
    "mode [MODE]": "print the mode of all servers on the store, or set it: normal, no_posts (no new messages) or "
    "read_only (no changes)",
    "owner": "print which server owns a store in an object store",
    "rekey": "wrap all data keys with the first master key of the file, and use new data keys from now on",
    "restore [BACKUP]": "create a new embedded store (--to) from a backup, or from a store in an object store",
    "salvage": "copy the readable data of a damaged embedded store to a new store (--to), and list the losses",
    "ship": "copy an embedded store to an object store (--to)",
    "upgrade": "print the level of the store and the versions of its servers, or raise the level after all servers "
    "were upgraded",
}


def _help_lines(usage: str, summary: str) -> str:
    return textwrap.fill(
        summary, 79, initial_indent=f"  {usage:22}", subsequent_indent=" " * 24, break_on_hyphens=False
    )


def _parser() -> argparse.ArgumentParser:
    summaries = _SUMMARIES | {
        f"{name} ...": f"{each.summary}: zq-server {name} --help" for name, each in COMMANDS.items()
    }
    parser = Parser(
        prog="zq-server",
        description="Run the zq queue service over HTTP or, with a command, manage a server or a store.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(["commands:", *(_help_lines(*summary) for summary in sorted(summaries.items()))]),
    )
    parser.add_argument(
        "command",
        metavar="COMMAND",
        nargs="?",
        choices=sorted({usage.split()[0] for usage in summaries}),
        help="a command of the list below; without a command, the server runs",
    )
    parser.add_argument("names", metavar="NAME", nargs="*", help="the operands of the command, as in the list below")
    parser.add_argument(
        "--keep", metavar="N", type=_count, help="backup: number of newest backups to keep in the directory"
    )
    parser.add_argument(
        "--shift-time", action="store_true", help="restore: extend all expiry times by the time since the backup"
    )
    parser.add_argument("--revoke-tokens", action="store_true", help="restore: revoke all tokens in the backup")
    parser.add_argument(
        "--project", metavar="P", action="append", help="migrate: move only this project; repeatable (default all)"
    )
    parser.add_argument("--resume", action="store_true", help="migrate: continue an interrupted migration")
    parser.add_argument("--drop-stages", action="store_true", help="migrate: drop the stages of open transactions")
    parser.add_argument(
        "--release", action="store_true", help="migrate: let servers use the store NAME despite its migration"
    )
    parser.add_argument(
        "--wait",
        metavar="S",
        type=_seconds,
        help=f"drain: maximum seconds until the command returns (default {draining.DEFAULT_WAIT})",
    )
    parser.add_argument("--undo", action="store_true", help="drain: report that the server is ready again")
    upgrade = parser.add_mutually_exclusive_group()
    upgrade.add_argument("--status", action="store_true", help="upgrade: change nothing (default)")
    upgrade.add_argument(
        "--finish",
        action="store_true",
        help="upgrade: raise the level of the store; earlier versions of zq then cannot use it",
    )
    parser.add_argument("--to", metavar="URI", help="URI of the new store for salvage, restore and ship")
    parser.add_argument("--at", metavar="TIME", help="restore: time to restore to, such as 2026-11-25T10:00:00Z")
    parser.add_argument("--position", metavar="N", type=int, help="restore: log position to restore to")
    parser.add_argument("--bind", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", metavar="N", type=_port, help="port to listen on (default 8888)")
    parser.add_argument(
        "--store", metavar="URI", help="store URI, such as rocksdb:///var/lib/zq (default rocksdb:var/zq)"
    )
    parser.add_argument("--config", metavar="FILE", help="configuration file; --sample-config prints an example")
    parser.add_argument("--engine", choices=["auto", "gunicorn", "granian"], help="HTTP server (default auto)")
    parser.add_argument(
        "--force-clock",
        action="store_true",
        help="accept this machine's clock even if it is far ahead of the store's last use",
    )
    parser.add_argument("--wait-for-store", action="store_true", help="wait until the store is available")
    parser.add_argument(
        "--init-store",
        action="store_true",
        help="create the store's tables, indexes and scripts with administrator rights, and exit",
    )
    parser.add_argument(
        "--check", action="store_true", help="check the configuration, the files that it names and the store, and exit"
    )
    parser.add_argument("--json", action="store_true", help="doctor: print JSON lines")
    parser.add_argument("--sample-config", action="store_true", help="print a configuration file with all options")
    parser.add_argument("--version", action="version", version=f"zq {__version__}")
    return parser


def _port(text: str) -> str:
    if not text.isascii() or not text.isdigit() or int(text[:9]) > 65535:
        raise argparse.ArgumentTypeError(f"the port must be a number from 0 to 65535, not {text!r}")
    return text


def _seconds(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text[:9]) > draining.MAX_WAIT:
        raise argparse.ArgumentTypeError(f"the time must be from 0 to {draining.MAX_WAIT} seconds, not {text!r}")
    return int(text)


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 100_000:
        raise argparse.ArgumentTypeError(f"the number of backups must be from 1 to 100,000, not {text!r}")
    return int(text)


def _export_options(args: argparse.Namespace) -> None:
    """Copy command-line options to the environment, where the serving processes read them.

    Raises ``StartRefused`` if the store URI contains a password, because other users can see command lines.
    """
    if args.store and logs.holds_password(args.store):
        raise StartRefused(
            "--store must not contain a password, because every user of this machine could read it: use "
            "OS_STORAGE__URI or the configuration file."
        )
    if args.config:
        os.environ[settings.CONFIG_VARIABLE] = os.path.abspath(args.config)
    for option, group, value in (
        ("bind", "server", args.bind),
        ("port", "server", args.port),
        ("engine", "server", args.engine),
        ("uri", "storage", args.store),
        ("wait", "storage", "true" if args.wait_for_store else None),
        ("max_clock_jump", "storage:rocksdb", "0" if args.force_clock else None),
        ("max_clock_jump", "storage:object", "0" if args.force_clock else None),
    ):
        if value is not None:
            os.environ[settings.variable(group, option)] = value


def _reject(refusal: Exception) -> int:
    """Print an error and return the exit code.

    If the store is unavailable, the exit code is 1, so that systemd starts the server again.
    """
    print(f"zq-server: {logs.without_secrets(str(refusal))}", file=sys.stderr)  # noqa: T201
    return 1 if isinstance(refusal, Unavailable) else lifecycle.START_REFUSED_EXIT_CODE


def __getattr__(name: str) -> object:
    if name != "app":
        raise AttributeError(name)
    try:
        app = open_app(Configuration())
    except (StartRefused, Unavailable) as refusal:
        sys.exit(_reject(refusal))
    globals()[name] = app
    return app


if __name__ == "__main__":
    sys.exit(main())
