# SPDX-License-Identifier: Apache-2.0
"""A real Swift for the stores in it, its objects past the store, and what opens one."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.swift import Swift
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.object.swift import SwiftObjects

LEASE = 2
Open = Callable[..., Storage]


@pytest.fixture(scope="session")
def swift() -> Iterator[Swift]:
    """Shared by all tests that do not break it."""
    with Swift() as server:
        os.environ.update(server.environment)
        yield server


@pytest.fixture
def uri(swift: Swift) -> str:
    """An empty store."""
    return f"swift://zq/{uuid4().hex}?auth=v1"


@pytest.fixture
def objects(swift: Swift, uri: str) -> SwiftObjects:
    """The store's objects."""
    opened = SwiftObjects(uri, swift.environment)
    opened.prepare()
    return opened


@pytest.fixture
def machine(uri: str, tmp_path: Path) -> Iterator[Open]:
    """A function that opens the store on a machine of that name, which has a disk of its own, and options."""
    opened: list[Storage] = []

    def start(name: str, **options: object) -> Storage:
        own = {"cache": str(tmp_path / name), "lease": LEASE, "takeover": "now", "patience": 5, **options}
        opened.append(connect(uri, own))
        return opened[-1]

    yield start
    for storage in opened:
        storage.close()
