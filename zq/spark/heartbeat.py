# SPDX-License-Identifier: Apache-2.0
"""Keeps claims alive while a batch is worked on, from a thread of the process that took them."""

import threading
from collections.abc import Iterable

from zq.errors import ClaimNotFound, Fenced, ZqError
from zq.model import Fence
from zq.spark.options import Connection


class Heartbeat:
    """Renews what it holds. Its thread begins with the first claim and dies with the
    process: claims of a process that was killed lapse."""

    def __init__(self, connection: Connection, queue: str, ttl: int, pause: float) -> None:
        """``ttl``: seconds that a claim lives on after each beat; ``pause``: seconds between beats."""
        self._connection = connection
        self._queue = queue
        self._ttl = ttl
        self._pause = pause
        self.fence: Fence | None = None
        """Under which it renews, as soon as there is one: claims of a successor have the same names."""
        self._held: set[str] = set()
        self._changing = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, claims: Iterable[str], at_once: bool = False) -> None:
        """From now on these too. ``at_once``: they were not just taken, and may be about to lapse."""
        names = list(claims)
        for claim in names if at_once else ():
            self._renew(claim)
        with self._changing:
            self._held.update(names)
            if self._thread is None and self._held:
                self._thread = threading.Thread(target=self._beat, name="zq-heartbeat", daemon=True)
                self._thread.start()

    def let_go(self, claims: Iterable[str]) -> None:
        """These are over."""
        with self._changing:
            self._held.difference_update(claims)

    def stop(self) -> None:
        """Renew nothing any more."""
        self._over.set()

    def over(self) -> bool:
        """Whether nothing is renewed any more."""
        return self._over.is_set()

    def _beat(self) -> None:
        while not self._over.wait(self._pause):
            with self._changing:
                held = sorted(self._held)
            for claim in held:
                self._renew(claim)

    def _renew(self, claim: str) -> None:
        try:
            self._connection.client().queue(self._queue).renew(claim, ttl=self._ttl, fence=self.fence)
        except ClaimNotFound:
            self.let_go([claim])
        except Fenced:
            self.stop()
        except ZqError:
            return  # the next beat may come in time
