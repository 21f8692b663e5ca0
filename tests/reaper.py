# SPDX-License-Identifier: Apache-2.0
"""Servers that tests start end with the process that started them, however that one ends.

A process beside it waits for the end of a pipe, which only the test process holds open, and then kills every process
group that was named to it. (The kernel's own way, PR_SET_PDEATHSIG, goes by the *thread* that started a process: a
server that a test starts again from a helping thread would die with that thread.)
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO


class Reaper:
    """The end of the pipe that the test process holds. The other process starts with the first that is named."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owner = 0
        self._pipe: IO[str] | None = None

    def watch(self, leader: int) -> None:
        """Kill this process group when this process has ended. A group that is over by then harms nobody."""
        line = f"{leader} {started(leader)}\n"
        with self._lock:
            if self._owner != os.getpid():
                self._begin()
            assert self._pipe is not None
            # One write: a line is never torn.
            self._pipe.write(line)
            self._pipe.flush()

    def _begin(self) -> None:
        command = [sys.executable, "-S", str(Path(__file__).resolve())]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True, start_new_session=True, **quiet)
        process.returncode = 0  # nobody waits for it: it outlives this process
        self._owner, self._pipe = os.getpid(), process.stdin


def started(pid: int) -> str:
    """When a process began, by which it is told from a later one of the same number; "" if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return ""


def main() -> None:
    """Read until the test process is gone, then kill."""
    named = dict(line.split() for line in sys.stdin if len(line.split()) == 2)
    for leader, began in named.items():
        # A group keeps its leader's number from being given again: without a leader it is still the one that was named.
        if started(int(leader)) in ("", began):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(int(leader), signal.SIGKILL)


REAPER = Reaper()

if __name__ == "__main__":
    main()
