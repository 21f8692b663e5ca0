# SPDX-License-Identifier: Apache-2.0
"""Signals that end a server, and signals that would add a worker on a store that allows one process."""

import os
import re
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_the_last_line_of_a_server_names_the_signal_that_ended_it(engine: str, number: signal.Signals) -> None:
    """Operations contract, section 3."""
    with ZqServer("memory:", engine=engine) as server:
        os.kill(server.pid, number)
        assert server.wait(60) == 0
        last = rf" INFO .*: The server has ended \({number.name}\) after draining for \d+\.\d seconds\."
        assert re.search(last, server.stderr.splitlines()[-1]), server.stderr
