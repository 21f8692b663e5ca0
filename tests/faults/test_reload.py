# SPDX-License-Identifier: Apache-2.0
"""SIGHUP to the started process: the serving processes change their options, and nothing else happens."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import pytest

from tests.servers import CLIENT, PROJECT, Lost, ZqServer, ask, wait_for
from tests.stores import Stores

QUEUE = "/v2/queues/jobs"
HEADERS = {"Client-ID": CLIENT, "X-Project-ID": PROJECT}
CLIENTS = 4
WITHIN = 60
# Seconds within which a server must be ready during repeated reloads.
PATIENCE = 120
# Lines that follow others of section [expiry].
LAYERS = """\
sweep = false
sweep_interval = 0.5
delete_on_read = false
compaction_filter = false
[log]
requests = true
"""

Begin = Callable[..., ZqServer]


class Client(threading.Thread):
    """A client that posts and claims on a connection without pauses until ``over`` is set."""

    def __init__(self, port: int, over: threading.Event) -> None:
        super().__init__()
        self._connection = HTTPConnection("127.0.0.1", port, timeout=30)
        self._over = over
        self.answers = 0
        self.failures: list[str] = []

    def run(self) -> None:
        post = json.dumps({"messages": [{"body": 1}]})
        while not self._over.is_set() and not self.failures:
            for path, body in ((f"{QUEUE}/messages", post), (f"{QUEUE}/claims?limit=1", "{}")):
                try:
                    self._connection.request("POST", path, body, HEADERS)
                    answer = self._connection.getresponse()
                    answer.read()
                except (OSError, HTTPException) as error:
                    self.failures.append(f"{path}: {error!r}")
                    break
                self.answers += 1
                if answer.status not in (201, 204):
                    self.failures.append(f"{path}: {answer.status}")
        self._connection.close()


class Operator:
    """An operator that writes a server's configuration and sends the signal."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.workers = 1
        self.write(600)

    def write(self, ttl: int, more: str = "") -> None:
        lines = f"[server]\nworkers = {self.workers}", f"[expiry]\nqueue_ttl = jo*: {ttl}", more
        self.file.write_text("\n".join(lines))

    def reload(self, server: ZqServer, ttl: int, more: str = "") -> None:
        """Change the file and send the signal."""
        self.write(ttl, more)
        os.kill(server.pid, signal.SIGHUP)

    def reload_until_ready(self, server: ZqServer) -> int:
        """Reload repeatedly during the start; return the last ttl."""
        begun = time.monotonic()
        while (seconds := time.monotonic() - begun) < PATIENCE:
            ttl = 1000 + int(seconds * 1000)
            self.reload(server, ttl)
            # Requests wait in the socket in the meantime; more signals would starve them on a busy machine.
            if server.ready(timeout=0.02 + seconds / 20):
                return ttl
        raise AssertionError(f"It was never ready:\n{server.output}")


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    return Operator(tmp_path / "zq.conf")


@pytest.fixture
def begin(operator: Operator, tmp_path: Path, stores: Stores) -> Iterator[Begin]:
    """Return a function that creates a server with the operator's file without starting it."""
    made = []

    def build(engine: str = "gunicorn", driver: str = "rocksdb") -> ZqServer:
        uri = stores.empty(driver, tmp_path, "a")
        made.append(ZqServer(uri, "--config", str(operator.file), engine=engine))
        return made[-1]

    yield build
    for server in made:
        server.close()


def shown(server: ZqServer) -> int | None:
    """Return the server's default ttl of the queue; None while it does not respond."""
    with suppress(Lost):
        ttl: int = ask(server.url, "GET", QUEUE).document["_default_message_ttl"]
        return ttl
    return None


def logged(server: ZqServer, *words: str) -> int:
    """Return the number of lines of the server's log that contain all the words."""
    return sum(all(word in line for word in words) for line in server.stderr.splitlines())


def holds_the_signal_back(pid: int) -> bool:
    """Return whether a process has come to the point from which SIGHUP does not end it."""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        masks = [line.split()[1] for line in status.splitlines() if line.startswith(("SigBlk:", "SigCgt:"))]
        return any(int(mask, 16) & 1 << signal.SIGHUP - 1 for mask in masks)
    return False


@pytest.mark.parametrize(
    ("engine", "driver", "workers"),
    [("gunicorn", "rocksdb", 1), ("granian", "rocksdb", 1), ("gunicorn", "redis", 2), ("granian", "redis", 2)],
)
def test_options_change_under_load(engine: str, driver: str, workers: int, begin: Begin, operator: Operator) -> None:
    """No request fails and no process is replaced. An invalid file is refused with a log line and changes nothing."""
    operator.workers = workers
    operator.write(600)
    over = threading.Event()
    with begin(engine, driver) as server:
        wait_for(lambda: len(server.worker_pids) == workers, WITHIN, "all have begun")
        if engine == "granian":  # Granian's process exists before it serves
            wait_for(lambda: server.output.count(" is serving.") == workers, WITHIN, "all serve")
        processes = server.worker_pids
        clients = [Client(server.port, over) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            for number, (ttl, more) in enumerate([(700, ""), (800, LAYERS)], 1):
                operator.reload(server, ttl, more + "[probes]\nbind = 127.0.0.1:1\n")
                line = f"queue_ttl = jo*: {ttl}"
                wait_for(lambda line=line: logged(server, "Reloaded", line) == workers, WITHIN, "all have reloaded")
                assert logged(server, "WARNING", "[probes] bind is still ''. It changes to '127.0.0.1:1'") == number
                assert {shown(server) for _ in range(10)} == {ttl}
                operator.reload(server, 5)
                wait_for(lambda number=number: logged(server, "ERROR", "'jo*: 5'") == number, WITHIN, "the refusal")
                assert {shown(server) for _ in range(10)} == {ttl}
        finally:
            over.set()
            for client in clients:
                client.join(30)
        assert [client.failures for client in clients] == [[]] * CLIENTS
        assert min(client.answers for client in clients) > 20
        assert "zq.requests: request" in server.output
        assert server.worker_pids == processes
        assert server.terminate() == 0


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_signal_during_the_start_is_obeyed_late(engine: str, begin: Begin, operator: Operator) -> None:
    """The signal ends neither the master nor a process that opens its store, and the last file applies."""
    server = begin(engine).launch()
    # A signal that a process awaits by ``sigtimedwait`` is not shown as blocked. In that case the master has workers.
    wait_for(lambda: holds_the_signal_back(server.pid) or server.worker_pids, WITHIN, "it has begun")
    last = operator.reload_until_ready(server)
    wait_for(lambda: shown(server) == last, WITHIN, "the last file holds")
    assert len(server.worker_pids) == 1
    assert server.terminate() == 0


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_server_that_is_told_to_end_amid_reloads_ends(engine: str, begin: Begin) -> None:
    """The kernel delivers a signal to any thread until the main thread has handled the previous one."""
    with begin(engine) as server:
        for number in [signal.SIGHUP] * 20 + [signal.SIGTERM]:
            os.kill(server.pid, number)
        assert server.wait(40) == 0


def test_a_signal_while_a_process_is_replaced_is_obeyed_late(begin: Begin, operator: Operator) -> None:
    """gunicorn replaces a killed process; the signal does not end the new process."""
    with begin() as server:
        (killed,) = server.worker_pids
        os.kill(killed, signal.SIGKILL)
        last = operator.reload_until_ready(server)
        wait_for(lambda: shown(server) == last, WITHIN, "the last file holds")
        assert server.output.count("Booting worker") == 2


def test_a_process_that_starts_later_has_the_options_in_force(begin: Begin, operator: Operator) -> None:
    """The process has the options of the last reload, not those of a file that was refused later."""
    with begin() as server:
        operator.reload(server, 700)
        wait_for(lambda: shown(server) == 700, WITHIN, "the reload")
        operator.reload(server, 5)
        wait_for(lambda: logged(server, "ERROR", "'jo*: 5'"), WITHIN, "the refusal")
        (killed,) = server.worker_pids
        os.kill(killed, signal.SIGKILL)
        wait_for(lambda: server.worker_pids not in ([], [killed]) and server.ready(), WITHIN, "another process")
        assert shown(server) == 700


@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_without_a_file_the_signal_changes_nothing(engine: str, tmp_path: Path) -> None:
    """The log states the reason, and the server continues."""
    with ZqServer(f"rocksdb://{tmp_path}/store", engine=engine) as server:
        processes = server.worker_pids
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: "no configuration file was named" in server.output, WITHIN, "the log line")
        assert server.worker_pids == processes
        assert server.ready()
