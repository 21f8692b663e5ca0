# SPDX-License-Identifier: Apache-2.0
"""The scene that most conformance tests play in."""

import pytest

from tests.conformance.builders import Scene
from zq.clock import ManualClock
from zq.expiry import Expiry
from zq.model import QueueRef
from zq.storage.api import Storage


@pytest.fixture
def scene(storage: Storage, clock: ManualClock, queue: QueueRef) -> Scene:
    return Scene(storage, clock, queue)


@pytest.fixture
def by_sweeps_alone(storage: Storage) -> None:
    """What has expired stays until a round comes, however often it is met."""
    storage.configure(Expiry(delete_on_read=False))
