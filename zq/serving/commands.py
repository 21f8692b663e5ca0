# SPDX-License-Identifier: Apache-2.0
"""Common parts of commands other than ``zq-server``: options, signals and errors."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

# The umask of the command, whose files are private.
PRIVATE: Final = 0o077


@dataclass
class Requests:
    """Requests from signal handlers. There is no lock, because a handler may interrupt the lock's holder."""

    end: bool = False
    reload: bool = False


# Runs a command with its arguments until a signal requests its end.
Run = Callable[[Sequence[str], Requests], None]


def until_signal(name: str, extra: str, load: Callable[[], Run], arguments: Sequence[str] | None) -> int:
    """Run the command ``name`` until it ends; return its exit code.

    ``load`` imports and returns the command, which needs the optional dependencies ``extra``. ``StartRefused`` and
    ``Unavailable`` of the command are printed, with exit code 2.
    """
    # Block SIGHUP during the imports, because it would end the command. ``until_ended`` unblocks the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        run = load()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("zq"):
            raise
        return _refuse(
            name, f"The package {error.name} is missing. Install it with pip install 'zq-queue[server,{extra}]'."
        )
    from zq.errors import StartRefused, Unavailable

    os.umask(PRIVATE)
    asked = Requests()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(asked, "end", True))
    try:
        run(sys.argv[1:] if arguments is None else arguments, asked)
    except (StartRefused, Unavailable) as refusal:
        return _refuse(name, str(refusal))
    return 0


def until_ended(asked: Requests, reload: Callable[[], object]) -> None:
    """Wait until a signal requests the command's end; call ``reload`` after each SIGHUP.

    A SIGHUP during the start is handled too.
    """
    signal.signal(signal.SIGHUP, lambda *_: setattr(asked, "reload", True))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    while not asked.end:
        if asked.reload:
            asked.reload = False
            reload()
        time.sleep(0.2)


def _refuse(name: str, sentence: str) -> int:
    from zq.logs import without_secrets

    print(f"{name}: {without_secrets(sentence)}", file=sys.stderr)  # noqa: T201
    return 2


def options_of(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the arguments and store ``--store`` and ``--config`` in the environment, where the settings read them.

    Raises ``StartRefused`` if the store URI contains a password.
    """
    from zq import __version__
    from zq.errors import StartRefused
    from zq.logs import holds_password
    from zq.serving import settings

    parser.add_argument("--store", metavar="URI", help="store URI without a password, such as redis://127.0.0.1")
    parser.add_argument("--config", metavar="FILE", help="configuration file")
    parser.add_argument("--version", action="version", version=f"zq {__version__}")
    given = parser.parse_args(arguments)
    if given.store and holds_password(given.store):
        raise StartRefused("--store must not contain a password: use OS_STORAGE__URI or the configuration file.")
    if given.config:
        os.environ[settings.CONFIG_VARIABLE] = os.path.abspath(given.config)
    if given.store:
        os.environ[settings.variable("storage", "uri")] = given.store
    return given
