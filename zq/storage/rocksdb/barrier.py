# SPDX-License-Identifier: Apache-2.0
"""One sync of the log for all threads that wait for theirs."""

import threading
from collections.abc import Callable

from zq.errors import Unavailable


class _Turn:
    """One waiting thread: woken once, either served or to flush itself."""

    __slots__ = ("gate", "leads", "served")

    def __init__(self) -> None:
        self.gate = threading.Lock()
        self.gate.acquire()
        self.leads = False
        self.served = False


class Barrier:
    """One flush for all threads that wait. Whoever finds none under way flushes; a flush serves who came before it."""

    def __init__(self, flush: Callable[[], None]) -> None:
        self._flush = flush
        self._lock = threading.Lock()
        self._waiting: list[_Turn] = []
        self._busy = False

    def wait(self) -> None:
        """Return after a flush that began after this call did. Raises ``Unavailable`` if that flush failed."""
        with self._lock:
            turn = _Turn() if self._busy else None
            if turn is None:
                self._busy = True
            else:
                self._waiting.append(turn)
        if turn is not None:
            turn.gate.acquire()
            if turn.served:
                return
            if not turn.leads:
                raise Unavailable("The store cannot serve now. Try again later.")
        self._lead()

    def _lead(self) -> None:
        with self._lock:
            followers, self._waiting = self._waiting, []
        flushed = False
        try:
            self._flush()
            flushed = True
        finally:
            with self._lock:
                successor = self._waiting.pop(0) if self._waiting else None
                self._busy = successor is not None
            for turn in followers:
                turn.served = flushed
                turn.gate.release()
            if successor is not None:
                successor.leads = True
                successor.gate.release()
