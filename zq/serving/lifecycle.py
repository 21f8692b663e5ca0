# SPDX-License-Identifier: Apache-2.0
"""Signals and shutdown of this process, on any HTTP server.

An HTTP server that stops gracefully waits for its requests, so requests that wait for messages must be ended. Every
server handles SIGTERM itself. Python writes the number of each handled signal to a wake-up file descriptor, even while
the main thread runs native code; this module reads it.

``RELOAD`` (SIGHUP) ends a process that does not handle it, and a reload during the start must not be lost. So the
signal is blocked in the starting process and its children until each calls ``listen``; then it is delivered.

A process that was asked to stop continues to serve for ``drain_delay`` seconds and reports in probes that it is
stopping.
"""

import atexit
import contextlib
import logging
import multiprocessing.util
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NoReturn

LOG = logging.getLogger(__name__)
# Signals that end a process.
ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
# Signal that reloads options.
RELOAD: Final = signal.SIGHUP
# Exit code of a process that gave up, and of its parent, which then starts no other worker.
GIVEN_UP: Final = 75
# Seconds for which requests in progress may still be answered.
LAST_ANSWERS: Final = 0.5
_stopping = threading.Event()


def give_up() -> NoReturn:
    """Exit, because another process owns the store now. Requests in progress have a moment to be answered.

    Nothing is closed, because the store's resources belong to the new owner.
    """
    time.sleep(LAST_ANSWERS)
    os._exit(GIVEN_UP)


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Let signals end the process immediately in this context, because nothing is open yet that must be closed.

    A start may take long, especially if it waits for a store that another server owns.
    """
    former = {}
    if threading.current_thread() is threading.main_thread():
        former = {number: signal.signal(number, lambda *_: os._exit(0)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def defer_reload() -> None:
    """Block ``RELOAD`` in the main thread, which must call this, and in processes that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {RELOAD})


def allow_reload() -> None:
    """Unblock ``RELOAD``; a pending one is delivered."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {RELOAD})


def listen(callbacks: Mapping[signal.Signals, Callable[[], object]]) -> bool:
    """Call the callback of each signal, one after another, in a background thread.

    Return ``False`` outside the main thread.

    ``RELOAD`` is handled only if it was deferred, and is allowed now; otherwise it is left to the HTTP server.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    ours, pythons = socket.socketpair()
    pythons.setblocking(False)
    former = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    deferred = RELOAD in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    wanted = {number: call for number, call in callbacks.items() if deferred or number != RELOAD}
    threading.Thread(target=_listen, args=(ours, pythons, former, wanted), name="zq-signals", daemon=True).start()
    if deferred:
        signal.signal(RELOAD, ignored)
        signal.siginterrupt(RELOAD, False)
        allow_reload()
    return True


def ignored(*_: object) -> None:
    """Do nothing. Python writes only handled signals to the descriptor."""


def _listen(
    ours: socket.socket, pythons: socket.socket, former: int, callbacks: Mapping[int, Callable[[], object]]
) -> None:
    """Read signal numbers and call the callbacks.

    ``pythons`` is passed so that it stays open. ``former`` is the previous wake-up descriptor, to which the numbers are
    forwarded.
    """
    while numbers := ours.recv(64):
        if former != -1:
            with contextlib.suppress(BlockingIOError):  # it is full, so its reader will wake up anyway
                os.write(former, numbers)
        if ENDING.intersection(numbers):  # a stopping process must not reload: its store may be closed
            callbacks = {number: call for number, call in callbacks.items() if number != RELOAD}
        for call in dict.fromkeys(callbacks[number] for number in numbers if number in callbacks):
            try:
                call()
            except Exception:  # the thread must go on to handle the next signal
                LOG.critical("A signal was not obeyed, for an unforeseen reason.", exc_info=True)
    pythons.close()


def begin_stopping(delay: float, end: Callable[[], object]) -> None:
    """Set ``is_stopping``, and call ``end`` after ``delay`` seconds. Returns at once."""
    _stopping.set()
    if delay <= 0:
        end()
        return
    timer = threading.Timer(delay, end)
    timer.daemon = True
    timer.start()


def at_end(call: Callable[[], object]) -> None:
    """Call ``call`` (possibly twice) when this process exits by itself; calls run in reverse order.

    A process started by ``multiprocessing``, such as a worker under Granian, runs ``Finalize`` callbacks but no
    ``atexit``.
    """
    atexit.register(call)
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, call, exitpriority=0)


def is_stopping() -> bool:
    """Return whether clients should use other servers."""
    return _stopping.is_set()
