# SPDX-License-Identifier: Apache-2.0
"""The HTTP servers that ``zq-server`` can run: gunicorn and Granian, each with a master and the processes that serve.

SIGHUP to a master would replace its processes, which a store that has one owner cannot have, and which drops requests.
Here the master takes over the options that may change, so that a process it starts later has them too, and hands the
signal on: ``zq.signals`` tells in the processes that serve. Nothing is handed on when the options are refused.
"""

import logging
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from zq import signals
from zq.errors import StartRefused, Unavailable
from zq.settings import Settings

LOG = logging.getLogger(__name__)

Reload = Callable[[], bool]
"""Read the options again in this process; False if they are refused, which it has logged."""


def run(chosen: Settings, load: Callable[[], Any], reload: Reload, lost: Callable[[int], None]) -> int:
    """Serve until a signal ends it; the exit code. ``load`` makes the application, in the process that serves.

    ``lost`` is told the id of each such process that has ended.
    """
    if chosen.engine == "granian":
        return _run_granian(chosen, reload)
    return _run_gunicorn(chosen, load, reload, lost)


def _gunicorn_options(chosen: Settings) -> dict[str, object]:
    """By gunicorn's names; versions that do not know one do without."""
    return {
        "bind": [f"{chosen.bind}:{chosen.port}"],
        "worker_class": "gthread",
        "workers": chosen.workers,
        # A socket for each worker: of one that they share, the first to wake takes most connections.
        "reuse_port": chosen.workers > 1,
        "threads": chosen.threads,
        # Idle connections wait beside those whose requests hold a thread.
        "worker_connections": max(1000, 4 * chosen.threads),
        "keepalive": chosen.keepalive,
        "graceful_timeout": chosen.graceful_timeout,
        "timeout": 120,
        "limit_request_line": 8190,
        "control_socket_disable": True,
        "proc_name": "zq-server",
    }


def _run_gunicorn(chosen: Settings, load: Callable[[], Any], reload: Reload, lost: Callable[[int], None]) -> int:
    from gunicorn.app.base import BaseApplication
    from gunicorn.errors import AppImportError
    from gunicorn.glogging import Logger

    class PlainLogger(Logger):  # type: ignore[misc]
        """gunicorn's logs, in the server's own format."""

        def setup(self, cfg: object) -> None:
            self.error_log.propagate = True

    class Application(BaseApplication):  # type: ignore[misc]
        """zq under gunicorn; ``load`` runs in the worker, after the fork."""

        def load_config(self) -> None:
            for name, value in _gunicorn_options(chosen).items():
                if name in self.cfg.settings:
                    self.cfg.set(name, value)
            self.cfg.set("logger_class", PlainLogger)
            self.cfg.set("child_exit", lambda _master, worker: lost(worker.pid))

        def load(self) -> Any:
            try:
                return load()
            except (StartRefused, Unavailable) as refusal:
                raise AppImportError(f"zq-server: {refusal}") from None

    application = Application()
    _gunicorn_master(reload, alone=chosen.uri.startswith("rocksdb:"))(application).run()
    return 0


def _gunicorn_master(reload: Reload, alone: bool) -> Any:
    """The class of the master; ``alone``: its one worker must stay the only one."""
    from gunicorn.arbiter import Arbiter

    class Master(Arbiter):  # type: ignore[misc]
        """Reloads options, not workers."""

        def spawn_worker(self) -> int:
            signals.hold()  # the worker releases it when it can obey
            worker: int = super().spawn_worker()
            signals.release()
            return worker

        def handle_hup(self) -> None:
            if reload():
                self.kill_workers(signals.RELOAD)

    class SingleWorkerMaster(Master):
        """Ignores the signals that start a second worker: an embedded store has one owner."""

        def handle_ttin(self) -> None:
            LOG.warning("Ignored a signal to start more workers: the embedded store allows one. Restart zq-server.")

        handle_usr2 = handle_ttin

    return SingleWorkerMaster if alone else Master


def _run_granian(chosen: Settings, reload: Reload) -> int:
    from granian import Granian
    from granian.constants import Interfaces

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
