# SPDX-License-Identifier: Apache-2.0
"""Threads that answer requests, and the queue before them."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Final

from zq.engines.gthread.connections import Connection

# The token that ends a thread.
STOP: Final = False


class Pool:
    """At most ``size`` threads that ``serve``; they are started as they are needed."""

    def __init__(self, name: str, size: int, serve: Callable[[Connection], None]) -> None:
        self._name = name
        self._size = size
        self._serve = serve
        self._waiting: deque[tuple[float, Connection]] = deque()
        self._tokens: SimpleQueue[bool] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def submit(self, connection: Connection) -> None:
        """Have its request answered; called by one thread only, as ``overdue`` is."""
        self._waiting.append((time.monotonic(), connection))
        self._tokens.put(True)
        if len(self._threads) < self._size and self._tokens.qsize() > 0:
            thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads)}", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # this machine has no more: those that run are enough, if there are any
                if not self._threads:
                    raise
            else:
                self._threads.append(thread)

    def waits(self) -> float:
        """Seconds for which the first in the queue has waited, 0 if it is empty."""
        try:
            return time.monotonic() - self._waiting[0][0]
        except IndexError:
            return 0.0

    def overdue(self, seconds: float) -> Iterator[Connection]:
        """Take those out of the queue that have waited so long."""
        while self.waits() > seconds:
            try:
                yield self._waiting.popleft()[1]
            except IndexError:  # a thread was quicker
                return

    def close(self, within: float) -> None:
        """End the threads; one that is at work gets so many seconds."""
        for _ in self._threads:
            self._tokens.put(STOP)
        deadline = time.monotonic() + within
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while self._tokens.get():
            try:
                _, connection = self._waiting.popleft()
            except IndexError:  # it waited too long and has been refused
                continue
            self._serve(connection)
