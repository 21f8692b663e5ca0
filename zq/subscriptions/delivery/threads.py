# SPDX-License-Identifier: Apache-2.0
"""Thread pool for blocking calls of a delivery worker, such as store access, name lookups and mail."""

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any


class Threads(Executor):
    """An executor with a fixed number of daemon threads. It accepts calls until the process exits.

    ``ThreadPoolExecutor`` rejects calls during interpreter shutdown, but an ``atexit`` function needs a thread to
    release leases.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        for number in range(count):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, partial(fn, *args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the threads end after the submitted calls. Return immediately."""
        for _ in range(self._count):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if not future.set_running_or_notify_cancel():
                continue
            try:
                result = function()
            except BaseException as failure:  # noqa: BLE001 - the future raises it in its waiter
                future.set_exception(failure)
            else:
                future.set_result(result)
