# SPDX-License-Identifier: Apache-2.0
"""A fork server for ``zq``, because imports are most of the cost of a run.

``Launcher.command`` and the arguments of ``zq`` form a command that passes them, its environment, its folder and its
standard streams to that process (see ``stub``). The forked process differs from ``zq``: ``/proc`` shows another command
line, the process has its own session, and if the command is killed with SIGKILL, the forked process dies a moment
later.
"""

import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from tests.cli import stub

# Modules that commands import when they need them.
PRELOADED = ("httpx", "jmespath", "rich.live", "rich.progress", "rich.table", "yaml", "zq.cli.root")


class Launcher:
    """The process from which runs of ``zq`` are forked; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._address = str(folder / "launcher")
        # Without site-packages Python starts within a few milliseconds.
        self.command = [sys.executable, "-ISE", stub.__file__, self._address]

    def __enter__(self) -> "Launcher":
        words = [sys.executable, "-m", __name__, self._address]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == b"ready\n"
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate(timeout=60)


def serve(address: str) -> None:
    """Start a run for each connection, until standard input ends."""
    for module in PRELOADED:
        import_module(module)
    gc.freeze()
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(address)
    listening.listen(128)
    print("ready", flush=True)  # noqa: T201
    while sys.stdin not in select.select([sys.stdin, listening], [], [])[0]:
        connection = listening.accept()[0]
        if os.fork() == 0:
            listening.close()
            keep(connection)
        connection.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def keep(connection: socket.socket) -> NoReturn:
    """Fork a run, forward the signals that the command receives, and send back the exit status."""
    head, streams, _, _ = socket.recv_fds(connection, 4, 3)
    order = json.loads(connection.recv(*struct.unpack("!I", head), socket.MSG_WAITALL))
    pid = os.fork()
    if pid == 0:
        connection.close()
        run(order, streams)
    for number in streams:
        os.close(number)
    ended = os.pidfd_open(pid)
    while ended not in select.select([connection, ended], [], [])[0]:
        signals = b""
        with contextlib.suppress(ConnectionError):
            signals = connection.recv(64)
        for number in signals or [signal.SIGKILL]:  # EOF means that the command was killed
            os.kill(pid, number)
    with contextlib.suppress(BrokenPipeError):
        connection.send(struct.pack("!i", os.waitpid(pid, 0)[1]))
    os._exit(0)


def run(order: dict[str, Any], streams: list[int]) -> NoReturn:
    """Run ``zq`` in this process as ``exec`` would, and exit."""
    os.setsid()
    for number in range(3):
        os.close(number)
    for number, stream in zip(order["streams"], streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    for number in stub.FORWARDED:
        signal.signal(number, signal.SIG_IGN if number in order["ignored"] else signal.SIG_DFL)
    if signal.SIGINT not in order["ignored"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["folder"])
    sys.argv = ["zq", *order["words"]]
    sys.stdin, sys.stdout, sys.stderr = (opened(number, order["streams"]) for number in range(3))
    code = 1
    try:
        import_module("zq.cli").main()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)  # noqa: T201
    except Exception:  # noqa: BLE001
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120  # Python's exit code if flushing fails
    os._exit(code)


def opened(number: int, streams: list[int]) -> Any:
    """Return a standard stream in the form in which Python opens it at startup."""
    if number not in streams:
        return None
    encoding = os.environ.get("PYTHONIOENCODING", "utf-8")
    buffering = 1 if number == 2 or os.isatty(number) else -1
    return open(number, "w" if number else "r", buffering, encoding, closefd=False)


if __name__ == "__main__":
    serve(sys.argv[1])
