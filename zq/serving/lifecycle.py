# SPDX-License-Identifier: Apache-2.0
"""Signals and shutdown of this process, independent of the HTTP server.

The HTTP server has its own signal handlers. This module therefore reads signals from Python's wake-up file descriptor,
even while the main thread runs native code. When the process must stop, the module ends long polls, because the HTTP
server waits for all requests.

By default, SIGHUP ends a process. A starting process and its children block SIGHUP until they can reload their options,
so that a reload that is requested during the start is not lost.

After SIGTERM, a process serves for another ``drain_delay`` seconds. Meanwhile, its probes report that it is stopping.
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

from zq.serving import systemd

LOG = logging.getLogger(__name__)
# Signals that end the process.
END_SIGNALS: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
# Signal that reloads the options.
RELOAD: Final = signal.SIGHUP
# Exit code of a start that would be refused again; see etc/zq.service.
START_REFUSED_EXIT_CODE: Final = 2
# Exit code of a process that lost the store. Its parent exits with the same code and starts no other worker.
STORE_LOST_EXIT_CODE: Final = 75
# Seconds for which a process that lost the store continues to send responses.
LAST_RESPONSES: Final = 0.5
_stopping = threading.Event()


def give_up(waits: bool = True) -> NoReturn:
    """Exit without closing the store, because this process must not use the store any more.

    If ``waits`` is true, the process first waits ``LAST_RESPONSES`` seconds, so that it can send the last responses.
    """
    if waits:
        time.sleep(LAST_RESPONSES)
    # The store is not closed: another process may own its files and objects.
    os._exit(STORE_LOST_EXIT_CODE)


@contextlib.contextmanager
def exit_at_once() -> Iterator[None]:
    """Let signals end the process immediately while the ``with`` block runs.

    The block opens the store, which may take a long time. Until the store is open, an exit needs no cleanup.
    """
    former = {}
    if threading.current_thread() is threading.main_thread():
        former = {number: signal.signal(number, lambda *_: os._exit(0)) for number in END_SIGNALS}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def defer_reload() -> None:
    """Block SIGHUP in this thread, which must be the main thread, and in processes that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {RELOAD})


def allow_reload() -> None:
    """Unblock SIGHUP. If the process received SIGHUP while the signal was blocked, the signal is handled now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {RELOAD})


def listen(callbacks: Mapping[signal.Signals, Callable[[], object]]) -> bool:
    """Start a background thread that calls the callback of each received signal, and return ``True``.

    If ``defer_reload`` was not called before, the thread ignores the callback for SIGHUP, because the HTTP server
    handles SIGHUP. If this function is not called in the main thread, it does nothing and returns ``False``.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    former = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    deferred = RELOAD in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    wanted = {number: call for number, call in callbacks.items() if deferred or number != RELOAD}
    threading.Thread(target=_listen, args=(reader, writer, former, wanted), name="zq-signals", daemon=True).start()
    if deferred:
        signal.signal(RELOAD, ignore_signal)
        signal.siginterrupt(RELOAD, False)
        allow_reload()
    return True


def ignore_signal(*_: object) -> None:
    """Do nothing. This handler of SIGHUP makes Python write the signal to the wake-up file descriptor."""


def _listen(
    reader: socket.socket, writer: socket.socket, former: int, callbacks: Mapping[int, Callable[[], object]]
) -> None:
    """Read signal numbers from ``reader``, and call the callbacks of these signals.

    ``former`` is the previous wake-up file descriptor of the process, or -1. The function forwards the signal numbers
    to it. The argument ``writer`` only keeps this socket open.
    """
    while numbers := reader.recv(64):
        if former != -1:
            with contextlib.suppress(BlockingIOError):  # the descriptor is full, so its reader wakes up anyway
                os.write(former, numbers)
        if END_SIGNALS.intersection(numbers):  # a stopping process must not reload: its store may be closed
            callbacks = {number: call for number, call in callbacks.items() if number != RELOAD}
        for call in dict.fromkeys(callbacks[number] for number in numbers if number in callbacks):
            try:
                call()
            except Exception:  # the thread must survive to handle the next signal
                LOG.critical("Unexpected error while handling a signal.", exc_info=True)
    writer.close()


def begin_stopping(delay: float, end: Callable[[], object]) -> None:
    """Mark this process as stopping, notify systemd, and call ``end`` in another thread after ``delay`` seconds."""
    _stopping.set()
    systemd.notify(systemd.STOPPING)
    if delay <= 0:
        end()
        return
    timer = threading.Timer(delay, end)
    timer.daemon = True
    timer.start()


def log_end(reason: str, began: float) -> None:
    """Log that the server has ended, the reason, and how long it drained since the monotonic time ``began``."""
    LOG.info("The server has ended (%s) after draining for %.1f seconds.", reason, time.monotonic() - began)


def register_exit(call: Callable[[], object]) -> None:
    """Register ``call`` to run when this process exits normally. Functions run in reverse order of registration.

    Child processes do not always run ``atexit`` functions, so ``call`` is also a ``multiprocessing`` finalizer. It may
    run twice and must be idempotent.
    """
    atexit.register(call)
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, call, exitpriority=0)


def is_stopping() -> bool:
    return _stopping.is_set()
