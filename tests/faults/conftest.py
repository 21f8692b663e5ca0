# SPDX-License-Identifier: Apache-2.0
"""Engines, a Redis of a test's own, and processes whose wall clock is wrong."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.abilities import need
from tests.stores import RedisServer

ENGINES = ["gunicorn", "granian"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Servers are killed here: what they hold must be there when they start again."""
    metafunc.definition.add_marker("durable")


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with RedisServer() as server:
        yield server


@pytest.fixture
def ipv6() -> None:
    """This machine has addresses of IPv6."""
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
    """A function: the environment of a process whose wall clock is so many seconds off."""
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
    """Processes started with ``env`` have a wall clock that is ``set`` so many seconds off, while they run."""

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
