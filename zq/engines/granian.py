# SPDX-License-Identifier: Apache-2.0
"""Granian: its master and how it is started."""

import asyncio
import os
import resource
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from granian import Granian
from granian.constants import Interfaces, RuntimeModes
from granian.http import HTTP1Settings

from zq import signals
from zq.engines import ending, listening
from zq.engines.asgi import Adapter
from zq.engines.process import Limits, Process
from zq.engines.sending import PIECE
from zq.engines.shortcut import Shortcut
from zq.engines.sockets import Keeper, Patience
from zq.settings import Settings


def run(chosen: Settings, reload: Callable[[], bool]) -> int:
    class Master(Granian):  # type: ignore[misc, valid-type]
        """Reloads options, not workers."""

        def startup(self, *arguments: Any) -> None:
            super().startup(*arguments)
            # Not by Granian's own handler, which may wait for a lock that the thread it interrupted holds.
            signals.listen({signals.RELOAD: self._hand_on})

        def _hand_on(self) -> None:
            if reload():
                for worker in list(self.wrks):
                    with suppress(ProcessLookupError):
                        os.kill(worker.inner.pid, signals.RELOAD)

    Master(
        target="zq.server:asgi",
        address=listening.numeric(chosen.bind),
        port=chosen.port,
        interface=Interfaces.ASGINL,
        runtime_mode=RuntimeModes.st,
        websockets=False,
        workers=chosen.workers,
        backpressure=chosen.max_waiters + chosen.max_streams + chosen.max_connections,
        http1_settings=HTTP1Settings(
            header_read_timeout=int(chosen.head_timeout * 1000),
            max_buffer_size=PIECE,  # what it holds of an answer, for a reader that does not take it
        ),
        workers_kill_timeout=chosen.drain_delay + chosen.graceful_timeout,
    ).serve()
    return 0


def adapted(app: Callable[..., Iterable[bytes]], chosen: Settings, ready: Callable[[], object]) -> Adapter:
    """The application as Granian is to run it. ``ready`` is called in the main thread when it begins to."""
    _allow_connections()
    limits = Limits(chosen.body_timeout, chosen.send_timeout, chosen.queue_timeout, chosen.max_body)
    process = Process(app, chosen.threads, limits)
    crowd = None if chosen.behind_proxy else chosen.max_connections_per_address
    patience = Patience(chosen.head_timeout, chosen.keepalive, chosen.send_timeout, crowd)
    keeper = Keeper(chosen.port, patience, process.busy)
    process.hang_up, process.untaken = keeper.hang_up, keeper.untaken
    loop = asyncio.get_event_loop()
    ending.prepend(ending.Ending(chosen.port, chosen.drain_delay, chosen.graceful_timeout), loop)
    process.start(loop)
    Shortcut(process, loop)
    loop.call_soon(ready)
    loop.call_soon(keeper.start)  # Granian listens by then
    return Adapter(process)


def _allow_connections() -> None:
    """As many open files as the system lets this process have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
