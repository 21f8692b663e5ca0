# SPDX-License-Identifier: Apache-2.0
"""Fixtures for fault tests: daily pairs of HTTP server and store, and processes with a wrong wall clock.

A campaign (``ZQ_CAMPAIGN=1``) runs each test with every HTTP server and every store. A daily run takes one HTTP server
for each store, and the seed of the day (``tests.rotation``) swaps them: gunicorn on RocksDB, Granian on MongoDB and
gunicorn on Redis on one day, and the other servers on the next. A test with a single store runs behind one HTTP server
a day. ``every_engine`` keeps both servers, and ``store_of_the_day`` keeps one store (setup.cfg).
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import pytest

from tests.abilities import need
from tests.rotation import CAMPAIGN, SEED
from tests.stores import KINDS, MongoServer, RedisServer, Stores

ENGINES = ["gunicorn", "granian"]
FOLDER = Path(__file__).parent


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run on durable stores only, because the tests kill servers and read the stored data."""
    metafunc.definition.add_marker("durable")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the pairs of HTTP server and store that the seed leaves to another day."""
    if CAMPAIGN:
        return
    rows: dict[tuple[object, ...], list[pytest.Item]] = defaultdict(list)
    for item in items:
        if FOLDER in item.path.parents:
            rows[row_of(item)].append(item)
    left_out = {item for row in rows.values() for item in set(row) - set(daily(row, SEED))}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def row_of(item: pytest.Item) -> tuple[object, ...]:
    """Return what the variants of a test for HTTP servers and stores have in common."""
    params = item.callspec.params if hasattr(item, "callspec") else {}
    other = {name: repr(value) for name, value in params.items() if not is_rotated(value)}
    return item.path, getattr(item, "originalname", item.name), *sorted(other.items())


def is_rotated(value: object) -> bool:
    """Return whether a parameter is an HTTP server or a store."""
    return isinstance(value, str) and (value in ENGINES or value in KINDS)


def daily(row: list[pytest.Item], seed: int) -> list[pytest.Item]:
    """Select one HTTP server for each store from the variants of a test, unless its marks select otherwise."""
    stores: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in row:
        params = item.callspec.params.values() if hasattr(item, "callspec") else ()
        stores[next((value for value in params if is_rotated(value) and value not in ENGINES), "")].append(item)
    turn = seed + crc32(row[0].nodeid.partition("::")[0].encode())  # tests of a file share servers
    marks = {mark.name for mark in row[0].iter_markers()}
    chosen = list(stores.values())
    if "store_of_the_day" in marks:
        chosen = [chosen[turn % len(chosen)]]
    if "every_engine" in marks:
        return [item for variants in chosen for item in variants]
    return [variants[(turn + at) % len(variants)] for at, variants in enumerate(chosen)]


@pytest.fixture(autouse=True)
def same_random_numbers(request: pytest.FixtureRequest) -> None:
    """Seed the random numbers of each test with the seed of the day."""
    random.seed(f"{SEED} {request.node.nodeid}")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def mongodb(stores: Stores) -> MongoServer:
    """Return the session's MongoDB server.

    Each test file uses a database of its own; no test stops or configures the server.
    """
    return stores.mongodb()


@pytest.fixture
def ipv6() -> None:
    """Skip the test if the machine has no IPv6 address."""
    need("ipv6")


SHIFT = """\
import os, time
_real = time.time
_shift = float(os.environ["ZQ_TEST_CLOCK_SHIFT"])
time.time = lambda: _real() + _shift
time.time_ns = lambda: int((_real() + _shift) * 1e9)
"""


@pytest.fixture
def shifted(tmp_path: Path) -> Callable[[float], dict[str, str]]:
    """Return a function that returns the environment of a process whose wall clock is ``seconds`` ahead."""
    folder = tmp_path / "shift"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SHIFT)
    return lambda seconds: {"PYTHONPATH": str(folder), "ZQ_TEST_CLOCK_SHIFT": str(seconds)}


LEAPS = """\
import pathlib, time
_real = time.time
_file = pathlib.Path({file!r})
time.time = lambda: _real() + float(_file.read_text())
time.time_ns = lambda: int(time.time() * 1e9)
"""


class Leaping:
    """A settable clock offset: ``set`` shifts the wall clock of running processes that were started with ``env``."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "shift"
        self.env = {"PYTHONPATH": str(folder)}
        (folder / "sitecustomize.py").write_text(LEAPS.format(file=str(self._file)))
        self.set(0)

    def set(self, seconds: float) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(str(seconds))
        new.rename(self._file)


@pytest.fixture
def leaping(tmp_path: Path) -> Leaping:
    folder = tmp_path / "leaping"
    folder.mkdir()
    return Leaping(folder)
