# SPDX-License-Identifier: Apache-2.0
"""Whether this process is about to end: it has been told so, and serves on for a moment (``drain_delay``)."""

import threading
from collections.abc import Callable

_begun = threading.Event()


def begin(delay: float, end: Callable[[], object]) -> None:
    """The end comes in so many seconds: ``is_stopping`` from now on, and ``end`` is called then. Returns at once."""
    _begun.set()
    if delay <= 0:
        end()
        return
    timer = threading.Timer(delay, end)
    timer.daemon = True
    timer.start()


def is_stopping() -> bool:
    """Whether traffic should go elsewhere."""
    return _begun.is_set()
