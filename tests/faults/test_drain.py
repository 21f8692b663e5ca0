# SPDX-License-Identifier: Apache-2.0
"""``zq-server drain``: the server reports that it is not ready, serves on, and finishes its requests (operations 9)."""

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.commands import Done, run, run_apart
from tests.servers import CLIENT, PROJECT, ZqServer, ask, wait_for
from tests.stores import RedisServer
from zq.serving import control

HEADERS = {"Client-ID": CLIENT, "X-Project-ID": PROJECT}
BODY = b'{"messages":[{"body":1}]}'
UNREADY = "The server is draining: /readyz answers 503"


@contextmanager
def upload(server: ZqServer) -> Iterator[HTTPConnection]:
    """Begin a post whose body does not arrive in full."""
    with closing(HTTPConnection("127.0.0.1", server.port, timeout=30)) as connection:
        connection.putrequest("POST", "/v2/queues/q/messages")
        for name, value in {**HEADERS, "Content-Length": str(len(BODY))}.items():
            connection.putheader(name, value)
        connection.endheaders(BODY[:5])
        yield connection


@contextmanager
def begun(*arguments: object) -> Iterator[list[Done]]:
    """Run a command in a process of its own; the command has ended when the list is not empty."""
    done: list[Done] = []
    thread = threading.Thread(target=lambda: done.append(run_apart(*arguments)))
    thread.start()
    yield done
    thread.join()


def is_unready(server: ZqServer) -> bool:
    return ask(server.url, "GET", "/readyz").status == 503


def test_a_drain_ends_with_the_last_request_and_can_be_undone(tmp_path: Path) -> None:
    """The server answers requests during the drain, and each response closes its connection."""
    uri = f"rocksdb://{tmp_path}/store"
    with ZqServer(uri, engine="granian") as server, upload(server) as connection:
        assert ask(server.url, "GET", "/healthz").status == 200
        with begun("drain", "--wait", 60, "--store", uri) as done:
            wait_for(lambda: is_unready(server), 10, "it is not ready")
            wait_for(lambda: b"zq_draining 1.0" in ask(server.url, "GET", "/metrics").body, 10, "metrics show it")
            posted = ask(server.url, "POST", "/v2/queues/q/messages", {"messages": [{"body": 1}]})
            assert (posted.status, posted.headers["connection"]) == (201, "close")
            assert ask(server.url, "GET", "/healthz").status == 200
            assert done == [], "a request is in progress"
            connection.send(BODY[5:])
            assert connection.getresponse().status == 201
        assert (done[0].code, done[0].said) == (0, f"{UNREADY}, and no request is in progress.\n"), done
        assert is_unready(server)
        examined = run("doctor", "--store", uri, "--port", server.port).said
        assert f"warn  server: The server on 127.0.0.1:{server.port} is draining. To use it again, run" in examined
        assert "because the check server did not succeed" not in examined
        undone = run("drain", "--undo", "--store", uri)
        assert (undone.code, undone.said) == (0, "The server is not draining.\n")
        answer = ask(server.url, "GET", "/readyz")
        assert (answer.status, answer.headers.get("connection")) == (200, None)
        assert server.terminate() == 0


def test_a_drain_ends_when_its_time_is_over(tmp_path: Path) -> None:
    """The command prints the number of requests in progress.

    An engine that does not count them takes the whole time, and another command can end the drain earlier.
    """
    uri = f"rocksdb://{tmp_path}/store"
    with ZqServer(uri, engine="granian") as server, upload(server):
        done = run("drain", "--wait", 1, "--store", uri)
        assert (done.code, done.said) == (0, f"{UNREADY}. Requests in progress after 1 s: 1.\n")
    with ZqServer(uri, engine="gunicorn") as server:
        began = time.monotonic()
        done = run("drain", "--wait", 1, "--store", uri)
        assert (done.code, done.said) == (0, f"{UNREADY}. Requests in progress after 1 s: unknown.\n")
        assert time.monotonic() - began >= 1
        answer = ask(server.url, "GET", "/readyz")
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        with begun("drain", "--wait", 60, "--store", uri) as ended:
            wait_for(lambda: run("drain", "--undo", "--store", uri).code == 0 and ended, 20, "it ends")
        assert (ended[0].code, ended[0].said) == (1, "The server is not draining.\n")
        kept = HTTPConnection("127.0.0.1", server.port, timeout=30)
        with closing(kept):
            kept.request("GET", "/readyz")
            assert not kept.getresponse().will_close


def test_all_workers_of_a_server_drain(store: RedisServer, tmp_path: Path) -> None:
    """Each worker counts its own requests."""
    config = f"[server]\nworkers = 3\ncontrol = {tmp_path}/control.sock\n"
    with ZqServer(store.uri, engine="granian", config=config) as server:
        wait_for(lambda: server.output.count("is serving") == 3, 30, "all workers serve")
        options = ["--store", store.uri, "--config", str(tmp_path / "zq.conf")]
        (tmp_path / "zq.conf").write_text(config)
        with ExitStack() as uploads:
            for _ in range(6):
                uploads.enter_context(upload(server))
            done = run("drain", "--wait", 1, *options)
            assert done.said == f"{UNREADY}. Requests in progress after 1 s: 6.\n", done
            assert all(is_unready(server) for _ in range(20))
        assert run("drain", "--wait", 60, *options).said == f"{UNREADY}, and no request is in progress.\n"
        assert run("drain", "--undo", *options).code == 0
        assert not any(is_unready(server) for _ in range(20))


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["drain", "--store", "memory:"], "drain needs the server's control socket: set [server] control to a path."),
        (["drain", "--undo", "--wait", "1"], "--undo cannot be combined with --wait."),
        (["backup", "/x", "--wait", "1"], "--wait does not apply to this command; see zq-server --help."),
        (["drain", "/x"], "'/x' does not apply to this command; see zq-server --help."),
    ],
)
def test_a_drain_that_cannot_begin_is_rejected_with_a_sentence(arguments: list[str], error: str) -> None:
    done = run(*arguments)
    assert (done.code, done.error[: len(error) + 11]) == (2, f"zq-server: {error}")


def test_a_drain_without_a_server_is_rejected(tmp_path: Path) -> None:
    done = run("drain", "--store", f"rocksdb://{tmp_path}/store")
    assert (done.code, done.said) == (2, "")
    assert done.error.startswith("zq-server: No server answers at the control socket")


def test_the_time_is_bounded(tmp_path: Path) -> None:
    """The limit applies on the command line and at the socket."""
    with pytest.raises(SystemExit):
        run("drain", "--wait", "3601")
    with ZqServer(f"rocksdb://{tmp_path}/store", engine="granian") as server:
        socket = str(tmp_path / "store" / "control.sock")
        for document in ({"wait": 3601}, {"wait": -1}, {"wait": "x"}, {}, [], {"wait": 1, "x": 1}):
            assert control.send(socket, "POST", "/drain", document)[0] == 400
        assert not is_unready(server)
