# SPDX-License-Identifier: Apache-2.0
"""Options and master process of gunicorn with its gthread worker.

Each request occupies a thread, even while a slow client sends or receives. The server therefore needs a buffering proxy
in front, as in ``etc/nginx.conf``; see ``zq.serving.startup.check_exposure``.
"""

import logging
import ssl
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from gunicorn.app.base import BaseApplication
from gunicorn.arbiter import Arbiter
from gunicorn.errors import AppImportError
from gunicorn.glogging import Logger
from gunicorn.http.errors import InvalidHeader

from zq import turns
from zq.errors import StartRefused, Unavailable
from zq.http import heads
from zq.model.identity import CERTIFICATE
from zq.serving import lifecycle, listening, systemd
from zq.serving.environ import MAX_LINE
from zq.serving.settings import Settings
from zq.serving.tls import ServerTls, get_certificate

LOG = logging.getLogger(__name__)


def _admit(request: Any, is_leaving: Callable[[], bool]) -> None:
    """Reject a request if a proxy could interpret its request line or headers differently.

    If the server is about to stop, close the connection after the response.
    """
    sentence = heads.find_head_error(request.headers, "")
    if sentence is not None:
        raise InvalidHeader(sentence, request)
    if is_leaving():
        request.force_close()


def _options(
    chosen: Settings, tls: ServerTls | None, lost: Callable[[int], None], is_leaving: Callable[[], bool]
) -> dict[str, object]:
    """Return gunicorn's options by name, possibly with options that the installed gunicorn does not have."""
    server = chosen.server
    options: dict[str, object] = {
        "bind": [listening.format_authority(server.bind, server.port)],
        "worker_class": "gthread",
        "workers": server.workers,
        # Each worker has its own socket. On a shared socket, the first worker to wake up accepts most connections.
        "reuse_port": server.workers > 1,
        "threads": chosen.threads,
        "worker_connections": server.max_connections,
        "keepalive": server.keepalive,
        "graceful_timeout": server.graceful_timeout,
        # No timeout: a store may take long to open, and a standby waits until the owner of its store has exited.
        "timeout": 0,
        "limit_request_line": MAX_LINE,
        "limit_request_field_size": MAX_LINE,
        # WSGI uses one key for underscore and hyphen. No forwarded headers are trusted.
        "header_map": "refuse",
        "forwarder_headers": "",
        "forwarded_allow_ips": "",
        "control_socket_disable": True,
        "proc_name": "zq-server",
        "pre_request": lambda _worker, request: _admit(request, is_leaving),
        "post_worker_init": lambda _worker: systemd.notify(systemd.READY),
        "child_exit": lambda _master, worker: lost(worker.pid),
    }
    if tls is not None:
        options |= {"certfile": server.tls_cert, "keyfile": server.tls_key}
        options["ssl_context"] = lambda _config, _default: tls.context
    return options


def run(
    chosen: Settings,
    load: Callable[[], Callable[..., Iterable[bytes]]],
    reload: Callable[[], bool],
    lost: Callable[[int], None],
    is_leaving: Callable[[], bool],
    tls: ServerTls | None = None,
) -> int:
    """Serve until a signal ends the master. Return the exit code.

    Args:
        load: Creates the application. Called in each worker after the fork.
        reload: Reloads the options. Returns whether the workers must reload too.
        lost: Called with the process id of each ended worker.
    """

    class PlainLogger(Logger):  # type: ignore[misc]
        def setup(self, cfg: object) -> None:
            self.error_log.propagate = True

    class Application(BaseApplication):  # type: ignore[misc]
        """A gunicorn application that is created in the worker, after the fork."""

        def load_config(self) -> None:
            for name, value in (_options(chosen, tls, lost, is_leaving) | {"logger_class": PlainLogger}).items():
                if name in self.cfg.settings:
                    self.cfg.set(name, value)

        def load(self) -> Any:
            sys.setswitchinterval(turns.SWITCH_INTERVAL)
            try:
                app = load()
            except StartRefused as refusal:
                raise AppImportError(f"zq-server: {refusal}") from None
            except Unavailable as outage:
                print(f"zq-server: {outage}", file=sys.stderr)  # noqa: T201
                sys.exit(lifecycle.STORE_LOST_EXIT_CODE)
            return app if tls is None else _with_certificates(app)

    _master(reload, alone=not chosen.shared_store)(Application()).run()
    return 0


def _with_certificates(app: Callable[..., Iterable[bytes]]) -> Callable[..., Iterable[bytes]]:
    def call(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        connection = environ.get("gunicorn.socket")
        found = get_certificate(connection) if isinstance(connection, ssl.SSLSocket) else None
        if found is not None:
            environ[CERTIFICATE] = found
        return app(environ, start_response)

    return call


def _master(reload: Callable[[], bool], alone: bool) -> Any:
    """Return the class of the master process. ``alone`` limits the master to one worker."""

    class Master(Arbiter):  # type: ignore[misc]
        """A master that reloads options without replacing workers."""

        # If a worker exits with one of these codes, the master exits with it too.
        APP_LOAD_ERROR, WORKER_BOOT_ERROR = lifecycle.START_REFUSED_EXIT_CODE, lifecycle.STORE_LOST_EXIT_CODE
        _ending: tuple[str, float] | None = None
        """The signal that ends the server, and the monotonic time of its arrival."""

        def spawn_worker(self) -> int:
            lifecycle.defer_reload()  # until the worker can reload
            worker: int = super().spawn_worker()
            lifecycle.allow_reload()
            return worker

        def handle_term(self) -> None:
            self._end("SIGTERM", super().handle_term)

        def handle_int(self) -> None:
            self._end("SIGINT", super().handle_int)

        def handle_quit(self) -> None:
            self._end("SIGQUIT", super().handle_quit)

        def _end(self, name: str, stop: Callable[[], None]) -> None:
            self._ending = name, time.monotonic()
            stop()

        def halt(self, reason: str | None = None, exit_status: int = 0) -> None:
            ending = self._ending or (reason or "", time.monotonic())
            try:
                super().halt(reason, exit_status)  # ends the process
            finally:
                lifecycle.log_end(*ending)

        def handle_hup(self) -> None:
            if reload():
                self.kill_workers(lifecycle.RELOAD)

    class SingleWorkerMaster(Master):
        """A master that ignores signals to start more workers, because only one process can open an embedded store."""

        def handle_ttin(self) -> None:
            LOG.warning(
                "Ignored a signal to start more workers, because the embedded store allows one. Restart "
                "zq-server instead."
            )

        handle_usr2 = handle_ttin

    return SingleWorkerMaster if alone else Master
