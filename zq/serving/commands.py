# SPDX-License-Identifier: Apache-2.0
"""Common parts of the other commands, such as ``zq-deliver``: options, signals, errors.

The module imports only the standard library, so that a command can report missing packages.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

# The umask: files of the command are private.
PRIVATE: Final = 0o077


@dataclass
class Requests:
    """The requests made by signals. Not locked, because a handler may interrupt the holder of the lock."""

    end: bool = False
    reload: bool = False


# Runs a command with its arguments until it is requested to end.
Run = Callable[[Sequence[str], Requests], None]


def until_signal(name: str, extra: str, load: Callable[[], Run], arguments: Sequence[str] | None) -> int:
    """Run the command ``name`` until a signal ends it; return its exit code.

    ``load`` imports and returns the command, which needs the ``extra``. The command may raise ``StartRefused`` and
    ``Unavailable``.
    """
    # SIGHUP must not end the command during its imports. ``until_ended`` unblocks the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        run = load()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("zq"):
            raise
        return _refuse(name, f"The package {error.name} is missing: pip install 'zq-queue[server,{extra}]' brings it.")
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
    """Wait until a signal ends the command. Call ``reload`` after each SIGHUP, also one during the start."""
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
    """Parse the arguments, and pass ``--store`` and ``--config`` on to the settings in the environment.

    Raises ``StartRefused``.
    """
    from zq import __version__
    from zq.errors import StartRefused
    from zq.logs import holds_password
    from zq.serving import settings

    parser.add_argument("--store", metavar="URI", help="the store, as redis://127.0.0.1 (no password)")
    parser.add_argument("--config", metavar="FILE", help="configuration file")
    parser.add_argument("--version", action="version", version=f"zq {__version__}")
    given = parser.parse_args(arguments)
    if given.store and holds_password(given.store):
        raise StartRefused("--store must hold no password: use OS_STORAGE__URI or the configuration file.")
    if given.config:
        os.environ[settings.CONFIG_VARIABLE] = os.path.abspath(given.config)
    if given.store:
        os.environ[settings.variable("storage", "uri")] = given.store
    return given
