# SPDX-License-Identifier: Apache-2.0
"""Cooperative scheduling of threads: heavy requests are processed in slices, and light requests run in between.

Python lets a thread keep the interpreter lock for 5 ms while other threads wait. A light request needs a fraction of
this time. *Large work* is the work for a heavy request (``zq.http.weight``). While large work is in progress, the
process uses a shorter switch interval. After each slice, a thread with large work sleeps:

- If a light request is in progress, the thread sleeps long enough for this request.
- If another project sent a request recently, the thread sleeps for several times the duration of the slice.
- In all other cases, the thread sleeps briefly.

``sleep(0)`` is not sufficient, because the thread reacquires the lock before a waiting thread wakes. Without large
work, nothing changes, so light requests have no overhead.
"""

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import IntEnum
from typing import Final, TypeVar

T = TypeVar("T")
# Maximum number of items that are handled in one slice, and the number of items read from the store at a time.
SLICE: Final = 100
# Size of a slice of computation. A message takes 2 to 10 µs in most steps.
FINE_SLICE_SIZE: Final = 25
# Switch interval of CPython's interpreter lock in seconds (default 0.005): the maximum time for which a busy thread
# delays a request. A shorter interval costs every request more.
SWITCH_INTERVAL: Final = 0.001
# Switch interval while large work is in progress.
SHORT_TURN: Final = 0.0002
# Processor time in seconds below which a sleep is not worthwhile.
MIN_WORK: Final = 0.0001
# Seconds to sleep while a light request is in progress.
YIELD_SECONDS: Final = 0.002
# Sleep as a multiple of the preceding work, if another project sent a request recently.
REST_FACTOR: Final = 4.0
# Maximum seconds of a sleep that ``REST_FACTOR`` determines.
MAX_REST: Final = 0.02
# Number of threads with large work above which each thread sleeps less.
FULL_REST_THREADS: Final = 4
# Seconds to sleep if there was no recent light request of another project.
SHORT_PAUSE: Final = 0.00005


class Contention(IntEnum):
    """The requests that large work may delay: none, recent ones of another project, or light ones in progress."""

    NONE = 0
    RECENT = 1
    NOW = 2


class _Work(threading.local):
    """The large work of the current thread: its state, its start, and a function that returns the contention."""

    is_large = False
    since = 0.0
    contention: Callable[[], Contention] = staticmethod(lambda: Contention.NONE)


class _Process:
    """The state that all large work in this process shares.

    It consists of the number of threads with large work, and the switch interval to restore after the work.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.count = 0
        self.turn = 0.0


_work = _Work()
_process = _Process()


def begin(contention: Callable[[], Contention]) -> None:
    """Declare the start of large work on this thread. ``end`` must follow.

    ``contention`` returns which other requests the work may delay.
    """
    if _work.is_large:
        return
    _work.is_large, _work.contention, _work.since = True, contention, time.thread_time()
    with _process.lock:
        _process.count += 1
        if _process.count == 1:
            _process.turn = sys.getswitchinterval()
            sys.setswitchinterval(min(SHORT_TURN, _process.turn))


def end() -> None:
    """Declare the end of large work on this thread."""
    if not _work.is_large:
        return
    _work.is_large = False
    with _process.lock:
        _process.count -= 1
        if not _process.count:
            sys.setswitchinterval(_process.turn)


def has_large_work() -> bool:
    """Return whether any thread is doing large work. Such a thread may hold a queue's lock."""
    return _process.count > 0


def give_way() -> None:
    """Let waiting threads run. Call this function between two parts of large work."""
    if not _work.is_large:
        time.sleep(SHORT_PAUSE)
        return
    took = time.thread_time() - _work.since
    if took < MIN_WORK:
        return
    contention = _work.contention()
    rest = min(REST_FACTOR * took * FULL_REST_THREADS / max(FULL_REST_THREADS, _process.count), MAX_REST)
    if contention is Contention.NOW:
        time.sleep(max(YIELD_SECONDS, rest))
    elif contention is Contention.RECENT:
        time.sleep(max(SHORT_PAUSE, rest))
    else:
        time.sleep(SHORT_PAUSE)
    _work.since = time.thread_time()


def slices(items: Sequence[T], size: int | None = None) -> Iterable[Sequence[T]]:
    """Split the items into slices, and let waiting threads run between two slices.

    ``size`` is the number of items in a slice. Without ``size``, up to ``SLICE`` items are one slice, and more items
    are split into smaller slices.
    """
    whole = size or SLICE
    return (items,) if len(items) <= whole else _slices(items, size or FINE_SLICE_SIZE)


def _slices(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        if start:
            give_way()
        yield items[start : start + size]
