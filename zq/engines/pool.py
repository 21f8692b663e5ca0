# SPDX-License-Identifier: Apache-2.0
"""Threads that do what would hold up the event loop, and the way back into it."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Final

LOG = logging.getLogger(__name__)
MOST: Final = 10_000
"""Jobs that may queue, whatever their age."""

Job = tuple["asyncio.Future[Any]", Callable[[], Any], float]


class Pool:
    """``threads`` of them, for jobs of one event loop."""

    def __init__(self, threads: int, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._done: deque[tuple[asyncio.Future[Any], Any, BaseException | None]] = deque()
        self._told = False
        self._lag = 0.0
        for number in range(threads):
            threading.Thread(target=self._run, name=f"zq-request-{number}", daemon=True).start()

    def lag(self) -> float:
        """Seconds that a job waits for a thread now: about, and 0.0 while none waits."""
        waiting = self._jobs.qsize()
        return 0.0 if not waiting else float("inf") if waiting > MOST else self._lag

    def do(self, job: Callable[[], Any]) -> "asyncio.Future[Any]":
        """Do it on a thread; what it returns or raises. To be called in the loop."""
        future = self._loop.create_future()
        self._jobs.put((future, job, time.monotonic()))
        return future

    def _run(self) -> None:
        while True:
            future, job, since = self._jobs.get()
            self._lag = time.monotonic() - since
            value, error = None, None
            try:
                value = job()
            except BaseException as caught:  # noqa: BLE001 - the edge of this thread: whoever awaits the job gets it
                error = caught
            self._done.append((future, value, error))
            if not self._told:  # one call wakes the loop for all that is done until it wakes
                self._told = True
                self._loop.call_soon_threadsafe(self._tell)
            del future, job, value, error

    def _tell(self) -> None:
        """Resolve what is done. In the loop."""
        self._told = False
        while self._done:
            future, value, error = self._done.popleft()
            if future.cancelled():
                continue
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)
