# SPDX-License-Identifier: Apache-2.0
"""Worker threads of the event loop's process."""

import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from zq.subscriptions.delivery.threads import Threads

ENDING = """
import atexit
from zq.subscriptions.delivery.threads import Threads
threads = Threads(1, "t")
atexit.register(lambda: print(threads.submit(pow, 2, 5).result(60)))
"""


def test_threads_run_while_the_interpreter_exits() -> None:
    """A worker process releases its resources while the interpreter exits."""
    done = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("32\n", "")


def test_results_errors_and_cancelled_calls() -> None:
    """Results and errors are those of any executor; calls that were submitted before the shutdown run."""
    threads, begun, go = Threads(1, "t"), threading.Event(), threading.Event()
    first = threads.submit(lambda: begun.set() or go.wait(60))
    assert begun.wait(60)
    given_up, failing, last = threads.submit(int, "1"), threads.submit(int, "x"), threads.submit(int, "7")
    assert given_up.cancel()
    threads.shutdown()
    go.set()
    assert (first.result(60), last.result(60)) == (True, 7)
    with pytest.raises(ValueError, match="x"):
        failing.result(60)
    with pytest.raises(CancelledError):
        given_up.result(60)
