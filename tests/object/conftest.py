# SPDX-License-Identifier: Apache-2.0
"""A real Swift, an S3 and an Azure, for the stores in them, their objects past the store, and what opens one."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.azurite import Azurite
from tests.object.between import Between
from tests.s3 import S3
from tests.stores import IN_OBJECTS, object_store
from tests.swift import Swift
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.object import objects_of
from zq.storage.object.objects import Objects

LEASE = 2
Open = Callable[..., Storage]


@pytest.fixture(scope="session")
def swift() -> Iterator[Swift]:
    """Shared by all tests that do not break it."""
    with Swift() as server:
        os.environ.update(server.environment)
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


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    with object_store("az") as server:
        assert isinstance(server, Azurite)
        os.environ.update(server.environment)
        yield server


@pytest.fixture(scope="session")
def chosen_server(request: pytest.FixtureRequest) -> Iterator[Swift | S3 | Azurite]:
    """One of those that ``--stores`` names."""
    if request.param in ("swift", "s3"):
        yield request.getfixturevalue(request.param)
        return
    with object_store(request.param) as server:
        os.environ.update(server.environment)
        yield server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test runs on Swift and on S3, or on those that ``--stores`` names."""
    own = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "chosen_server" in metafunc.fixturenames and "chosen_server" not in own:
        named = (metafunc.config.getoption("--stores") or "swift,s3").split(",")
        stores = [name for name in IN_OBJECTS if name in named]
        metafunc.parametrize("chosen_server", stores, indirect=True, scope="session")


@pytest.fixture
def uri(chosen_server: Swift | S3 | Azurite) -> str:
    """An empty store."""
    return chosen_server.uri(uuid4().hex)


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
