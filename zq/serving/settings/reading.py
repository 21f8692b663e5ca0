# SPDX-License-Identifier: Apache-2.0
"""Conversion of oslo.config options to checked values.

An invalid value raises ``StartRefused`` with the option, the place where it is set, and its valid values.
"""

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.util import find_spec
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from msgspec import Struct, structs
from oslo_config import cfg

from zq.auth import STRATEGIES
from zq.errors import StartRefused
from zq.http.features import Section
from zq.http.request_log import LogOptions
from zq.logs import without_secrets
from zq.model import store_uri
from zq.model.expiry import Expiry
from zq.model.identity import AuthOptions, SignedUrlOptions
from zq.model.limits import MAX_COMMIT_BODY, MIN_TTL, Limits
from zq.model.options import PORT
from zq.model.quotas import UNBOUNDED, Quota
from zq.serving.sections import SECTIONS
from zq.serving.settings import sections
from zq.serving.settings.options import (
    CATALOG,
    DRIVERS,
    FEATURES,
    JWT,
    NETWORKED,
    OBJECT_SCHEMES,
    OPTIONS,
    PARTS,
    DeclaredOption,
    variable,
)

T = TypeVar("T", bound=Struct)
# An entry of allowed_hosts.
HOST_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,253}|\*", re.ASCII)
# An entry of queue_ttl: a name pattern and a default ttl.
QUEUE_TTL: Final = re.compile(r"\s*([A-Za-z0-9_.*?-]{1,64})\s*:\s*([0-9]{1,12})\s*", re.ASCII)
# Similarity from which a name counts as a misspelt option; 1 means equal.
MIN_SIMILARITY: Final = 0.8
# Environment variables of all options.
VARIABLES: Final = tuple(variable(section, option.name) for section, options in OPTIONS.items() for option in options)
# Environment variable prefix of each section.
PREFIXES: Final = tuple(variable(section, "") for section in OPTIONS)
# The section of keystonemiddleware, whose options are not checked here.
KEYSTONE: Final = "keystone_authtoken"
# Minimum length in bytes of a secret for signed URLs.
MIN_SECRET: Final = 32
# Embedded stores as written in ``allowed_hosts``; only one process can open them.
EMBEDDED: Final = ("memory:", "rocksdb:")
# Default of max_waiters with gunicorn, where each waiting request holds a thread.
MAX_WAITERS: Final = 40
# Default of max_streams with gunicorn, where each stream holds a thread.
MAX_STREAMS: Final = 16
# Default of max_waiters with Granian.
WAITERS_WITHOUT_THREADS: Final = 10_000
# Default of max_streams with Granian.
STREAMS_WITHOUT_THREADS: Final = 2_000
# Default of threads with Granian. One caller uses up to three quarters. With 16 connections, MongoDB accepts 1.3 times
# as many posts with 24 threads as with 16, and Redis up to 1.2 times as many. 32 threads are not faster.
THREADS: Final = 24
# Default of threads with gunicorn.
THREADS_WITH_WAITERS: Final = 64
# Threads reserved for requests that neither wait nor stream.
THREADS_FOR_WORK: Final = 8


class PoolSettings(Struct, frozen=True):
    """Settings of a server with pools (several stores).

    Attributes:
        virtual: Whether new queues without a suitable pool are stored in the server's own store. If not, their creation
            fails.
        moves: Whether the server moves queues between pools and takes part in such moves.
        hosts: The hosts, with or without port, that the URIs of pools may name, in lower case. Entries such as
            ``rocksdb:`` allow embedded pools.
        options: The driver options by URI scheme.
    """

    virtual: bool
    moves: bool
    hosts: tuple[str, ...]
    options: dict[str, dict[str, Any]]


class Settings(Struct, frozen=True, kw_only=True):
    """The checked options of one server: a struct for each part, and values that depend on several options."""

    path: str | None
    """The configuration file, if there is one."""
    general: sections.GeneralOptions
    auth: AuthOptions
    share: SignedUrlOptions
    quota: Quota
    """Default quota of a project. Without authentication, only its ``share`` applies."""
    server: sections.ServerOptions
    """The options of ``[server]``, with resolved ``engine`` and ``control`` and lower-case ``allowed_hosts``."""
    storage: sections.StorageOptions
    limits: Limits
    expiry: Expiry
    transport: sections.TransportOptions
    topics: sections.TopicOptions
    log: LogOptions
    probes: sections.ProbeOptions
    metrics: sections.MetricsOptions
    features: dict[str, Any] = {}
    """Options of the features' sections by section name; ``of`` returns one section."""
    threads: int
    max_waiters: int
    max_streams: int
    shared_store: bool
    driver_options: dict[str, Any]
    queue_ttl: tuple[tuple[str, int], ...]
    """Pairs of a queue name pattern and a default message TTL; the first match applies."""
    pooling: PoolSettings | None
    probes_address: tuple[str, int] | None

    def of(self, section: Section[T]) -> T:
        """Return the options of a feature's section."""
        options: T = self.features[section.name]
        return options

    @property
    def max_body(self) -> int:
        """Maximum body size in bytes over all routes."""
        return max(
            *(self.limits.max_settle_body, self.limits.max_queue_metadata, MAX_COMMIT_BODY),
            *(section.max_body(self.of(section)) for section in SECTIONS),
        )


@contextmanager
def refusing() -> Iterator[None]:
    """Convert errors of oslo.config to ``StartRefused``; a context manager."""
    try:
        yield
    except (cfg.NoSuchOptError, cfg.NoSuchGroupError, cfg.TemplateSubstitutionError) as error:
        # The original message may contain part of a password.
        raise StartRefused(
            "The configuration cannot be used: a value contains $ and the name of an option that does not exist. For a "
            "literal $, write $$."
        ) from error
    except (cfg.Error, ValueError) as error:
        raise StartRefused(f"The configuration cannot be used: {without_secrets(str(error))}.") from error


def read(conf: cfg.ConfigOpts, path: str | None) -> Settings:
    """Return the checked options of ``conf``. Raises ``StartRefused`` for an invalid option."""
    with refusing():
        _check_values(conf, path)
        settings = _read_settings(conf, path)
    _check(settings)
    completed = {each.name: each.complete(FEATURES[each.name].read(conf), settings) for each in SECTIONS}
    return structs.replace(settings, features=completed)


def check_file(path: str) -> None:
    """Raise ``StartRefused`` if the file is unreadable or sets an unknown option."""
    for section, entries in parse_file(path).items():
        if section == KEYSTONE:
            continue
        known = {option.name for option in OPTIONS.get(section, [])}
        for name in entries:
            if name not in known:
                raise StartRefused(f"The configuration file {path} sets {name} in [{section}], which does not exist.")


def _read_settings(conf: cfg.ConfigOpts, path: str | None) -> Settings:
    given = {name: part.read(conf) for name, part in PARTS.items()}
    auth, quota, server, metrics = given["auth"], given["quota"], given["server"], given["metrics"]
    uri = given["storage"].uri
    scheme = store_uri.split(uri).scheme
    check_share(given["share"])
    strategy = parse_strategy(auth.strategy)
    engine = choose_http_server(server.engine, auth.certificates)
    given |= {
        "auth": structs.replace(auth, strategy=strategy, jwt=JWT.read(conf), behind_proxy=server.behind_proxy),
        "quota": quota if strategy else structs.replace(UNBOUNDED, share=quota.share),
        "server": structs.replace(
            server,
            engine=engine,
            control=resolve_control_path(server.control, uri),
            allowed_hosts=tuple(_parse_allowed_hosts(server.allowed_hosts)),
        ),
        "metrics": structs.replace(metrics, bind=metrics.bind.strip("[]")),
    }

    def driver_options(scheme: str) -> dict[str, Any]:
        options = structs.asdict(DRIVERS[scheme].read(conf)) if scheme in DRIVERS else {}
        return options | ({"timeout": given["transport"].storage_timeout} if scheme in NETWORKED else {})

    return Settings(
        path=path,
        **given,
        **allot_threads(engine, server),
        shared_store=scheme in NETWORKED,
        driver_options=driver_options(scheme),
        queue_ttl=tuple(_parse_queue_ttl(read_queue_ttl_lines(conf), given["limits"].max_message_ttl)),
        pooling=read_pool_settings(conf, scheme, driver_options),
        probes_address=_parse_address(given["probes"].bind),
    )


def _parse_address(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) < 65536:
        raise StartRefused(f"[probes] bind must be an address, a colon and a port from 1 to 65535; it is {text!r}.")
    return host.strip("[]"), int(port)


def _parse_allowed_hosts(hosts: Sequence[str]) -> Iterator[str]:
    for name in hosts:
        if HOST_NAME.fullmatch(name) is None:
            raise StartRefused(
                f"[server] allowed_hosts must be * or host names without scheme and port, not {name[:100]!r}."
            )
        yield name.lower()


def read_queue_ttl_lines(conf: cfg.ConfigOpts) -> Sequence[str]:
    """Return the entries of the option ``queue_ttl``.

    If an environment variable sets the option, commas separate the entries.
    """
    # oslo.config would treat each character of the variable as an entry.
    together = os.environ.get(variable("expiry", "queue_ttl"))
    lines: list[str] = conf.expiry.queue_ttl if together is None else [line for line in together.split(",") if line]
    return lines


def _parse_queue_ttl(lines: Sequence[str], max_ttl: int) -> Iterator[tuple[str, int]]:
    for number, line in enumerate(lines, 1):
        found = QUEUE_TTL.fullmatch(line)
        if found is None or not MIN_TTL <= int(found[2]) <= max_ttl:
            raise StartRefused(
                f"[expiry] queue_ttl must be a pattern of 1 to 64 characters from A-Z a-z 0-9 _ - . * ?, a colon, and "
                f"seconds from {MIN_TTL} to {max_ttl}; line {number} is {line[:100]!r}."
            )
        yield found[1], int(found[2])


# URI prefixes of stores that only one process can open.
SINGLE_PROCESS: Final = ("memory:", "rocksdb:", *(f"{scheme}:" for scheme in OBJECT_SCHEMES))


def _check(settings: Settings) -> None:
    if settings.storage.uri.startswith(SINGLE_PROCESS) and settings.server.workers != 1:
        raise StartRefused("[server] workers must be 1 with an embedded store, because only one process can open it.")
    expiry = settings.expiry
    if expiry.sweep_max_deletes < expiry.sweep_batch_size:
        raise StartRefused(
            f"[expiry] sweep_max_deletes must be at least sweep_batch_size, which is {expiry.sweep_batch_size}; it is "
            f"{expiry.sweep_max_deletes}."
        )
    check_certificates(settings.server, settings.auth)
    _check_limits(settings.limits)
    min_bytes = 2 * settings.limits.max_messages_post_size
    if settings.topics.topic_log_bytes < min_bytes:
        raise StartRefused(
            f"[topics] topic_log_bytes must be at least {min_bytes}, twice max_messages_post_size; it is "
            f"{settings.topics.topic_log_bytes}."
        )


def _check_limits(limits: Limits) -> None:
    for declared in PARTS["limits"].list_options():
        value, bounds = getattr(limits, declared.name), (declared.option.low, declared.option.high)
        if not any(isinstance(bound, str) for bound in bounds):
            continue
        low, high = (getattr(limits, bound) if isinstance(bound, str) else bound for bound in bounds)
        if high is None and value < low:
            raise StartRefused(f"{declared.label} must be at least {low}, which is {bounds[0]}; it is {value}.")
        if high is not None and not low <= value <= high:
            raise StartRefused(f"{declared.label} must be from {low} to {high}; it is {value}.")


def _check_values(conf: cfg.ConfigOpts, path: str | None) -> None:
    for options in OPTIONS.values():
        for option in options:
            try:
                value = option.read(conf)
            except cfg.ConfigSourceValueError as error:
                raise StartRefused(_explain(option, path, error)) from error
            except RecursionError as error:
                raise StartRefused(f"{_locate(option, path)} must not refer to itself with $.") from error
            # An empty port is the default port.
            number = option.is_number and option.default is not None and option.option != PORT
            if number and (value is None or not math.isfinite(value)):
                raise StartRefused(f"{_locate(option, path)} must be a number; it is {value or 'empty'}.")


def parse_file(path: str) -> dict[str, dict[str, list[str]]]:
    """Return the entries of a configuration file by section. Raises ``StartRefused`` if the file is unreadable."""
    sections: dict[str, dict[str, list[str]]] = {}
    try:
        cfg.ConfigParser(path, sections).parse()
    except (OSError, cfg.ParseError, ValueError) as error:
        raise StartRefused(f"The configuration file {path} cannot be read: {without_secrets(str(error))}.") from error
    return sections


def misspelt_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each environment variable that resembles an option of zq but is not one."""
    for name in sorted(environment):
        if name in VARIABLES or not name.startswith("OS_") or "__" not in name:
            continue
        alike = get_close_matches(name.upper(), VARIABLES, 1, MIN_SIMILARITY)
        if alike or name.startswith(PREFIXES):
            hint = f"; did you mean {alike[0]}?" if alike else ". zq-server --sample-config prints all options."
            yield f"The variable {name} is ignored, because there is no such option{hint}"


def _explain(option: DeclaredOption, path: str | None, error: Exception) -> str:
    reason = str(error).partition(" is not valid: ")[2]
    wanted = _describe_values(option)
    if wanted is None:
        return f"{_locate(option, path)} cannot be used: {without_secrets(reason)}."
    given = os.environ.get(variable(option.section, option.name))
    if given is None:
        given = parse_file(path)[option.section][option.name][-1] if path else reason
    return f"{_locate(option, path)} must be {wanted}; it is {without_secrets(given)[:100]!r}."


def _locate(option: DeclaredOption, path: str | None) -> str:
    by = variable(option.section, option.name)
    where = f", set by {by}," if by in os.environ else f" of {path}" if path else ""
    return f"Option {option.name} in section [{option.section}]{where}"


def _describe_values(option: DeclaredOption) -> str | None:
    """Return a description of the option's valid values, or ``None`` if only oslo.config can check them."""
    if option.kind is bool:
        return "true or false"
    if option.option.choices:
        return f"one of {', '.join(option.option.choices)}"
    if not option.is_number:
        return None
    kind = "a number" if option.kind is float else "a whole number"
    low, high = option.bounds
    if high is None:
        return kind if low is None else f"{kind}, at least {low}"
    return f"{kind} from {low} to {high}"


def parse_strategy(name: str) -> str:
    """Remove spaces from the name of an authentication strategy and return the name.

    Raises ``StartRefused`` for an unknown strategy.
    """
    strategy = name.replace(" ", "")
    if strategy not in STRATEGIES:
        names = ", ".join(STRATEGIES[1:-1])
        raise StartRefused(f"auth_strategy must be empty, {names} or {STRATEGIES[-1]}; it is {strategy[:100]!r}.")
    return strategy


def check_share(share: SignedUrlOptions) -> None:
    """Raise ``StartRefused`` if a secret of signed URLs is missing or too short."""
    if share.secrets and not share.secret_key:
        raise StartRefused("[signed_url] old_secret_keys requires secret_key.")
    if any(len(secret.encode()) < MIN_SECRET for secret in share.secrets):
        raise StartRefused(f"[signed_url] secret_key and old_secret_keys must be at least {MIN_SECRET} bytes each.")


def resolve_control_path(path: str, uri: str) -> str:
    """Return the path of the control socket, or "" for no socket.

    If ``path`` is "", a RocksDB store has the socket ``control.sock`` in its directory, and any other store has none.
    If ``path`` is "none", there is no socket.
    """
    if path:
        return "" if path == "none" else os.path.abspath(path)
    parts = store_uri.split(uri)
    return os.path.abspath(os.path.join(unquote(parts.path), "control.sock")) if parts.scheme == "rocksdb" else ""


def check_certificates(server: sections.ServerOptions, auth: AuthOptions) -> None:
    """Raise ``StartRefused`` if TLS or client certificates are configured without the options that they require."""
    if bool(server.tls_cert) != bool(server.tls_key):
        raise StartRefused("[server] tls_cert and tls_key must both be set, or neither.")
    if server.tls_client_ca and not server.tls_cert:
        raise StartRefused("[server] tls_client_ca requires tls_cert and tls_key.")
    if auth.certificates and not (auth.strategy == "token" and server.engine == "gunicorn" and server.tls_client_ca):
        raise StartRefused(
            "[auth] certificates requires auth_strategy = token, engine = auto or gunicorn, and [server] tls_client_ca."
        )


def read_pool_settings(
    conf: cfg.ConfigOpts, scheme: str, driver_options: Callable[[str], dict[str, Any]]
) -> PoolSettings | None:
    """Return the pool settings, or ``None`` if pooling is off.

    ``scheme`` is the URI scheme of the catalogue, the store that lists the pools. If several servers can share the
    catalogue, they must also be able to share each pool. In this case, the function raises ``StartRefused`` if the
    settings allow embedded pools.
    """
    if not conf.pooling:
        return None
    catalog = CATALOG.read(conf)
    hosts = tuple(host.lower() for host in catalog.allowed_hosts)
    embedded = [name for name in EMBEDDED if name in hosts]
    if scheme in NETWORKED and embedded:
        raise StartRefused(
            f"[pooling:catalog] allowed_hosts must not contain {embedded[0]} if [storage] uri is a store for several "
            "servers, because they cannot share an embedded store."
        )
    schemes = (*NETWORKED, *(name[:-1] for name in EMBEDDED))
    options = {each: driver_options(each) for each in schemes}
    return PoolSettings(catalog.enable_virtual_pool, catalog.queue_moves, hosts, options)


def choose_http_server(chosen: str, certificates: str) -> str:
    """Return the name of the HTTP server.

    The choice "auto" selects Granian if Granian is installed and client certificates are not configured. Otherwise,
    "auto" selects gunicorn.
    """
    if chosen != "auto":
        return chosen
    return "granian" if find_spec("granian") is not None and not certificates else "gunicorn"


def allot_threads(engine: str, server: sections.ServerOptions) -> dict[str, Any]:
    """Return the maximum numbers of threads, waiting requests and streams, with defaults for unset options."""
    waiters, streams, threads = server.max_waiters, server.max_streams, server.threads
    if engine != "granian":
        threads = threads or THREADS_WITH_WAITERS
        return {"threads": threads} | _thread_shares(waiters, streams, threads)
    return {
        "threads": threads or THREADS,
        "max_waiters": WAITERS_WITHOUT_THREADS if waiters is None else waiters,
        "max_streams": STREAMS_WITHOUT_THREADS if streams is None else streams,
    }


def _thread_shares(waiters: int | None, streams: int | None, threads: int) -> dict[str, int]:
    """Return the maximum numbers of waiting requests (long polls) and streams. Each of them occupies a thread.

    ``THREADS_FOR_WORK`` threads are reserved for other requests. An unset maximum gets its default, or less if there
    are too few threads. Raises ``StartRefused`` if the given maximums leave too few threads.
    """
    max_waiting = threads - THREADS_FOR_WORK
    if (waiters or 0) + (streams or 0) > max_waiting:
        raise StartRefused(
            f"[server] max_waiters + max_streams must be at most threads - {THREADS_FOR_WORK}, to keep threads for "
            f"other requests; they are {waiters or 0} and {streams or 0}, and threads is {threads}."
        )
    if streams is None:
        share = max_waiting * MAX_STREAMS // (MAX_WAITERS + MAX_STREAMS) if waiters is None else max_waiting - waiters
        streams = min(MAX_STREAMS, share)
    if waiters is None:
        waiters = min(MAX_WAITERS, max_waiting - streams)
    return {"max_waiters": waiters, "max_streams": streams}
