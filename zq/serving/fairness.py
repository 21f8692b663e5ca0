# SPDX-License-Identifier: Apache-2.0
"""Fair queueing of requests on the event loop's thread, by caller.

A caller is a credential or a project, identified by the headers (see ``caller``). Without this module, requests would
run in arrival order, and many concurrent requests of one caller would delay all other callers.
"""

import asyncio
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from zq.model.addresses import client_network

# Maximum number of steps of one caller per event loop iteration if several projects send requests.
MAX_STEPS: Final = 4
# Maximum number of steps while only one project sends requests, so that another project's first request waits for few
# requests. A smaller number costs a twelfth of the throughput.
MAX_STEPS_ALONE: Final = 64
# Seconds for which ``MAX_STEPS`` applies after several projects have sent requests.
SHARED_SECONDS: Final = 10.0
# Seconds for which the event loop's thread sleeps after an iteration with many steps, so that Granian's thread gets the
# interpreter lock and can receive requests. The kernel adds about 50 µs.
PAUSE: Final = 0.0002
# Headers that identify the caller, in order of precedence: without authentication, with Keystone, and with other
# strategies. Authentication uses the same order, so a client cannot become another caller by adding a header.
PROJECTS: Final = (b"x-project-id", b"x-tenant-id", b"x-tenant", b"authorization")
KEYSTONE: Final = (b"url-signature", b"x-auth-token", b"x-storage-token", b"authorization")
CREDENTIALS: Final = (b"url-signature", b"authorization", b"x-auth-token")
# The access key in an AWS signature. The remainder of the header differs in each request.
ACCESS_KEY: Final = re.compile(rb"Credential=([^/,\s]+)")


def caller(scope: dict[str, Any], headers: Sequence[bytes]) -> bytes:
    """Return the caller: the project or credential in the headers, or else the client's IP network.

    The credential is not verified. A client with a different invalid credential in each request therefore counts as
    many callers, until it exceeds the limit of failed authentications from one address.
    """
    given = dict(scope["headers"])
    for name in headers:
        if value := given.get(name, b"").strip():
            key = ACCESS_KEY.search(value)
            return key[1] if key else value.rpartition(b" ")[2]
    return client_network(scope["client"][0])


class FairQueue:
    """A queue that shares the event loop's thread fairly among callers.

    A step is the work that a request does on this thread until the request waits or ends. The first ``MAX_STEPS`` steps
    are not counted, because counting takes time. After that, each caller may run ``MAX_STEPS`` steps in one iteration
    of the event loop, and further steps wait for the next iteration. If all recent requests came from one project, both
    limits are ``MAX_STEPS_ALONE``.

    All methods except ``notify`` must be called in the event loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, has_several_projects: Callable[[], bool]) -> None:
        """Create the queue. ``has_several_projects`` returns whether several projects have recently sent requests."""
        self._loop = loop
        self._has_several_projects = has_several_projects
        self._uncounted = MAX_STEPS
        """Number of request steps left in this loop iteration that are not counted by caller."""
        self._max_steps = MAX_STEPS
        self._shared_until = loop.time() + SHARED_SECONDS
        self._step_counts: Counter[bytes] = Counter()
        self._waiting: dict[bytes, deque[asyncio.Future[None]]] = {}
        self._notices: deque[tuple[bytes, asyncio.Future[None]]] = deque()
        self._is_notified = False

    def notify(self, name: bytes, turn: "asyncio.Future[None]") -> None:
        """Resolve the future ``turn`` when a request of the caller ``name`` may use the event loop. Thread-safe."""
        self._notices.append((name, turn))
        if not self._is_notified:
            self._is_notified = True
            with suppress(RuntimeError):  # the loop is closed, so no coroutine waits
                self._loop.call_soon_threadsafe(self._take_notices)

    def _take_notices(self) -> None:
        self._is_notified = False
        while self._notices:
            name, turn = self._notices.popleft()
            if turn.done():
                continue
            if self.begin_step() or self._take_step(name):
                turn.set_result(None)
            else:
                self._waiting.setdefault(name, deque()).append(turn)

    def begin_step(self) -> bool:
        """Begin a step (the work of a request until it waits or ends) without counting it for the caller.

        Return ``False`` if no uncounted steps are left in this iteration of the event loop. The request must then await
        ``wait``.
        """
        if self._uncounted > 1:
            self._uncounted -= 1
            return True
        if self._uncounted == 1:
            self._uncounted = 0
            self._loop.call_soon(self._begin_iteration)
            return True
        return False

    async def wait(self, name: bytes) -> None:
        """Wait until a request of the caller ``name`` may use the event loop, and count this use."""
        if not self._take_step(name):
            turn = self._loop.create_future()
            self._waiting.setdefault(name, deque()).append(turn)
            await turn

    def _take_step(self, name: bytes) -> bool:
        if self._step_counts[name] >= self._max_steps or name in self._waiting:
            return False
        self._step_counts[name] += 1
        return True

    def _begin_iteration(self) -> None:
        """Reset the counts per caller for a new event loop iteration, and resume waiting requests within the limits."""
        now = self._loop.time()
        if self._has_several_projects():
            self._shared_until = now + SHARED_SECONDS
            time.sleep(PAUSE)
        is_shared = now < self._shared_until
        self._max_steps = MAX_STEPS if is_shared else MAX_STEPS_ALONE
        self._step_counts.clear()
        for name, waiting in list(self._waiting.items()):
            while waiting and self._step_counts[name] < self._max_steps:
                turn = waiting.popleft()
                if not turn.done():
                    self._step_counts[name] += 1
                    turn.set_result(None)
            if not waiting:
                del self._waiting[name]
        if self._waiting or (is_shared and self._step_counts):
            self._loop.call_soon(self._begin_iteration)
        else:
            self._uncounted = self._max_steps
