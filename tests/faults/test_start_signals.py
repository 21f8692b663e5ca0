# SPDX-License-Identifier: Apache-2.0
"""SIGHUP from the first statement of a command on: a command that reloads its options never ends."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.servers import ZqServer, ask, free_port, spawn, wait_for
from tests.sink import CONFIG
from tests.stores import RedisServer

# Prints a line and runs the function that a console script runs.
SCRIPT = "from {module} import main; import sys; print('begun', flush=True); sys.exit(main())"
# Seconds between two signals.
PAUSE = 0.05
WITHIN = 120


@contextmanager
def flooded(pid: int) -> Iterator[None]:
    """Send SIGHUP to the process every 50 ms while the context is entered."""
    over = threading.Event()

    def flood() -> None:
        with suppress(ProcessLookupError):
            while not over.wait(PAUSE):
                os.kill(pid, signal.SIGHUP)

    thread = threading.Thread(target=flood)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def outlives_signals(module: str, arguments: list[str], log: Path, is_ready: Callable[[], bool]) -> None:
    """Start a command, send SIGHUP until it is ready, and end it with SIGTERM: it exits with 0."""
    with open(log, "wb") as file:
        command = [sys.executable, "-P", "-c", SCRIPT.format(module=module), *arguments]
        process = spawn(command, signal.SIGTERM, stdout=subprocess.PIPE, stderr=file)
    try:
        assert process.stdout.readline() == b"begun\n"
        with flooded(process.pid):
            wait_for(lambda: is_ready() or process.poll() is not None, WITHIN, "the command is ready")
        assert process.poll() is None, f"ended by {process.returncode}:\n{log.read_text()}"
        process.send_signal(signal.SIGTERM)
        assert process.wait(WITHIN) == 0, log.read_text()
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(WITHIN)
        process.stdout.close()


def answers(port: int) -> bool:
    """Return whether a server answers a request for a queue on the port."""
    with suppress(Exception):
        return ask(f"http://127.0.0.1:{port}", "GET", "/v2/queues/jobs/stats", timeout=2).status < 500
    return False


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_server_that_starts_outlives_sighup(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This holds before its imports, too."""
    monkeypatch.setenv("OS_METRICS__PORT", "0")
    config = tmp_path / "zq.conf"
    config.write_text("[expiry]\nqueue_ttl = jo*: 600\n")
    port = free_port()
    arguments = ["--config", str(config), "--store", f"rocksdb://{tmp_path}/store", "--port", str(port)]
    arguments += ["--engine", engine]
    outlives_signals("zq.serving", arguments, tmp_path / "log", lambda: answers(port))


def test_another_command_that_starts_outlives_sighup(store: RedisServer, tmp_path: Path) -> None:
    """``zq-deliver`` reloads its options at SIGHUP."""
    config, log = tmp_path / "zq.conf", tmp_path / "log"
    config.write_text(CONFIG)
    arguments = ["--config", str(config), "--store", store.uri]
    outlives_signals("zq.serving.deliver_command", arguments, log, lambda: "zq-deliver is running." in log.read_text())


def test_a_reload_during_the_start_of_a_command_is_obeyed(store: RedisServer, tmp_path: Path) -> None:
    """A signal before the imports makes the command reload its options once it runs."""
    log = tmp_path / "log"
    command = [sys.executable, "-P", "-c", SCRIPT.format(module="zq.serving.deliver_command"), "--store", store.uri]
    (tmp_path / "zq.conf").write_text(CONFIG)
    command += ["--config", str(tmp_path / "zq.conf")]
    with open(log, "wb") as file:
        process = spawn(command, stdout=subprocess.PIPE, stderr=file)
    try:
        assert process.stdout.readline() == b"begun\n"
        time.sleep(PAUSE)
        process.send_signal(signal.SIGHUP)
        wait_for(lambda: "Reloaded: no option has changed." in log.read_text(), WITHIN, "the reload")
    finally:
        process.kill()
        process.wait(WITHIN)
        process.stdout.close()


def test_a_process_of_granian_that_was_replaced_reloads(tmp_path: Path) -> None:
    """SIGHUP neither ends the starting process nor is lost."""
    config = tmp_path / "zq.conf"
    config.write_text("[expiry]\nqueue_ttl = jo*: 600\n")
    with ZqServer(f"rocksdb://{tmp_path}/store", "--config", str(config), engine="granian") as server:
        (killed,) = server.worker_pids
        with flooded(server.pid):
            os.kill(killed, signal.SIGKILL)
            wait_for(lambda: killed not in server.worker_pids, WITHIN, "the process is gone")
            wait_for(lambda: answers(server.port), WITHIN, f"another process serves:\n{server.output}")
        assert server.output.count("was killed by signal") == 1, server.output
        config.write_text("[expiry]\nqueue_ttl = jo*: 700\n")
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: "Reloaded: [expiry] queue_ttl = jo*: 700" in server.output, 20, f"a reload:\n{server.output}")


def test_a_command_that_reloads_nothing_ends_by_sighup(tmp_path: Path) -> None:
    """Closing the terminal ends such a command."""
    fifo = tmp_path / "zq.conf"
    os.mkfifo(fifo)  # the command waits for its configuration file
    command = [sys.executable, "-P", "-c", SCRIPT.format(module="zq.serving"), "check-store", "--config", str(fifo)]
    inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # below nohup, commands inherit SIG_IGN
    process = spawn(command, stdout=subprocess.PIPE)
    signal.signal(signal.SIGHUP, inherited)
    try:
        assert process.stdout.readline() == b"begun\n"
        with flooded(process.pid):
            assert process.wait(WITHIN) == -signal.SIGHUP
    finally:
        process.kill()
        process.stdout.close()
