# SPDX-License-Identifier: Apache-2.0
"""What an event loop is asked to wait for: things with a deadline, and calls from other threads."""

import asyncio
import logging
import time
from typing import Any, Final

LOG = logging.getLogger(__name__)
LATE: Final = float("inf")


class Deadlines:
    """Of things that are awaited and nearly always come at once: looked at together, four times a second."""

    INTERVAL: Final = 0.25

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._awaited: dict[Any, float] = {}
        self._look()

    async def bound(self, awaited: Any, deadline: float) -> Any:
        """What is awaited. Raises ``TimeoutError`` soon after the deadline, a moment of the monotonic clock."""
        self.put(awaited, deadline)
        try:
            return await awaited
        except asyncio.CancelledError:
            if self.late(awaited):
                raise TimeoutError from None
            raise
        finally:
            self._awaited.pop(awaited, None)

    def put(self, awaited: Any, deadline: float) -> None:
        """Cancel it when it is late. From any thread."""
        self._awaited[awaited] = deadline

    def late(self, awaited: Any) -> bool:
        """Whether it was late; it is forgotten."""
        return self._awaited.pop(awaited, 0.0) is LATE

    def _look(self) -> None:
        now = time.monotonic()
        for awaited, deadline in list(self._awaited.items()):
            if deadline < now and awaited.cancel():
                self._awaited[awaited] = LATE
        self._loop.call_later(self.INTERVAL, self._look)


class Ring:
    """Called from any thread, resolves a future of the loop that made it."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.future = self._loop.create_future()

    def __call__(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._resolve)
        except RuntimeError:  # the loop has ended, and with it whoever waited
            LOG.debug("Nobody waits any more.")

    def _resolve(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
