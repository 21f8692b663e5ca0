# SPDX-License-Identifier: Apache-2.0
"""Who may use a connection when there are many (criterion E2): those whose last delivery failed have a share of their
own, so that a thousand targets that never answer leave room for one that does; and a project has a few to one host.
"""

import asyncio
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

# Connections of this process; a project may have a thousand subscriptions, and each has one delivery under way.
MOST: Final = 2000
# Of these, one in so many is for those whose last delivery failed.
DOUBTFUL: Final = 4
# Connections of a project to one host.
MOST_OF_HOST: Final = 20


class Shares:
    """Of one worker, in its event loop. Who waits for a connection waits in line, and has claimed nothing yet."""

    def __init__(self, most: int = MOST) -> None:
        most = _room_for(most)
        self._doubtful = asyncio.Semaphore(max(1, most // DOUBTFUL))
        self._proven = asyncio.Semaphore(max(1, most - most // DOUBTFUL))
        self._hosts: WeakValueDictionary[tuple[str, str], asyncio.Semaphore] = WeakValueDictionary()

    @asynccontextmanager
    async def of(self, project: str, subscriber: str, *, failed: bool) -> AsyncIterator[None]:
        """Within it, one delivery may be under way. ``failed``: the subscription's last one did."""
        host = urlsplit(subscriber.removeprefix("trust+")).hostname or ""
        few = self._hosts.setdefault((project, host), asyncio.Semaphore(MOST_OF_HOST))
        async with few, self._doubtful if failed else self._proven:
            yield


def _room_for(wanted: int) -> int:
    """How many descriptors this process may have for deliveries, besides those that it had room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    raised = soft + wanted if hard == resource.RLIM_INFINITY else min(soft + wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return max(raised - soft, min(wanted, soft // 4))
