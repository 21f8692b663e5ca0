# SPDX-License-Identifier: Apache-2.0
"""What all suites share: the option ``--stores``, an empty store of each that is named, a clock set by hand."""

import gc
import itertools
import logging
import os
import signal
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import abilities, forking
from tests.forking import store_of
from tests.rotation import CAMPAIGN, EXAMPLES, SEED, examples
from tests.stores import EMBEDDED, KINDS, UNUSUAL, USUAL, Kind, Stores, opener
from zq.clock import ManualClock
from zq.conformance.builders import OpenStore
from zq.conformance.connections import SharedStore
from zq.model import QueueRef
from zq.storage.api import Storage

# No deadline for an example: machines differ. No database of failed examples: the seed repeats a run.
settings.register_profile(
    "zq", max_examples=examples(100), database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("zq")


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.register(forking)
    parser.addoption("--stores", help=f"the stores to test, with commas, of {', '.join(KINDS)}; default: all")


def pytest_report_header() -> str:
    """Return the line that repeats the random choices of this run."""
    return f"choices: ZQ_SEED={SEED} ZQ_EXAMPLES={EXAMPLES:.2f} ZQ_CAMPAIGN={int(CAMPAIGN)}"


def pytest_configure(config: pytest.Config) -> None:
    """A suite that a shell started in the background ignores SIGINT, and so would all that it starts.

    Hypothesis takes its seed from the seed of the run, unless ``--hypothesis-seed`` gives one.
    """
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(SEED)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.pluginmanager.register(abilities)
    unknown = set(chosen(config)) - set(KINDS)
    if unknown:
        raise pytest.UsageError(f"--stores: {', '.join(sorted(unknown))} is none of {', '.join(KINDS)}.")


def chosen(config: pytest.Config) -> list[str]:
    """The stores that ``--stores`` names, or the usual ones."""
    named = config.getoption("--stores")
    return named.split(",") if named else USUAL


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test with a store runs on each that is chosen and can what the test needs."""
    own = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "store_name" in metafunc.fixturenames and "store_name" not in own:
        needs = marks(metafunc.definition)
        stores = wanted(metafunc.config, needs)
        names = [name for name in stores if able(name, needs)] or stores[:1]  # unable: ``fits`` takes the test away
        needed = [getattr(pytest.mark, need) for need in Kind._fields if need in needs]
        some = [pytest.param(name, marks=needed) for name in names]
        one = "one_store" in needs and "every_store" not in needs
        metafunc.parametrize("store_name", some[:1] if one else some, indirect=True, scope="session")


def wanted(config: pytest.Config, marked: set[str]) -> list[str]:
    """The stores for a test, by its marks (setup.cfg has them)."""
    if config.getoption("--stores"):
        return chosen(config)
    if "embedded" in marked and "every_store" not in marked:
        return EMBEDDED
    return [name for name in KINDS if name in USUAL or UNUSUAL.get(name) in marked]


def able(name: str, needs: set[str]) -> bool:
    """Whether a store can what ``durable`` and ``shared`` ask for."""
    return all(can for need, can in KINDS[name]._asdict().items() if need in needs)


def marks(node: pytest.Item) -> set[str]:
    return {mark.name for mark in node.iter_markers()}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """No test is left that its store cannot pass, where one of its own parameters asks for more, or names the store."""
    unfit = {item for item in items if not fits(config, item)}
    config.hook.pytest_deselected(items=list(unfit))
    items[:] = spread([item for item in items if item not in unfit])


def spread(items: list[pytest.Item]) -> list[pytest.Item]:
    """Tests of faults wait for most of their time, and others work: each process has some of both at any time. What
    shares a file and a store stays together."""
    runs = [list(run) for _, run in itertools.groupby(items, lambda item: (item.path, store_of(item)))]
    waits = [run[0].path.parent.name == "faults" for run in runs]
    counted = Counter[bool]()
    places = []
    for run, kind in zip(runs, waits, strict=True):
        places.append(counted[kind])
        counted[kind] += len(run)
    order = sorted(range(len(runs)), key=lambda at: places[at] / counted[waits[at]])
    return [item for at in order for item in runs[at]]


def fits(config: pytest.Config, item: pytest.Item) -> bool:
    name = store_of(item)
    return name is None or (able(name, marks(item)) and (name in chosen(config) or not config.getoption("--stores")))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is made while tests are collected is garbage: who looks for some takes a tenth of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Thousands of collected tests are no garbage: without them a collection, which every store that is closed asks
    for, takes a tenth of the time."""
    freeze()


def freeze() -> None:
    """What lives now is not looked at by any later collection."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, object, object]:
    """Nor is what each file of tests leaves behind, as modules that it has imported."""
    try:
        return (yield)
    finally:
        if nextitem is not None and nextitem.path != item.path:
            freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """A server's program that a test runs in this process takes the log over, and the next test has it back."""
    loggers = [logging.getLogger(name) for name in (None, "zq", "__main__")]
    handlers, levels = list(loggers[0].handlers), [each.level for each in loggers]
    try:
        return (yield)
    finally:
        loggers[0].handlers[:] = handlers
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


@pytest.fixture(scope="session")
def stores() -> Iterator[Stores]:
    """The store servers of this session."""
    opened = Stores()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def store_name(request: pytest.FixtureRequest) -> str:
    """Each store that is chosen."""
    name: str = request.param
    return name


@pytest.fixture
def store_uri(store_name: str, stores: Stores, tmp_path: Path) -> str:
    """Return the URI of the test's store, empty."""
    return stores.empty(store_name, tmp_path, "a")


@pytest.fixture
def open_store(request: pytest.FixtureRequest, store_name: str, tmp_path: Path) -> OpenStore:
    """Return a function that opens the test's store, empty at first: each call is a connection of its own."""
    return opener(store_name, tmp_path, lambda: request.getfixturevalue("store_uri"))


@pytest.fixture(scope="module")
def module_store(
    stores: Stores, store_name: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedStore | None]:
    """Return the open store that the conformance tests of a module share; ``None`` with ``ZQ_STORE_PER_TEST=1``."""
    if os.environ.get("ZQ_STORE_PER_TEST") == "1":
        yield None
        return
    folder = tmp_path_factory.mktemp("module")
    with closing(SharedStore(opener(store_name, folder, lambda: stores.empty(store_name, folder, "b")))) as shared:
        yield shared


@pytest.fixture
def storage(open_store: OpenStore) -> Iterator[Storage]:
    opened = open_store()
    yield opened
    opened.close()


@pytest.fixture
def clock(storage: Storage) -> ManualClock:
    return ManualClock(storage.now())


@pytest.fixture
def queue() -> QueueRef:
    return QueueRef("acme", "jobs")
