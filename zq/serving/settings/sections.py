# SPDX-License-Identifier: Apache-2.0
"""The configuration sections of the core. Features and drivers declare their own sections next to their code.

The docstring of an option is its description in the sample file and in ``configuration.md``.
"""

from typing import Annotated

from msgspec import Struct

from zq.model.limits import DEFAULT_KEEP, MIN_KEEP
from zq.model.options import Flag, Natural, Option, Port, Positive, Text
from zq.model.topics import Retention


class GeneralOptions(Struct, frozen=True, kw_only=True):
    """The options of section ``[DEFAULT]``, except those of authentication."""

    admin_mode: Flag = False
    """Serve the administrator routes."""
    enable_checksum: Flag = False
    """Store an MD5 checksum with each message and return it."""
    pooling: Flag = False
    """Distribute queues over several stores: [storage] uri is the catalogue, the others are pools."""
    quota_headers: Annotated[bool, Option(reload=True, name="headers", section="quota")] = True
    """Return the remaining rates in RateLimit headers."""


class CatalogOptions(Struct, frozen=True, kw_only=True):
    """The options of section ``[pooling:catalog]``."""

    enable_virtual_pool: Flag = False
    """Create queues without a matching pool in the store of [storage] uri."""
    allowed_hosts: Annotated[tuple[str, ...], Option(reload=True, sample=("redis-1.example.org",))] = ()
    """Hosts, with or without port, that pool URIs may name, separated by commas. rocksdb: and memory: allow embedded
    pools, which only a single server can use."""
    queue_moves: Flag = False
    """Move queues between pools. All servers need the same value."""


class ServerOptions(Struct, frozen=True, kw_only=True):
    """The options of section ``[server]``."""

    bind: Text = "127.0.0.1"
    """Address to listen on."""
    port: Port = 8888
    """Port to listen on."""
    engine: Annotated[str, Option(choices=("auto", "gunicorn", "granian"))] = "auto"
    """HTTP server. auto: Granian if it is installed (faster), else gunicorn; with [auth] certificates always
    gunicorn."""
    trust_network: Flag = False
    """Allow operation without authentication on addresses beyond this machine, with admin_mode and with roles from
    request headers. Each start logs a warning."""
    allowed_hosts: Annotated[tuple[str, ...], Option(reload=True, sample=("queues.example.org",))] = ()
    """Allowed names in the Host header, without ports, separated by commas; addresses and localhost are always allowed.
    * allows any name. With an auth_strategy any name is allowed."""
    control: Text = ""
    """Path of the Unix socket through which zq-server token reaches a server with an embedded store; none: no socket.
    Default: control.sock in the store directory."""
    tls_cert: Text = ""
    """Serve TLS: a PEM file with the certificate, followed by its intermediate certificates. Reloaded on SIGHUP."""
    tls_key: Text = ""
    """Private key of tls_cert (PEM, PKCS #8, without a password)."""
    tls_client_ca: Text = ""
    """CA certificates (PEM): only clients with a certificate from one of these authorities may connect."""
    tls_min: Annotated[str, Option(choices=("1.2", "1.3"))] = "1.2"
    """Minimum TLS version."""
    threads: Annotated[int | None, Option(9, 4096)] = None
    """Number of request threads per process. Default with Granian: 24. With gunicorn each request holds a thread, even
    while it waits; default: 64."""
    max_waiters: Annotated[int | None, Option(0)] = None
    """Maximum number of waiting requests per process. Default with Granian: 10000. With gunicorn each holds a thread,
    and max_waiters + max_streams must be at most threads - 8; default: 40, or less with few threads."""
    max_streams: Annotated[int | None, Option(0)] = None
    """Maximum number of open streams per process. Default with Granian: 2000. With gunicorn each holds a thread, and
    max_waiters + max_streams must be at most threads - 8; default: 16, or less with few threads."""
    workers: Annotated[int, Option(1, 256)] = 1
    """Number of worker processes. The embedded store allows only one."""
    graceful_timeout: Positive = 30
    """Seconds that running requests get to finish on shutdown."""
    drain_delay: Annotated[int, Option(0, 3600)] = 0
    """Seconds for which the server still accepts requests after SIGTERM. Meanwhile /readyz reports stopping and each
    response closes its connection. Only with Granian."""
    keepalive: Natural = 65
    """Seconds for which gunicorn keeps an idle connection open. Granian uses head_timeout."""
    head_timeout: Annotated[float, Option(0.1, 3600)] = 10.0
    """Maximum seconds until the head of a request is complete, including the time a connection was idle before. Only
    with Granian."""
    body_timeout: Annotated[float, Option(0.1, 3600)] = 10.0
    """Maximum seconds until a request body is complete, plus one second per 10,000 bytes received. Only with
    Granian."""
    send_timeout: Annotated[float, Option(0.1, 3600)] = 30.0
    """Seconds after which a long response is aborted if the client reads nothing. Only with Granian."""
    queue_timeout: Annotated[float, Option(0.1, 3600)] = 5.0
    """Maximum seconds that a request waits for a thread before the server answers 503. While requests wait this long,
    new ones are rejected at once. Only with Granian."""
    max_connections: Annotated[int, Option(16, 1_000_000)] = 4096
    """Maximum number of connections per process. Granian allows max_waiters and max_streams connections in addition."""
    max_connections_per_address: Annotated[int, Option(1, 1_000_000)] = 2048
    """Maximum number of concurrent requests per process from one IPv4 address or one IPv6 /64 network; further requests
    get 503. Only with Granian."""
    behind_proxy: Flag = False
    """Only proxies connect to the server, so max_connections_per_address does not apply; limit clients in the proxy.
    gunicorn requires this option to listen beyond this machine, because a slow client holds a thread."""


class StorageOptions(Struct, frozen=True, kw_only=True):
    """The options of section ``[storage]``."""

    uri: Annotated[str, Option(secret=True)] = "rocksdb:var/zq"
    """Store URI; its scheme selects the driver: rocksdb:///var/lib/zq, mongodb://host/zq?replicaSet=rs0,
    redis://host/0, swift://container/prefix."""
    wait: Flag = False
    """Wait at start until the store is available, like --wait-for-store."""


class TransportOptions(Struct, frozen=True, kw_only=True):
    """The options of section ``[transport]``, except the limits."""

    client_id_uuid_safe: Annotated[str, Option(choices=("strict", "off"))] = "strict"
    """strict: a Client-ID must be a UUID. off: any text within the length limits."""
    storage_timeout: Annotated[float, Option(0.1, 600)] = 5.0
    """Seconds after which a call to a networked store is aborted; the server then answers 503. A request that waits or
    makes several calls may take longer."""
    message_encryption_key_file: Text = ""
    """A file (mode 0600 or 0640) with one key per line: an id and 32 bytes in base64. The first key encrypts the
    messages of queues with _enable_encrypt_messages; all keys decrypt. Empty: encryption is unavailable. Reloaded on
    SIGHUP."""
    message_delete_with_claim_id: Flag = False
    """Require claim ids when messages are deleted by id."""
    queue_ttl: Annotated[
        tuple[str, ...], Option(reload=True, repeats=True, sample=("mqtt-*: 86400",), section="expiry")
    ] = ()
    """Default TTL of messages by queue name: a pattern (* any characters, ? one character), a colon, and seconds. It
    applies to messages without a ttl in queues without a default. Repeat the option for several patterns; the first
    match applies."""


class TopicOptions(Struct, frozen=True, kw_only=True):
    """The options of section ``[topics]``."""

    topic_log_bytes: Annotated[int, Option(MIN_KEEP.size, 1 << 50, reload=True)] = DEFAULT_KEEP.size
    """Maximum bytes of messages in the topic log of a project; the oldest messages are trimmed. At least twice
    max_messages_post_size."""
    topic_log_messages: Annotated[int, Option(MIN_KEEP.messages, 1_000_000_000, reload=True)] = DEFAULT_KEEP.messages
    """Maximum number of messages in the topic log of a project; the oldest are trimmed."""

    @property
    def retention(self) -> Retention:
        """The retention of each project's log."""
        return Retention(self.topic_log_bytes, self.topic_log_messages)


class ProbeOptions(Struct, frozen=True, kw_only=True):
    """The options of section ``[probes]``."""

    bind: Annotated[str, Option(sample="127.0.0.1:8887")] = ""
    """Additional address and port for /healthz and /readyz, served by threads of their own even if all request threads
    are busy. Empty: none."""


class MetricsOptions(Struct, frozen=True, kw_only=True):
    """The options of section ``[metrics]``."""

    bind: Text = "127.0.0.1"
    """Address of the metrics listener, which serves /metrics."""
    port: Port = 8889
    """Port of the metrics listener; 0: none. If the port is in use, for example by another server on this machine, the
    server retries every second."""
    on_main_port: Flag = False
    """Also serve /metrics on the address of [server], with an auth_strategy to administrators only."""
    token_file: Text = ""
    """A file (mode 0600 or 0640) with the token that /metrics of this listener requires as Authorization: Bearer.
    Empty: none. Reloaded on SIGHUP."""
    per_queue: Annotated[bool, Option(reload=True)] = False
    """Report metrics per queue instead of totals."""
    max_queues: Annotated[int, Option(1, 100_000, reload=True)] = 1000
    """Maximum number of queues whose messages are counted. With per_queue, only these queues have their own metrics."""
    max_counted: Annotated[int, Option(1, 10_000_000, reload=True)] = 10_000
    """Maximum number of messages that are counted per queue and state."""
