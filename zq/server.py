# SPDX-License-Identifier: Apache-2.0
"""The composition root and ``zq-server``: settings, storage, clock, broker, application, engine, from top to bottom.

``zq.server:app`` runs under any WSGI server; its settings come from the file that ``ZQ_CONFIG`` names and from the
environment. ``zq-server`` starts it under gunicorn or Granian. The store is opened in the process that serves, after
any fork, since the embedded one does not survive it.
"""

import argparse
import atexit
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence

from zq import __version__, logs, settings, signals
from zq.broker import Broker
from zq.clock import StoreClock
from zq.errors import StartRefused, Unavailable
from zq.http.app import App, create_app
from zq.settings import Settings
from zq.storage import connect, prepare
from zq.storage.api import Storage

LOG = logging.getLogger(__name__)
CLOCK_INTERVAL = 2.0
RETRY_INTERVAL = 1.0


def open_app(chosen: Settings) -> App:
    """Open the store and return the application on it. Raises ``StartRefused``, ``Unavailable``."""
    logs.configure(chosen.log_format, chosen.log_level)
    storage = open_store(chosen)
    clock = StoreClock(storage.now)
    broker = Broker(
        storage,
        clock,
        chosen.limits,
        checksum=chosen.checksum,
        delete_with_claim_id=chosen.delete_with_claim_id,
        max_waiters=chosen.max_waiters,
    )
    if not signals.on_ending(broker.waiters.close):
        LOG.warning("Requests that wait will hold up the end: the application was not loaded by the main thread.")
    app = create_app(
        broker,
        strict_client_id=chosen.strict_client_id,
        admin_mode=chosen.admin_mode,
        log_requests=chosen.log_requests,
    )
    upkeep = Upkeep(storage, clock, chosen.sweep_interval)
    upkeep.start()
    atexit.register(upkeep.stop)
    return app


def open_store(chosen: Settings) -> Storage:
    """Open the store; wait for one that does not answer, if the settings say so.

    Raises ``StartRefused``, ``Unavailable``.
    """
    while True:
        try:
            return connect(chosen.uri, chosen.driver_options)
        except Unavailable as absence:
            if not chosen.wait_for_store:
                raise
            LOG.warning("Waiting for the store: %s", absence)
            time.sleep(RETRY_INTERVAL)


class Upkeep:
    """What goes on beside the requests: the clock follows the store, and the store gives space back."""

    def __init__(self, storage: Storage, clock: StoreClock, sweep_interval: float) -> None:
        self._storage = storage
        self._clock = clock
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._every, args=(CLOCK_INTERVAL, clock.refresh), name="zq-clock", daemon=True),
            threading.Thread(target=self._every, args=(sweep_interval, self._maintain), name="zq-upkeep", daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop the threads and close the store."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._storage.close()

    def _maintain(self) -> None:
        self._storage.maintain(self._clock.now())

    def _every(self, seconds: float, task: Callable[[], None]) -> None:
        while not self._stopping.wait(seconds):
            try:
                task()
            except Unavailable as error:
                LOG.warning("Upkeep of the store failed and is tried again: %s", error)
            except Exception:  # the edge of this thread, which must outlive any one failure
                LOG.critical("Upkeep failed for a reason that nobody foresaw, and is tried again.", exc_info=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """``zq-server``: returns the exit code."""
    given = _parser().parse_args(arguments)
    if given.sample_config:
        settings.print_sample()
        return 0
    _hand_on(given)
    try:
        chosen = settings.load()
    except StartRefused as refusal:
        return _refuse(refusal)
    logs.configure(chosen.log_format, chosen.log_level)
    try:
        if given.init_store:
            prepared = prepare(chosen.uri, chosen.driver_options)
            print("The store is prepared." if prepared else "This store needs no preparation.")  # noqa: T201
            return 0
        if chosen.shared_store:
            # Refused here, it is one sentence; in the processes that serve, one from each of them.
            open_store(chosen).close()
    except (StartRefused, Unavailable) as refusal:
        return _refuse(refusal)
    if chosen.engine == "granian":
        return _run_granian(chosen)
    return _run_gunicorn(chosen)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="zq-server", description="Serve the zq queue service over HTTP.")
    parser.add_argument("--bind", metavar="ADDRESS", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", metavar="N", type=_port, help="port to listen on (default 8888)")
    parser.add_argument("--store", metavar="URI", help="the store, as rocksdb:///var/lib/zq (default rocksdb:var/zq)")
    parser.add_argument("--config", metavar="FILE", help="configuration file; --sample-config prints one")
    parser.add_argument("--engine", choices=["gunicorn", "granian"], help="the HTTP server (default gunicorn)")
    parser.add_argument(
        "--force-clock", action="store_true", help="believe this machine's clock, whatever the store says"
    )
    parser.add_argument("--wait-for-store", action="store_true", help="wait for a store that does not answer yet")
    parser.add_argument(
        "--init-store", action="store_true", help="create what the store needs, as an administrator, and exit"
    )
    parser.add_argument("--sample-config", action="store_true", help="print a configuration file with every option")
    parser.add_argument("--version", action="version", version=f"zq {__version__}")
    return parser


def _port(text: str) -> str:
    if not text.isascii() or not text.isdigit() or int(text[:9]) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 to 65535; it is {text!r}")
    return text


def _hand_on(given: argparse.Namespace) -> None:
    """Put the command line into the environment, where the processes that serve will find it."""
    if given.config:
        os.environ[settings.CONFIG_VARIABLE] = os.path.abspath(given.config)
    for option, group, value in (
        ("bind", "server", given.bind),
        ("port", "server", given.port),
        ("engine", "server", given.engine),
        ("uri", "storage", given.store),
        ("wait", "storage", "true" if given.wait_for_store else None),
        ("max_clock_jump", "storage:rocksdb", "0" if given.force_clock else None),
    ):
        if value is not None:
            os.environ[settings.variable(group, option)] = value


def _refuse(refusal: Exception) -> int:
    print(f"zq-server: {refusal}", file=sys.stderr)  # noqa: T201
    return 2


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


def _run_gunicorn(chosen: Settings) -> int:
    from gunicorn.app.base import BaseApplication
    from gunicorn.arbiter import Arbiter
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

        def load(self) -> App:
            try:
                return open_app(chosen)
            except (StartRefused, Unavailable) as refusal:
                raise AppImportError(f"zq-server: {refusal}") from None

    class SingleWorkerArbiter(Arbiter):  # type: ignore[misc]
        """Ignores the signals that start a second worker: an embedded store has one owner."""

        def handle_hup(self) -> None:
            LOG.warning("Ignored a signal to start more workers: the embedded store allows one. Restart zq-server.")

        handle_ttin = handle_usr2 = handle_hup

    application = Application()
    (SingleWorkerArbiter if chosen.uri.startswith("rocksdb:") else Arbiter)(application).run()
    return 0


def _run_granian(chosen: Settings) -> int:
    from granian import Granian
    from granian.constants import Interfaces

    Granian(
        target="zq.server:app",
        address=chosen.bind,
        port=chosen.port,
        interface=Interfaces.WSGI,
        workers=chosen.workers,
        blocking_threads=chosen.threads,
        workers_kill_timeout=chosen.graceful_timeout,
    ).serve()
    return 0


def __getattr__(name: str) -> object:
    if name != "app":
        raise AttributeError(name)
    try:
        app = open_app(settings.load())
    except (StartRefused, Unavailable) as refusal:
        sys.exit(_refuse(refusal))
    globals()["app"] = app
    return app


if __name__ == "__main__":
    sys.exit(main())
