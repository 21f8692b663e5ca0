# SPDX-License-Identifier: Apache-2.0
"""A Swift of three devices, of which one breaks."""

import time

import pytest

from tests.object.conftest import Open
from tests.object.test_faults import holds, posted
from tests.swift import Swift

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("uri", ["swift"], indirect=True)]


def test_one_broken_device_of_three_is_not_noticed(
    three: Swift, machine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Puts, newest reads and elections go on; and when another one breaks later, nothing is missing."""
    for name, value in three.environment.items():
        monkeypatch.setenv(name, value)
    storage = machine("first")
    with three.broken_device(0):
        acknowledged = posted(storage, 0, 5)
        storage.close()
        storage = machine("second")
        acknowledged += posted(storage, 5, 10)
    assert acknowledged == [f"{number}" for number in range(10)]
    time.sleep(2)  # Swift's proxy does not ask a device again at once
    with three.broken_device(1):
        holds(machine, acknowledged)
