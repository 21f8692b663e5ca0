# SPDX-License-Identifier: Apache-2.0
"""The master process, which starts workers, forwards signals and replaces killed workers.

If a worker exits by itself, it failed to start or lost the store. A replacement would fail too, so the master exits.
SIGHUP does not replace workers, because an embedded store cannot have a second worker.
"""

import ctypes
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final, NoReturn

from zq.serving import lifecycle

LOG = logging.getLogger(__name__)
# PR_SET_PDEATHSIG of Linux.
PARENT_DEATH_SIGNAL: Final = 1
# Maximum seconds between two checks of the workers.
INTERVAL: Final = 1.0
# Minimum lifetime of a replacement worker in seconds. If it is killed earlier, the server stops.
MIN_LIFETIME: Final = 3.0
# Signals that the master handles.
HANDLED_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, lifecycle.RELOAD, signal.SIGCHLD)


class Supervisor:
    """The master of ``count`` workers. Each worker runs ``work`` with its number and exits with the result."""

    def __init__(
        self,
        count: int,
        work: Callable[[int], int],
        reload: Callable[[], bool],
        lost: Callable[[int], None],
        patience: float,
    ) -> None:
        """Create the master. Stopping workers are killed after ``patience`` seconds.

        ``reload`` returns whether the workers must reload too. ``lost`` is called with the process id of each ended
        worker.
        """
        self._count = count
        self._work = work
        self._reload = reload
        self._lost = lost
        self._patience = patience
        self._workers: dict[int, tuple[int, float]] = {}
        """The number and the monotonic start time of each worker, by process id; time 0.0 for the first workers."""

    def run(self) -> int:
        """Supervise the workers until the server must stop. Return the exit code."""
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED_SIGNALS)
        for number in range(self._count):
            self._start(number, 0.0)
        while True:
            awaited = signal.sigtimedwait(HANDLED_SIGNALS, INTERVAL)
            # After SIGCONT, CPython returns an undefined signal number if the timeout has expired.
            received = awaited.si_signo if awaited is not None and awaited.si_signo in HANDLED_SIGNALS else 0
            if received == lifecycle.RELOAD:
                if self._reload():
                    self._signal(lifecycle.RELOAD)
            elif received not in (0, signal.SIGCHLD):
                return self._stop(0, signal.Signals(received).name)
            for pid, code in self._reap():
                number, started = self._workers.pop(pid)
                if code >= 0:
                    LOG.error("Worker %d exited with code %d; the server stops.", pid, code)
                    return self._stop(code or 1, f"worker {pid} exited")
                LOG.error("Worker %d was killed by signal %d.", pid, -code)
                self._lost(pid)
                if time.monotonic() - started < MIN_LIFETIME:
                    LOG.critical("The worker is not replaced, because its predecessor was killed only seconds before.")
                    return self._stop(1, f"worker {pid} was killed")
                self._start(number, time.monotonic())

    def _start(self, number: int, moment: float) -> None:
        pid = os.fork()
        if not pid:
            self._become_worker(number)
        self._workers[pid] = number, moment

    def _become_worker(self, number: int) -> NoReturn:
        master = os.getppid()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, set(HANDLED_SIGNALS) - {lifecycle.RELOAD})
        with suppress(OSError, AttributeError):  # a system that is not Linux
            # If the master dies, its workers must not keep the store and the port.
            ctypes.CDLL(None).prctl(PARENT_DEATH_SIGNAL, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != master:  # the master ended before prctl
            sys.exit(0)
        sys.exit(self._work(number))

    def _reap(self) -> Iterator[tuple[int, int]]:
        """Yield the process id and exit code of each ended worker. The code of a killed worker is negative."""
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] in self._workers:
                    yield ended[0], os.waitstatus_to_exitcode(ended[1])

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._workers:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _stop(self, code: int, reason: str) -> int:
        """Stop the workers gracefully and return ``code``. A SIGINT or SIGQUIT in the meantime stops them at once."""
        began = time.monotonic()
        self._signal(signal.SIGTERM)
        deadline = began + self._patience
        while True:
            for pid, _ in self._reap():
                del self._workers[pid]
                self._lost(pid)
            if not self._workers:
                lifecycle.log_end(reason, began)
                return code
            if time.monotonic() > deadline:
                LOG.warning("Killing workers that did not end in time.")
                self._signal(signal.SIGKILL)
            awaited = signal.sigtimedwait(HANDLED_SIGNALS, 0.1)
            if awaited is not None and awaited.si_signo in (signal.SIGINT, signal.SIGQUIT):
                self._signal(signal.SIGINT)
