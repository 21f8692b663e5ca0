# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the conformance tests: a store, a clock, and a queue to test (``Scene``).

The author of a driver defines ``open_store`` and optionally ``module_store``, in the ``conftest.py`` of the folder
where pytest starts.
"""

import itertools
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import OpenStore, Scene, configure
from zq.conformance.connections import SharedStore, alternate
from zq.errors import NotBuilt, PoolsApart
from zq.model import QueueRef
from zq.model.expiry import Expiry
from zq.storage.api import Defaults, Storage
from zq.storage.capabilities import NO_CLAIM_LISTS, NO_HISTORY, NO_TOPICS, NO_TRANSACTIONS

MARKS = (
    "durable: only a store that holds what it held when it is opened again passes",
    "shared: only a store that is opened twice at a time passes",
    "fresh_store: the test needs a store that no other test has used, beside a project of its own",
    "needs_part(name): of drivers that do not inherit this part of the storage from zq.storage.api.Defaults",
    "every_server: of zq's own runs: where servers of one kind can differ",
    "objects: of zq's own runs: where a store in an object store can differ",
    "pools: of zq's own runs: where several stores that act as one can differ from one store",
)

PROJECT_NUMBERS = itertools.count(1)

MISSING = (NO_CLAIM_LISTS, NO_HISTORY, NO_TOPICS, NO_TRANSACTIONS)


def pytest_configure(config: pytest.Config) -> None:
    for mark in MARKS:
        config.addinivalue_line("markers", mark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test whose fixtures need a capability that the driver does not have."""
    with _skipping():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Skip a test that needs a capability that the driver does not have, and report the capability."""
    with _skipping():
        return (yield)


@contextmanager
def _skipping() -> Iterator[None]:
    try:
        yield
    except NotBuilt as error:
        if str(error) not in {missing.sentence for missing in MISSING}:
            raise
        pytest.skip(str(error))
    except PoolsApart as error:  # operations that need both of two stores
        pytest.skip(str(error))


def is_fresh(request: pytest.FixtureRequest) -> bool:
    """Return whether the test needs a store that no other test has used."""
    return request.node.get_closest_marker("fresh_store") is not None


def shared_store(request: pytest.FixtureRequest) -> SharedStore | None:
    """Return the store that the tests of this module share; ``None`` if each test opens its own."""
    try:
        shared: SharedStore | None = request.getfixturevalue("module_store")
    except pytest.FixtureLookupError as absence:
        if absence.argname != "module_store":
            raise
        return None
    return shared


@pytest.fixture
def connections(request: pytest.FixtureRequest) -> int:
    """Return the number of connections that the test's threads use; see ``ONE_OR_TWO_CONNECTIONS``."""
    return int(getattr(request, "param", 1))


@pytest.fixture
def storage(open_store: OpenStore, connections: int, request: pytest.FixtureRequest) -> Iterator[Storage]:
    """Return the open store of the test."""
    with ExitStack() as opened:
        shared = None if is_fresh(request) else shared_store(request)
        if shared is not None:
            stores = shared.connections(connections)
        else:
            stores = [opened.enter_context(closing(open_store())) for _ in range(connections)]
        for mark in request.node.iter_markers("needs_part"):
            [part] = mark.args
            if getattr(type(stores[0]), part) is getattr(Defaults, part):
                pytest.skip(f"The driver inherits {part}.")
        yield stores[0] if connections == 1 else alternate(stores)


@pytest.fixture
def clock(storage: Storage) -> ManualClock:
    """Return a clock that only the test advances. Drivers receive the time as an argument."""
    return ManualClock(storage.now())


@pytest.fixture
def project(request: pytest.FixtureRequest) -> str:
    """Return the project of the test: ``acme`` in a fresh store, or a project that no other test uses."""
    return "acme" if is_fresh(request) else f"{next(PROJECT_NUMBERS)}.acme"


@pytest.fixture
def queue(project: str) -> QueueRef:
    return QueueRef(project, "jobs")


@pytest.fixture
def scene(storage: Storage, clock: ManualClock, queue: QueueRef) -> Scene:
    return Scene(storage, clock, queue)


@pytest.fixture
def by_sweeps_alone(storage: Storage) -> None:
    """Configure the store to remove expired messages only in maintenance rounds."""
    configure(storage, Expiry(delete_on_read=False))


@pytest.fixture
def exact_usage(storage: Storage) -> None:
    """Skip tests of exact usage on stores that estimate it."""
    usage = storage.usage("nothing", storage.now())
    if usage is not None and not usage.exact:
        pytest.skip("The store's figures are estimates.")
