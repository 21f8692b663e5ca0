# SPDX-License-Identifier: Apache-2.0
"""``zq.testing`` and its fixtures: a server in the process of the tests, and the samples of ``client.md``."""

import socket
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

import zq.testing
from tests.blocks import only
from tests.client.client_kinds import bodies, client_of
from tests.reader import follow
from tests.servers import wait_for
from zq.client import Client, Retries
from zq.core import waiting
from zq.errors import Unavailable, ZqError
from zq.testing import Server

TESTS, PROGRAM = (only("api-ref/client.md", "python", part) for part in ("def ship", "zq.testing.server()"))


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["-n", "2"]], ids=["one process", "xdist"])
def test_the_tests_of_the_page_pass(tmp_path: Path, options: list[str]) -> None:
    """The tests of client.md run as a separate file with only the named plugins."""
    (tmp_path / "test_orders.py").write_text(TESTS)
    plugins = ["-p", "zq.testing.plugin", "-p", "xdist"]
    alone = ["env", "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1", "python", "-m", "pytest", "-q", *plugins, *options]
    done = follow(alone, tmp_path)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "3 passed" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "without", ["", "import select; del select.POLLRDHUP, select.epoll; "], ids=["", "as on macOS"]
)
def test_the_program_of_the_page_prints_an_address_and_nothing_else(tmp_path: Path, without: str) -> None:
    """The program of client.md logs no requests and no warnings."""
    done = follow(["python", "-W", "error", "-c", without + PROGRAM], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("http://127.0.0.1:")
    assert done.stdout.count("\n") == 1


def test_nothing_is_left_of_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads, folder and port are gone, and a client that was left open is closed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    before = set(threading.enumerate())
    with zq.testing.server() as server:
        client = server.client()
        client.queue("jobs").post(1)
        assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
    wait_for(lambda: set(threading.enumerate()) <= before, 60, "its threads are gone")
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.url)
    with pytest.raises(ZqError, match="closed"):
        client.ping()


def test_servers_beside_each_other_have_nothing_in_common() -> None:
    """Neither messages nor the clock are shared."""
    with ExitStack() as stack:
        servers = [stack.enter_context(zq.testing.server()) for _ in range(4)]
        for number, server in enumerate(servers):
            server.client().queue("jobs").post(number, ttl=60)
        servers[0].clock.advance(61)
        seen = [bodies(server.client().queue("jobs").list()) for server in servers]
    assert seen == [[], [1], [2], [3]]


def test_time_leaps_ahead_and_never_back(timed: Server) -> None:
    """Delays and ttls expire, new ones count from the new time, and real time continues."""
    queue = timed.client().queue("jobs")
    queue.create({"_default_message_delay": 600})
    queue.post("delayed")
    assert bodies(queue.pop(1)) == []
    timed.clock.advance(601)
    (message,) = queue.pop(1)
    assert message.body == "delayed"
    queue.post("again")
    assert bodies(queue.pop(1)) == []
    moment = timed.clock.now()
    wait_for(lambda: timed.clock.now() > moment, 60, "time passes by itself")
    for wrong in (-1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="only move forward"):
            timed.clock.advance(wrong)


def test_a_leap_wakes_waiting_requests(timed: Server, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server's periodic check of queues without a notification does not occur in this test."""
    monkeypatch.setattr(waiting, "RECHECK_INTERVAL", 3600.0)
    with client_of(kind, timed.url) as client, ThreadPoolExecutor(1) as pool:
        queue = client.queue("jobs")
        queue.create({"_default_message_delay": 900})
        queue.post("delayed")
        begun = time.monotonic()
        claiming = pool.submit(lambda: queue.claim(1, wait=20).messages)
        with pytest.raises(TimeoutError):
            claiming.result(1)
        timed.clock.advance(901)
        assert bodies(claiming.result(60)) == ["delayed"]
        assert time.monotonic() - begun < 20


def test_streams_and_workers_are_served(timed: Server, kind: str) -> None:
    """Both clients can use streams and workers."""
    with client_of(kind, timed.url) as client:
        topic, queue = client.topic("news"), client.queue("jobs")
        topic.publish_batch(["Oslo", "Rome"])
        heard = []
        for event in topic.stream(after=0):
            heard.append(event.body)
            if event.body == "Rome":
                topic.publish("Bern")
            if event.body == "Bern":
                break
        assert heard == ["Oslo", "Rome", "Bern"]
        queue.post_batch(range(20))
        assert queue.work(lambda _: None, concurrency=8, wait=0, until_empty=True).done == 20


@pytest.mark.parametrize("sqs", [False, True])
def test_rules_and_routes_of_features_are_those_of_a_server(sqs: bool) -> None:
    """SQS attributes are validated, and an administrator can list projects."""
    headers = {"Client-ID": str(uuid4()), "X-Project-ID": "test"}
    with zq.testing.server(sqs=sqs) as served:
        refused = httpx.put(f"{served.url}/v2/queues/jobs", json={"_sqs": {"visibility": "bad"}}, headers=headers)
        assert refused.status_code == 400
    with zq.testing.server(auth_strategy="token", sqs=sqs) as served:
        headers |= {"Authorization": f"Bearer {served.token(roles=['admin'])}"}
        assert httpx.get(f"{served.url}/v2/admin/projects", headers=headers).status_code == 200


def test_the_end_does_not_wait_for_waiting_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiting request is answered, a stream ends, and a silent connection is closed."""
    monkeypatch.setattr(zq.testing._Connection, "timeout", None)
    begun = time.monotonic()
    with ThreadPoolExecutor(2) as pool, ExitStack() as stack:
        with zq.testing.server() as server:
            client = stack.enter_context(Client(server.url, "test", retries=Retries(attempts=1)))
            silent = stack.enter_context(socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))))
            client.topic("news").publish("Oslo")
            first = threading.Event()

            def listen() -> None:
                for _ in client.topic("news").stream(after=0):
                    first.set()

            waiting = pool.submit(lambda: client.queue("jobs").claim(1, wait=20).messages)
            listening = pool.submit(listen)
            assert first.wait(60)
            with pytest.raises(TimeoutError):
                waiting.result(0.5)
        assert waiting.result(60) == []
        assert time.monotonic() - begun < 20
        with pytest.raises(Unavailable):
            listening.result(60)
        assert silent.recv(1) == b""


def test_what_is_not_installed_is_named_with_the_extra(tmp_path: Path) -> None:
    """The extra has the server's packages; packages of stores are not needed."""
    block = "import sys; sys.modules['falcon'] = None; import zq.testing; zq.testing.server().__enter__()"
    done = follow(["python", "-c", block], tmp_path)
    assert done.returncode == 1
    assert "pip install 'zq-queue[testing]'" in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("text", ["", "token", "zq_0123456789"])
def test_revoking_a_malformed_token_has_no_effect(text: str) -> None:
    with zq.testing.server(auth_strategy="token") as server:
        token = server.token()
        server.revoke(text)
        assert server.client(token=token).whoami()["project"] == zq.testing.PROJECT
