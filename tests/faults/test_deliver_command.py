# SPDX-License-Identifier: Apache-2.0
"""``zq-deliver``: a separate delivery worker for servers that do not deliver."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.commands import run_apart
from tests.servers import ZqServer, ask, spawn, wait_for
from tests.sink import CONFIG, Sink
from tests.stores import RedisServer

COMMAND = [sys.executable, "-P", "-m", "zq.serving.deliver_command"]


def post(server: ZqServer, *bodies: object) -> None:
    document = {"messages": [{"body": body} for body in bodies]}
    assert ask(server.url, "POST", "/v2/queues/jobs/messages", document).status == 201


@contextmanager
def delivering(uri: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``zq-deliver`` on a store."""
    config = folder / "zq.conf"
    config.write_text(CONFIG)
    with open(folder / "log", "ab") as log:
        process = spawn([*COMMAND, "--config", str(config), "--store", uri], stderr=log)
        try:
            yield process
        finally:
            process.kill()
            process.wait(10)


def test_it_delivers_what_servers_leave_until_it_is_told_to_end(store: RedisServer, tmp_path: Path) -> None:
    """A server with ``deliver = false`` sends no confirmation requests and no deliveries.

    The next worker delivers what has accumulated.
    """
    with ZqServer(store.uri, config=f"{CONFIG}deliver = false\n") as server, Sink() as sink:
        with delivering(store.uri, tmp_path) as process:
            sink.subscribe(server.url, "jobs", "/good")
            post(server, 1)
            wait_for(lambda: sink.bodies("/good") == [1], 60, "a delivery")
            config, log = tmp_path / "zq.conf", tmp_path / "log"
            config.write_text(f"{CONFIG}[log]\nlevel = DEBUG\n")
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: "Reloaded: [log] level = DEBUG" in log.read_text(), 60, "its options are read again")
            config.write_text("nonsense")
            process.send_signal(signal.SIGHUP)
            wait_for(lambda: "Options not reloaded" in log.read_text(), 60, "a wrong file changes nothing")
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0, (tmp_path / "log").read_text()
            assert time.monotonic() - began < 25
        post(server, 2)
        with delivering(store.uri, tmp_path):
            wait_for(lambda: sink.bodies("/good") == [1, 2], 60, "a delivery by the next one")
        assert "Traceback" not in (tmp_path / "log").read_text()


def test_it_ends_while_a_subscriber_does_not_answer(store: RedisServer, tmp_path: Path) -> None:
    """The worker releases the lease of its delivery, so the next worker repeats the delivery at once."""
    hangs, asked = threading.Event(), threading.Event()

    def hang(_handler: BaseHTTPRequestHandler) -> int:
        asked.set()
        hangs.wait(30)
        return 0

    with ZqServer(store.uri, config=f"{CONFIG}deliver = false\n") as server, Sink() as sink:
        with delivering(store.uri, tmp_path) as process:
            sink.subscribe(server.url, "jobs", "/slow")
            sink.answers["/slow"] = hang
            post(server, 1)
            assert asked.wait(60)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0, (tmp_path / "log").read_text()
        sink.answers.pop("/slow")
        hangs.set()
        with delivering(store.uri, tmp_path):
            wait_for(lambda: len(sink.came("/slow")) > 1, 60, "the same, by the next one")
        assert "Traceback" not in (tmp_path / "log").read_text()


@pytest.mark.parametrize(
    ("options", "arguments", "said"),
    [
        ({}, ["--store", "memory:"], "a store that several processes can open"),
        ({}, ["--store", "rocksdb:x"], "a store that several processes can open"),
        ({"OS_STORAGE__URI": "redis://127.0.0.1:1"}, [], "[signed_url] secret_key"),
        ({}, ["--store", "redis://:secret@127.0.0.1"], "--store must not contain a password"),
    ],
)
def test_what_cannot_deliver_is_refused_with_a_sentence(
    options: dict[str, str], arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    ended = run_apart(*arguments, module="zq.serving.deliver_command")
    assert (ended.code, ended.said) == (2, "")
    assert ended.error.startswith("zq-deliver: ")
    assert said in ended.error
    assert len(ended.error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
