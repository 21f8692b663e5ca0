# SPDX-License-Identifier: Apache-2.0
"""The scene that most conformance tests play in, on the store that the fixture ``open_store`` opens.

``open_store`` is not here: who tests a driver defines it, in the ``conftest.py`` of the folder where pytest starts.
"""

from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest

from zq.clock import ManualClock
from zq.conformance.builders import OpenStore, Scene, configure
from zq.conformance.connections import alternating
from zq.errors import NotBuilt, PoolsApart
from zq.model import QueueRef
from zq.model.expiry import Expiry
from zq.storage.api import Defaults, Storage
from zq.storage.capabilities import NO_CLAIM_LISTS, NO_HISTORY, NO_TOPICS, NO_TRANSACTIONS

MARKS = (
    "durable: only a store that holds what it held when it is opened again passes",
    "shared: only a store that is opened twice at a time passes",
    "needs(part): of drivers that do not inherit this part of the storage from zq.storage.api.Defaults",
    "every_server: of zq's own runs: where servers of one kind can differ",
)

MISSING = (NO_CLAIM_LISTS, NO_HISTORY, NO_TOPICS, NO_TRANSACTIONS)


def pytest_configure(config: pytest.Config) -> None:
    for mark in MARKS:
        config.addinivalue_line("markers", mark)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    """As for the test itself."""
    with _skipping():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """A test that asks for a capability which the driver does not have is skipped, and says so."""
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
    except PoolsApart as error:  # of a store that is several: what they cannot do together
        pytest.skip(str(error))


@pytest.fixture
def connections(request: pytest.FixtureRequest) -> int:
    """Return the number of connections that the threads of the test share; see ``ONE_OR_TWO_CONNECTIONS``."""
    return int(getattr(request, "param", 1))


@pytest.fixture
def storage(open_store: OpenStore, connections: int, request: pytest.FixtureRequest) -> Iterator[Storage]:
    """Open the store of the test."""
    with ExitStack() as opened:
        stores = [opened.enter_context(closing(open_store())) for _ in range(connections)]
        for mark in request.node.iter_markers("needs"):
            [part] = mark.args
            if getattr(type(stores[0]), part) is getattr(Defaults, part):
                pytest.skip(f"The driver inherits {part}.")
        yield stores[0] if connections == 1 else alternating(stores)


@pytest.fixture
def clock(storage: Storage) -> ManualClock:
    """It stands still until it is told to go on: drivers are given each moment."""
    return ManualClock(storage.now())


@pytest.fixture
def queue() -> QueueRef:
    return QueueRef("acme", "jobs")


@pytest.fixture
def scene(storage: Storage, clock: ManualClock, queue: QueueRef) -> Scene:
    return Scene(storage, clock, queue)


@pytest.fixture
def by_sweeps_alone(storage: Storage) -> None:
    """What has expired stays until a round comes, however often it is met."""
    configure(storage, Expiry(delete_on_read=False))


@pytest.fixture
def exact_usage(storage: Storage) -> None:
    """Tests of exact figures; stores that estimate skip them."""
    usage = storage.usage("nothing", storage.now())
    if usage is not None and not usage.exact:
        pytest.skip("The store's figures are estimates.")
