# SPDX-License-Identifier: Apache-2.0
"""Tells of signals to this process, whatever HTTP server runs in it and however that handles them.

An engine that ends gracefully waits for its requests, and requests that wait for messages would not end. Every engine
has a handler of its own for SIGTERM; Python writes the number of each signal that has one into a wake-up descriptor,
and does so even while the main thread sits in an engine's native code.

``RELOAD`` ends a process that does not expect it, and a reload that is asked for during a start must not be forgotten.
So it is held back, by the process that starts others and in them, until each ``listen``s: it then comes late.
"""

import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Final

LOG = logging.getLogger(__name__)
ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
RELOAD: Final = signal.SIGHUP


def hold() -> None:
    """Keep ``RELOAD`` pending in this thread, which is the main one, and in processes that it starts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {RELOAD})


def release() -> None:
    """Take ``RELOAD`` as it comes, and the one that came meanwhile."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {RELOAD})


def listen(callbacks: Mapping[signal.Signals, Callable[[], object]]) -> bool:
    """Call what belongs to a signal at each, one after another, from a thread; False if this is not the main thread.

    ``RELOAD`` is told if it was held back, and released; else it stays the engine's.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    ours, pythons = socket.socketpair()
    pythons.setblocking(False)
    former = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    held = RELOAD in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    told = {number: tell for number, tell in callbacks.items() if held or number != RELOAD}
    threading.Thread(target=_listen, args=(ours, pythons, former, told), name="zq-signals", daemon=True).start()
    if held:
        signal.signal(RELOAD, _noted)
        signal.siginterrupt(RELOAD, False)
        release()
    return True


def _noted(*_: object) -> None:
    """A signal reaches the descriptor only if something handles it."""


def _listen(
    ours: socket.socket, pythons: socket.socket, former: int, callbacks: Mapping[int, Callable[[], object]]
) -> None:
    """``pythons`` is here to stay open. ``former``: the descriptor that whoever came before waits for."""
    while numbers := ours.recv(64):
        if former != -1:
            with contextlib.suppress(BlockingIOError):  # it is full, so its owner is awake
                os.write(former, numbers)
        if ENDING.intersection(numbers):  # what ends has nothing to reload, and perhaps no store any more
            callbacks = {number: tell for number, tell in callbacks.items() if number != RELOAD}
        for tell in dict.fromkeys(callbacks[number] for number in numbers if number in callbacks):
            try:
                tell()
            except Exception:  # the edge of this thread, which must hear the next signal
                LOG.critical("A signal was not obeyed, for a reason that nobody foresaw.", exc_info=True)
    pythons.close()
