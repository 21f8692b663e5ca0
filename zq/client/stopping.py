# SPDX-License-Identifier: Apache-2.0
"""SIGTERM and SIGINT as a request to end after the work in hand."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

# The signals that stop loops.
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# The stop functions of all loops that run in the main thread, nested or as concurrent tasks.
_stops: Final[list[Callable[[], None]]] = []
# The handlers of the signals before the first loop began.
_before: Final[dict[signal.Signals, Any]] = {}
# One element until the first of the signals arrives.
_first_awaited: Final[list[None]] = []


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Generator[None, None, None]:
    """Calls ``stop`` at the first of the signals, and gives the second one to the handlers that were there before.

    Only in the main thread, where alone Python handles signals; a signal that is ignored stays so.
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
    # A loop that the garbage collector ends in another thread leaves this to the signal itself.
    if threading.current_thread() is threading.main_thread():
        # A copy: a signal that comes amid the loop is handled before its next step, and ends here, too.
        for number, handler in list(_before.items()):
            signal.signal(number, handler)
        _before.clear()


def _on_signal(number: int, _frame: object) -> None:
    """The first signal stops the loops; one that comes meanwhile is the second one already."""
    first = bool(_first_awaited)
    _first_awaited.clear()
    if first:
        for stop in _stops:
            stop()
    _put_back()
    if not first or not _stops:
        signal.raise_signal(number)
