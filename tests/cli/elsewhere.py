# SPDX-License-Identifier: Apache-2.0
"""A simulation of ``zq`` on a system other than Unix: ``python tests/cli/elsewhere.py ARGUMENTS``.

Without arguments, the program only imports all modules. Modules, functions and signals that Windows lacks are removed,
and an open file can be neither replaced nor removed. Paths, consoles and signals remain Linux's, and the standard
library may still use the removed modules.
"""

import builtins
import importlib
import os
import pkgutil
import select
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "tty"}
CALLS = "killpg setsid setpgid getpgid getpgrp getuid geteuid getgid fork forkpty fchmod chown eventfd sched_yield nice"
SIGNALS = "SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGPIPE SIGALRM SIGCHLD SIGWINCH SIGTSTP SIGCONT"
HANDLING = "pthread_kill pthread_sigmask siginterrupt sigwait alarm pause setitimer"
WAITING = "epoll poll POLLRDHUP"

found = builtins.__import__


def refusing(name: str, globals: Any = None, *rest: Any, **options: Any) -> Any:
    """Import a module, but fail if zq itself imports one of ``MODULES``."""
    if name.partition(".")[0] in MODULES and (globals or {}).get("__name__", "").startswith("zq"):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return found(name, globals, *rest, **options)


def closed_only(verb: Callable[..., None]) -> Callable[..., None]:
    """Return the function with a check that this process does not have the files open."""

    def checked(*paths: Any, **options: Any) -> None:
        for number in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if os.readlink(f"/proc/self/fd/{number}") in [os.path.abspath(path) for path in paths]:
                    raise SystemExit(f"{paths} is open.")
        verb(*paths, **options)

    return checked


def leave_unix() -> None:
    """Remove Unix features from this process."""
    for module, names in ((os, CALLS), (signal, f"{SIGNALS} {HANDLING}"), (select, WAITING), (socket, "AF_UNIX")):
        for name in names.split():
            with suppress(AttributeError):
                delattr(module, name)
    os.replace, os.rename, os.unlink = map(closed_only, (os.replace, os.rename, os.unlink))
    builtins.__import__ = refusing


def import_all() -> None:
    """Import every module of the client and the command line, and print their names."""
    for package in ("zq.client", "zq.cli"):
        folder = importlib.import_module(package).__path__
        for module in pkgutil.iter_modules(folder, f"{package}."):
            print(importlib.import_module(module.name).__name__)  # noqa: T201


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parent.parent.parent)
    leave_unix()
    if sys.argv[1:]:
        from zq.cli import main

        main()
    else:
        import_all()
