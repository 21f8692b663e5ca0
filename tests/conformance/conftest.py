# SPDX-License-Identifier: Apache-2.0
"""The scene that most conformance tests play in."""

import pytest

from tests.conformance.builders import Scene
from zq.clock import ManualClock
from zq.model import QueueRef
from zq.storage.api import Storage


@pytest.fixture
def scene(storage: Storage, clock: ManualClock, queue: QueueRef) -> Scene:
    return Scene(storage, clock, queue)
