# SPDX-License-Identifier: Apache-2.0
"""What the tests of the Python client share: a server, and one whose clock is theirs."""

import threading
from collections.abc import Iterator
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple
from uuid import uuid4
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import pytest

from tests.client.either import KINDS, client_of
from tests.client.misbehaving import Proxy
from tests.servers import ZqServer
from zq.broker import Broker
from zq.clock import ManualClock
from zq.http.app import create_app
from zq.storage import connect


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZqServer]:
    """One server for all tests of the client; each works in a project of its own."""
    with ZqServer(f"rocksdb://{tmp_path_factory.mktemp('client')}/store") as server:
        yield server


@pytest.fixture
def project() -> str:
    return f"p-{uuid4().hex[:12]}"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Which of the two clients."""
    kind: str = request.param
    return kind


@pytest.fixture
def queue(running: ZqServer, kind: str, project: str) -> Iterator[Any]:
    with client_of(kind, running.url, project) as client:
        yield client.queue("jobs")


@pytest.fixture
def proxy(running: ZqServer) -> Iterator[Proxy]:
    with Proxy(running.url).serving() as serving:
        yield serving


class Timed(NamedTuple):
    """A server in this process, and its clock."""

    url: str
    clock: ManualClock


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def timed(tmp_path) -> Iterator[Timed]:
    """A server whose time moves when told: claims last a minute at least, and no test waits for one to lapse."""
    storage = connect(f"rocksdb://{tmp_path}/timed")
    clock = ManualClock(storage.now())
    app = create_app(Broker(storage, clock))
    with make_server("127.0.0.1", 0, app, _Server, _Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield Timed(f"http://127.0.0.1:{server.server_port}", clock)
        finally:
            server.shutdown()
            thread.join()
    storage.close()
