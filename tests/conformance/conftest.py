# SPDX-License-Identifier: Apache-2.0
"""The scene that most conformance tests play in."""

from pathlib import Path

import pytest

from tests.conformance.builders import Scene
from tests.stores import DRIVERS, Stores
from zq.clock import ManualClock
from zq.expiry import Expiry
from zq.model import QueueRef
from zq.storage.api import Storage


@pytest.fixture(params=DRIVERS)
def store_uri(request: pytest.FixtureRequest, stores: Stores, tmp_path: Path) -> str:
    """An empty store of each driver, and of each kind of server."""
    return stores.empty(request.param, tmp_path, "a")


@pytest.fixture
def scene(storage: Storage, clock: ManualClock, queue: QueueRef) -> Scene:
    return Scene(storage, clock, queue)


@pytest.fixture
def by_sweeps_alone(storage: Storage) -> None:
    """What has expired stays until a round comes, however often it is met."""
    storage.configure(Expiry(delete_on_read=False))
