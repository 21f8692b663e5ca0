# SPDX-License-Identifier: Apache-2.0
"""The HTTP servers that ``zq-server`` can run: gunicorn and Granian, each with a master and the processes that serve.

SIGHUP to a master would replace its processes, which a store that has one owner cannot have, and which drops requests.
Here the master takes over the options that may change, so that a process it starts later has them too, and hands the
signal on: ``zq.lifecycle`` handles it in the processes that serve. Nothing is handed on when the options are refused.
"""

from collections.abc import Callable
from typing import Any

from zq.engines.tls import ServerTls
from zq.settings import Settings

# Read the options again in this process; False if they are refused, which it has logged.
Reload = Callable[[], bool]


def run(
    chosen: Settings, load: Callable[[], Any], reload: Reload, lost: Callable[[int], None], tls: ServerTls | None = None
) -> int:
    """Serve until a signal ends it; the exit code. ``load`` makes the application, in the process that serves.

    ``lost`` is called with the id of each such process that has ended. ``tls``: of gunicorn's connections.
    """
    if chosen.engine == "granian":
        from zq.engines import granian

        return granian.run(chosen, reload, lost)
    from zq.engines import gunicorn

    return gunicorn.run(chosen, load, reload, lost, tls)
