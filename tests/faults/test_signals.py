# SPDX-License-Identifier: Apache-2.0
"""Signals that add a worker in gunicorn, on a store that allows one process."""

import os
import signal
from pathlib import Path

import pytest

from tests.servers import ZqServer, wait_for


@pytest.mark.parametrize("number", [signal.SIGTTIN, signal.SIGUSR2], ids=lambda number: number.name)
def test_a_signal_for_another_worker_is_ignored(tmp_path: Path, number: signal.Signals):
    """The worker that owns the store continues as the only one, and the log names the ignored signal."""
    with ZqServer(f"rocksdb://{tmp_path}/store") as server:
        workers = server.worker_pids
        os.kill(server.pid, number)
        wait_for(lambda: "Ignored a signal" in server.output, 60, "the log line")
        assert server.worker_pids == workers
        assert server.ready()
        assert server.terminate() == 0
