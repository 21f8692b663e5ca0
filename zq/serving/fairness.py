# SPDX-License-Identifier: Apache-2.0
"""Fair queueing of callers' requests on the event loop's thread.

A caller is a credential or a project, identified by text in the request's head (see ``caller``). Clients of one caller
that receive responses together also send their next requests together. If requests ran in arrival order, another caller
would wait for all of them.
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
# Seconds for which the event loop's thread releases the interpreter after an iteration with several steps, so that
# Granian's thread can receive requests. The kernel adds about 50 µs.
PAUSE: Final = 0.0002
# Headers that identify the caller, in order of precedence: without credentials, with Keystone, and with the other
# strategies. The order equals that of authentication, so that a client cannot change its caller by adding headers.
PROJECTS: Final = (b"x-project-id", b"x-tenant-id", b"x-tenant", b"authorization")
KEYSTONE: Final = (b"url-signature", b"x-auth-token", b"x-storage-token", b"authorization")
CREDENTIALS: Final = (b"url-signature", b"authorization", b"x-auth-token")
# The access key in an AWS signature, because the rest of the header differs in each request.
ACCESS_KEY: Final = re.compile(rb"Credential=([^/,\s]+)")


def caller(scope: dict[str, Any], headers: Sequence[bytes]) -> bytes:
    """Return the project or credential in a request's head, or the client's network if there is none.

    ``headers`` lists header names in order of precedence. Credentials are not checked: a client that sends a different
    invalid one in each request counts as many callers until the server rejects its guessing.
    """
    given = dict(scope["headers"])
    for name in headers:
        if value := given.get(name, b"").strip():
            key = ACCESS_KEY.search(value)
            return key[1] if key else value.rpartition(b" ")[2]
    return client_network(scope["client"][0])


class FairQueue:
    """A queue that allows each caller ``MAX_STEPS`` steps per event loop iteration.

    The first steps of an iteration are not counted by caller, so a single request costs one comparison. If only one
    project has sent requests lately, ``MAX_STEPS_ALONE`` applies instead. Call all methods but ``notify`` in the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, has_company: Callable[[], bool]) -> None:
        """Create the queue. ``has_company`` returns whether several projects have recently sent requests."""
        self._loop = loop
        self._has_company = has_company
        self._uncounted = MAX_STEPS
        """Number of remaining steps in this iteration that are not counted by caller."""
        self._max_steps = MAX_STEPS
        self._shared_until = loop.time() + SHARED_SECONDS
        self._taken: Counter[bytes] = Counter()
        self._waiting: dict[bytes, deque[asyncio.Future[None]]] = {}
        self._notices: deque[tuple[bytes, asyncio.Future[None]]] = deque()
        self._is_notified = False

    def notify(self, name: bytes, turn: "asyncio.Future[None]") -> None:
        """Resolve a future of the loop when this caller may take a step. Thread-safe."""
        self._notices.append((name, turn))
        if not self._is_notified:
            self._is_notified = True
            with suppress(RuntimeError):  # the loop has ended, and with it the waiting coroutine
                self._loop.call_soon_threadsafe(self._take_notices)

    def _take_notices(self) -> None:
        self._is_notified = False
        while self._notices:
            name, turn = self._notices.popleft()
            if turn.done():
                continue
            if self.begin_step() or self._may_step(name):
                turn.set_result(None)
            else:
                self._waiting.setdefault(name, deque()).append(turn)

    def begin_step(self) -> bool:
        """Begin a step if this iteration has uncounted steps left. If the result is False, await ``wait`` first."""
        if self._uncounted > 1:
            self._uncounted -= 1
            return True
        if self._uncounted == 1:
            self._uncounted = 0
            self._loop.call_soon(self._begin_iteration)
            return True
        return False

    async def wait(self, name: bytes) -> None:
        """Wait until this caller may take a step."""
        if not self._may_step(name):
            turn = self._loop.create_future()
            self._waiting.setdefault(name, deque()).append(turn)
            await turn

    def _may_step(self, name: bytes) -> bool:
        """Count a step of this caller and return True if it may take one in this iteration."""
        if self._taken[name] >= self._max_steps or name in self._waiting:
            return False
        self._taken[name] += 1
        return True

    def _begin_iteration(self) -> None:
        """Reset the step counts and start the next waiting requests of each caller."""
        now = self._loop.time()
        if self._has_company():
            self._shared_until = now + SHARED_SECONDS
            time.sleep(PAUSE)
        is_shared = now < self._shared_until
        self._max_steps = MAX_STEPS if is_shared else MAX_STEPS_ALONE
        self._taken.clear()
        for name, waiting in list(self._waiting.items()):
            while waiting and self._taken[name] < self._max_steps:
                turn = waiting.popleft()
                if not turn.done():
                    self._taken[name] += 1
                    turn.set_result(None)
            if not waiting:
                del self._waiting[name]
        if self._waiting or (is_shared and self._taken):
            self._loop.call_soon(self._begin_iteration)
        else:
            self._uncounted = self._max_steps
