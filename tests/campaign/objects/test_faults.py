# SPDX-License-Identifier: Apache-2.0
"""A Swift with three devices, of which one fails."""

import time

import pytest

from tests.object.conftest import Open
from tests.object.test_faults import holds, posted
from tests.swift import Swift

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("uri", ["swift"], indirect=True)]


def test_one_broken_device_of_three_is_not_noticed(
    three: Swift, machine: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Puts, newest reads and elections continue; if another device fails later, no data is missing."""
    for name, value in three.environment.items():
        monkeypatch.setenv(name, value)
    storage = machine("first")
    with three.broken_device(0):
        acknowledged = posted(storage, 0, 5)
        storage.close()
        storage = machine("second")
        acknowledged += posted(storage, 5, 10)
    assert acknowledged == [f"{number}" for number in range(10)]
    time.sleep(2)  # Swift's proxy does not query a failed device again at once
    with three.broken_device(1):
        holds(machine, acknowledged)
