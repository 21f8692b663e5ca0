# SPDX-License-Identifier: Apache-2.0
"""The mode of a process, and the check for low disk space."""

from pathlib import Path
from typing import NamedTuple

import pytest

from zq.clock import ManualClock
from zq.core.modes import Modes
from zq.errors import NoPosts, ReadOnly, Unavailable
from zq.model.modes import Mode
from zq.serving.mode_watch import ModeWatch
from zq.storage import connect
from zq.storage.rocksdb.space import SpaceGuard, default_minimum

GIB = 1 << 30


class Usage(NamedTuple):
    total: int
    free: int


class Disk:
    """A file system whose free space a test sets."""

    def __init__(self, free: int) -> None:
        self.free = free

    def usage(self, _path: Path) -> Usage:
        return Usage(1000, self.free)


@pytest.fixture
def modes() -> Modes:
    return Modes(connect("memory:").documents, ManualClock(1000.0))


def test_space_that_was_low_is_low_until_twice_the_minimum_is_free() -> None:
    disk = Disk(100)
    guard = SpaceGuard(Path("/store"), 100, disk.usage)
    seen = []
    for disk.free in (100, 99, 100, 199, 200, 100, 99):
        seen.append(guard.is_low())
    assert seen == [False, True, True, True, False, False, True]


def test_space_is_never_low_without_a_minimum() -> None:
    assert not SpaceGuard(Path("/store"), 0, Disk(0).usage).is_low()


@pytest.mark.parametrize(
    ("total", "expected"), [(100 * GIB, 5 * GIB), (10 * GIB, GIB), (2 * GIB, int(0.4 * GIB)), (0, 0)]
)
def test_the_default_minimum_is_a_twentieth_but_at_least_a_gibibyte_and_at_most_a_fifth(
    total: int, expected: int
) -> None:
    assert default_minimum(total) == expected


def test_low_space_restricts_a_normal_mode_only(modes: Modes) -> None:
    modes.refresh(has_low_space=True)
    assert (modes.stored, modes.current) == (Mode.NORMAL, Mode.NO_POSTS)
    modes.check_change()
    with pytest.raises(NoPosts, match="little free disk space"):
        modes.check_post()
    modes.set(Mode.READ_ONLY)
    modes.refresh(has_low_space=True)
    with pytest.raises(ReadOnly):
        modes.check_post()
    with pytest.raises(ReadOnly):
        modes.check_change()
    modes.set(Mode.NORMAL)
    modes.refresh(has_low_space=False)
    modes.check_post()


def test_a_mode_is_read_by_other_processes(modes: Modes) -> None:
    storage, clock = connect("memory:"), ManualClock(1000.0)
    one, other = Modes(storage.documents, clock), Modes(storage.documents, clock)
    one.set(Mode.NO_POSTS)
    other.refresh(has_low_space=False)
    assert other.current is Mode.NO_POSTS
    with pytest.raises(NoPosts, match="no_posts"):
        other.check_post()


@pytest.mark.parametrize("failure", [Unavailable(), OSError(5, "Input/output error")])
def test_a_watch_survives_a_failure_and_keeps_the_mode(modes: Modes, failure: Exception) -> None:
    def fail() -> bool:
        raise failure

    modes.set(Mode.NO_POSTS)
    ModeWatch(modes, fail)
    assert modes.current is Mode.NO_POSTS
