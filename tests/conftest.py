# SPDX-License-Identifier: Apache-2.0
"""Fixtures that all suites share: an open store per driver, and a clock that only moves when told."""

from collections.abc import Iterator

import pytest

from zq.clock import ManualClock
from zq.model import QueueRef
from zq.storage import connect
from zq.storage.api import Storage

DRIVERS = ["rocksdb"]


@pytest.fixture(params=DRIVERS)
def store_uri(request: pytest.FixtureRequest, tmp_path) -> str:
    """An empty store of each driver."""
    return {"rocksdb": f"rocksdb://{tmp_path}/store"}[request.param]


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
