# SPDX-License-Identifier: Apache-2.0
"""Connection limits of a delivery worker.

A part of the connections is reserved for subscriptions whose last delivery failed. These subscriptions can use no other
connections, so unresponsive subscribers cannot occupy all of them. The connections of a project to one host are also
limited.
"""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

# Maximum number of connections of a worker. A project may have a thousand subscriptions, each with one connection.
MAX_CONNECTIONS: Final = 2000
# One of every ``FAILED_FRACTION`` connections is reserved for subscriptions whose last delivery failed.
FAILED_FRACTION: Final = 4
# The maximum number of connections of a project to one host.
MAX_PER_HOST: Final = 20


class ConnectionLimits:
    """The connection limits of one worker. Use them only in the worker's event loop.

    Reserve a connection before you claim deliveries. A task that waits for a connection while it holds a claim would
    let the claim expire.
    """

    def __init__(self, limit: int = MAX_CONNECTIONS) -> None:
        limit = _raise_descriptor_limit(limit)
        self._doubtful = asyncio.Semaphore(max(1, limit // FAILED_FRACTION))
        self._proven = asyncio.Semaphore(max(1, limit - limit // FAILED_FRACTION))
        self._hosts: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def reserve(self, project: str, subscriber: str, *, failed: bool) -> AsyncIterator[None]:
        """Wait for a free connection to the subscriber's host and reserve it; an async context manager.

        ``subscriber`` is the subscriber's URL. ``failed``: whether the last delivery of the subscription failed.
        """
        host = urlsplit(subscriber.removeprefix("trust+")).hostname or ""
        few = self._hosts.setdefault((project, host), asyncio.Semaphore(MAX_PER_HOST))
        async with few, self._doubtful if failed else self._proven:
            yield


def _raise_descriptor_limit(wanted: int) -> int:
    """Raise the process's limit of file descriptors by ``wanted``, or as far as the hard limit permits.

    Return the number of file descriptors for deliveries.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    raised = soft + wanted if hard == resource.RLIM_INFINITY else min(soft + wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return max(raised - soft, min(wanted, soft // 4))
