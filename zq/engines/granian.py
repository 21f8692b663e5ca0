# SPDX-License-Identifier: Apache-2.0
"""Granian: its master and how it is started."""

import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from granian import Granian
from granian.constants import Interfaces

from zq import signals
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
        target="zq.server:app",
        address=chosen.bind,
        port=chosen.port,
        interface=Interfaces.WSGI,
        workers=chosen.workers,
        blocking_threads=chosen.threads,
        workers_kill_timeout=chosen.graceful_timeout,
    ).serve()
    return 0
