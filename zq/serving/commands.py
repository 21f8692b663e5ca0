# SPDX-License-Identifier: Apache-2.0
"""What the commands share that run beside ``zq-server``: options for store and configuration, signals, refusals.

It can be imported where nothing is installed but Python, so that a command can say what is missing.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

PRIVATE: Final = 0o077


@dataclass
class Asked:
    """What signals have asked for. Nothing is locked: a handler may interrupt whoever holds the lock."""

    end: bool = False
    reload: bool = False


# What a command does with its arguments until it is asked to end.
Run = Callable[[Sequence[str], Asked], None]


def until_signal(name: str, extra: str, load: Callable[[], Run], arguments: Sequence[str] | None) -> int:
    """The exit code of the command ``name``, once a signal has ended it or it was refused.

    ``load`` imports what it does, which needs the ``extra``; that may raise ``StartRefused`` and ``Unavailable``.
    """
    # A reload must not end the command, however long its imports take. ``until_ended`` unblocks the signal.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        run = load()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("zq"):
            raise
        return _refuse(name, f"The package {error.name} is missing: pip install 'zq-queue[server,{extra}]' brings it.")
    from zq.errors import StartRefused, Unavailable

    os.umask(PRIVATE)
    asked = Asked()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: setattr(asked, "end", True))
    try:
        run(sys.argv[1:] if arguments is None else arguments, asked)
    except (StartRefused, Unavailable) as refusal:
        return _refuse(name, str(refusal))
    return 0


def until_ended(asked: Asked, reload: Callable[[], object]) -> None:
    """Wait until a signal ends the command. Call ``reload`` after SIGHUP, one during the start included."""
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
    """The arguments; ``--store`` and ``--config``, which all have, are handed on to the settings.

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
