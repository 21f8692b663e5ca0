# SPDX-License-Identifier: Apache-2.0
"""Options, signals and error handling of commands that run until a signal stops them, such as ``zq-deliver``."""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

# Umask under which new files are private.
PRIVATE: Final = 0o077


@dataclass
class SignalFlags:
    """Flags that signal handlers set.

    The handlers use no lock. A handler could interrupt the thread that holds the lock, and would then wait forever.
    """

    end: bool = False
    reload: bool = False


# Runs a command with its arguments until ``SignalFlags.end`` is set.
Run = Callable[[Sequence[str], SignalFlags], None]


def run_until_signal(name: str, extra: str, load: Callable[[], Run], arguments: Sequence[str] | None) -> int:
    """Run a command until it ends or a signal stops it, and return 0. After an error, print a message and return 2.

    ``load`` imports the command. ``extra`` is the optional feature of the package ``zq-queue`` (pip extra) that
    installs the command's dependencies.
    """
    # SIGHUP must not end the command during the imports. ``wait_until_ended`` unblocks the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        run = load()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("zq"):
            raise
        return _reject(
            name, f"The package {error.name} is missing. Install it with pip install 'zq-queue[server,{extra}]'."
        )
    from zq.errors import StartRefused, Unavailable

    os.umask(PRIVATE)
    flags = SignalFlags()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(flags, "end", True))
    try:
        run(sys.argv[1:] if arguments is None else arguments, flags)
    except (StartRefused, Unavailable) as refusal:
        return _reject(name, str(refusal))
    return 0


def wait_until_ended(flags: SignalFlags, reload: Callable[[], object]) -> None:
    """Wait until ``flags.end`` is set. Call ``reload`` after each SIGHUP.

    A SIGHUP that arrived before this call, while the command was starting, also causes a reload.
    """
    signal.signal(signal.SIGHUP, lambda *_: setattr(flags, "reload", True))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
    while not flags.end:
        if flags.reload:
            flags.reload = False
            reload()
        time.sleep(0.2)


def _reject(name: str, sentence: str) -> int:
    from zq.logs import without_secrets

    print(f"{name}: {without_secrets(sentence)}", file=sys.stderr)  # noqa: T201
    return 2


def parse_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Add the common options, parse the arguments, and copy ``--store`` and ``--config`` to the environment."""
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
