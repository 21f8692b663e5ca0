# SPDX-License-Identifier: Apache-2.0
"""Separate addresses of probes and metrics, with every engine."""

import errno
import logging
import os
import signal
import socket
import threading
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.servers import Lost, ZqServer, ask, free_port, wait_for
from tests.stores import RedisServer
from zq import __version__
from zq.errors import Unavailable
from zq.serving import probes
from zq.serving.metrics.scraping import scrape


def served(url: str, path: str) -> int:
    """Return the status of the page, or 0 without a response."""
    try:
        return ask(url, "GET", path, timeout=5).status
    except Lost:
        return 0


def test_metrics_have_an_address_of_their_own(engine: str, tmp_path: Path) -> None:
    """The address serves only metrics and ``/healthz``; the main address does not serve metrics."""
    port = free_port()
    env = {"OS_METRICS__PORT": str(port), "OS_METRICS__ON_MAIN_PORT": "false"}
    with ZqServer(f"rocksdb://{tmp_path}/store", engine=engine, env=env) as server:
        url = f"http://127.0.0.1:{port}"
        page = wait_for(lambda: served(url, "/metrics") and ask(url, "GET", "/metrics"), 60, "the page is served")
        assert page.headers["content-type"].startswith("text/plain; version=0.0.4")
        assert b"zq_info{" in page.body
        assert b'zq_refused_total{reason="overload"} 0.0' in page.body
        for name in ("draining 0.0", "open_files_ratio 0.0", f'disk_free_bytes{{path="{tmp_path}/store"}} '):
            assert f"zq_{name}".encode() in page.body
        assert ask(url, "HEAD", "/metrics").body == b""
        assert served(url, "/healthz") == 200
        assert served(url, "/v2/queues") == served(url, "/readyz") == 404
        assert served(server.url, "/metrics") == 404


def test_metrics_require_the_token_of_a_file_that_is_read_again(
    tmp_path: Path,
) -> None:
    """``/healthz`` requires no token. The doctor sends the token of the file, even before the server has read it."""
    file, port = tmp_path / "token", free_port()
    file.touch(0o600)
    file.write_text("first\n")
    settings = {"OS_METRICS__PORT": str(port), "OS_METRICS__TOKEN_FILE": str(file)}
    url = f"http://127.0.0.1:{port}"

    def status(**headers: str) -> int:
        return ask(url, "GET", "/metrics", headers=headers).status

    with ZqServer("memory:", config="[server]\n", env=settings) as server:
        wait_for(lambda: served(url, "/healthz") == 200, 60, "the listener serves")
        refused = ask(url, "GET", "/metrics")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert b"zq_info" not in refused.body
        assert status(Authorization="Bearer first") == status(authorization="bearer first") == 200
        assert [status(Authorization=f"{given}") for given in ("first", "Bearer", "Bearer firs", "Basic first")] == [
            401
        ] * 4
        assert status(Authorization="Bearer \xe9") == 401
        file.write_text("second\n")
        with pytest.raises(Unavailable, match="Send it SIGHUP"):
            scrape("127.0.0.1", port, str(file))
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: status(Authorization="Bearer second") == 200, 60, "the server has read the file")
        assert status(Authorization="Bearer first") == 401
        assert scrape("127.0.0.1", port, str(file)).version == __version__
        file.write_text("")
        os.kill(server.pid, signal.SIGHUP)
        wait_for(lambda: "[metrics] token_file must contain only a token" in server.output, 60, "the file is refused")
        assert status(Authorization="Bearer second") == 200


def test_an_address_that_is_taken_stops_no_start_and_is_tried_again(engine: str, tmp_path: Path) -> None:
    """The second server on a machine serves requests, and gets the address after the first has ended."""
    port = free_port()
    env = {"OS_METRICS__PORT": str(port)}
    url = f"http://127.0.0.1:{port}"
    announced = f"Metrics: {url}/metrics."
    with ExitStack() as stack:
        first = stack.enter_context(ZqServer(f"rocksdb://{tmp_path}/a", engine=engine, env=env))
        wait_for(lambda: served(url, "/metrics") == 200, 60, "the first serves it")
        wait_for(lambda: announced in first.output, 60, "the first announces it")
        assert "Metrics are not served" not in first.output
        second = stack.enter_context(ZqServer(f"rocksdb://{tmp_path}/b", engine=engine, env=env))
        assert second.ready()
        conflict = f"Metrics are not served: 127.0.0.1:{port} is used by another program. Set [metrics] bind and port."
        assert conflict in second.output
        assert announced not in second.output
        first.kill()
        wait_for(lambda: served(url, "/metrics") == 200, 60, "the second serves it")
        wait_for(lambda: announced in second.output, 60, "the second announces it")
        assert ask(second.url, "GET", "/healthz").status == 200


@pytest.mark.parametrize(("code", "level"), [(errno.EADDRINUSE, "INFO"), (errno.EADDRNOTAVAIL, "WARNING")])
def test_an_address_that_cannot_be_used_is_warned_of_unless_it_is_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, code: int, level: str
) -> None:
    """A taken address is usual, because each worker tries to listen."""
    serves, attempts = threading.Event(), iter([OSError(code, os.strerror(code))])

    def serve_forever() -> None:
        serves.set()
        threading.Event().wait()

    def listener(*_: object) -> SimpleNamespace:
        for error in attempts:
            raise error
        return SimpleNamespace(serve_forever=serve_forever)

    monkeypatch.setattr(probes, "Listener", listener)
    monkeypatch.setattr(probes, "RETRY_INTERVAL", 0.0)
    with caplog.at_level(logging.INFO, "zq"):
        probes.serve("metrics", "192.0.2.1", 8889, {}, "Serves.")
        assert serves.wait(20)
    [record] = [record for record in caplog.records if "cannot listen" in record.message]
    assert record.levelname == level


def test_metrics_and_probes_at_the_main_address_are_warned_of(engine: str, tmp_path: Path) -> None:
    """Neither address is logged, and the server serves requests."""
    port = free_port()
    own = ["--port", str(port)]
    env = {"OS_METRICS__PORT": str(port), "OS_PROBES__BIND": f"0.0.0.0:{port}"}
    server = ZqServer(f"rocksdb://{tmp_path}/store", *own, engine=engine, env=env)
    server.url = f"http://127.0.0.1:{port}"
    with server:
        warnings = [line for line in server.output.splitlines() if "WARNING" in line]
        assert [line.partition(": ")[2] for line in warnings] == [
            f"Probes are not served: 0.0.0.0:{port} is used by the server. Set [probes] bind.",
            f"Metrics are not served: 127.0.0.1:{port} is used by the server. Set [metrics] bind and port.",
        ]
        assert ask(server.url, "GET", "/v2/queues").status == 200
        assert "Metrics: " not in server.output
        assert "Probes: " not in server.output


def test_probes_answer_beside_a_server_that_takes_nobody(engine: str, store: RedisServer) -> None:
    """Probes have an address of their own. The store hangs and all threads are in use; readiness states the reason."""
    port = free_port()
    config = f"[server]\nthreads = 9\n[probes]\nbind = 127.0.0.1:{port}\n[transport]\nstorage_timeout = 2\n"
    with ExitStack() as stack:
        server = stack.enter_context(ZqServer(store.uri, engine=engine, config=config))
        url = f"http://127.0.0.1:{port}"
        wait_for(lambda: served(url, "/readyz") == 200, 60, "ready")
        assert served(url, "/metrics") == 404
        stack.enter_context(store.frozen())
        request = f"GET /v2/queues HTTP/1.1\r\nHost: a\r\nClient-ID: {'a' * 32}\r\nX-Project-ID: a\r\n\r\n".encode()
        for _ in range(60):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 20))
            client.sendall(request)
        assert ask(url, "GET", "/healthz", timeout=5).status == 200
        unready = ask(url, "GET", "/readyz", timeout=20)
        assert unready.status == 503
        assert unready.headers["retry-after"] == "1"
        assert unready.document["description"]


def test_an_invalid_address_stops_the_start(engine: str, tmp_path: Path) -> None:
    """The error names the option."""
    server = ZqServer(f"rocksdb://{tmp_path}/store", engine=engine, config="[probes]\nbind = 8887\n")
    server.launch()
    assert server.wait(30) == 2
    assert "[probes] bind must be an address, a colon and a port" in server.stderr


@pytest.mark.usefixtures("ipv6")
@pytest.mark.parametrize("bind", ["::1", "[::1]"])
def test_addresses_of_ipv6_are_listened_on(engine: str, bind: str, tmp_path: Path) -> None:
    """Addresses with and without brackets work for the main address, probes and metrics."""
    probes, metrics = free_port(), free_port()
    config = f"[probes]\nbind = {bind}:{probes}\n[metrics]\nbind = {bind}\n"
    env = {"OS_METRICS__PORT": str(metrics)}
    server = ZqServer(f"rocksdb://{tmp_path}/store", "--bind", bind, engine=engine, config=config, env=env)
    server.url = f"http://[::1]:{server.port}"
    with server:
        assert ask(server.url, "GET", "/v2/queues").status == 200
        wait_for(lambda: served(f"http://[::1]:{probes}", "/readyz") == 200, 60, "the probes are served")
        wait_for(lambda: served(f"http://[::1]:{metrics}", "/metrics") == 200, 60, "the page is served")


def test_this_machine_by_its_name_is_listened_on(engine: str, tmp_path: Path) -> None:
    """The server considers it a local address."""
    with ZqServer(f"rocksdb://{tmp_path}/store", "--bind", "localhost", engine=engine) as server:
        assert ask(server.url, "GET", "/v2/queues").status == 200
