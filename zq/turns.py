# SPDX-License-Identifier: Apache-2.0
"""Turns that threads of a process take: large work is cut into slices, and gives way to light requests between them.

Python lets a thread keep the interpreter for 5 ms while others wait, several times what a light request needs. While
large work is under way the whole process takes shorter turns, and its threads sleep between slices: long enough for a
light request that is under way, as a multiple of the slice where others have sent light requests lately, and else for a
moment. A sleep of no time would not do, since the thread takes the interpreter back before a waiting one wakes. Without
large work nothing changes, so light requests pay nothing.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, TypeVar

T = TypeVar("T")
# Items up to which work is not cut, and of a slice that the store reads.
SLICE: Final = 100
# Items of a slice that the processor works on. A message takes 2 to 10 µs in most steps.
FINE_SLICE: Final = 25
# Seconds of a thread's turn, instead of the 0.005 of Python: a request waits for as long before its edge sees it. Less
# would help others more, and cost every request more (api-ref/performance.md).
SWITCH: Final = 0.001
# Seconds of a thread's turn while large work is under way.
SHORT_TURN: Final = 0.0002
# Processor seconds of large work before which a sleep would cost more than it gives.
SHORTEST: Final = 0.0001
# Seconds of the sleep while a light request is under way.
YIELD: Final = 0.002
# Where others have sent light requests lately, a sleep is so many times as long as the work before it, within a bound.
REST: Final = 4.0
MAX_REST: Final = 0.02
# Threads with large work, of many projects, beyond which each of them rests less.
FULL_REST: Final = 4
# Seconds of a sleep without them.
PAUSE: Final = 0.00005


class Company(IntEnum):
    """Who is served beside large work."""

    NONE = 0
    LATELY = 1
    NOW = 2


class _Work(threading.local):
    """The large work of this thread, if it has begun some."""

    is_large = False
    since = 0.0
    company: Callable[[], Company] = staticmethod(lambda: Company.NONE)


class _Process:
    """How many threads of this process have begun large work, and the turn that they will restore."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.turn = 0.0


_work = _Work()
_process = _Process()


def begin(company: Callable[[], Company]) -> None:
    """This thread does large work until ``end``. ``company`` returns who is served beside it now."""
    if _work.is_large:
        return
    _work.is_large, _work.company, _work.since = True, company, time.thread_time()
    with _process.lock:
        _process.count += 1
        if _process.count == 1:
            _process.turn = sys.getswitchinterval()
            sys.setswitchinterval(min(SHORT_TURN, _process.turn))


def end() -> None:
    """The large work of this thread is over."""
    if not _work.is_large:
        return
    _work.is_large = False
    with _process.lock:
        _process.count -= 1
        if not _process.count:
            sys.setswitchinterval(_process.turn)


def are_taken() -> bool:
    """Return whether heavy work is under way in this process, which may hold the lock of a queue."""
    return _process.count > 0


def give_way() -> None:
    """Let waiting threads go first; called between two slices."""
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
    """Return the items in slices, and give way between them. By default up to ``SLICE`` items are one slice, and more
    are cut finely."""
    whole = size or SLICE
    return (items,) if len(items) <= whole else _slices(items, size or FINE_SLICE)


def _slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        if start:
            give_way()
        yield items[start : start + size]
