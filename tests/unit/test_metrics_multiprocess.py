# SPDX-License-Identifier: Apache-2.0
"""The folder in which worker processes count: whose it is, and what becomes of it when its owner is killed."""

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
    """A process that has begun and stays, and its folder."""
    command = [sys.executable, "-c", f"{BEGIN}; time.sleep(60)"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str], how: signal.Signals) -> None:
    process.send_signal(how)
    process.communicate(timeout=60)


def test_a_folder_goes_with_its_owner_or_with_the_next_one_to_begin() -> None:
    """A living owner keeps its folder; a killed one's is removed by the next."""
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
