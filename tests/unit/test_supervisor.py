# SPDX-License-Identifier: Apache-2.0
"""The master of worker processes, in its own process: when it ends, and its exit code."""

import signal
import subprocess
import sys
import time

import pytest

from tests.servers import stopped

# The workers wait for each other, so that the master finds that all of them have ended.
MASTER = """
import os, sys, time
from zq.serving.supervisor import Supervisor

count, code = int(sys.argv[1]), int(sys.argv[2])
theirs, ours = os.pipe()

def work(_number):
    os.write(ours, b"x")
    while not released():
        time.sleep(0.01)
    return code

def released():
    import array, fcntl, termios
    found = array.array("i", [0])
    fcntl.ioctl(theirs, termios.FIONREAD, found)
    return found[0] == count

sys.exit(Supervisor(count, work, lambda: True, lambda pid: None, 5.0).run())
"""


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(("code", "expected"), [(2, 2), (0, 1)])
def test_a_server_ends_with_a_worker_that_ends_by_itself(count: int, code: int, expected: int) -> None:
    master = subprocess.run([sys.executable, "-c", MASTER, str(count), str(code)], capture_output=True, timeout=60)
    assert master.returncode == expected
    assert b"Workers are killed" not in master.stderr


# A master that polls often without a signal, and a worker that runs until a signal ends it.
PATIENT_MASTER = """
import signal, sys
from zq.serving import supervisor

def work(_number):
    print("works", flush=True)
    return signal.sigwait({signal.SIGTERM})

supervisor.INTERVAL = 0.05
sys.exit(supervisor.Supervisor(1, work, lambda: True, lambda pid: None, 5.0).run())
"""


def test_a_master_that_is_stopped_and_continued_goes_on() -> None:
    """CPython's ``sigtimedwait`` then returns an undefined number instead of None if its time is up."""
    with subprocess.Popen([sys.executable, "-c", PATIENT_MASTER], stdout=subprocess.PIPE) as master:
        assert master.stdout is not None
        assert master.stdout.readline() == b"works\n"
        for _ in range(5):
            with stopped(master.pid):
                time.sleep(0.2)  # the master's wait times out
            with pytest.raises(subprocess.TimeoutExpired):
                master.wait(0.2)
        master.send_signal(signal.SIGTERM)
        assert master.wait(60) == 0
