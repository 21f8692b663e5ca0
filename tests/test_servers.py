# SPDX-License-Identifier: Apache-2.0
"""The end of processes that tests start."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers import wait_for

pytestmark = pytest.mark.slow

PROGRAM = """
import signal, sys, threading
from tests.servers import ZqServer, wait_for
from tests.stores import RedisServer

store = RedisServer().start()
server = ZqServer(store.uri, engine=sys.argv[1], env={"OS_SERVER__WORKERS": "2", "OS_SERVER__GRACEFUL_TIMEOUT": "3"})
thread = threading.Thread(target=server.start)
thread.start()
thread.join()
wait_for(lambda: len(server.worker_pids) >= 2, 20, "both workers have begun")
print(store.pid, server.pid, *server.worker_pids, flush=True)
signal.pause()
"""


@pytest.mark.ability("setpriv")
@pytest.mark.parametrize(
    ("how", "engine"), [(signal.SIGKILL, "gunicorn"), (signal.SIGKILL, "granian"), (signal.SIGTERM, "granian")]
)
def test_servers_end_with_the_test_process(how: signal.Signals, engine: str) -> None:
    """Servers and their workers end if the test process is killed or terminated, and live as long as it does."""
    command = [sys.executable, "-c", PROGRAM, engine]
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        pids = [int(pid) for pid in process.stdout.readline().split()]
        alive = [running(pid) for pid in pids]
        process.send_signal(how)
        process.wait(20)
    assert len(pids) >= 4
    assert all(alive)
    wait_for(lambda: not any(running(pid) for pid in pids), 60, "all that it had started is gone")


def running(pid: int) -> bool:
    """Return whether a process lives; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
