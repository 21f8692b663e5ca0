# SPDX-License-Identifier: Apache-2.0
"""Limits of connections (criterion E2). Subscriptions whose last delivery failed have a share of their own, so that a
thousand subscribers that never answer leave connections for others. A project has few connections to one host.
"""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

# Connections of this process. A project may have a thousand subscriptions with one delivery under way each.
MAX_CONNECTIONS: Final = 2000
# The divisor of the share for subscriptions whose last delivery failed.
DOUBTFUL: Final = 4
# Connections of a project to one host.
MAX_OF_HOST: Final = 20


class Shares:
    """The connections of one worker, for use in its event loop. A task that waits for one has claimed nothing yet."""

    def __init__(self, limit: int = MAX_CONNECTIONS) -> None:
        limit = _room_for(limit)
        self._doubtful = asyncio.Semaphore(max(1, limit // DOUBTFUL))
        self._proven = asyncio.Semaphore(max(1, limit - limit // DOUBTFUL))
        self._hosts: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, project: str, subscriber: str, *, failed: bool) -> AsyncIterator[None]:
        """Reserve a connection for one delivery. ``failed``: whether the subscription's last delivery failed."""
        host = urlsplit(subscriber.removeprefix("trust+")).hostname or ""
        few = self._hosts.setdefault((project, host), asyncio.Semaphore(MAX_OF_HOST))
        async with few, self._doubtful if failed else self._proven:
            yield


def _room_for(wanted: int) -> int:
    """Raise the process's limit of descriptors, and return the number of those for deliveries."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    raised = soft + wanted if hard == resource.RLIM_INFINITY else min(soft + wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return max(raised - soft, min(wanted, soft // 4))
