# SPDX-License-Identifier: Apache-2.0
"""The store operations of sampled requests: which request the current thread handles, and an observer of the store."""

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
    """The operations of the sampled request that runs on this thread, or ``None``."""

    calls: list[StoreCall] | None = None


_thread: Final = _Thread()


def collect(calls: list[StoreCall] | None) -> None:
    """Append the operations that this thread calls from now on to ``calls``. If it is ``None``, ignore them."""
    _thread.calls = calls


class StoreCallObserver(Events):
    """An observer that collects the operations of sampled requests. For all other requests, it only reads a variable.

    Operations beyond ``MAX_STORE_CALLS`` are ignored.
    """

    def store_called(self, verb: str, seconds: float) -> None:
        calls = _thread.calls
        if calls is not None and len(calls) < MAX_STORE_CALLS:
            calls.append(StoreCall(verb, local_time(), seconds))
