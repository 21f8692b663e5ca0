# SPDX-License-Identifier: Apache-2.0
"""Processes whose wall clock is wrong."""

from collections.abc import Callable
from pathlib import Path

import pytest

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
