# SPDX-License-Identifier: Apache-2.0
"""Connections whose last request was refused as too much: none of them is read for a moment.

A client that heeds ``Retry-After`` asks later anyway and notices nothing. One that does not would have its refusals
worked on all the time, and everybody else would feel it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator

from zq.engines.gthread.connections import Connection
from zq.http.heads import MOST_PAUSES, PAUSE
from zq.settings import Settings


class Pauses:
    """Who pauses until when; used by the loop only. Behind a proxy, whose connections many projects share, nobody."""

    def __init__(self, chosen: Settings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self.on = not chosen.behind_proxy and chosen.auth.strategy != "proxy"
        self._monotonic = monotonic
        self._paused: deque[tuple[float, Connection]] = deque()

    def begin(self, connection: Connection) -> bool:
        """Have it pause; False if it may go on."""
        if not self.on or len(self._paused) >= MOST_PAUSES:
            return False
        self._paused.append((self._monotonic() + PAUSE, connection))
        return True

    def wait(self, seconds: float) -> float:
        """So many seconds, or fewer: until the first pause is over."""
        return max(0.0, min(seconds, self._paused[0][0] - self._monotonic())) if self._paused else seconds

    def over(self, everyone: bool) -> Iterator[Connection]:
        """Those whose pause is over, or, when the process ends, all of them."""
        while self._paused and (everyone or self._paused[0][0] <= self._monotonic()):
            yield self._paused.popleft()[1]
