# SPDX-License-Identifier: Apache-2.0
"""Pytest fixtures for programs that use zq. Pytest loads them automatically if zq is installed. See ``zq.testing``."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # ``zq.testing`` imports the server, which unrelated tests do not need
    from zq.client import Client
    from zq.testing import Server


@pytest.fixture
def zq_server() -> Iterator["Server"]:
    """Provide a zq server with an empty store for one test: its URL, its clock and its clients."""
    from zq.testing import server

    with server() as running:
        yield running


@pytest.fixture
def zq_client(zq_server: "Server") -> "Client":
    """Provide a blocking client of ``zq_server`` in the project "test"."""
    return zq_server.client()
