# SPDX-License-Identifier: Apache-2.0
"""A Swift, an S3 and an Azure server, stores in them, and direct access to their objects.

Without ``--stores`` each test runs on S3, the cheapest of them, unless the test names another one. With ``--stores
swift,s3,swift-3,az`` it runs on each of the named ones.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.abilities import need
from tests.azurite import Azurite
from tests.object.between import Between
from tests.object.work import patient
from tests.rotation import CAMPAIGN
from tests.s3 import S3
from tests.stores import IN_OBJECTS, object_store
from tests.swift import Swift
from zq.storage import connect
from zq.storage.api import Storage
from zq.storage.object import epochs, objects_of
from zq.storage.object.objects import Objects

LEASE = 2
Open = Callable[..., Storage]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marks = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    own = [name for names in marks for name in ([names] if isinstance(names, str) else names)]
    if "uri" in metafunc.fixturenames and "uri" not in own:
        named = metafunc.config.getoption("--stores")
        chosen = [name for name in IN_OBJECTS if name in named.split(",")] if named else ["s3"]
        metafunc.parametrize("uri", chosen, indirect=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run all tests of the folder in one process, which starts the object stores' servers."""
    item.add_marker(pytest.mark.together("objects"))


@pytest.fixture(scope="session")
def rounds() -> int:
    """Return the number of races."""
    return 12 if CAMPAIGN else 4


@pytest.fixture(scope="session")
def swift() -> Iterator[Swift]:
    """Start a Swift that all tests share unless they break it."""
    need("swift")
    with Swift() as server:
        os.environ.update(server.environment)
        yield server


@pytest.fixture(scope="session")
def three() -> Iterator[Swift]:
    """Start a Swift with three devices, which tests may break temporarily."""
    need("swift")
    with Swift(3) as server:
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    with S3() as server:
        os.environ.update(server.environment)
        yield server


@pytest.fixture(scope="session")
def azurite() -> Iterator[Azurite]:
    with object_store("az") as server:
        assert isinstance(server, Azurite)
        os.environ.update(server.environment)
        yield server


@pytest.fixture
def between(swift: Swift, monkeypatch: pytest.MonkeyPatch) -> Iterator[Between]:
    """Start a proxy that the stores of this test use instead of Swift."""
    with Between(swift) as proxy:
        for name, value in proxy.environment.items():
            monkeypatch.setenv(name, value)
        yield proxy


@pytest.fixture
def uri(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URI of an empty store."""
    name = request.param
    server: Swift | S3 | Azurite = request.getfixturevalue({"swift-3": "three", "az": "azurite"}.get(name, name))
    for variable, value in server.environment.items():
        monkeypatch.setenv(variable, value)
    return server.uri(uuid4().hex)


@pytest.fixture
def objects(uri: str) -> Objects:
    """Return the store's objects."""
    return patient(objects_of(uri))


@pytest.fixture
def machine(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Yield a function that opens the store with options, on a machine with this name and its own disk.

    The machine has enough time to prove its ownership, because an object store on a busy machine replies late.
    """
    monkeypatch.setattr(epochs, "PATIENCE", 10.0)
    opened: list[Storage] = []

    def start(name: str, **options: object) -> Storage:
        own = {"cache": str(tmp_path / name), "lease": LEASE, "takeover": "now", "patience": 20, **options}
        opened.append(connect(uri, own))
        return opened[-1]

    yield start
    for storage in opened:
        storage.close()
