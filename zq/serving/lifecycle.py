# SPDX-License-Identifier: Apache-2.0
"""Signals to this process, whatever HTTP server runs in it and however that handles them; and whether it is stopping.

An engine that ends gracefully waits for its requests, and requests that wait for messages would not end. Every engine
has a handler of its own for SIGTERM; Python writes the number of each signal that has one into a wake-up descriptor,
and does so even while the main thread sits in an engine's native code.

``RELOAD`` ends a process that does not expect it, and a reload that is asked for during a start must not be forgotten.
So it is deferred, by the process that starts others and in them, until each ``listen``s: it then comes late.

A process that was asked to end serves on for a moment (``drain_delay``), and meanwhile says that it is stopping.
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
# The signals that end a process.
ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
# The signal at which options are read again.
RELOAD: Final = signal.SIGHUP
# The exit code of a process that has given up, and then of its master, which starts no other one.
GIVEN_UP: Final = 75
# Seconds before it ends.
LAST_WORDS: Final = 0.5
_stopping = threading.Event()


def give_up() -> NoReturn:
    """End this process, whose store is another one's now; requests under way have a moment to hear that. Nothing is
    closed: what it holds is the other one's matter."""
    time.sleep(LAST_WORDS)
    os._exit(GIVEN_UP)


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Meanwhile a signal that ends this process does so at once: nothing is open yet that would have to be closed. A
    start may take long, above all one that waits for a store that another server owns."""
    former = {}
    if threading.current_thread() is threading.main_thread():
        former = {number: signal.signal(number, lambda *_: os._exit(0)) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def defer_reload() -> None:
    """Keep ``RELOAD`` pending in this thread, which is the main one, and in processes that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {RELOAD})


def allow_reload() -> None:
    """Take ``RELOAD`` as it comes, and the one that came meanwhile."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {RELOAD})


def listen(callbacks: Mapping[signal.Signals, Callable[[], object]]) -> bool:
    """Call what belongs to a signal at each, one after another, from a thread; False if this is not the main thread.

    ``RELOAD`` is among them if it was deferred, and is allowed now; else it stays the engine's.
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
    """A signal reaches the descriptor only if something handles it."""


def _listen(
    ours: socket.socket, pythons: socket.socket, former: int, callbacks: Mapping[int, Callable[[], object]]
) -> None:
    """``pythons`` is here to stay open. ``former``: the descriptor that was set before, which is written to as well."""
    while numbers := ours.recv(64):
        if former != -1:
            with contextlib.suppress(BlockingIOError):  # it is full, so its owner is awake
                os.write(former, numbers)
        if ENDING.intersection(numbers):  # what ends has nothing to reload, and perhaps no store any more
            callbacks = {number: call for number, call in callbacks.items() if number != RELOAD}
        for call in dict.fromkeys(callbacks[number] for number in numbers if number in callbacks):
            try:
                call()
            except Exception:  # the edge of this thread, which must hear the next signal
                LOG.critical("A signal was not obeyed, for an unforeseen reason.", exc_info=True)
    pythons.close()


def begin_stopping(delay: float, end: Callable[[], object]) -> None:
    """``is_stopping`` from now on; ``end`` is called in so many seconds. Returns at once."""
    _stopping.set()
    if delay <= 0:
        end()
        return
    timer = threading.Timer(delay, end)
    timer.daemon = True
    timer.start()


def at_end(call: Callable[[], object]) -> None:
    """Have it called, once or twice, when this process ends by itself, the last one first. A process that
    ``multiprocessing`` has started, as a worker of Granian, heeds ``Finalize`` and no ``atexit``."""
    atexit.register(call)
    if multiprocessing.parent_process() is not None:
        multiprocessing.util.Finalize(None, call, exitpriority=0)


def is_stopping() -> bool:
    """Whether traffic should go elsewhere."""
    return _stopping.is_set()
