# SPDX-License-Identifier: Apache-2.0
"""Every option of the server in one table. Those with ``mutable=True`` are read again on SIGHUP."""

from typing import Final

from oslo_config import cfg

from zq.expiry import Expiry
from zq.limits import DEFAULT_KEEP, MAX_LIFE, MAX_REMEMBERED, MAX_WAIT, MAX_WINDOW, MIN_KEEP, MIN_TTL, Limits

EXPIRY: Final = Expiry()
LIMITS: Final = Limits()

LIMIT_HELP: Final = {
    "default_message_ttl": "Seconds that a message lives, unless it, its queue or queue_ttl says otherwise.",
    "default_message_delay": "Seconds until a message can be claimed, unless it or its queue says otherwise.",
    "default_claim_ttl": "Seconds that a claim lives, unless it says otherwise.",
    "default_claim_grace": "Seconds that claimed messages outlive their claim, unless the claim says otherwise.",
    "max_message_ttl": "Largest ttl of a message, in seconds.",
    "max_message_delay": "Largest delay of a message, in seconds.",
    "max_claim_ttl": "Largest ttl of a claim, in seconds.",
    "max_claim_grace": "Largest grace of a claim, in seconds.",
    "max_queues_per_page": "Most queues in one page of a listing.",
    "max_messages_per_page": "Most messages in one page of a listing, or ids in one deletion or replay. Default: 1000. "
    "Zaqar's bound is 20.",
    "max_messages_per_claim_or_pop": "Most messages that one claim or pop returns, or that one settlement names. "
    "Default: 1000. Zaqar's bound is 20.",
    "max_answer_bytes": "Most bytes of message bodies in one answer: a claim or pop takes fewer messages, a page ends "
    "earlier, but holds one at least.",
    "max_queue_metadata": "Largest metadata document, in bytes.",
    "max_messages_post_size": "Largest body of one post of messages, in bytes.",
    "max_messages_per_post": "Most messages in one post, staged or published ones too.",
    "min_length_client_id": "Fewest characters of a Client-ID, when client_id_uuid_safe is off.",
    "max_length_client_id": "Most characters of a Client-ID, when client_id_uuid_safe is off.",
    "max_wait": "Most seconds that a request may wait for messages.",
    "stage_ttl": "Seconds after which a stage that was not published is dropped.",
    "max_stage_bytes": "Most bytes of message bodies in one stage.",
    "max_stage_messages": "Most messages in one stage.",
    "max_commit_messages": "Most messages that one commit publishes and deletes together.",
    "commit_slice": "Most messages, published and deleted together, that one step of the store commits; a larger "
    "commit is carried out slice by slice.",
    "max_metadata_walk": "Most queues or topics that one request looks at to find those that its filters mean.",
    "producer_ttl": "Seconds that the last commit of a producer is remembered.",
    "idempotency_window": "Seconds for which a request with an Idempotency-Key is remembered.",
}

ZAQARS: Final = {"max_messages_per_page": 20, "max_messages_per_claim_or_pop": 20}
"""What the sample configuration sets instead of the default."""

BOUNDS: Final[dict[str, tuple[int | str, int | str | None]]] = {
    "default_message_ttl": (MIN_TTL, "max_message_ttl"),
    "default_message_delay": (0, "max_message_delay"),
    "default_claim_ttl": (MIN_TTL, "max_claim_ttl"),
    "default_claim_grace": (MIN_TTL, "max_claim_grace"),
    "min_length_client_id": (1, "max_length_client_id"),
    "idempotency_window": (MIN_TTL, MAX_WINDOW),
    "max_wait": (0, MAX_WAIT),
    "stage_ttl": (MIN_TTL, MAX_REMEMBERED),
    "producer_ttl": (MIN_TTL, MAX_REMEMBERED),
    "max_message_ttl": (MIN_TTL, MAX_LIFE),
    "max_claim_ttl": (MIN_TTL, MAX_LIFE),
    "max_claim_grace": (MIN_TTL, MAX_LIFE),
    "max_message_delay": (0, MAX_LIFE),
    "max_queues_per_page": (1, None),
    "max_messages_per_page": (1, None),
    "max_messages_per_claim_or_pop": (1, None),
    "max_answer_bytes": ("max_messages_post_size", None),
    "max_messages_per_post": (1, None),
    "max_stage_messages": (1, None),
    "max_commit_messages": (1, None),
    "commit_slice": (1, None),
    "max_metadata_walk": (1, None),
}
"""Of [transport]: the least and the most; a name is that of the option whose value it is. The others: from 0."""


def _integer(name: str, default: int, low: int, high: int, text: str) -> cfg.Opt:
    """An option that is read again on SIGHUP."""
    return cfg.IntOpt(name, default=default, min=low, max=high, mutable=True, help=text)


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
        cfg.BoolOpt(
            "trust_network",
            default=False,
            help="Serve though nobody is authenticated: beyond this machine, with admin_mode, under any Host, and with "
            "the roles that callers name. Each start warns of it.",
        ),
        cfg.ListOpt(
            "allowed_hosts",
            default=[],
            sample_default=["queues.example.org"],
            mutable=True,
            help="Names, without ports, that the header Host may have besides addresses and localhost; with "
            "trust_network it may have any. Between several a comma.",
        ),
        cfg.IntOpt("threads", default=64, min=9, max=4096, help="Requests that one process works on at once."),
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
            help="Seconds for which a server that was told to end still takes requests, while its /readyz says "
            "stopping and answers close their connections.",
        ),
        cfg.IntOpt("keepalive", default=65, min=0, help="Seconds that an idle connection is kept open."),
        cfg.FloatOpt(
            "head_timeout",
            default=10.0,
            min=0.1,
            max=3600,
            help="Seconds within which the whole head of a request must come, on a new connection from its beginning.",
        ),
        cfg.FloatOpt(
            "body_timeout",
            default=10.0,
            min=0.1,
            max=3600,
            help="Seconds within which a body must come, and one more for each 10,000 bytes of it that have come.",
        ),
        cfg.FloatOpt(
            "send_timeout",
            default=30.0,
            min=0.1,
            max=3600,
            help="Seconds after which a client that takes nothing of its answer is hung up on. For all of it there is "
            "one more for each 10,000 bytes.",
        ),
        cfg.FloatOpt(
            "queue_timeout",
            default=5.0,
            min=0.1,
            max=3600,
            help="Seconds that a request may wait for a thread: it is refused then with 503, and new ones at once as "
            "long as others wait so long.",
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
            help="Connections of one process from one address, of IPv6 from one /64 network. With Granian those "
            "without a request under way count.",
        ),
        cfg.BoolOpt(
            "behind_proxy",
            default=False,
            help="Only proxies connect, so max_connections_per_address does not apply: bound clients there.",
        ),
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
        *[
            cfg.IntOpt(
                name,
                default=getattr(LIMITS, name),
                sample_default=ZAQARS.get(name),
                min=0,
                mutable=name == "default_message_ttl",
                help=text,
            )
            for name, text in LIMIT_HELP.items()
        ],
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
            help="Seconds after which a step on a store on the network that does not answer ends with 503; a request "
            "that waits, or takes several steps, may take longer.",
        ),
        cfg.BoolOpt(
            "message_delete_with_claim_id",
            default=False,
            help="Deleting messages by ids needs their claim ids as well.",
        ),
    ],
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
        _integer(
            "max_queues",
            1000,
            1,
            100_000,
            "Most queues whose messages are counted; with per_queue, most that have figures of their own.",
        ),
        _integer(
            "max_counted", 10_000, 1, 10_000_000, "Messages of a queue and state up to which they are counted exactly."
        ),
    ],
}


def variable(group: str, option: str) -> str:
    """The environment variable that sets an option."""
    return f"OS_{group.upper()}__{option.upper()}"
