# SPDX-License-Identifier: Apache-2.0
"""A real Swift, and an S3, for the stores in them, their objects past the store, and what opens one.

Each test runs on one of both, half of them on either; with ``--stores swift,s3`` on each that is named, and races for
longer.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4
from zlib import crc32

import pytest

from tests.object.between import Between
from tests.s3 import S3
from tests.stores import IN_OBJECTS
from tests.swift import Swift
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.object import objects_of
from zq.storage.object.objects import Objects

LEASE = 2
Open = Callable[..., Storage]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    own = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "uri" in metafunc.fixturenames and "uri" not in own:
        named = metafunc.config.getoption("--stores")
        one = IN_OBJECTS[crc32(metafunc.function.__name__.encode()) % len(IN_OBJECTS)]
        chosen = [name for name in IN_OBJECTS if name in named.split(",")] if named else [one]
        metafunc.parametrize("uri", chosen, indirect=True)


@pytest.fixture(scope="session")
def rounds(request: pytest.FixtureRequest) -> int:
    """How many races."""
    return 12 if request.config.getoption("--stores") else 4


@pytest.fixture(scope="session")
def swift() -> Iterator[Swift]:
    """Shared by all tests that do not break it."""
    with Swift() as server:
        os.environ.update(server.environment)
        yield server


@pytest.fixture(scope="session")
def three() -> Iterator[Swift]:
    """One with three devices, which tests may break for a while."""
    with Swift(3) as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    with S3() as server:
        os.environ.update(server.environment)
        yield server


@pytest.fixture
def between(swift: Swift, monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    """What stores of this test take for Swift."""
    with Between(swift) as proxy:
        for name, value in proxy.environment.items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def uri(request: pytest.FixtureRequest) -> str:
    """An empty store."""
    server: Swift | S3 = request.getfixturevalue(request.param)
    return server.uri(uuid4().hex)


@pytest.fixture
def objects(uri: str) -> Objects:
    """The store's objects."""
    return objects_of(uri)


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
