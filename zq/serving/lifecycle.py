# SPDX-License-Identifier: Apache-2.0
"""Signals and shutdown of this process, independent of the HTTP server.

An HTTP server that stops gracefully waits for its requests, so requests that wait for messages must be ended. Every
server handles SIGTERM itself. Python writes the number of each handled signal to a wake-up file descriptor, even while
the main thread runs native code; this module reads the descriptor.

``RELOAD`` (SIGHUP) ends a process that does not handle it, and a reload during the start must not be lost. The signal
is therefore blocked in the starting process and its children until each process calls ``listen``.

A process that receives SIGTERM continues to serve for ``drain_delay`` seconds. Meanwhile its probes report that it is
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
# Signals that end the process.
ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
# Signal that reloads the options.
RELOAD: Final = signal.SIGHUP
# Exit code of a process that gave up. Its parent exits with the same code instead of starting another worker.
GIVEN_UP: Final = 75
# Seconds in which requests in progress may still be answered.
LAST_ANSWERS: Final = 0.5
_stopping = threading.Event()


def give_up() -> NoReturn:
    """Exit because another process owns the store now, after ``LAST_ANSWERS`` seconds for requests in progress.

    Nothing is closed, because the store's resources belong to the new owner.
    """
    time.sleep(LAST_ANSWERS)
    os._exit(GIVEN_UP)


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Let signals end the process immediately within this context, before anything is open that must be closed.

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
    """Block ``RELOAD`` in the calling main thread and in processes started later."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {RELOAD})


def allow_reload() -> None:
    """Unblock ``RELOAD``; a pending signal is delivered."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {RELOAD})


def listen(callbacks: Mapping[signal.Signals, Callable[[], object]]) -> bool:
    """Call the callback of each received signal, one at a time, in a background thread.

    Return ``False`` and do nothing outside the main thread. ``RELOAD`` is handled only if it was deferred; otherwise
    the HTTP server handles it.
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
    """Do nothing; a handler must exist because Python writes only handled signals to the descriptor."""


def _listen(
    ours: socket.socket, pythons: socket.socket, former: int, callbacks: Mapping[int, Callable[[], object]]
) -> None:
    """Read signal numbers and call the callbacks.

    ``pythons`` is an argument only to stay open. Numbers are forwarded to ``former``, the previous wake-up descriptor.
    """
    while numbers := ours.recv(64):
        if former != -1:
            with contextlib.suppress(BlockingIOError):  # the descriptor is full, so its reader will wake up anyway
                os.write(former, numbers)
        if ENDING.intersection(numbers):  # a stopping process must not reload: its store may be closed
            callbacks = {number: call for number, call in callbacks.items() if number != RELOAD}
        for call in dict.fromkeys(callbacks[number] for number in numbers if number in callbacks):
            try:
                call()
            except Exception:  # the thread must survive to handle the next signal
                LOG.critical("Unexpected error while handling a signal.", exc_info=True)
    pythons.close()


def begin_stopping(delay: float, end: Callable[[], object]) -> None:
    """Set ``is_stopping``, and call ``end`` after ``delay`` seconds in another thread."""
    _stopping.set()
    if delay <= 0:
        end()
        return
    timer = threading.Timer(delay, end)
    timer.daemon = True
    timer.start()


def at_end(call: Callable[[], object]) -> None:
    """Call ``call`` (possibly twice) when this process exits normally. Calls run in reverse order of registration.

    A process started by ``multiprocessing`` runs ``Finalize`` callbacks but no ``atexit`` callbacks.
    """
    atexit.register(call)
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, call, exitpriority=0)


def is_stopping() -> bool:
    """Return whether this process is stopping, so that clients should use another server."""
    return _stopping.is_set()
