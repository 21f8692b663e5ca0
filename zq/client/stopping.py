# SPDX-License-Identifier: Apache-2.0
"""Handling of SIGTERM and SIGINT as requests to end after the current work."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

# The signals that stop loops.
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# The stop functions of all loops in the main thread, which may be nested or run as concurrent tasks.
_stops: Final[list[Callable[[], None]]] = []
# The signal handlers from before the first loop began.
_before: Final[dict[signal.Signals, Any]] = {}
# Has one element until the first signal arrives.
_first_awaited: Final[list[None]] = []


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Generator[None, None, None]:
    """Call ``stop`` on the first signal, and restore the previous handlers for the second one.

    Signals are handled only in the main thread, as Python requires. An ignored signal stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _stops:
        _take_signals()
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            _put_back()


def _take_signals() -> None:
    _first_awaited[:] = [None]
    for number in SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            _before[number] = signal.signal(number, _on_signal)


def _put_back() -> None:
    # If garbage collection ends a loop in another thread, the next signal restores the handlers.
    if threading.current_thread() is threading.main_thread():
        # Iterate over a copy, because a signal during this loop calls this function again.
        for number, handler in list(_before.items()):
            signal.signal(number, handler)
        _before.clear()


def _on_signal(number: int, _frame: object) -> None:
    """Stop the loops on the first signal; a signal that arrives during that counts as the second."""
    first = bool(_first_awaited)
    _first_awaited.clear()
    if first:
        for stop in _stops:
            stop()
    _put_back()
    if not first or not _stops:
        signal.raise_signal(number)
