# SPDX-License-Identifier: Apache-2.0
"""Every option of the server in one table, read from a file and the environment into frozen values.

Precedence: command line (``zq.server`` puts it into the environment), environment (``OS_<SECTION>__<OPTION>``), file,
default. Nonsense stops the start with a sentence: ``StartRefused``. ``zq-server --sample-config`` prints the table.
"""

import os
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from msgspec import Struct
from oslo_config import cfg, generator

from zq.errors import StartRefused
from zq.limits import MAX_LIFE, MAX_REMEMBERED, MAX_WAIT, MAX_WINDOW, MIN_TTL, Limits

CONFIG_VARIABLE: Final = "ZQ_CONFIG"
"""Environment variable that names the configuration file."""

MAX_WAITERS: Final = 40
THREADS_FOR_WORK: Final = 8
"""Threads that are never lent to requests that wait."""

LIMIT_HELP: Final = {
    "default_message_ttl": "Seconds that a message lives, unless it or its queue says otherwise.",
    "default_message_delay": "Seconds until a message can be claimed, unless it or its queue says otherwise.",
    "default_claim_ttl": "Seconds that a claim lives, unless it says otherwise.",
    "default_claim_grace": "Seconds that claimed messages outlive their claim, unless the claim says otherwise.",
    "max_message_ttl": "Largest ttl of a message, in seconds.",
    "max_message_delay": "Largest delay of a message, in seconds.",
    "max_claim_ttl": "Largest ttl of a claim, in seconds.",
    "max_claim_grace": "Largest grace of a claim, in seconds.",
    "max_queues_per_page": "Most queues in one page of a listing.",
    "max_messages_per_page": "Most messages in one page of a listing, or ids in one request.",
    "max_messages_per_claim_or_pop": "Most messages that one claim or pop returns.",
    "max_queue_metadata": "Largest metadata document, in bytes.",
    "max_messages_post_size": "Largest body of one post of messages, in bytes.",
    "min_length_client_id": "Fewest characters of a Client-ID, when client_id_uuid_safe is off.",
    "max_length_client_id": "Most characters of a Client-ID, when client_id_uuid_safe is off.",
    "max_wait": "Most seconds that a request may wait for messages.",
    "stage_ttl": "Seconds after which a stage that was not published is dropped.",
    "max_stage_bytes": "Most bytes of message bodies in one stage.",
    "producer_ttl": "Seconds that the last commit of a producer is remembered.",
    "idempotency_window": "Seconds for which a request with an Idempotency-Key is remembered.",
}

OPTIONS: Final[dict[str, list[cfg.Opt]]] = {
    "DEFAULT": [
        cfg.BoolOpt("admin_mode", default=False, help="Serve the routes for administrators."),
        cfg.BoolOpt("enable_checksum", default=False, help="Store an MD5 checksum with each message and show it."),
        cfg.StrOpt("auth_strategy", default="", help="How callers prove who they are. Empty: they are believed."),
    ],
    "server": [
        cfg.StrOpt("bind", default="127.0.0.1", help="Address to listen on."),
        cfg.PortOpt("port", default=8888, help="Port to listen on."),
        cfg.StrOpt("engine", default="gunicorn", choices=["gunicorn", "granian"], help="The HTTP server."),
        cfg.IntOpt("threads", default=64, min=9, max=4096, help="Requests that one process works on at once."),
        cfg.IntOpt(
            "max_waiters",
            min=0,
            help="Requests of one process that may wait for messages at once, at most threads - 8. Default: 40, or "
            "what threads allow.",
        ),
        cfg.IntOpt("workers", default=1, min=1, max=256, help="Processes. The embedded store allows one."),
        cfg.IntOpt("graceful_timeout", default=30, min=1, help="Seconds that requests in flight get on shutdown."),
        cfg.IntOpt("keepalive", default=65, min=0, help="Seconds that an idle connection is kept open (gunicorn)."),
    ],
    "storage": [
        cfg.StrOpt(
            "uri",
            default="rocksdb:var/zq",
            secret=True,
            help="The store; its scheme picks the driver: rocksdb:///var/lib/zq, mongodb://host/zq?replicaSet=rs0, "
            "redis://host/0.",
        ),
        cfg.BoolOpt(
            "wait", default=False, help="At start wait for a store that does not answer, as --wait-for-store does."
        ),
    ],
    "storage:mongodb": [
        cfg.StrOpt(
            "write_concern",
            default="majority",
            help="How many members have a change before it is acknowledged: majority, or a number. Below majority a "
            "fail-over may lose acknowledged messages. A w= in the URI counts instead.",
        ),
        cfg.BoolOpt(
            "journal",
            default=True,
            help="Acknowledge a change only when it is in the journal. Off, a power cut may lose it. A journal= in the "
            "URI counts instead.",
        ),
    ],
    "storage:redis": [
        cfg.IntOpt(
            "wait_replicas",
            default=0,
            min=0,
            help="Replicas that must have a change before it is acknowledged (WAIT). 0: a fail-over may lose "
            "acknowledged messages.",
        ),
    ],
    "storage:rocksdb": [
        cfg.StrOpt(
            "sync",
            default="always",
            choices=["always", "interval", "never"],
            help="When an acknowledged change is on disk. always: before the answer. interval: within sync_interval "
            "seconds, so a power cut may lose that much. never: when the operating system likes. A killed process "
            "loses nothing in any mode.",
        ),
        cfg.FloatOpt(
            "sync_interval", default=1.0, min=0.01, max=3600, help="Seconds between syncs, for sync = interval."
        ),
        cfg.IntOpt(
            "max_clock_jump",
            default=172800,
            min=0,
            help="Seconds that the machine's clock may be ahead of the store's last use at start, since expiry "
            "destroys messages for good. 0: believe any clock, as --force-clock does for one start.",
        ),
    ],
    "transport": [
        *[cfg.IntOpt(name, default=getattr(Limits(), name), min=0, help=text) for name, text in LIMIT_HELP.items()],
        cfg.StrOpt(
            "client_id_uuid_safe",
            default="strict",
            choices=["strict", "off"],
            help="strict: a Client-ID must be a UUID. off: any text of an allowed length.",
        ),
        cfg.FloatOpt(
            "storage_timeout",
            default=5.0,
            min=0.1,
            max=600,
            help="Seconds after which a request is answered 503 when a store on the network does not answer.",
        ),
        cfg.BoolOpt(
            "message_delete_with_claim_id",
            default=False,
            help="Deleting messages by ids needs their claim ids as well.",
        ),
    ],
    "expiry": [
        cfg.FloatOpt(
            "sweep_interval",
            default=5.0,
            min=0.1,
            max=3600,
            help="Seconds between rounds that give back the space of expired and purged messages.",
        ),
    ],
    "log": [
        cfg.StrOpt(
            "format", default="text", choices=["text", "json"], help="One line of text or one JSON object each."
        ),
        cfg.StrOpt(
            "level", default="INFO", choices=["DEBUG", "INFO", "WARNING", "ERROR"], help="The least level logged."
        ),
        cfg.BoolOpt("requests", default=False, help="Log a line for each request. Failures are always logged."),
    ],
}


NETWORKED: Final = {
    "mongodb": "storage:mongodb",
    "mongodb+srv": "storage:mongodb",
    "redis": "storage:redis",
    "rediss": "storage:redis",
    "unix": "storage:redis",
}
"""The section of a URI's scheme, for stores that several servers share."""


class Settings(Struct, frozen=True, kw_only=True):
    """The options of one server, checked."""

    bind: str
    port: int
    engine: str
    threads: int
    workers: int
    max_waiters: int
    graceful_timeout: int
    keepalive: int
    uri: str
    shared_store: bool
    wait_for_store: bool
    driver_options: dict[str, Any]
    limits: Limits
    strict_client_id: bool
    delete_with_claim_id: bool
    admin_mode: bool
    checksum: bool
    sweep_interval: float
    log_format: str
    log_level: str
    log_requests: bool


def load(path: str | None = None) -> Settings:
    """The settings of ``path`` (default: the file that ``ZQ_CONFIG`` names, if any) under those of the environment."""
    path = path or os.environ.get(CONFIG_VARIABLE)
    if path:
        _check_file(path)
    conf = cfg.ConfigOpts()
    for group, options in OPTIONS.items():
        conf.register_opts(options, group=None if group == "DEFAULT" else group)
    try:
        conf(args=[], project="zq", default_config_files=[path] if path else [], default_config_dirs=[])
        if conf.auth_strategy:
            raise StartRefused("auth_strategy must be empty: this version of zq cannot check tokens yet.")
        settings = _settings(conf)
    except (cfg.Error, ValueError) as error:
        raise StartRefused(f"The configuration cannot be used: {error}.") from error
    _check(settings)
    return settings


def list_opts() -> Sequence[tuple[str, list[cfg.Opt]]]:
    """The table, for oslo.config's own tools."""
    return list(OPTIONS.items())


def print_sample() -> None:
    """Print a configuration file that holds every option, commented out, with its default."""
    conf = cfg.ConfigOpts()
    generator.register_cli_opts(conf)
    conf(args=["--namespace", "zq", "--wrap-width", "100"], default_config_files=[], default_config_dirs=[])
    generator.generate(conf)


def variable(group: str, option: str) -> str:
    """The environment variable that sets an option."""
    return f"OS_{group.upper()}__{option.upper()}"


def _settings(conf: cfg.ConfigOpts) -> Settings:
    uri = conf.storage.uri
    scheme = urlsplit(uri).scheme
    section = NETWORKED.get(scheme, f"storage:{scheme}")
    driver_options = {option.dest: conf[section][option.dest] for option in OPTIONS.get(section, [])}
    if scheme in NETWORKED:
        driver_options["timeout"] = conf.transport.storage_timeout
    return Settings(
        **{option.dest: conf.server[option.dest] for option in OPTIONS["server"] if option.dest != "max_waiters"},
        max_waiters=_max_waiters(conf.server.max_waiters, conf.server.threads),
        uri=uri,
        shared_store=scheme in NETWORKED,
        wait_for_store=conf.storage.wait,
        driver_options=driver_options,
        limits=Limits(**{name: conf.transport[name] for name in Limits.__struct_fields__}),
        strict_client_id=conf.transport.client_id_uuid_safe == "strict",
        delete_with_claim_id=conf.transport.message_delete_with_claim_id,
        admin_mode=conf.admin_mode,
        checksum=conf.enable_checksum,
        sweep_interval=conf.expiry.sweep_interval,
        log_format=conf.log.format,
        log_level=conf.log.level,
        log_requests=conf.log.requests,
    )


def _max_waiters(chosen: int | None, threads: int) -> int:
    """As many as are chosen, if enough threads are left for requests that do not wait."""
    most = threads - THREADS_FOR_WORK
    if chosen is None:
        return min(MAX_WAITERS, most)
    if chosen > most:
        raise StartRefused(
            f"[server] max_waiters must be at most threads - {THREADS_FOR_WORK}, so that requests that do not wait "
            f"find a thread; it is {chosen}, with {threads} threads."
        )
    return chosen


def _check_file(path: str) -> None:
    """Refuse a file that cannot be read or names an option that does not exist: it is likely a slip of the pen."""
    sections: dict[str, dict[str, Any]] = {}
    try:
        cfg.ConfigParser(path, sections).parse()
    except (OSError, cfg.ParseError, ValueError) as error:
        raise StartRefused(f"The configuration file {path} cannot be read: {error}.") from error
    for section, entries in sections.items():
        known = {option.dest for option in OPTIONS.get(section, [])}
        for name in entries:
            if name not in known:
                raise StartRefused(f"The configuration file {path} sets {name} in [{section}], which does not exist.")


def _check(settings: Settings) -> None:
    """Refuse combinations that cannot work."""
    if settings.uri.startswith("rocksdb:") and settings.workers != 1:
        raise StartRefused("[server] workers must be 1 with the embedded store, which one process owns.")
    limits = settings.limits
    pairs = (
        ("default_message_ttl", MIN_TTL, limits.max_message_ttl),
        ("default_message_delay", 0, limits.max_message_delay),
        ("default_claim_ttl", MIN_TTL, limits.max_claim_ttl),
        ("default_claim_grace", MIN_TTL, limits.max_claim_grace),
        ("min_length_client_id", 1, limits.max_length_client_id),
        ("idempotency_window", MIN_TTL, MAX_WINDOW),
        ("max_wait", 0, MAX_WAIT),
        ("stage_ttl", MIN_TTL, MAX_REMEMBERED),
        ("producer_ttl", MIN_TTL, MAX_REMEMBERED),
        ("max_message_ttl", MIN_TTL, MAX_LIFE),
        ("max_claim_ttl", MIN_TTL, MAX_LIFE),
        ("max_claim_grace", MIN_TTL, MAX_LIFE),
        ("max_message_delay", 0, MAX_LIFE),
    )
    for name, low, high in pairs:
        if not low <= getattr(limits, name) <= high:
            raise StartRefused(f"[transport] {name} must be from {low} to {high}; it is {getattr(limits, name)}.")
    for name in (field for field in Limits.__struct_fields__ if field.endswith("_per_page") or "per_claim" in field):
        if getattr(limits, name) < 1:
            raise StartRefused(f"[transport] {name} must be at least 1.")
