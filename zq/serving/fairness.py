# SPDX-License-Identifier: Apache-2.0
"""Fair queueing among callers: in what order requests that come together take their steps on the event loop's thread.

A caller is a credential or a project, as text of the request's head: see ``caller``. Clients of one caller that are
answered together ask again together. In order of arrival all of them would be served before another caller's request.
"""

import asyncio
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from zq.model.addresses import client_network

# Steps of one caller in one iteration of the event loop.
MAX_STEPS: Final = 4
# Seconds for which the event loop's thread leaves the interpreter to others after an iteration with several steps.
# Granian's thread, which receives requests, waits for the interpreter meanwhile. The kernel adds about 50 µs.
PAUSE: Final = 0.0002
# Headers that identify the caller, the first of which a request has counts: where callers have no credentials, under
# Keystone, and under the other strategies. The order is that of authentication, so that further headers change nothing.
PROJECTS: Final = (b"x-project-id", b"x-tenant-id", b"x-tenant", b"authorization")
KEYSTONE: Final = (b"url-signature", b"x-auth-token", b"x-storage-token", b"authorization")
CREDENTIALS: Final = (b"url-signature", b"authorization", b"x-auth-token")
# The access key in an AWS signature, which differs in each request.
ACCESS_KEY: Final = re.compile(rb"Credential=([^/,\s]+)")


def caller(scope: dict[str, Any], headers: Sequence[bytes]) -> bytes:
    """Return the project or credential in a request's head, or the network of the client if the head has none.

    ``headers``: the names of headers to look for, in this order. Credentials are not checked: a client that sends a
    different invalid one in each request counts as many callers, until it is refused for guessing.
    """
    given = dict(scope["headers"])
    for name in headers:
        if value := given.get(name, b"").strip():
            key = ACCESS_KEY.search(value)
            return key[1] if key else value.rpartition(b" ")[2]
    return client_network(scope["client"][0])


class FairQueue:
    """Steps on the event loop's thread: of one caller, ``MAX_STEPS`` in an iteration of the loop; others wait.

    The first steps of an iteration are not counted by caller, so a request that comes alone costs one comparison. All
    methods are called in the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, has_company: Callable[[], bool]) -> None:
        """``has_company`` returns whether several projects have sent requests lately."""
        self._loop = loop
        self._has_company = has_company
        self._uncounted = MAX_STEPS
        """Steps that may still be taken in this iteration without being counted by caller."""
        self._taken: Counter[bytes] = Counter()
        self._waiting: dict[bytes, deque[asyncio.Future[None]]] = {}

    def begin_step(self) -> bool:
        """Begin a step unless this iteration has had several; if it returns False, call ``wait`` first."""
        if self._uncounted > 1:
            self._uncounted -= 1
            return True
        if self._uncounted == 1:
            self._uncounted = 0
            self._loop.call_soon(self._begin_iteration)
            return True
        return False

    async def wait(self, name: bytes) -> None:
        """Return when this caller may take a step."""
        if self._taken[name] < MAX_STEPS and name not in self._waiting:
            self._taken[name] += 1
            return
        turn = self._loop.create_future()
        self._waiting.setdefault(name, deque()).append(turn)
        await turn

    def _begin_iteration(self) -> None:
        """Let the next requests of each caller go on, and count from zero."""
        if self._has_company():
            time.sleep(PAUSE)
        self._taken.clear()
        for name, waiting in list(self._waiting.items()):
            while waiting and self._taken[name] < MAX_STEPS:
                turn = waiting.popleft()
                if not turn.done():
                    self._taken[name] += 1
                    turn.set_result(None)
            if not waiting:
                del self._waiting[name]
        if self._taken:
            self._loop.call_soon(self._begin_iteration)
        else:
            self._uncounted = MAX_STEPS
