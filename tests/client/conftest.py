# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the Python client's tests: a shared server, and a server with a settable clock."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.client.client_kinds import KINDS, client_of
from tests.client.misbehaving import Proxy
from tests.servers import ZqServer
from zq.testing import Server, server


@pytest.fixture(scope="session")
def running() -> Iterator[ZqServer]:
    """Start one server for all tests of the client; each test has its own project."""
    with ZqServer("memory:", env={"OS_SIGNED_URL__SECRET_KEY": "k" * 32}) as server:
        yield server


@pytest.fixture
def project() -> str:
    return f"p-{uuid4().hex[:12]}"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Return which of the two clients the test uses."""
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


@pytest.fixture
def timed() -> Iterator[Server]:
    """Start a server with a settable clock, because claims last at least a minute and no test waits for an expiry."""
    with server() as ahead:
        yield ahead
