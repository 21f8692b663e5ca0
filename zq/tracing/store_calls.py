# SPDX-License-Identifier: Apache-2.0
"""Collection of the store operations that sampled requests call."""

import threading
from typing import Final

from msgspec import Struct

from zq.clock import local_time
from zq.events import Events

# Maximum number of operations of a request that have spans. A large commit has thousands of operations.
MAX_STORE_CALLS: Final = 100


class StoreCall(Struct, frozen=True):
    """A finished operation of the store.

    Attributes:
        ended: End of the operation, in seconds since the epoch.
    """

    verb: str
    ended: float
    seconds: float


class _Thread(threading.local):
    """The store operations of the request that runs on this thread, or ``None`` if the request is not sampled."""

    calls: list[StoreCall] | None = None


_thread: Final = _Thread()


def collect(calls: list[StoreCall] | None) -> None:
    """Set the list to which this thread's store operations are appended. ``None`` ends the collection."""
    _thread.calls = calls


class StoreCallObserver(Events):
    """An observer that collects the store operations of sampled requests, up to ``MAX_STORE_CALLS`` per request."""

    def store_called(self, verb: str, seconds: float) -> None:
        calls = _thread.calls
        if calls is not None and len(calls) < MAX_STORE_CALLS:
            calls.append(StoreCall(verb, local_time(), seconds))
