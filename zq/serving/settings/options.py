# SPDX-License-Identifier: Apache-2.0
"""The option table of the server. SIGHUP reloads the options with ``mutable=True``."""

from typing import Final

from oslo_config import cfg

from zq.limits import DEFAULT_KEEP, MIN_KEEP
from zq.model.expiry import Expiry
from zq.serving.sections import SECTIONS
from zq.serving.settings.auth import AUTH, CONTROL, SIGNED_URL, STRATEGY
from zq.serving.settings.object import OBJECT, SECTION
from zq.serving.settings.pools import CATALOG, POOLING
from zq.serving.settings.tenants import AUDIT, AUDIT_TTL, POLICY, QUOTA
from zq.serving.settings.tls import CERTIFICATES, TLS
from zq.serving.settings.transport import TRANSPORT

# Defaults of section ``[expiry]``.
EXPIRY: Final = Expiry()


def _integer(name: str, default: int, low: int, high: int, text: str) -> cfg.Opt:
    """Return a mutable option between ``low`` and ``high``."""
    return cfg.IntOpt(name, default=default, min=low, max=high, mutable=True, help=text)


# All options by section.
OPTIONS: Final[dict[str, list[cfg.Opt]]] = {
    "DEFAULT": [
        cfg.BoolOpt("admin_mode", default=False, help="Serve the administrator routes."),
        cfg.BoolOpt("enable_checksum", default=False, help="Store an MD5 checksum with each message and return it."),
        POOLING,
        STRATEGY,
    ],
    "pooling:catalog": CATALOG,
    "auth": [*AUTH, CERTIFICATES],
    "signed_url": SIGNED_URL,
    "oslo_policy": POLICY,
    "quota": QUOTA,
    "server": [
        cfg.StrOpt("bind", default="127.0.0.1", help="Address to listen on."),
        cfg.PortOpt("port", default=8888, help="Port to listen on."),
        cfg.StrOpt(
            "engine",
            default="auto",
            choices=["auto", "gunicorn", "granian"],
            help="HTTP server. auto: Granian if it is installed (faster), else gunicorn; with [auth] certificates "
            "always gunicorn.",
        ),
        cfg.BoolOpt(
            "trust_network",
            default=False,
            help="Allow operation without authentication on addresses beyond this machine, with admin_mode and with "
            "roles from request headers. Each start logs a warning.",
        ),
        cfg.ListOpt(
            "allowed_hosts",
            default=[],
            sample_default=["queues.example.org"],
            mutable=True,
            help="Allowed names in the Host header, without ports, separated by commas; addresses and localhost are "
            "always allowed. * allows any name. With an auth_strategy any name is allowed.",
        ),
        CONTROL,
        *TLS,
        cfg.IntOpt(
            "threads",
            min=9,
            max=4096,
            help="Number of request threads per process. Default with Granian: 16. With gunicorn each request holds a "
            "thread, even while it waits; default: 64.",
        ),
        cfg.IntOpt(
            "max_waiters",
            min=0,
            help="Maximum number of waiting requests per process. Default with Granian: 10000. With gunicorn each "
            "holds a thread, and max_waiters + max_streams must be at most threads - 8; default: 40, or less with "
            "few threads.",
        ),
        cfg.IntOpt(
            "max_streams",
            min=0,
            help="Maximum number of open streams per process. Default with Granian: 2000. With gunicorn each holds a "
            "thread, and max_waiters + max_streams must be at most threads - 8; default: 16, or less with few "
            "threads.",
        ),
        cfg.IntOpt(
            "workers", default=1, min=1, max=256, help="Number of worker processes. The embedded store allows only one."
        ),
        cfg.IntOpt(
            "graceful_timeout", default=30, min=1, help="Seconds that running requests get to finish on shutdown."
        ),
        cfg.IntOpt(
            "drain_delay",
            default=0,
            min=0,
            max=3600,
            help="Seconds for which the server still accepts requests after SIGTERM. Meanwhile /readyz reports "
            "stopping and each response closes its connection. Only with Granian.",
        ),
        cfg.IntOpt(
            "keepalive",
            default=65,
            min=0,
            help="Seconds for which gunicorn keeps an idle connection open. Granian uses head_timeout.",
        ),
        cfg.FloatOpt(
            "head_timeout",
            default=10.0,
            min=0.1,
            max=3600,
            help="Maximum seconds until the head of a request is complete, including the time a connection was idle "
            "before. Only with Granian.",
        ),
        cfg.FloatOpt(
            "body_timeout",
            default=10.0,
            min=0.1,
            max=3600,
            help="Maximum seconds until a request body is complete, plus one second per 10,000 bytes received. Only "
            "with Granian.",
        ),
        cfg.FloatOpt(
            "send_timeout",
            default=30.0,
            min=0.1,
            max=3600,
            help="Seconds after which a long response is aborted if the client reads nothing. Only with Granian.",
        ),
        cfg.FloatOpt(
            "queue_timeout",
            default=5.0,
            min=0.1,
            max=3600,
            help="Maximum seconds that a request waits for a thread before the server answers 503. While requests "
            "wait this long, new ones are rejected at once. Only with Granian.",
        ),
        cfg.IntOpt(
            "max_connections",
            default=4096,
            min=16,
            max=1_000_000,
            help="Maximum number of connections per process. Granian allows max_waiters and max_streams connections "
            "in addition.",
        ),
        cfg.IntOpt(
            "max_connections_per_address",
            default=2048,
            min=1,
            max=1_000_000,
            help="Maximum number of concurrent requests per process from one IPv4 address or one IPv6 /64 network; "
            "further requests get 503. Only with Granian.",
        ),
        cfg.BoolOpt(
            "behind_proxy",
            default=False,
            help="Only proxies connect to the server, so max_connections_per_address does not apply; limit clients in "
            "the proxy. gunicorn requires this option to listen beyond this machine, because a slow client holds a "
            "thread.",
        ),
    ],
    **{section.name: [*section.options] for section in SECTIONS},
    "storage": [
        cfg.StrOpt(
            "uri",
            default="rocksdb:var/zq",
            secret=True,
            help="Store URI; its scheme selects the driver: rocksdb:///var/lib/zq, mongodb://host/zq?replicaSet=rs0, "
            "redis://host/0, swift://container/prefix.",
        ),
        cfg.BoolOpt("wait", default=False, help="Wait at start until the store is available, like --wait-for-store."),
    ],
    "storage:mongodb": [
        cfg.StrOpt(
            "write_concern",
            default="majority",
            help="Write concern: majority, or the number of members that must have a change before it is "
            "acknowledged. Below majority, a failover may lose acknowledged messages. w= in the URI takes "
            "precedence.",
        ),
        cfg.BoolOpt(
            "journal",
            default=True,
            help="Acknowledge a change only after it is in the journal. If false, a power failure may lose "
            "acknowledged changes. journal= in the URI takes precedence.",
        ),
    ],
    SECTION: OBJECT,
    "storage:redis": [
        cfg.IntOpt(
            "wait_replicas",
            default=0,
            min=0,
            help="Number of replicas that must have a change before it is acknowledged (WAIT). With 0 a failover may "
            "lose acknowledged messages.",
        ),
    ],
    "storage:rocksdb": [
        cfg.StrOpt(
            "sync",
            default="always",
            choices=["always", "interval", "never"],
            help="When changes are synced to disk. always: before they are acknowledged. interval: every "
            "sync_interval seconds, so a power failure may lose that much. never: left to the operating system. If "
            "only the process is killed, no mode loses changes.",
        ),
        cfg.FloatOpt(
            "sync_interval", default=1.0, min=0.01, max=3600, help="Seconds between syncs, with sync = interval."
        ),
        cfg.IntOpt(
            "max_clock_jump",
            default=172800,
            min=0,
            help="Maximum seconds by which the machine's clock may be ahead of the store's last use at start, because "
            "a wrong clock would expire messages. 0: no check, like --force-clock for one start.",
        ),
    ],
    "transport": [*TRANSPORT, *(option for section in SECTIONS for option in section.others.get("transport", ()))],
    "expiry": [
        cfg.BoolOpt(
            "sweep", default=EXPIRY.sweep, mutable=True, help="Remove expired messages in regular sweep rounds."
        ),
        cfg.FloatOpt(
            "sweep_interval",
            default=5.0,
            min=0.1,
            max=3600,
            mutable=True,
            help="Seconds between sweep rounds, which reclaim the space of expired and purged messages.",
        ),
        _integer(
            "sweep_batch_size",
            EXPIRY.sweep_batch_size,
            1,
            100_000,
            "Maximum number of messages that one step of a sweep round removes.",
        ),
        _integer(
            "sweep_max_deletes",
            EXPIRY.sweep_max_deletes,
            1,
            100_000_000,
            "Maximum number of messages that one sweep round removes; at least sweep_batch_size.",
        ),
        cfg.BoolOpt(
            "delete_on_read",
            default=EXPIRY.delete_on_read,
            mutable=True,
            help="Remove expired messages that readers find.",
        ),
        _integer(
            "delete_queue_size",
            EXPIRY.delete_queue_size,
            1,
            10_000_000,
            "Maximum number of expired messages found by readers that wait for removal; further ones are left to the "
            "sweep.",
        ),
        cfg.BoolOpt(
            "compaction_filter",
            default=EXPIRY.compaction_filter,
            mutable=True,
            help="Drop expired messages when the embedded store compacts its files.",
        ),
        _integer(
            "compaction_filter_grace",
            EXPIRY.compaction_filter_grace,
            0,
            86400,
            "Seconds after expiry before the compaction filter drops a message, so that other expiry layers come "
            "first.",
        ),
        _integer(
            "compaction_interval",
            EXPIRY.compaction_interval,
            60,
            31_536_000,
            "Seconds after which the embedded store compacts a file even without other reason.",
        ),
        cfg.MultiStrOpt(
            "queue_ttl",
            default=[],
            sample_default=["mqtt-*: 86400"],
            mutable=True,
            help="Default TTL of messages by queue name: a pattern (* any characters, ? one character), a colon, and "
            "seconds. It applies to messages without a ttl in queues without a default. Repeat the option for "
            "several patterns; the first match applies.",
        ),
    ],
    "topics": [
        _integer(
            "topic_log_bytes",
            DEFAULT_KEEP.size,
            MIN_KEEP.size,
            1 << 50,
            "Maximum bytes of messages in the topic log of a project; the oldest messages are trimmed. At least "
            "twice max_messages_post_size.",
        ),
        _integer(
            "topic_log_messages",
            DEFAULT_KEEP.messages,
            MIN_KEEP.messages,
            1_000_000_000,
            "Maximum number of messages in the topic log of a project; the oldest are trimmed.",
        ),
    ],
    "log": [
        cfg.StrOpt(
            "format",
            default="text",
            choices=["text", "json"],
            help="Log format: one line of text or one JSON object per record.",
        ),
        cfg.StrOpt(
            "level",
            default="INFO",
            choices=["DEBUG", "INFO", "WARNING", "ERROR"],
            mutable=True,
            help="Minimum level of logged records.",
        ),
        cfg.BoolOpt(
            "requests", default=False, mutable=True, help="Log each request. Failed requests are always logged."
        ),
        AUDIT,
        AUDIT_TTL,
    ],
    "probes": [
        cfg.StrOpt(
            "bind",
            default="",
            sample_default="127.0.0.1:8887",
            help="Additional address and port for /healthz and /readyz, served by threads of their own even if all "
            "request threads are busy. Empty: none.",
        ),
    ],
    "metrics": [
        cfg.StrOpt("bind", default="127.0.0.1", help="Address of the metrics listener, which serves /metrics."),
        cfg.PortOpt(
            "port",
            default=8889,
            help="Port of the metrics listener; 0: none. If the port is in use, for example by another server on this "
            "machine, the server retries every second.",
        ),
        cfg.BoolOpt("on_main_port", default=False, help="Also serve /metrics on the address of [server]."),
        cfg.BoolOpt("per_queue", default=False, mutable=True, help="Report metrics per queue instead of totals."),
        cfg.IntOpt(
            "max_queues",
            default=1000,
            min=1,
            max=100_000,
            mutable=True,
            help="Maximum number of queues whose messages are counted; with per_queue, also of queues with metrics of "
            "their own.",
        ),
        cfg.IntOpt(
            "max_counted",
            default=10_000,
            min=1,
            max=10_000_000,
            mutable=True,
            help="Maximum number of messages that are counted per queue and state.",
        ),
    ],
}


def variable(group: str, option: str) -> str:
    """Return the name of the environment variable that sets the option."""
    return f"OS_{group.upper()}__{option.upper()}"
