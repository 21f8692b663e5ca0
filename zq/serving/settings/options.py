# SPDX-License-Identifier: Apache-2.0
"""All options of the server in one table. Those with ``mutable=True`` are reloaded on SIGHUP."""

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

# Defaults of [expiry].
EXPIRY: Final = Expiry()


def _integer(name: str, default: int, low: int, high: int, text: str) -> cfg.Opt:
    """Return an option that is reloaded on SIGHUP."""
    return cfg.IntOpt(name, default=default, min=low, max=high, mutable=True, help=text)


# Every option, by section.
OPTIONS: Final[dict[str, list[cfg.Opt]]] = {
    "DEFAULT": [
        cfg.BoolOpt("admin_mode", default=False, help="Serve the routes for administrators."),
        cfg.BoolOpt("enable_checksum", default=False, help="Store an MD5 checksum with each message and show it."),
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
            help="The HTTP server. auto: Granian where it is installed, which is faster, else gunicorn; with [auth] "
            "certificates gunicorn.",
        ),
        cfg.BoolOpt(
            "trust_network",
            default=False,
            help="Serve without authentication: beyond this machine, with admin_mode, and with the roles that "
            "callers name. Each start warns of it.",
        ),
        cfg.ListOpt(
            "allowed_hosts",
            default=[],
            sample_default=["queues.example.org"],
            mutable=True,
            help="Names, without ports, that the header Host may have besides addresses and localhost; * "
            "allows any. With an auth_strategy any is allowed. Between several a comma.",
        ),
        CONTROL,
        *TLS,
        cfg.IntOpt(
            "threads",
            min=9,
            max=4096,
            help="Threads of one process that work on requests. Default with Granian: 16. With gunicorn each request "
            "holds one, a waiting one too; default: 64.",
        ),
        cfg.IntOpt(
            "max_waiters",
            min=0,
            help="Requests of one process that may wait for messages at once. Default with Granian: 10000. With "
            "gunicorn they hold threads, and with max_streams may be at most threads - 8; default: 40, or what threads "
            "allow.",
        ),
        cfg.IntOpt(
            "max_streams",
            min=0,
            help="Live streams of topics that one process serves at once. Default with Granian: 2000. With gunicorn "
            "they hold threads, and with max_waiters may be at most threads - 8; default: 16, or what threads allow.",
        ),
        cfg.IntOpt("workers", default=1, min=1, max=256, help="Processes. The embedded store allows one."),
        cfg.IntOpt("graceful_timeout", default=30, min=1, help="Seconds that requests in flight get on shutdown."),
        cfg.IntOpt(
            "drain_delay",
            default=0,
            min=0,
            max=3600,
            help="Seconds for which a server still takes requests after SIGTERM, while its /readyz says stopping and "
            "answers close their connections. Only with Granian.",
        ),
        cfg.IntOpt(
            "keepalive",
            default=65,
            min=0,
            help="Seconds that gunicorn keeps an idle connection open. Granian keeps it for head_timeout.",
        ),
        cfg.FloatOpt(
            "head_timeout",
            default=10.0,
            min=0.1,
            max=3600,
            help="Seconds within which the whole head of a request must come, also the next one on a connection. Only "
            "with Granian.",
        ),
        cfg.FloatOpt(
            "body_timeout",
            default=10.0,
            min=0.1,
            max=3600,
            help="Seconds within which a body must come, and one more for each 10,000 bytes of it that have come. Only "
            "with Granian.",
        ),
        cfg.FloatOpt(
            "send_timeout",
            default=30.0,
            min=0.1,
            max=3600,
            help="Seconds after which a long answer is given up whose client takes nothing of it. Only with Granian.",
        ),
        cfg.FloatOpt(
            "queue_timeout",
            default=5.0,
            min=0.1,
            max=3600,
            help="Seconds that a request may wait for a thread: it is refused then with 503, and new ones at once as "
            "long as others wait so long. Only with Granian.",
        ),
        cfg.IntOpt(
            "max_connections",
            default=4096,
            min=16,
            max=1_000_000,
            help="Connections of one process; with Granian those of max_waiters and max_streams come besides.",
        ),
        cfg.IntOpt(
            "max_connections_per_address",
            default=2048,
            min=1,
            max=1_000_000,
            help="Requests of one address, of IPv6 of one /64 network, that one process has under way. A further one "
            "is refused with 503. Only with Granian.",
        ),
        cfg.BoolOpt(
            "behind_proxy",
            default=False,
            help="Only proxies connect, so max_connections_per_address does not apply: bound clients there. "
            "gunicorn needs it to listen beyond this machine, since a slow client holds one of its threads.",
        ),
    ],
    **{section.name: [*section.options] for section in SECTIONS},
    "storage": [
        cfg.StrOpt(
            "uri",
            default="rocksdb:var/zq",
            secret=True,
            help="The store; its scheme picks the driver: rocksdb:///var/lib/zq, mongodb://host/zq?replicaSet=rs0, "
            "redis://host/0, swift://container/prefix.",
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
    SECTION: OBJECT,
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
    "transport": [*TRANSPORT, *(option for section in SECTIONS for option in section.others.get("transport", ()))],
    "expiry": [
        cfg.BoolOpt(
            "sweep", default=EXPIRY.sweep, mutable=True, help="Sweep: remove what has expired, round by round."
        ),
        cfg.FloatOpt(
            "sweep_interval",
            default=5.0,
            min=0.1,
            max=3600,
            mutable=True,
            help="Seconds between rounds that give back the space of expired and purged messages.",
        ),
        _integer(
            "sweep_batch_size", EXPIRY.sweep_batch_size, 1, 100_000, "Most messages that one step of a round removes."
        ),
        _integer(
            "sweep_max_deletes",
            EXPIRY.sweep_max_deletes,
            1,
            100_000_000,
            "Most messages that one round removes, at least sweep_batch_size.",
        ),
        cfg.BoolOpt(
            "delete_on_read",
            default=EXPIRY.delete_on_read,
            mutable=True,
            help="Remove expired messages that a reader came across.",
        ),
        _integer(
            "delete_queue_size",
            EXPIRY.delete_queue_size,
            1,
            10_000_000,
            "Most messages that readers came across and that wait for removal; more are left to the sweep.",
        ),
        cfg.BoolOpt(
            "compaction_filter",
            default=EXPIRY.compaction_filter,
            mutable=True,
            help="Drop expired messages whenever the embedded store rewrites its files.",
        ),
        _integer(
            "compaction_filter_grace",
            EXPIRY.compaction_filter_grace,
            0,
            86400,
            "Seconds after its expiry that the compaction filter leaves a message to the other layers.",
        ),
        _integer(
            "compaction_interval",
            EXPIRY.compaction_interval,
            60,
            31_536_000,
            "Seconds after which the embedded store rewrites files though nothing else asks for it.",
        ),
        cfg.MultiStrOpt(
            "queue_ttl",
            default=[],
            sample_default=["mqtt-*: 86400"],
            mutable=True,
            help="Pattern of queue names (* any characters, ? one), a colon, and the seconds that a message of such a "
            "queue lives, unless it or its queue says otherwise. May stand several times; the first that fits counts.",
        ),
    ],
    "topics": [
        _integer(
            "topic_log_bytes",
            DEFAULT_KEEP.size,
            MIN_KEEP.size,
            1 << 50,
            "Bytes of message bodies that the log of a project's topics keeps, at least twice max_messages_post_size; "
            "the oldest messages fall off.",
        ),
        _integer(
            "topic_log_messages",
            DEFAULT_KEEP.messages,
            MIN_KEEP.messages,
            1_000_000_000,
            "Messages that the log of a project's topics keeps; the oldest fall off.",
        ),
    ],
    "log": [
        cfg.StrOpt(
            "format", default="text", choices=["text", "json"], help="One line of text or one JSON object each."
        ),
        cfg.StrOpt(
            "level",
            default="INFO",
            choices=["DEBUG", "INFO", "WARNING", "ERROR"],
            mutable=True,
            help="The least level logged.",
        ),
        cfg.BoolOpt(
            "requests", default=False, mutable=True, help="Log a line for each request. Failures are always logged."
        ),
        AUDIT,
        AUDIT_TTL,
    ],
    "probes": [
        cfg.StrOpt(
            "bind",
            default="",
            sample_default="127.0.0.1:8887",
            help="Address and port at which /healthz and /readyz are served besides, by threads of their own, whatever "
            "the others do. Empty: none.",
        ),
    ],
    "metrics": [
        cfg.StrOpt("bind", default="127.0.0.1", help="Address at which /metrics is served."),
        cfg.PortOpt(
            "port",
            default=8889,
            help="Port of that address; 0: none. If it is taken, as by another server of this machine, it is tried "
            "again each second.",
        ),
        cfg.BoolOpt("on_main_port", default=False, help="Serve /metrics at the address of [server], too."),
        cfg.BoolOpt("per_queue", default=False, mutable=True, help="Give figures of each queue, not of all together."),
        cfg.IntOpt(
            "max_queues",
            default=1000,
            min=1,
            max=100_000,
            mutable=True,
            help="Most queues whose messages are counted; with per_queue, most that have figures of their own.",
        ),
        cfg.IntOpt(
            "max_counted",
            default=10_000,
            min=1,
            max=10_000_000,
            mutable=True,
            help="Messages of a queue and state up to which they are counted exactly.",
        ),
    ],
}


def variable(group: str, option: str) -> str:
    """Return the environment variable that sets the option."""
    return f"OS_{group.upper()}__{option.upper()}"
