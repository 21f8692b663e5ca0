# SPDX-License-Identifier: Apache-2.0
"""Verbs that run on the event loop's thread: their durability is awaited elsewhere, and they walk no long way.

The server's edge runs a short request within ``with Ticket() as ticket``. A store that would wait for its disk leaves
the wait in the ticket, and the edge sends the answer once ``ticket.settle()`` has returned on another thread. On all
other threads verbs wait by themselves.
"""

import threading
from collections.abc import Callable


class LongWalk(Exception):
    """A verb on the event loop's thread would read more entries than the loop may spend time on.

    The store raises it before it changes anything, so that the request can go on in a thread.
    """


class Ticket:
    """The changes that one request made on this thread and that are not durable yet."""

    __slots__ = ("_release", "wait")

    def __init__(self) -> None:
        self.wait: Callable[[], object] | None = None
        """Return when the changes are durable, or raise ``Unavailable``; None if there is nothing to wait for."""
        self._release: Callable[[], object] | None = None

    def __enter__(self) -> "Ticket":
        _thread.ticket = self
        return self

    def __exit__(self, *_: object) -> None:
        _thread.ticket = None

    def defer(self, wait: Callable[[], object]) -> None:
        """Leave a wait for later. Of several, the last one covers the others: it began after their writes."""
        self.wait = wait

    def keep_open(self, release: Callable[[], object]) -> bool:
        """Call ``release`` when the ticket is settled; return False if the ticket has no use for it."""
        if self.wait is None or self._release is not None:
            return False
        self._release = release
        return True

    def release(self) -> None:
        """Allow the store to be closed again. Call this method after the wait, whatever its outcome."""
        if self._release is not None:
            self._release()


class _Thread(threading.local):
    ticket: Ticket | None = None


_thread = _Thread()


def current() -> Ticket | None:
    """Return the ticket of the request that this thread runs inline, or None on any other thread."""
    return _thread.ticket
