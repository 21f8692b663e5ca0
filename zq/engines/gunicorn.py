# SPDX-License-Identifier: Apache-2.0
"""gunicorn: its options, its master and the worker that serves."""

import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, Final

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.errors import AppImportError
from gunicorn.glogging import Logger

from zq import lifecycle
from zq.engines import listening
from zq.engines.gthread.parsing import MAX_HEADERS, MAX_LINE
from zq.engines.gthread.worker import LoopWorker
from zq.engines.tls import ServerTls
from zq.errors import StartRefused, Unavailable
from zq.settings import Settings

LOG = logging.getLogger(__name__)
# Seconds after which a thread lets another one have the interpreter, instead of the 0.005 of Python: a post of 1,000
# messages takes 10 ms of it. Less would help others more, and cost everybody more (api-ref/performance.md).
SWITCH: Final = 0.001

# Seconds between two signs of life while the application is loaded.
BEAT: Final = 5.0


class PatientWorker(LoopWorker):
    """The master, which ends a worker that gives no sign of life, hears of it while the application is loaded too: a
    store may take long to open, and a standby waits for as long as the owner of its store lives."""

    def load_wsgi(self) -> None:
        loaded = threading.Event()

        def beat() -> None:
            while not loaded.wait(BEAT):
                self.notify()

        threading.Thread(target=beat, name="zq-loading", daemon=True).start()
        try:
            super().load_wsgi()
        finally:
            loaded.set()


def _options(chosen: Settings, tls: ServerTls | None) -> dict[str, object]:
    """By gunicorn's names; versions that do not know one do without."""
    return {
        "bind": [listening.authority(chosen.bind, chosen.port)],
        "worker_class": type("Worker", (PatientWorker,), {"chosen": chosen, "tls": tls}),
        "certfile": chosen.tls_cert or None,
        "keyfile": chosen.tls_key or None,
        "workers": chosen.workers,
        # A socket for each worker: of one that they share, the first to wake takes most connections.
        "reuse_port": chosen.workers > 1,
        "threads": chosen.threads,
        "keepalive": chosen.keepalive,
        # The master's patience: the worker's own is shorter.
        "graceful_timeout": chosen.drain_delay + chosen.graceful_timeout,
        "timeout": 120,
        "limit_request_line": MAX_LINE,
        "limit_request_field_size": MAX_LINE,
        "limit_request_fields": MAX_HEADERS,
        # Names with underscores are checked before they are dropped, by us; and no forwarded headers are trusted.
        "header_map": "dangerous",
        "forwarder_headers": "",
        "forwarded_allow_ips": "",
        "control_socket_disable": True,
        "proc_name": "zq-server",
    }


def run(
    chosen: Settings,
    load: Callable[[], Any],
    reload: Callable[[], bool],
    lost: Callable[[int], None],
    tls: ServerTls | None = None,
) -> int:
    class PlainLogger(Logger):  # type: ignore[misc]
        """gunicorn's logs, in the server's own format."""

        def setup(self, cfg: object) -> None:
            self.error_log.propagate = True

    class Application(BaseApplication):  # type: ignore[misc]
        """zq under gunicorn; ``load`` runs in the worker, after the fork."""

        def load_config(self) -> None:
            for name, value in _options(chosen, tls).items():
                if name in self.cfg.settings:
                    self.cfg.set(name, value)
            self.cfg.set("logger_class", PlainLogger)
            self.cfg.set("child_exit", lambda _master, worker: lost(worker.pid))

        def load(self) -> Any:
            sys.setswitchinterval(SWITCH)
            try:
                return load()
            except (StartRefused, Unavailable) as refusal:
                raise AppImportError(f"zq-server: {refusal}") from None

    application = Application()
    _master(reload, alone=not chosen.shared_store)(application).run()
    return 0


def _master(reload: Callable[[], bool], alone: bool) -> Any:
    """The class of the master; ``alone``: its one worker must stay the only one."""

    class Master(Arbiter):  # type: ignore[misc]
        """Reloads options, not workers."""

        # At this exit code of a worker the master ends by the same, too. Those have it that give up, and those that
        # could not begin for an error that nobody expected.
        WORKER_BOOT_ERROR = lifecycle.GIVEN_UP

        def spawn_worker(self) -> int:
            lifecycle.defer_reload()  # the worker releases it when it can obey
            worker: int = super().spawn_worker()
            lifecycle.allow_reload()
            return worker

        def handle_hup(self) -> None:
            if reload():
                self.kill_workers(lifecycle.RELOAD)

    class SingleWorkerMaster(Master):
        """Ignores the signals that start a second worker: an embedded store has one owner."""

        def handle_ttin(self) -> None:
            LOG.warning("Ignored a signal to start more workers: the embedded store allows one. Restart zq-server.")

        handle_usr2 = handle_ttin

    return SingleWorkerMaster if alone else Master
