# SPDX-License-Identifier: Apache-2.0
"""zq commands in processes that are forked from a process with all imports.

Imports are nine tenths of the start time of a server, and the suite starts thousands of servers. ``Forked`` has the
interface of ``subprocess.Popen``. The process differs from ``python -m`` in ``/proc``: the command line and the
environment are those of the fork server.
"""

import atexit
import contextlib
import ctypes
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import IO

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    [
        *(
            "tests.forked",
            "zq.serving.server",
            "zq.serving",
            "zq.subscriptions.delivery.running",
            "zq.serving.gunicorn",
            "zq.serving.granian",
        ),
        *("zq.storage.memory", "zq.storage.mongodb", "zq.storage.object", "zq.storage.redis", "zq.storage.rocksdb"),
    ]
)
# PR_SET_PDEATHSIG
_PARENT_DEATH_SIGNAL = 1


class Forked:
    """A process that runs ``module`` like ``python -m``; its output can be read as text."""

    def __init__(self, module: str, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        reads, writes = zip(*(_context.Pipe(duplex=False) for _ in range(2)), strict=True)
        told = (module, list(arguments), dict(env), os.getcwd(), *writes)
        self._process = _context.Process(target=_run, args=told, daemon=True)
        self._process.start()
        for end in writes:
            end.close()
        self.stdout, self.stderr = (_text(end) for end in reads)
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code. Raises ``subprocess.TimeoutExpired``."""
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("python -m", timeout or 0)
        return code


def _text(end: Connection) -> IO[str]:
    stream = os.fdopen(os.dup(end.fileno()), errors="replace")
    end.close()
    return stream


def _run(
    module: str, arguments: list[str], env: dict[str, str], folder: str, output: Connection, errors: Connection
) -> None:
    """Prepare the new process like ``exec``, run the module, and exit like Python."""
    os.setsid()
    os.close(forkserver._forkserver._forkserver_alive_fd)  # type: ignore[attr-defined]  # else its end waits for ours
    ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for end, number in ((output, 1), (errors, 2)):
        os.dup2(end.fileno(), number)
        end.close()
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    time.tzset()
    sys.argv = ["", *arguments]
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # Granian has children
    multiprocessing.set_start_method(None, force=True)  # type: ignore[arg-type]  # which it starts as without us
    sys.modules.pop(module, None)
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        with contextlib.suppress(SystemExit):
            atexit._run_exitfuncs()
