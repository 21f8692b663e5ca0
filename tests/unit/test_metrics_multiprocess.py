# SPDX-License-Identifier: Apache-2.0
"""The folder of worker processes' metrics: its owner, and its removal after the owner was killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

BEGIN = (
    "import os, time; from zq.serving.metrics import multiprocess; multiprocess.begin(); "
    "print(os.environ[multiprocess.VARIABLE], flush=True)"
)


def begin() -> tuple[subprocess.Popen[str], Path]:
    """Start a process that creates its folder and keeps running; return the process and the folder."""
    command = [sys.executable, "-c", f"{BEGIN}; time.sleep(60)"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str], how: signal.Signals) -> None:
    process.send_signal(how)
    process.communicate(timeout=60)


def test_a_folder_goes_with_its_owner_or_with_the_next_one_to_begin() -> None:
    """The folder of a running owner is kept; that of a killed owner is removed by the next process that starts."""
    living, its = begin()
    killed, left = begin()
    assert its.is_dir()
    end(killed, signal.SIGKILL)
    assert left.is_dir()
    third = subprocess.run([sys.executable, "-c", BEGIN], capture_output=True, text=True, timeout=60, check=True)
    assert not left.exists()
    assert its.is_dir()
    assert not os.path.exists(third.stdout.strip())
    end(living, signal.SIGKILL)
    subprocess.run([sys.executable, "-c", BEGIN], timeout=60, check=True, stdout=subprocess.DEVNULL)
    assert not its.exists()
