# SPDX-License-Identifier: Apache-2.0
"""Cooperative scheduling of threads: large work is cut into slices and yields to light requests between them.

Python lets a thread keep the interpreter lock for 5 ms while others wait, several times what a light request needs.
While large work is in progress, the process uses a shorter switch interval, and the working threads sleep between
slices: long enough for a light request in progress; for a multiple of the slice if other projects sent light requests
lately; otherwise briefly. ``sleep(0)`` is not enough, because the thread takes the lock back before a waiting one
wakes. Without large work nothing changes, so light requests pay nothing.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, TypeVar

T = TypeVar("T")
# Largest number of items that is not cut, and the size of a slice that is read from the store.
SLICE: Final = 100
# Size of a slice of computation. A message takes 2 to 10 µs in most steps.
FINE_SLICE: Final = 25
# Switch interval of CPython's interpreter lock in seconds, in place of its default of 0.005: the longest time that a
# request waits for a busy thread. A shorter interval costs every request more.
SWITCH: Final = 0.001
# Switch interval while large work is in progress.
SHORT_TURN: Final = 0.0002
# Processor seconds of work below which a sleep costs more than it gains.
SHORTEST: Final = 0.0001
# Seconds to sleep while a light request is in progress.
YIELD: Final = 0.002
# If other projects sent light requests lately: the sleep as a multiple of the work before it.
REST: Final = 4.0
# Maximum of that sleep in seconds.
MAX_REST: Final = 0.02
# Number of threads with large work above which each of them sleeps less.
FULL_REST: Final = 4
# Seconds to sleep otherwise.
PAUSE: Final = 0.00005


class Company(IntEnum):
    """Whether other projects are served at the same time as large work: no, lately, or now."""

    NONE = 0
    LATELY = 1
    NOW = 2


class _Work(threading.local):
    """The large work of this thread."""

    is_large = False
    since = 0.0
    company: Callable[[], Company] = staticmethod(lambda: Company.NONE)


class _Process:
    """The number of threads with large work in this process, and the switch interval to restore."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.turn = 0.0


_work = _Work()
_process = _Process()


def begin(company: Callable[[], Company]) -> None:
    """Declare that this thread does large work until ``end``. ``company`` returns who else is being served."""
    if _work.is_large:
        return
    _work.is_large, _work.company, _work.since = True, company, time.thread_time()
    with _process.lock:
        _process.count += 1
        if _process.count == 1:
            _process.turn = sys.getswitchinterval()
            sys.setswitchinterval(min(SHORT_TURN, _process.turn))


def end() -> None:
    """Declare that the large work of this thread has ended."""
    if not _work.is_large:
        return
    _work.is_large = False
    with _process.lock:
        _process.count -= 1
        if not _process.count:
            sys.setswitchinterval(_process.turn)


def are_taken() -> bool:
    """Return whether heavy work is in progress in this process; it may hold the lock of a queue."""
    return _process.count > 0


def give_way() -> None:
    """Yield to waiting threads. Call this between two slices."""
    if not _work.is_large:
        time.sleep(PAUSE)
        return
    took = time.thread_time() - _work.since
    if took < SHORTEST:
        return
    company, rest = _work.company(), min(REST * took * FULL_REST / max(FULL_REST, _process.count), MAX_REST)
    if company is Company.NOW:
        time.sleep(max(YIELD, rest))
    elif company is Company.LATELY:
        time.sleep(max(PAUSE, rest))
    else:
        time.sleep(PAUSE)
    _work.since = time.thread_time()


def slices(items: Sequence[T], size: int | None = None) -> Iterable[Sequence[T]]:
    """Return the items in slices and yield to other threads between them.

    By default, up to ``SLICE`` items are one slice, and more items are cut into slices of ``FINE_SLICE``.
    """
    whole = size or SLICE
    return (items,) if len(items) <= whole else _slices(items, size or FINE_SLICE)


def _slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        if start:
            give_way()
        yield items[start : start + size]
