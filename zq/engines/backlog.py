# SPDX-License-Identifier: Apache-2.0
"""Long answers that are made and not yet taken: how many bytes of them are in memory, and who goes when there are many.

Any number of clients may ask for a large page and read nothing of it. The loop gives each its time; this bounds what
they hold together until then.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from zq.engines.sockets import Peer
from zq.strain import Reason

MOST: Final = 128 << 20
"""Bytes of a process. What is made on threads in the moment when it is reached comes on top."""
SETTLED: Final = 1.0
"""Seconds for which a reader has taken nothing when it may be hung up on in favour of others."""
HANDED: Final = 384 << 10
"""Bytes that Granian may hold of an answer that was handed over: four pieces, its buffer, and what goes over that."""


class Unsent:
    """A long answer. ``body`` is the one reference to it, so that dropping it frees the memory at once."""

    __slots__ = ("body", "moved", "peer", "size")

    def __init__(self, peer: Peer, body: bytes) -> None:
        self.peer = peer
        self.body: bytes | None = body
        self.size = len(body)
        """Bytes that it is counted with; 0 once it is taken or given up."""
        self.moved = time.monotonic()
        """When the reader took a piece last."""


class Backlog:
    """All of a process. Each method may be called from any thread. ``hang_up`` ends a connection."""

    def __init__(self, hang_up: Callable[[Peer, Reason], object]) -> None:
        self._hang_up = hang_up
        self._lock = threading.Lock()
        self._held: set[Unsent] = set()
        self._size = 0

    def hold(self, peer: Peer, body: bytes) -> Unsent:
        """Count an answer from now on until it is released."""
        unsent = Unsent(peer, body)
        with self._lock:
            self._held.add(unsent)
            self._size += unsent.size
        self.full()
        return unsent

    def handed(self, unsent: Unsent) -> None:
        """All of it is Granian's now, which tells nobody when the reader has it."""
        with self._lock:
            unsent.body = None
            self._size -= max(0, unsent.size - HANDED)
            unsent.size = min(unsent.size, HANDED)

    def release(self, unsent: Unsent) -> None:
        """It is taken, or given up. May be called twice."""
        with self._lock:
            self._free(unsent)

    def full(self) -> bool:
        """Whether no other long answer is to be made now, though those who took nothing have been hung up on."""
        if self._size > MOST:
            for unsent in self._drop():
                self._hang_up(unsent.peer, Reason.MEMORY)
        return self._size > MOST

    def _drop(self) -> list[Unsent]:
        """Free answers until there are few enough, those first whose readers have taken nothing for longest."""
        before, dropped = time.monotonic() - SETTLED, []
        with self._lock:
            for unsent in sorted((each for each in self._held if each.moved < before), key=lambda each: each.moved):
                if self._size <= MOST:
                    break
                self._free(unsent)
                dropped.append(unsent)
        return dropped

    def _free(self, unsent: Unsent) -> None:
        self._held.discard(unsent)
        self._size -= unsent.size
        unsent.body, unsent.size = None, 0


def may_be_long(environ: dict[str, Any]) -> bool:
    """Whether a request reads or takes what clients wrote: its answer may be of any length."""
    path: str = environ["PATH_INFO"]
    method: str = environ["REQUEST_METHOD"]
    if method == "GET":
        return path.startswith("/v2/")  # not probes and metrics
    return "/claims" in path or (method == "DELETE" and "pop=" in environ["QUERY_STRING"])
