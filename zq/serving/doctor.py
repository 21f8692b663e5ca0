# SPDX-License-Identifier: Apache-2.0
"""``zq-server --check`` and ``zq-server doctor``: checks of the configuration, the machine, the server and the store.

Neither command changes messages, creates a store, opens an embedded store, or listens on an address.
"""

import ctypes
import os
import resource
import ssl
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache, partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final, NoReturn

import msgspec
from msgspec import structs

from zq import __version__, audit, diagnosis
from zq.clock import local_time
from zq.diagnosis import Check, Finding, Result, fail, ok, skip, warn
from zq.errors import NotFound, StartRefused, Unavailable
from zq.logs import without_secrets
from zq.model.modes import Mode
from zq.serving import control, listening, probes, startup, upgrade_command
from zq.serving.application import open_stores
from zq.serving.metrics.scraping import Metrics, scrape
from zq.serving.requirements import REQUIREMENTS
from zq.serving.settings import Configuration, Settings
from zq.serving.settings.reading import resolve_control_path
from zq.serving.upgrade_command import UpgradeStatus
from zq.storage import diagnose
from zq.storage.api import Storage

# The result of ``adjtimex`` if no time service synchronises the clock.
UNSYNCHRONISED: Final = 5
# A size in bytes that the kernel's ``struct timex`` does not exceed.
TIMEX_SIZE: Final = 512
# Number of files that a server opens in addition to connections.
OTHER_FILES: Final = 512
# Seconds after which waiting messages and dead letters need attention, as in the alert rules.
MAX_READY_AGE: Final = 900
MAX_DEAD_LETTER_AGE: Final = 1800
# Used share of a quota from which the doctor warns, as in the alert ZqQuotaNear.
NEAR_QUOTA: Final = 0.9
# Seconds to wait for a response of the server.
TIMEOUT: Final = 5.0
# Requests that a server refuses, by mode.
REFUSED: Final = {Mode.NO_POSTS: "posts", Mode.READ_ONLY: "all changes"}
ANOTHER_PORT: Final = "Stop this program, or change [server] port."
# Exit code after Ctrl-C.
INTERRUPTED: Final = 130
# Maximum number of characters of a response to show.
MAX_SHOWN: Final = 200
SERVER: Final = "server"
METRICS: Final = "metrics"
STORE: Final = "store"
SERVERS: Final = "servers"

Scrape = Callable[[], Metrics]


def check_start(chosen: Settings) -> int:
    """Check whether a server would start with these settings, and print a line per check. Return the exit code."""
    with ExitStack() as opened:
        checks = [
            *(Check(check.name, partial(_tolerate, check.run)) for check in requirements(chosen)),
            Check("audit log", partial(check_audit_log, chosen)),
            Check("address", partial(check_address, chosen)),
            Check("listeners", partial(check_listeners, chosen)),
            Check("control socket", partial(check_control, chosen)),
            Check(STORE, partial(_open, chosen, opened, [])),
        ]
        if chosen.shared_store:
            checks.append(Check("start", partial(check_served, chosen), needs=STORE))
        results = _print(diagnosis.run(checks, unknown="fail"))
    failed = [result for result in results if result.status == "fail"]
    for result in failed[:1]:
        print(f"zq-server: {result.found}", file=sys.stderr)  # noqa: T201
    return 2 if failed else 0


def _tolerate(check: Callable[[], Finding]) -> Finding:
    """Run a check of the requirements. If it returns a failure, return a warning, because the server starts.

    If the server does not start, the check raises ``StartRefused``.
    """
    found = check()
    return warn(found.found, found.advice) if found.status == "fail" else found


def examine(load: Callable[[], Configuration], as_json: bool) -> int:
    """Run all checks and print their results. Return the exit code for the worst result."""
    with ExitStack() as opened:
        try:
            chosen = load().current
        except StartRefused as refusal:
            results = diagnosis.run([Check("options", partial(fail, str(refusal), diagnosis.CORRECT_REFUSAL))])
        else:
            results = diagnosis.run(_list_checks(chosen, opened))
        return diagnosis.exit_code(_print(results, as_json))


def _print(results: Iterator[Result], as_json: bool = False) -> list[Result]:
    """Print each result as soon as it is available, and return all of them. Ignore a closed pipe.

    If the output cannot be written for another reason, raise ``StartRefused``. Ctrl-C ends the process.
    """
    shown = []
    try:
        for result in results:
            shown.append(result)
            try:
                print(msgspec.json.encode(result).decode() if as_json else result.line, flush=True)  # noqa: T201
            except OSError as error:
                _discard_output()
                if not isinstance(error, BrokenPipeError):
                    raise StartRefused(f"The output cannot be written: {error.strerror}.") from error
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    return shown


def _discard_output() -> None:
    """Discard buffered and further output. Otherwise, Python would fail at exit when it writes the buffer."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def requirements(chosen: Settings) -> Iterator[Check]:
    for name, check in REQUIREMENTS.items():
        yield Check(name, partial(check, chosen))


def _list_checks(chosen: Settings, opened: ExitStack) -> Iterator[Check]:
    """Yield all checks. The check that connects to the store adds its connection to ``opened``.

    The storage driver's own checks exist only after the connection. The caller must therefore run each check before it
    requests the next one.
    """
    yield from requirements(chosen)
    yield Check("audit log", partial(check_audit_log, chosen))
    yield Check("machine clock", check_synchronisation)
    page = cache(partial(scrape, chosen.metrics.bind, chosen.metrics.port, chosen.metrics.token_file))
    yield Check(SERVER, partial(check_server, chosen))
    yield Check("open files", partial(check_open_files, chosen), needs=SERVER)
    yield Check(METRICS, partial(check_metrics, chosen, page), needs=SERVER)
    yield Check("server's store", partial(check_server_store, page), needs=METRICS)
    yield Check("mode", partial(check_mode, page), needs=METRICS)
    yield Check("backlog", partial(check_backlog, page), needs=METRICS)
    yield Check("dead letters", partial(check_dead_letters, page), needs=METRICS)
    yield Check("quotas", partial(check_quotas, page), needs=METRICS)
    found: list[Check] = []
    yield Check(STORE, partial(_open, chosen, opened, found))
    yield from found
    status = cache(partial(read_status, chosen))
    yield Check(SERVERS, partial(check_servers, status), needs=STORE if chosen.shared_store else SERVER)
    yield Check("level", partial(check_level, status), needs=SERVERS)
    if chosen.pooling is not None:
        yield Check("pools", partial(skip, "Only the catalogue was checked: use --store for each pool."))


def _open(chosen: Settings, opened: ExitStack, found: list[Check]) -> Finding:
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
    return ok(f"The location {store} is usable. The store was not opened, so its layout and damage were not checked.")


def check_audit_log(chosen: Settings) -> Finding:
    target = chosen.log.audit
    if target in (audit.OFF, audit.STDERR):
        return ok(f"The audit log is {'off' if target == audit.OFF else 'written to standard error'}.")
    folder = os.path.dirname(os.path.abspath(target))
    try:
        os.close(os.open(target, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK))
    except OSError as error:
        is_creatable = isinstance(error, FileNotFoundError) and os.access(folder, os.W_OK | os.X_OK)
        if not is_creatable:
            raise StartRefused(f"The [log] audit file {target} cannot be written: {error.strerror}.") from error
    return ok(f"The audit log is written to {target}.")


def check_address(chosen: Settings) -> Finding:
    server = chosen.server
    where = listening.format_authority(server.bind, server.port)
    if not listening.is_free(listening.resolve(server.bind), server.port):
        return skip(f"A program, perhaps this server, listens on {where}. Stop it before you start the server.")
    listening.check(server.bind, server.port)
    return ok(f"{where} is free.")


def check_listeners(chosen: Settings) -> Finding:
    """Check the addresses of probes and metrics. The server starts without them."""
    problems = " ".join(startup.find_address_conflicts(chosen, may_run=True))
    if problems:
        return warn(problems, "The server starts, and retries every second.")
    return ok("The addresses of probes and metrics can be used.")


def check_control(chosen: Settings) -> Finding:
    """Check the path of the control socket. The server starts without a socket."""
    path = chosen.server.control
    if not path:
        return skip("The server has no control socket.")
    folder = os.path.dirname(path)
    advice = "Correct [server] control; until then, the server has no control socket."
    if len(path.encode()) > control.MAX_PATH:
        return warn(f"The path {path} exceeds {control.MAX_PATH} bytes, the maximum for a socket.", advice)
    if os.path.lexists(path) and not stat.S_ISSOCK(os.lstat(path).st_mode):
        return warn(f"{path} exists and is no socket, so no socket can be created there.", advice)
    if path == resolve_control_path("", chosen.storage.uri) and not os.path.exists(folder):
        return ok(f"The server creates {folder} with the store.")
    if not os.access(folder, os.W_OK | os.X_OK):
        return warn(f"No socket can be created in {folder}.", advice)
    return ok(f"The control socket {path} can be created.")


def check_synchronisation() -> Finding:
    """Check whether the kernel reports that a time service synchronises the machine's clock."""
    try:
        state = ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_SIZE))
    except AttributeError:
        state = -1
    if state < 0:
        return skip("This system does not report whether its clock is synchronised.")
    if state == UNSYNCHRONISED:
        return warn(
            "No time service synchronises this machine's clock.", "Run chrony or another service that slews the clock."
        )
    return ok("A time service synchronises this machine's clock.")


def check_open_files(chosen: Settings) -> Finding:
    if not chosen.server.control:
        return skip("Without [server] control, the process of the server is unknown.")
    try:
        process = control.read_process(chosen.server.control)
        limit, _ = resource.prlimit(process, resource.RLIMIT_NOFILE)
    except Unavailable as absence:
        return skip(str(absence))
    except PermissionError:
        return skip("Only root and the user of the server may read its limit of open files.")
    needed = chosen.server.max_connections + chosen.max_waiters + chosen.max_streams + OTHER_FILES
    found = f"Process {process} of the server may open {limit:,} files."
    if limit < needed:
        return warn(found, f"Raise the limit to at least {needed:,}, in systemd with LimitNOFILE.")
    return ok(found)


def check_server(chosen: Settings) -> Finding:
    """Check that the server is ready.

    If the server has a probe listener, send the request to this listener, because it requires no client certificate.
    """
    server = chosen.server
    host, port = chosen.probes_address or (server.bind, server.port)
    where = listening.format_authority(host, port)
    address = listening.resolve(host)
    if listening.is_free(address, port):
        return skip(f"No server listens on {where}.")
    uses_tls = bool(server.tls_cert) and not chosen.probes_address
    if uses_tls and server.tls_client_ca:
        return warn("The server requires client certificates, so its state was not checked.", "Set [probes] bind.")
    advice = "See the server's log and the store."
    try:
        status, body = _get_readiness("127.0.0.1" if address in listening.WILDCARD_HOSTS else address, port, uses_tls)
    except ssl.SSLError as error:
        return warn(f"A TLS handshake with the program on {where} fails: {error.reason or error}.", advice)
    except OSError as error:
        return fail(f"The program on {where} does not respond to /readyz: {error or type(error).__name__}.", advice)
    except HTTPException:
        protocol = "HTTPS" if uses_tls else "plain HTTP"
        return fail(f"The program on {where} does not speak {protocol}.", "Run the doctor with the server's --config.")
    if status == HTTPStatus.SERVICE_UNAVAILABLE and probes.STOPPING_ERROR in body.decode(errors="replace"):
        undo = "To use it again, run zq-server drain --undo or, if it is about to stop, start it again."
        return warn(f"The server on {where} is draining.", undo)
    if status == HTTPStatus.SERVICE_UNAVAILABLE:
        return fail(f"The server on {where} is not ready: {body.decode(errors='replace')[:MAX_SHOWN]}", advice)
    if status != HTTPStatus.OK:
        return fail(
            f"The program on {where} is not a zq server: it answers /readyz with status {status}.", ANOTHER_PORT
        )
    return ok(f"The server on {where} is ready.")


def _get_readiness(host: str, port: int, uses_tls: bool) -> tuple[int, bytes]:
    connection = HTTPConnection(host, port, timeout=TIMEOUT)
    if uses_tls:
        unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
        connection = HTTPSConnection(host, port, timeout=TIMEOUT, context=unverified)
    with closing(connection):
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        return response.status, response.read()


def check_metrics(chosen: Settings, page: Scrape) -> Finding:
    if not chosen.metrics.port:
        return skip("[metrics] port is 0, so the metrics of the server cannot be read.")
    where = listening.format_authority(chosen.metrics.bind, chosen.metrics.port)
    try:
        version = page().version
    except Unavailable as absence:
        return fail(str(absence), "Check [metrics] bind, port and token_file, and the server's log.")
    if version != __version__:
        found = f"The server whose metrics are on {where} runs zq {version}, but zq {__version__} is installed."
        return warn(found, "Restart the server.")
    return ok(f"The next checks use the metrics on {where}, of a server of zq {version}.")


def check_server_store(page: Scrape) -> Finding:
    values = page().values
    if values.get("store_corruptions_total"):
        return fail("Files of the store are damaged.", "See the server's log, then run zq-server check-store.")
    if "store_up" not in values:
        return skip("The server has no metric zq_store_up.")
    if not values["store_up"]:
        return fail("The store does not respond to the server.", "See the server's log and the store.")
    level = f", and has level {values['store_level']:.0f}" if "store_level" in values else ""
    return ok(f"The store responds to the server{level}.")


def check_mode(page: Scrape) -> Finding:
    """Check that no mode restricts the server. The metric contains the position of the mode in ``Mode``."""
    number = page().values.get("mode")
    if number is None:
        return skip("The server has no metric zq_mode.")
    mode = list(Mode)[int(number)]
    if mode is Mode.NORMAL:
        return ok("The mode is normal.")
    advice = "To accept requests again, free disk space if it is low, and run zq-server mode normal."
    return warn(f"The mode is {mode}, so the server refuses {REFUSED[mode]}.", advice)


def check_backlog(page: Scrape) -> Finding:
    age = page().values.get("queue_oldest_ready_seconds")
    if age is None:
        return skip("The server has no metric zq_queue_oldest_ready_seconds.")
    found = f"The oldest ready message of all queues has waited {age:,.0f} seconds."
    return warn(found, "Start consumers; zq top shows the queue.") if age > MAX_READY_AGE else ok(found)


def check_dead_letters(page: Scrape) -> Finding:
    age = page().values.get("queue_oldest_dead_letter_seconds")
    if age is None:
        return skip("The server has no metric zq_queue_oldest_dead_letter_seconds.")
    if not age:
        return ok("No dead letters wait.")
    found = f"The oldest dead letter has waited {age:,.0f} seconds."
    advice = "Find the cause with zq dlq list, then redrive or delete them."
    return warn(found, advice) if age > MAX_DEAD_LETTER_AGE else ok(found)


def check_quotas(page: Scrape) -> Finding:
    share = page().values.get("quota_used_ratio")
    if share is None:
        return skip("The server has limited no project by a quota in the last five minutes.")
    found = f"The project nearest to a quota uses {share:.0%} of it."
    if share <= NEAR_QUOTA:
        return ok(found)
    advice = "See ZqQuotaNear in runbooks.md: delete messages, or raise the quota."
    return fail(found, advice) if share >= 1 else warn(found, advice)


def check_served(chosen: Settings) -> Finding:
    """Open the existing store as a server does. A migration, for example, can prevent this."""
    _open_existing(chosen).close()
    return ok("Servers can use the store.")


def _open_existing(chosen: Settings) -> Storage:
    def reject() -> NoReturn:
        raise NotFound(f"There is no store at {without_secrets(chosen.storage.uri)} yet.")

    return open_stores(structs.replace(chosen, storage=structs.replace(chosen.storage, wait=False)), reject)


def read_status(chosen: Settings) -> UpgradeStatus:
    """Return the store's level (version of the data format), and the zq versions of the servers that use the store.

    If several servers can share the store, the function reads the store. Otherwise, it queries the server through the
    control socket. Raises ``NotFound`` if there is no store yet, or if the server cannot be reached.
    """
    if chosen.shared_store:
        with closing(_open_existing(chosen)) as storage:
            return upgrade_command.read_status(storage)
    if not chosen.server.control:
        raise NotFound("Without [server] control, the version of the server is unknown.")
    try:
        return upgrade_command.ask_server(chosen.server.control, finish=False)
    except Unavailable as absence:
        raise NotFound(str(absence)) from absence


def check_servers(status: Callable[[], UpgradeStatus]) -> Finding:
    seen = status()
    counts = Counter((one.server, one.version) for one in seen.processes)
    versions = {version for _, version in counts} or {seen.version}
    shown = ", ".join(f"{server} (zq {version}, processes: {count})" for (server, version), count in counts.items())
    if len(versions) > 1:
        return warn(
            f"Servers of different versions use the store: {shown}.",
            "Restart the servers of earlier versions with the latest version.",
        )
    [version] = versions
    if version != __version__:
        return warn(
            f"The servers of the store run zq {version}, but zq {__version__} is installed here.",
            "Restart the servers with the installed version, or install the version of the servers.",
        )
    return ok(f"The servers of the store have the same version: {shown or f'zq {version}'}.")


def check_level(status: Callable[[], UpgradeStatus]) -> Finding:
    seen = status()
    layout = f"layout {seen.layout} and " if seen.layout else ""
    found = f"The store has {layout}level {seen.level}, and zq {seen.version} supports level {seen.supported}."
    if seen.level == seen.supported:
        return ok(found)
    begun = "An upgrade has begun, but is not complete." if seen.is_begun else "The upgrade is not finished."
    return warn(f"{found} {begun}", "Run zq-server upgrade --finish when all servers run the latest version.")
