# SPDX-License-Identifier: Apache-2.0
"""Parsing and validation of the data source's options."""

import atexit
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from zq.client import Client, Retries
from zq.client.credentials import read_token_file
from zq.errors import Invalid
from zq.model.attributes import trace_context

# Options of all sources and the sink. Spark itself sets the last three.
COMMON_OPTIONS: Final = (
    *("url", "project", "token", "tokenFile", "clientId", "retryFor"),
    *("queue", "path", "checkpointLocation", "queryName"),
)
# Options of sources without claims.
READING: Final = ("topic", "state", "bodyType", "numPartitions")
# Further options of each source and of the sink.
ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "spark.read": (*READING, "pushdown"),
    "a stream in mode claim": (
        *("mode", "consumer", "maxMessagesPerBatch", "claimSize", "claimTtl", "wait", "bodyType", "numPartitions"),
        "topic",  # rejected with a hint
    ),
    "a stream in mode tail": (*(*READING, "mode", "maxMessagesPerBatch", "wait", "startingOffset", "failOnDataLoss"),),
    "the sink": (
        *("producer", "idempotencyKey", "ackColumn", "bodyColumn", "queueColumn", "ttlColumn", "delayColumn"),
        *("attributesColumn", "traceparent"),
        *("ttl", "delay", "topic"),
    ),
}
# Option names by their lower-case forms, which Spark passes.
NAMES: Final = {name.lower(): name for names in (COMMON_OPTIONS, *ROLES.values()) for name in names}
# Error message for the option ``idColumn``, which sinks of other systems have.
NO_ID_COLUMN: Final = (
    "Option idColumn is not needed: failed and repeated tasks have no effect, and idempotencyKey makes a repeated "
    "job harmless."
)
# Values of bodyType.
BODY_TYPES: Final = ("string", "binary", "variant")
# Pattern of valid consumer and producer names.
NAME: Final = re.compile(r"(?!\.+$)[A-Za-z0-9_.-]{1,64}")


class OptionParser:
    """A parser for the options that Spark passes. Names are case-insensitive. Raises ``Invalid`` for unknown names."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts = {name.lower(): value for name, value in options.items()}
        for name in self._texts:
            if name == "idcolumn":
                raise Invalid(NO_ID_COLUMN)
            if name not in NAMES:
                near = [NAMES[found] for found in get_close_matches(name, NAMES, 1)]
                raise Invalid(f"There is no option {name}." + (f" Did you mean {near[0]}?" if near else ""))

    def check_role(self, role: str) -> None:
        """Raise ``Invalid`` if a given option has no effect on ``role``, which is a kind of source or sink."""
        for name in self._texts:
            if NAMES[name] not in (*COMMON_OPTIONS, *ROLES[role]):
                raise Invalid(f"Option {NAMES[name]} has no effect on {role}.")

    def text(self, name: str) -> str | None:
        return self._texts.get(name.lower()) or None

    def required(self, name: str, why: str) -> str:
        """Return the value of a required option. If the option is missing, raise ``Invalid`` with ``why``."""
        text = self.text(name)
        if text is None:
            raise Invalid(f"Option {name} is missing: {why}")
        return text

    def integer(self, name: str, default: Any, minimum: int, maximum: int = 2**63 - 1) -> Any:
        """Return the value of an integer option, or ``default`` if the option is not set.

        Raises ``Invalid`` if the value is not an integer or out of range.
        """
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch(r"-?[0-9]{1,19}", text) or not minimum <= int(text) <= maximum:
            raise Invalid(f"Option {name} must be an integer from {minimum} to {maximum}, not {text}.")
        return int(text)

    def choice(self, name: str, *choices: str) -> str:
        """Return the value of an option that must be one of ``choices``. The first choice is the default.

        Raises ``Invalid`` for any other value.
        """
        text = self.text(name) or choices[0]
        if text.lower() not in choices:
            raise Invalid(f"Option {name} must be one of {', '.join(choices)}, not {text}.")
        return text.lower()

    def name(self, name: str) -> str | None:
        """Return the value of an option for a claim or producer name. Raises ``Invalid`` if the name is not valid."""
        text = self.text(name)
        if text is not None and not NAME.fullmatch(text):
            raise Invalid(
                f"Option {name} must be 1 to 64 characters from A-Z a-z 0-9 _ - and the dot, and not only dots."
            )
        return text


@dataclass(frozen=True)
class Connection:
    """Connection settings that Spark can pickle and send to its workers, unlike a client."""

    url: str
    project: str
    token: str | None = field(repr=False)
    client_id: str | None
    retry_for: int
    token_file: str | None = None
    """Path of a token file. Each process reads the file, so that Spark does not transfer the token."""

    def client(self) -> Client:
        """Return this process's shared client, or a new client if the token file has changed."""
        return _client(self, self.secret())

    def secret(self) -> str | None:
        """Return the token, or ``None`` to use this process's environment. Raises ``Invalid`` for a bad token file."""
        return read_token_file(Path(self.token_file)) if self.token_file else self.token


@lru_cache(maxsize=32)
def _client(connection: Connection, token: str | None) -> Client:
    retries = Retries(attempts=1000, deadline=connection.retry_for)
    client = Client(
        connection.url,
        connection.project,
        connection.client_id,
        timeout=30,
        retries=retries,
        token=token,
    )
    atexit.register(client.close)
    return client


def parse_connection(parser: OptionParser) -> Connection:
    """Parse the connection settings. Raises ``Invalid`` if an option is missing or not valid."""
    url = parser.required("url", "set it to the URL of the server, such as http://localhost:8888.")
    if not url.startswith(("http://", "https://")):
        raise Invalid("Option url must begin with http:// or https://.")
    project = parser.required("project", "set it to the project of the queues.")
    token, file = parser.text("token"), parser.text("tokenFile")
    if token and file:
        raise Invalid("Options token and tokenFile are both set: give only one of them.")
    return Connection(url, project, token, parser.text("clientId"), parser.integer("retryFor", 60, 0), file)


@dataclass(frozen=True)
class SinkOptions:
    """The options of the sink. Most of them are names of columns."""

    connection: Connection
    queue: str | None
    producer: str | None
    """Producer name of the commits. Default: the query id of a stream, or a new name for a batch job."""
    body: str
    ack: str | None
    queues: str | None
    ttls: str | None
    delays: str | None
    attributes: str | None
    trace: str | None
    """Traceparent of rows without one, the same for all batches of a stream.

    The sink derives none per batch: tasks run in other processes than the driver's spans, and an invented span id would
    link consumers to a span that does not exist. With ``foreachBatch``, the driver can pass the span of each batch.
    """
    ttl: int | None
    delay: int | None


def parse_sink_options(parser: OptionParser, stream: bool) -> SinkOptions:
    """Parse the options of the sink. Raises ``Invalid`` if an option is missing or not valid."""
    queue, queues = parser.text("queue") or parser.text("path"), parser.text("queueColumn")
    if queue is None and queues is None:
        raise Invalid("Option queue is missing: set it to the target queue, or set queueColumn.")
    if parser.text("topic"):
        raise Invalid("Option topic is not supported by the sink: stages and commits are for queues.")
    key = "producer" if stream else "idempotencyKey"
    if parser.text("idempotencyKey" if stream else "producer"):
        raise Invalid("Option idempotencyKey is for batch jobs; use option producer for streams.")
    trace = parser.text("traceparent")
    if trace and not trace_context(trace, ""):
        raise Invalid(f"Option traceparent must be valid under W3C Trace Context, not {trace}.")
    return SinkOptions(
        parse_connection(parser),
        queue,
        parser.name(key) or (None if stream else f"job-{uuid4().hex}"),
        parser.text("bodyColumn") or "body",
        parser.text("ackColumn"),
        queues,
        parser.text("ttlColumn"),
        parser.text("delayColumn"),
        parser.text("attributesColumn"),
        trace,
        parser.integer("ttl", None, 1),
        parser.integer("delay", None, 0),
    )


@dataclass(frozen=True)
class ClaimingOptions:
    """The options of a streaming source in claim mode, which consumes messages."""

    connection: Connection
    queue: str
    consumer: str
    body: str
    max_messages: int
    claim_size: int | None
    """Maximum number of messages per claim. Default: the server's limit."""
    ttl: int
    wait: int
    partitions: int


@dataclass(frozen=True)
class ReadingOptions:
    """The options of a source that reads messages without claiming them."""

    connection: Connection
    name: str
    state: str
    """"live", "all", "history" or "topic"."""
    body: str
    partitions: int
    filtered: bool
    max_messages: int
    wait: int
    start: int | None
    """Start position; ``None`` = the current end of the log."""
    strict: bool


def is_claim_mode(parser: OptionParser) -> bool:
    """Return ``True`` if the options select a stream in claim mode, which consumes messages."""
    return parser.choice("mode", "claim", "tail") == "claim" and parser.text("consumer") is not None


def parse_source_state(parser: OptionParser) -> str:
    """Return the option ``state``, which selects the messages to read from a queue without claiming them.

    For a topic, return "topic". Raises ``Invalid`` if the value is not valid.
    """
    if parser.text("topic"):
        return "topic"
    if parser.choice("mode", "claim", "tail") == "tail":
        return parser.choice("state", "all", "history")
    return parser.choice("state", "live", "all", "history")


def parse_body_type(parser: OptionParser) -> str:
    return parser.choice("bodyType", *BODY_TYPES)


def parse_reading_options(parser: OptionParser) -> ReadingOptions:
    """Parse the options of a source that reads messages without claiming them.

    Raises ``Invalid`` if an option is missing or not valid.
    """
    if parser.text("topic") and (parser.text("queue") or parser.text("path")):
        raise Invalid("Option topic and a queue are both set: a source reads only one of them.")
    start = parser.text("startingOffset") or "earliest"
    if start in ("earliest", "latest"):
        position = 0 if start == "earliest" else None
    else:
        position = parser.integer("startingOffset", 0, 0)
    return ReadingOptions(
        parse_connection(parser),
        parser.text("topic") or parse_source_queue(parser),
        parse_source_state(parser),
        parse_body_type(parser),
        parser.integer("numPartitions", 4, 1, 1000),
        parser.choice("pushdown", "false", "true") == "true",
        parser.integer("maxMessagesPerBatch", 10_000, 1),
        parser.integer("wait", 5, 0, 30),
        position,
        parser.choice("failOnDataLoss", "true", "false") == "true",
    )


def parse_claiming_options(parser: OptionParser) -> ClaimingOptions:
    """Parse the options of a source in claim mode. Raises ``Invalid`` if an option is missing or not valid."""
    if parser.text("topic"):
        raise Invalid("Option topic requires the option mode=tail, because topic messages cannot be claimed.")
    consumer = parser.name("consumer")
    if consumer is None:
        raise Invalid(
            "Option consumer is missing: set it to a name. After a restart, the stream finds its claims by this name."
        )
    return ClaimingOptions(
        parse_connection(parser),
        parse_source_queue(parser),
        consumer,
        parse_body_type(parser),
        parser.integer("maxMessagesPerBatch", 10_000, 1),
        parser.integer("claimSize", None, 1),
        parser.integer("claimTtl", 300, 60),
        parser.integer("wait", 5, 0, 30),
        parser.integer("numPartitions", 4, 1, 1000),
    )


def parse_source_queue(parser: OptionParser) -> str:
    """Return the queue that a source reads. Raises ``Invalid`` if no queue is given."""
    return parser.text("queue") or parser.required("path", "give option queue, or the queue's name to load().")
