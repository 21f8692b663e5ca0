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
import signal
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from zq import __version__, announcement, engines, logs, probes, secrets, settings, signals, stopping
from zq.broker import Broker
from zq.broker.watch import Watch
from zq.clock import Clock, StoreClock
from zq.engines import listening
from zq.errors import StartRefused, Unavailable
from zq.http.app import App, create_app
from zq.measures import Report
from zq.metrics import shared
from zq.metrics.measured import measured
from zq.metrics.options import Options
from zq.pace import Load
from zq.settings import Configuration, Settings, exposure
from zq.storage import check, connect, find, prepare, salvage
from zq.storage.api import Storage
from zq.topics import Keep
from zq.upkeep import Upkeep

if TYPE_CHECKING:
    from zq.metrics.counting import Metrics

LOG = logging.getLogger(__name__)
RETRY_INTERVAL = 1.0
PRIVATE = 0o077
"""What the files of this program are not allowed to others: the embedded store has all tenants' messages."""


Heed = Callable[[float, Callable[[], None], Callable[[], object]], None]
"""Told for how many seconds to drain, what to do when this process is to end, and how to read its options again."""


def open_app(configuration: Configuration, heed: Heed | None = None) -> App:
    """Open the store and return the application on it. Raises ``StartRefused``, ``Unavailable``.

    ``heed`` has this process obey its signals; by default from now on.
    """
    heed = heed or _heed_signals
    chosen = configuration.current
    logs.configure(chosen.log_format, chosen.log_level)
    storage = open_store(chosen)
    clock, load = StoreClock(storage.now, doubted=storage.doubted), Load()
    metrics = _metrics(chosen, storage, clock)
    broker = _broker(chosen, measured(storage, metrics.observe, load.note), clock, metrics)
    app = create_app(
        broker,
        strict_client_id=chosen.strict_client_id,
        admin_mode=chosen.admin_mode,
        trusting=chosen.trust_network,
        allowed_hosts=lambda: configuration.current.allowed_hosts,
        log_requests=lambda: configuration.current.log_requests,
        meter=metrics,
        metrics_page=chosen.metrics_on_main_port,
    )
    _listen(chosen, broker, metrics)
    upkeep = Upkeep(storage, clock, chosen.expiry, chosen.sweep_interval, load, metrics, broker.transactions.resume)
    upkeep.start()
    atexit.register(upkeep.stop)

    def apply(new: Settings) -> None:
        broker.lifetimes.replace(new.limits.default_message_ttl, new.queue_ttl)
        broker.publishing.keep = _kept(new)
        storage.configure(new.expiry)
        upkeep.configure(new.expiry, new.sweep_interval)
        metrics.configure(_shown(new))

    heed(chosen.drain_delay, broker.end_waiting, lambda: _reload(configuration, apply))
    return app


def _metrics(chosen: Settings, storage: Storage, clock: Clock) -> "Metrics":
    from zq.metrics.counting import Metrics  # here, so that it finds what shared.begin has set

    return Metrics(
        storage,
        clock,
        store=chosen.uri.partition(":")[0],
        engine=chosen.engine,
        max_waiters=chosen.max_waiters,
        max_streams=chosen.max_streams,
        options=_shown(chosen),
    )


def _broker(chosen: Settings, storage: Storage, clock: Clock, watch: Watch) -> Broker:
    return Broker(
        storage,
        clock,
        chosen.limits,
        checksum=chosen.checksum,
        delete_with_claim_id=chosen.delete_with_claim_id,
        max_waiters=chosen.max_waiters,
        max_streams=chosen.max_streams,
        keep=_kept(chosen),
        queue_ttl=chosen.queue_ttl,
        watch=watch,
        patience=chosen.storage_timeout,
    )


def _shown(chosen: Settings) -> Options:
    """What the settings say of metrics."""
    return Options(
        per_queue=chosen.per_queue_metrics, max_queues=chosen.max_metric_queues, max_counted=chosen.max_counted
    )


def _kept(chosen: Settings) -> Keep:
    """What the settings say of the logs of topics."""
    return Keep(chosen.topic_log_bytes, chosen.topic_log_messages)


def _listen(chosen: Settings, broker: Broker, metrics: "Metrics") -> None:
    """Serve what is for machinery at addresses of its own, as the settings say."""
    if chosen.probes_bind:
        pages = {"/healthz": probes.health, "/readyz": probes.readiness(broker.check_ready)}
        probes.serve("probes", *chosen.probes_bind, pages)
    if chosen.metrics_port:
        pages = {"/metrics": probes.metrics(metrics.page), "/healthz": probes.health}
        probes.serve("metrics", chosen.metrics_bind, chosen.metrics_port, pages)


def _heed_signals(drain_delay: float, end: Callable[[], None], reload: Callable[[], object]) -> None:
    """Have this process obey the signals that come to it, if it can."""
    calls: dict[signal.Signals, Callable[[], object]] = dict.fromkeys(signals.ENDING, partial(stopping.begin, 0, end))
    calls |= {signal.SIGTERM: partial(stopping.begin, drain_delay, end), signals.RELOAD: reload}
    if not signals.listen(calls):
        LOG.warning("Requests that wait will hold up the end: the application was not loaded by the main thread.")


def _reload(configuration: Configuration, apply: Callable[[Settings], None] | None = None) -> bool:
    """Take over the options that may change, and ``apply`` them if this process serves; False if it was refused."""
    if configuration.path is None:
        LOG.warning("Nothing was reloaded: no configuration file was named at the start.")
        return False
    try:
        changes = configuration.reload()
    except StartRefused as refusal:
        LOG.error("Nothing was reloaded, all options stay as they were: %s", refusal)
        return False
    logs.set_level(configuration.current.log_level)
    if apply:
        apply(configuration.current)
        LOG.info("Reloaded: %s", ", ".join(changes) or "no option has changed.")
    else:  # once for all processes, which leave the same
        for sentence in configuration.left:
            LOG.warning(sentence)
    return True


def open_store(chosen: Settings) -> Storage:
    """Open the store; wait for one that does not answer, if the settings say so.

    Raises ``StartRefused``, ``Unavailable``.
    """
    while True:
        try:
            return connect(chosen.uri, chosen.driver_options, chosen.expiry)
        except Unavailable as absence:
            if not chosen.wait_for_store:
                raise
            LOG.warning("Waiting for the store: %s", absence)
            time.sleep(RETRY_INTERVAL)


def main(arguments: Sequence[str] | None = None) -> int:
    """``zq-server``: returns the exit code."""
    given = _parser().parse_args(arguments)
    if given.sample_config:
        settings.print_sample()
        return 0
    os.umask(PRIVATE)
    try:
        _hand_on(given)
        configuration = Configuration()
    except StartRefused as refusal:
        return _refuse(refusal)
    chosen = configuration.current
    logs.configure(chosen.log_format, chosen.log_level)
    try:
        if given.command == "check-store":
            return _check_store(chosen.uri)
        if given.command == "salvage":
            return _salvage(chosen.uri, given.to)
        if given.init_store:
            prepared = prepare(chosen.uri, chosen.driver_options)
            print("The store is prepared." if prepared else "This store needs no preparation.")  # noqa: T201
            return 0
        warnings = [*exposure.check(chosen), *settings.misspelt_variables(os.environ)]
        find(chosen.uri)
        listening.check(chosen.bind, chosen.port)
        for line in announcement.lines(chosen):
            LOG.info(line)
        for warning in warnings:
            LOG.warning(warning)
        signals.hold()  # until the engine can obey it
        if chosen.shared_store:
            # Refused here, it is one sentence; in the processes that serve, one from each of them.
            open_store(chosen).close()
    except (StartRefused, Unavailable) as refusal:
        return _refuse(refusal)
    if chosen.shared_store:  # there may be several processes, by option or by signal
        shared.begin()
    try:
        return engines.run(chosen, lambda: open_app(configuration), lambda: _reload(configuration), shared.forget)
    except StartRefused as refusal:
        return _refuse(refusal)


def _check_store(uri: str) -> int:
    """Say whether all of a store can be read and its parts agree: 0 if so, 1 if not."""
    report = check(uri)
    if report is None:
        raise StartRefused("Only an embedded store can be checked: rocksdb:///var/lib/zq.")
    return _tell(report)


def _salvage(uri: str, to: str | None) -> int:
    """Save what can be read into a new store: 0 if that is all, 1 if not."""
    if not to:
        raise StartRefused("Where shall the new store be? zq-server salvage --store rocksdb:///old --to /new")
    salvaged = salvage(uri, to)
    if salvaged is None:
        raise StartRefused("Only an embedded store can be salvaged: rocksdb:///var/lib/zq.")
    for kind, count in salvaged.saved.items():
        print(f"{count:>12,} {kind} saved")  # noqa: T201
    print(f"{len(salvaged.damage):>12,} places that cannot be read")  # noqa: T201
    print(f"{len(salvaged.lost):>12,} losses known by name")  # noqa: T201
    for sentence in salvaged.damage + salvaged.lost:
        print(f"{sentence.rstrip('.')}.")  # noqa: T201
    print("The new store:")  # noqa: T201
    return max(_tell(salvaged.report), 1 if salvaged.damage or salvaged.lost else 0)


def _tell(report: Report) -> int:
    for kind, count in report.counted.items():
        print(f"{count:>12,} {kind}")  # noqa: T201
    print(f"{report.contradictions:>12,} contradictions")  # noqa: T201
    print(f"{len(report.damage):>12,} places that cannot be read")  # noqa: T201
    for sentence in report.examples + report.damage:
        print(f"{sentence.rstrip('.')}.")  # noqa: T201
    return 1 if report.contradictions or report.damage else 0


class Parser(argparse.ArgumentParser):
    """Never says a password back."""

    def error(self, message: str) -> NoReturn:
        super().error(secrets.without_secrets(message))


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="zq-server", description="Serve the zq queue service over HTTP.")
    parser.add_argument(
        "command",
        nargs="?",
        choices=["check-store", "salvage"],
        help="check-store: read all of an embedded store that no server has open, and say whether its parts agree; "
        "salvage: write what can be read of a damaged one into a new one, and say what is lost",
    )
    parser.add_argument("--to", metavar="PATH", help="where salvage makes the new store")
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
    """Put the command line into the environment, where the processes that serve will find it.

    Raises ``StartRefused`` for a password, which every user of the machine could read in the list of processes.
    """
    if given.store and secrets.holds_password(given.store):
        raise StartRefused(
            "--store must hold no password, which everybody on this machine could read: use OS_STORAGE__URI or the "
            "configuration file."
        )
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
    print(f"zq-server: {secrets.without_secrets(str(refusal))}", file=sys.stderr)  # noqa: T201
    return 2


def _asgi(configuration: Configuration) -> object:
    """The application for an engine with an event loop, which has a say in signals: they are heeded when it runs."""
    from zq.engines.granian import adapted

    told: list[Callable[[], None]] = []
    app = open_app(configuration, lambda *what: told.append(partial(_heed_signals, *what)))
    return adapted(app, configuration.current, told[0])


def __getattr__(name: str) -> object:
    opening: dict[str, Callable[[Configuration], object]] = {"app": open_app, "asgi": _asgi}
    if name not in opening:
        raise AttributeError(name)
    try:
        app = opening[name](Configuration())
    except (StartRefused, Unavailable) as refusal:
        sys.exit(_refuse(refusal))
    globals()[name] = app
    return app


if __name__ == "__main__":
    sys.exit(main())
