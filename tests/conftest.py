# SPDX-License-Identifier: Apache-2.0
"""Fixtures that all suites share: an open store per driver, and a clock that only moves when told."""

import gc
import signal
from collections.abc import Iterator

import pytest

from tests.stores import STORES, Stores
from zq.clock import ManualClock
from zq.model import QueueRef
from zq.storage import connect
from zq.storage.api import Storage


def pytest_configure() -> None:
    """A suite that a shell started in the background ignores SIGINT, and so would all that it starts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Thousands of collected tests are no garbage: without them a collection, which every store that is closed asks
    for, takes a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def stores() -> Iterator[Stores]:
    """The store servers of this session."""
    opened = Stores()
    yield opened
    opened.close()


@pytest.fixture(params=STORES)
def store_uri(request: pytest.FixtureRequest, stores: Stores, tmp_path) -> str:
    """An empty store of each driver."""
    return stores.empty(request.param, tmp_path, "a")


@pytest.fixture
def storage(store_uri: str) -> Iterator[Storage]:
    opened = connect(store_uri)
    yield opened
    opened.close()


@pytest.fixture
def clock(storage: Storage) -> ManualClock:
    return ManualClock(storage.now())


@pytest.fixture
def queue() -> QueueRef:
    return QueueRef("acme", "jobs")
