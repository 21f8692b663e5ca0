# SPDX-License-Identifier: Apache-2.0
"""Tells when this process is asked to stop, whatever HTTP server runs in it and however that handles the signal.

An engine that ends gracefully waits for its requests, and requests that wait for messages would not end. Every engine
has a handler of its own for SIGTERM; Python writes the number of each signal that has one into a wake-up descriptor.
"""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable
from typing import Final

ENDING: Final = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})


def on_ending(tell: Callable[[], None]) -> bool:
    """Call ``tell``, from a thread of its own, at each signal to stop; False if this is not the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return False
    ours, pythons = socket.socketpair()
    pythons.setblocking(False)
    former = signal.set_wakeup_fd(pythons.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_listen, args=(ours, pythons, former, tell), name="zq-signals", daemon=True).start()
    return True


def _listen(ours: socket.socket, pythons: socket.socket, former: int, tell: Callable[[], None]) -> None:
    """``pythons`` is here to stay open. ``former``: the descriptor that whoever came before waits for."""
    while numbers := ours.recv(64):
        if former != -1:
            with contextlib.suppress(BlockingIOError):  # it is full, so its owner is awake
                os.write(former, numbers)
        if ENDING.intersection(numbers):
            tell()
    pythons.close()
