# SPDX-License-Identifier: Apache-2.0
"""Locks for what has a name and is not a queue: fences, stages, producers. Taken before any queue's lock."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

STRIPES: Final = 256


class Stripes:
    """A bounded number of locks for any number of names; two names may share one."""

    def __init__(self) -> None:
        self._locks = [threading.Lock() for _ in range(STRIPES)]

    @contextmanager
    def held(self, *names: bytes) -> Iterator[None]:
        """The names, locked; all that a verb needs in one call, so that nobody waits in a circle."""
        with ExitStack() as stack:
            for stripe in sorted({hash(name) % STRIPES for name in names}):
                stack.enter_context(self._locks[stripe])
            yield
