# SPDX-License-Identifier: Apache-2.0
"""Startup checks, startup log lines, and reload of options."""

import errno
import logging
import os
import re
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from ipaddress import ip_address
from typing import Final
from urllib.parse import parse_qsl, unquote

from zq import __version__
from zq.errors import StartRefused
from zq.http.features import Listener, Reloadable
from zq.logs import set_level, without_secrets
from zq.model import levels, store_uri
from zq.serving import listening, systemd
from zq.serving.level_watch import catalogue_of
from zq.serving.listening import format_authority
from zq.serving.sections import SECTIONS
from zq.serving.settings import Configuration, Settings
from zq.storage.api import Storage
from zq.storage.capabilities import LevelledStorage

LOG = logging.getLogger(__name__)
# Beginning of messages about missing authentication.
NO_AUTH: Final = "Authentication is off (auth_strategy is empty)"
# End of messages about refused starts.
WAYS_OUT: Final = "or accept the risk with [server] trust_network = true."


def startup_lines(chosen: Settings) -> Iterator[str]:
    """Yield the log lines for the start of the server, without passwords."""
    server = chosen.server
    scheme = "https" if server.tls_cert else "http"
    host = "localhost" if server.bind.strip("[]") in listening.WILDCARD_HOSTS else server.bind
    yield f"zq {__version__} starts with {server.engine} on {scheme}://{format_authority(server.bind, server.port)}."
    yield f"Store: {_store(chosen.storage.uri)}."
    url = f"{scheme}://{format_authority(host, server.port)}"
    yield from filter(None, (section.line(chosen.of(section), url) for section in SECTIONS))
    limits = chosen.limits
    yield (
        f"Project defaults: message TTL {limits.default_message_ttl} s, claim TTL {limits.default_claim_ttl} s, claim "
        f"grace {limits.default_claim_grace} s."
    )
    reach = "this machine only" if is_loopback(server.bind) else "other machines"
    if chosen.auth.strategy:
        yield f"Authentication: {chosen.auth.strategy}; reachable from {reach}."
    else:
        yield f"Authentication is off; reachable from {reach}."


def log_options(configuration: Configuration, storage: Storage) -> None:
    """Log the level of the store, and the options that differ from their defaults."""
    store = catalogue_of(storage)
    level = levels.decode(store.read_level() if isinstance(store, LevelledStorage) else None).level
    options = ", ".join(configuration.list_changed()) or "none"
    LOG.info("The store has level %d. Options that differ from their defaults: %s", level, options)


def find_address_conflicts(chosen: Settings, may_run: bool = False) -> Iterator[str]:
    """Yield a warning for each listening address for probes or metrics that the server cannot use.

    If the server may be running (``may_run``), yield no warning for an address that a program uses.
    """
    taken = {"the server": (chosen.server.bind, chosen.server.port)}
    for name, option, address in (
        ("Probes", "[probes] bind", chosen.probes_address),
        ("Metrics", "[metrics] bind and port", (chosen.metrics.bind, chosen.metrics.port)),
    ):
        if not (address and address[1]):
            continue
        owner = next((owner for owner, other in taken.items() if listening.overlap(address, other)), "")
        error = None if owner else listening.try_listening(*address)
        where = format_authority(*address)
        if error and error.errno != errno.EADDRINUSE:
            yield f"{name} are not served: cannot listen on {where}: {error.strerror}. Set {option}."
        elif owner or (error and not may_run):
            yield f"{name} are not served: {where} is used by {owner or 'another program'}. Set {option}."
        taken[f"the {name.lower()}"] = address


def reload(configuration: Configuration, apply: Callable[[Settings], None] | None = None) -> bool:
    """Reload the mutable options. Return ``False`` if the file is invalid or the server has no configuration file.

    Both the parent process and each serving process call this function:

    - A serving process passes ``apply``, which is called with the new settings. After the reload, the function notifies
      systemd that the server is ready.
    - The parent process passes no ``apply``. The function notifies systemd that a reload has begun, and logs the
      changes that need a restart. If the reload fails, it notifies systemd that the server is ready.
    """
    if apply is None:
        systemd.notify(systemd.RELOADING)
    reloaded = False
    try:
        reloaded = _reload(configuration, apply)
    finally:
        if apply is not None or not reloaded:
            systemd.notify(systemd.READY)
    return reloaded


def _reload(configuration: Configuration, apply: Callable[[Settings], None] | None) -> bool:
    if configuration.path is None:
        LOG.warning("Options not reloaded: no configuration file was named at start.")
        return False
    try:
        changes = configuration.reload()
    except StartRefused as refusal:
        LOG.error("Options not reloaded: %s", refusal)
        return False
    set_level(configuration.current.log.level)
    if apply:
        apply(configuration.current)
        LOG.info("Reloaded: %s", ", ".join(changes) or "no option has changed.")
    else:  # the parent of the processes logs them once
        for sentence in configuration.left:
            LOG.warning(sentence)
    return True


def reload_files(*files: Reloadable | None) -> None:
    """Reload the files. If a file is invalid, log an error and keep its previous content."""
    for each in files:
        if each is not None:
            try:
                each.reload()
            except StartRefused as refusal:
                LOG.error("File not reloaded; its previous content stays in use: %s", refusal)


def _store(uri: str) -> str:
    """Return the store URI without secrets, for the log.

    If the URI of a RocksDB store contains a relative path, append the absolute path of the store directory.
    """
    parts = store_uri.split(uri)
    path = unquote(parts.path)
    if parts.scheme == "rocksdb" and not path.startswith("/"):
        return f"{uri} (directory {os.path.abspath(path)})"
    return without_secrets(uri)


def check_exposure(chosen: Settings) -> list[str]:
    """Return warnings about unprotected access to the server and its store.

    Raises ``StartRefused`` for unauthenticated access that the operator has not allowed.
    """
    server = chosen.server
    if not (chosen.auth.strategy or server.trust_network):
        _reject_exposure(chosen)
    if server.engine == "gunicorn" and not (server.behind_proxy or is_loopback(server.bind)):
        raise StartRefused(
            f"A slow client occupies a gunicorn thread, so gunicorn must not listen on {server.bind} without a "
            "buffering proxy. Put a proxy in front (etc/nginx.conf) and set [server] behind_proxy = true, bind to "
            "127.0.0.1, or use engine = granian."
        )
    listener = Listener(server.bind, server.port, is_loopback(server.bind))
    warnings = [warning for section in SECTIONS for warning in section.check_exposure(chosen.of(section), listener)]
    return warnings + _warnings(chosen)


def check_engine(engine: str) -> None:
    """Raise ``StartRefused`` if the package of the HTTP server is not installed."""
    if find_spec(engine) is None:
        extra = "granian" if engine == "granian" else "server"
        raise StartRefused(f"[server] engine = {engine} requires an extra: pip install 'zq-queue[{extra}]'.")


def is_loopback(host: str) -> bool:
    """Return whether the host is ``localhost`` or a loopback address. Other names are not resolved."""
    try:
        return host.lower() == "localhost" or ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _reject_exposure(chosen: Settings) -> None:
    server = chosen.server
    if not is_loopback(server.bind):
        raise StartRefused(
            f"{NO_AUTH}, so --bind {server.bind} would let everyone who reaches this machine read and delete all "
            f"messages. Set auth_strategy, bind to 127.0.0.1, {WAYS_OUT}"
        )
    if chosen.general.admin_mode:
        raise StartRefused(
            f"{NO_AUTH}, so admin_mode = true would give everyone who reaches this server administrator rights. Set "
            f"auth_strategy, leave admin_mode off, {WAYS_OUT}"
        )


def _warnings(chosen: Settings) -> list[str]:
    found, server = [], chosen.server
    if server.trust_network and not chosen.auth.strategy:
        found.append(
            f"{NO_AUTH} and [server] trust_network is true: everyone who reaches {server.bind}:{server.port} can read "
            "and delete all messages under any identity."
        )
    if bare := _hosts_without_tls(chosen.storage.uri):
        found.append(
            f"Messages and passwords are sent unencrypted to the store at {', '.join(bare)}: its URI does not "
            "enable TLS."
        )
    return found


def _hosts_without_tls(uri: str) -> list[str]:
    parts = store_uri.split(uri)
    options = {name.lower(): value.lower() for name, value in parse_qsl(parts.query)}
    tls = {
        "redis": "",
        "mongodb": options.get("tls", options.get("ssl", "")),
        "mongodb+srv": options.get("tls", options.get("ssl", "true")),
    }
    if tls.get(parts.scheme, "true") == "true":
        return []
    hosts = [re.sub(r":[0-9]*$", "", host) for host in parts.netloc.rpartition("@")[2].split(",")]
    return [host for host in hosts if host and not is_loopback(host) and "%2f" not in host.lower()]
