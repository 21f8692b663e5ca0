# SPDX-License-Identifier: Apache-2.0
"""Graceful termination of long-running loops, such as consumers, on SIGTERM and SIGINT."""

import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final

# The signals that stop a loop.
SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
# The stop functions of the running loops. Loops of the main thread may be nested or run as concurrent tasks.
_stops: Final[list[Callable[[], None]]] = []
# The signal handlers to restore.
_previous_handlers: Final[dict[signal.Signals, Any]] = {}
# A list with one element until the first signal arrives, and empty afterwards.
_first_awaited: Final[list[None]] = []


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Generator[None, None, None]:
    """Stop a loop gracefully: call ``stop`` on the first SIGTERM or SIGINT during the block.

    After the first signal or the block, the previous signal handlers are restored. Outside the main thread, the context
    manager has no effect. An ignored signal stays ignored.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if not _stops:
        _install_handlers()
    _stops.append(stop)
    try:
        yield
    finally:
        _stops.remove(stop)
        if not _stops:
            _restore_handlers()


def _install_handlers() -> None:
    _first_awaited[:] = [None]
    for number in SIGNALS:
        if signal.getsignal(number) not in (signal.SIG_IGN, None):
            _previous_handlers[number] = signal.signal(number, _on_signal)


def _restore_handlers() -> None:
    # Only the main thread may set signal handlers. If garbage collection ends a loop in another thread, the next signal
    # restores the handlers.
    if threading.current_thread() is threading.main_thread():
        # A signal during the loop calls this function again, so iterate over a copy.
        for number, handler in list(_previous_handlers.items()):
            signal.signal(number, handler)
        _previous_handlers.clear()


def _on_signal(number: int, _frame: object) -> None:
    """Stop all loops that run in a ``stop_on_signals`` block, and restore the previous signal handlers.

    If this is not the first signal, or if no such loop is running, pass the signal to the previous handler.
    """
    first = bool(_first_awaited)
    _first_awaited.clear()
    if first:
        for stop in _stops:
            stop()
    _restore_handlers()
    if not first or not _stops:
        signal.raise_signal(number)
