# SPDX-License-Identifier: Apache-2.0
"""``zq-server --check`` and ``zq-server doctor``: checks of the configuration, the machine, the server and the store.

Neither changes the store, opens an embedded store, or listens on an address.
"""

import ctypes
import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path
from typing import Final

import msgspec

from zq import __version__, audit, diagnosis
from zq.clock import local_time
from zq.diagnosis import Check, Finding, Result, fail, ok, skip, warn
from zq.errors import StartRefused, Unavailable
from zq.logs import without_secrets
from zq.serving import listening
from zq.serving.metrics.scraping import Metrics, scrape
from zq.serving.requirements import REQUIREMENTS
from zq.serving.settings import Configuration, Settings
from zq.storage import diagnose

# The result of ``adjtimex`` if no time service synchronises the clock.
UNSYNCHRONISED: Final = 5
# A size in bytes that the kernel's ``struct timex`` does not exceed.
TIMEX_SIZE: Final = 512
# Open files of a server besides connections.
OTHER_FILES: Final = 512
# Seconds after which waiting messages and dead letters need attention, like in the alerts.
MAX_READY_AGE: Final = 900
MAX_DEAD_LETTER_AGE: Final = 1800
SERVER: Final = "server"

Scrape = Callable[[], Metrics]


def check_start(chosen: Settings) -> int:
    """Check whether a server would start with these settings, and print a line per check. Return the exit code."""
    with ExitStack() as opened:
        checks = [
            *requirements(chosen),
            Check("audit log", partial(check_audit_log, chosen)),
            Check("address", partial(check_address, chosen)),
            Check("store", partial(_open, chosen, opened, [])),
        ]
        results = _print(diagnosis.run(checks))
    failed = [result for result in results if result.status == "fail"]
    for result in failed[:1]:
        print(f"zq-server: {result.found}", file=sys.stderr)  # noqa: T201
    return 2 if failed else 0


def examine(load: Callable[[], Configuration], as_json: bool) -> int:
    """Run all checks and print their results. Return the exit code for the worst one.

    ``load`` reads the configuration.
    """
    with ExitStack() as opened:
        try:
            chosen = load().current
        except StartRefused as refusal:
            results = diagnosis.run([Check("options", partial(fail, str(refusal)))])
        else:
            results = diagnosis.run(_list_checks(chosen, opened))
        return diagnosis.exit_code(_print(results, as_json))


def _print(results: Iterator[Result], as_json: bool = False) -> list[Result]:
    """Print each result as soon as it is available, and return all of them."""
    shown = []
    for result in results:
        print(msgspec.json.encode(result).decode() if as_json else result.line, flush=True)  # noqa: T201
        shown.append(result)
    return shown


def requirements(chosen: Settings) -> Iterator[Check]:
    """Yield the checks of ``REQUIREMENTS``."""
    for name, check in REQUIREMENTS.items():
        yield Check(name, partial(check, chosen))


def _list_checks(chosen: Settings, opened: ExitStack) -> Iterator[Check]:
    """Yield all checks. Those of the driver follow the check that connects to the store."""
    yield from requirements(chosen)
    yield Check("audit log", partial(check_audit_log, chosen))
    yield Check("machine clock", check_synchronisation)
    yield Check("open files", partial(check_open_files, chosen))
    page = cache(partial(scrape, chosen.metrics.bind, chosen.metrics.port))
    yield Check(SERVER, partial(check_server, chosen, page))
    yield Check("server's store", partial(check_server_store, page), needs=SERVER)
    yield Check("backlog", partial(check_backlog, page), needs=SERVER)
    yield Check("dead letters", partial(check_dead_letters, page), needs=SERVER)
    found: list[Check] = []
    yield Check("store", partial(_open, chosen, opened, found))
    yield from found
    if chosen.pooling is not None:
        yield Check("pools", partial(skip, "Only the catalogue was checked: use --store for each pool."))


def _open(chosen: Settings, opened: ExitStack, found: list[Check]) -> Finding:
    """Connect to the store, and append the driver's checks to ``found``. ``opened`` closes the connection."""
    checks = diagnose(chosen.storage.uri, local_time, chosen.driver_options)
    store = without_secrets(chosen.storage.uri)
    if checks is None:
        return skip(f"The driver of {store} has no checks.")
    try:
        found += opened.enter_context(checks)
    except Unavailable as absence:
        return fail(str(absence), "See the store's log and the network between the server and the store.")
    if chosen.shared_store:
        return ok(f"{store} responds, and this version of zq can use it.")
    return ok(f"{store} was not opened, but its location is usable.")


def check_audit_log(chosen: Settings) -> Finding:
    target = chosen.log.audit
    if target in (audit.OFF, audit.STDERR):
        return ok(f"The audit log is {'off' if target == audit.OFF else 'written to standard error'}.")
    path = Path(target)
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise StartRefused(f"[log] audit {path} cannot be written.")
    return ok(f"The audit log is written to {path}.")


def check_address(chosen: Settings) -> Finding:
    server = chosen.server
    where = listening.format_authority(server.bind, server.port)
    if listening.is_free(listening.resolve(server.bind), server.port):
        return ok(f"{where} is free.")
    return ok(f"A program listens on {where}; a server that starts beside it is rejected.")


def check_synchronisation() -> Finding:
    """Ask the kernel whether a time service synchronises the clock."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_SIZE))
    except AttributeError:
        return skip("This system does not report whether its clock is synchronised.")
    if state == UNSYNCHRONISED:
        return warn(
            "No time service synchronises this machine's clock.", "Run chrony or another service that slews the clock."
        )
    return ok("A time service synchronises this machine's clock.")


def check_open_files(chosen: Settings) -> Finding:
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = chosen.server.max_connections + chosen.max_waiters + chosen.max_streams + OTHER_FILES
    found = f"A process of this user may open {limit:,} files."
    if limit < needed:
        return warn(found, f"Raise the limit to at least {needed:,}, in systemd with LimitNOFILE.")
    return ok(found)


def check_server(chosen: Settings, page: Scrape) -> Finding:
    server = chosen.server
    where = listening.format_authority(server.bind, server.port)
    if listening.is_free(listening.resolve(server.bind), server.port):
        return skip(f"No server listens on {where}.")
    if not chosen.metrics.port:
        return skip("[metrics] port is 0, so the metrics of the server cannot be read.")
    version = page().version
    if version != __version__:
        return warn(f"The server runs zq {version}, but zq {__version__} is installed.", "Restart the server.")
    return ok(f"A server of zq {version} listens on {where}.")


def check_server_store(page: Scrape) -> Finding:
    values = page().values
    if values.get("store_corruptions_total", 0):
        return fail("Files of the store are damaged.", "See the server's log, then run zq-server check-store.")
    if not values.get("store_up", 1):
        return fail("The store does not respond to the server.", "See the server's log and the store.")
    return ok("The store responds to the server.")


def check_backlog(page: Scrape) -> Finding:
    age = page().values.get("queue_oldest_ready_seconds", 0)
    found = f"The oldest ready message of all queues has waited {age:,.0f} seconds."
    return warn(found, "Start consumers; zq top shows the queue.") if age > MAX_READY_AGE else ok(found)


def check_dead_letters(page: Scrape) -> Finding:
    age = page().values.get("queue_oldest_dead_letter_seconds", 0)
    if not age:
        return ok("No dead letters wait.")
    found = f"The oldest dead letter has waited {age:,.0f} seconds."
    advice = "Find the cause with zq dlq list, then redrive or delete them."
    return warn(found, advice) if age > MAX_DEAD_LETTER_AGE else ok(found)
