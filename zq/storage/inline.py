# SPDX-License-Identifier: Apache-2.0
"""Support for short operations on the event loop's thread, where they must not wait for the disk or read many entries.

The HTTP server runs a short request within ``with Ticket() as ticket``. The operation returns before its changes are
durable. It gives the ticket a function that waits for the disk. The HTTP server calls this function on another thread
before it sends the response. On all other threads, operations wait for the disk themselves.
"""

import threading
from collections.abc import Callable


class LongScan(Exception):
    """An error that an operation raises if it would read too many entries on the event loop's thread.

    The operation raises this error before it changes anything.
    """


class Ticket:
    """The pending disk sync of one request that runs on the event loop's thread."""

    __slots__ = ("_on_release", "wait")

    def __init__(self) -> None:
        self.wait: Callable[[], object] | None = None
        """A function that waits until the request's changes are durable; None if there is nothing to wait for."""
        self._on_release: Callable[[], object] | None = None

    def __enter__(self) -> "Ticket":
        _thread.ticket = self
        return self

    def __exit__(self, *_: object) -> None:
        _thread.ticket = None

    def defer(self, wait: Callable[[], object]) -> None:
        """Set the function that waits for the disk, replacing any function that was set earlier.

        The new function also waits for all earlier writes, so the earlier function is not needed.
        """
        self.wait = wait

    def keep_open(self, on_release: Callable[[], object]) -> bool:
        """Keep the store open until the disk sync has ended, and return True.

        At that time, ``release`` calls ``on_release``, which allows the store to close. If no disk sync is pending or
        the ticket already keeps the store open, do nothing and return False.
        """
        if self.wait is None or self._on_release is not None:
            return False
        self._on_release = on_release
        return True

    @property
    def keeps_open(self) -> bool:
        return self._on_release is not None

    def release(self) -> None:
        """Allow the store to close. The HTTP server calls this method after the disk sync, even if the sync failed."""
        if self._on_release is not None:
            self._on_release()


class _Thread(threading.local):
    ticket: Ticket | None = None


_thread = _Thread()


def current() -> Ticket | None:
    """Return the ticket of the request that runs on this thread, or None if the request has no ticket."""
    return _thread.ticket
