# SPDX-License-Identifier: Apache-2.0
"""Options of the data source, read once and refused with a sentence that names the option."""

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

# Options of every role; the last three come from Spark itself.
COMMON: Final = (
    *("url", "project", "token", "tokenFile", "clientId", "retryFor"),
    *("queue", "path", "checkpointLocation", "queryName"),
)
# Options of batch reads and of tails.
READING: Final = ("topic", "state", "bodyType", "numPartitions")
# By role, the other options.
ROLES: Final[Mapping[str, tuple[str, ...]]] = {
    "spark.read": (*READING, "pushdown"),
    "a stream in mode claim": (
        *("mode", "consumer", "maxMessagesPerBatch", "claimSize", "claimTtl", "wait", "bodyType", "numPartitions"),
        "topic",  # refused with a hint
    ),
    "a stream in mode tail": (*(*READING, "mode", "maxMessagesPerBatch", "wait", "startingOffset", "failOnDataLoss"),),
    "the sink": (
        *("producer", "idempotencyKey", "ackColumn", "bodyColumn", "queueColumn", "ttlColumn", "delayColumn"),
        "attributesColumn",
        *("ttl", "delay", "topic"),
    ),
}
# Names by their lower case, as Spark passes them.
NAMES: Final = {name.lower(): name for names in (COMMON, *ROLES.values()) for name in names}
# The sentence about an option of other sinks.
STAGES_DO: Final = (
    "Option idColumn is not needed: a failed or repeated task leaves nothing behind, and idempotencyKey makes a job "
    "that is run again do nothing."
)
# Values of bodyType.
BODY_TYPES: Final = ("string", "binary", "variant")
# The name of a queue or a topic.
NAME: Final = re.compile(r"(?!\.+$)[A-Za-z0-9_.-]{1,64}")


class Given:
    """Options as Spark hands them over: names in any case, values as text. Raises ``Invalid`` for unknown names."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts = {name.lower(): value for name, value in options.items()}
        for name in self._texts:
            if name == "idcolumn":
                raise Invalid(STAGES_DO)
            if name not in NAMES:
                near = [NAMES[found] for found in get_close_matches(name, NAMES, 1)]
                raise Invalid(f"There is no option {name}." + (f" Is {near[0]} meant?" if near else ""))

    def check_role(self, role: str) -> None:
        """Refuse what is known and has no effect on this. Raises ``Invalid``."""
        for name in self._texts:
            if NAMES[name] not in (*COMMON, *ROLES[role]):
                raise Invalid(f"Option {NAMES[name]} has no effect on {role}.")

    def text(self, name: str) -> str | None:
        """What was given; None if nothing was."""
        return self._texts.get(name.lower()) or None

    def needed(self, name: str, why: str) -> str:
        """What was given. ``why``: the end of the sentence otherwise."""
        text = self.text(name)
        if text is None:
            raise Invalid(f"Option {name} is missing: {why}")
        return text

    def integer(self, name: str, default: Any, least: int, most: int = 2**63 - 1) -> Any:
        """A number between the bounds, or the default."""
        text = self.text(name)
        if text is None:
            return default
        if not re.fullmatch(r"-?[0-9]{1,19}", text) or not least <= int(text) <= most:
            raise Invalid(f"Option {name} must be an integer from {least} to {most}, not {text}.")
        return int(text)

    def choice(self, name: str, *choices: str) -> str:
        """One of them; the first if nothing was given."""
        text = self.text(name) or choices[0]
        if text.lower() not in choices:
            raise Invalid(f"Option {name} must be one of {', '.join(choices)}, not {text}.")
        return text.lower()

    def name(self, name: str) -> str | None:
        """A name that the server takes as part of a claim's, a stage's or a producer's."""
        text = self.text(name)
        if text is not None and not NAME.fullmatch(text):
            raise Invalid(f"Option {name} must have 1 to 64 characters of A-Z a-z 0-9 _ - . and not only dots.")
        return text


@dataclass(frozen=True)
class Connection:
    """Where the server is, and as whom to speak to it. It travels to other processes; clients do not."""

    url: str
    project: str
    token: str | None = field(repr=False)
    client_id: str | None
    retry_for: int
    token_file: str | None = None
    """Read by each process that connects, so that no secret travels."""

    def client(self) -> Client:
        """This process's client, with its open connections, which close when the process ends.

        Another one when the file has another token, for a process of Spark may live longer than a token.
        """
        return _client(self, self.secret())

    def secret(self) -> str | None:
        """The token; None = that of this process's environment. Raises ``Invalid`` for a file that is of no use."""
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


def connection(given: Given) -> Connection:
    """From the options that sources and the sink have in common."""
    url = given.needed("url", "it says where the server is, as in http://localhost:8888.")
    if not url.startswith(("http://", "https://")):
        raise Invalid("Option url must begin with http:// or https://.")
    project = given.needed("project", "it says whose queues are meant.")
    token, file = given.text("token"), given.text("tokenFile")
    if token and file:
        raise Invalid("Option token and option tokenFile are both given: one of them says who asks.")
    return Connection(url, project, token, given.text("clientId"), given.integer("retryFor", 60, 0), file)


@dataclass(frozen=True)
class SinkOptions:
    """Where rows go and which columns mean what."""

    connection: Connection
    queue: str | None
    producer: str | None
    """Under which batches count once; a stream's is its query id, a job's a new one, unless given."""
    body: str
    ack: str | None
    queues: str | None
    ttls: str | None
    delays: str | None
    attributes: str | None
    ttl: int | None
    delay: int | None


def sink_options(given: Given, stream: bool) -> SinkOptions:
    """Raises ``Invalid``."""
    queue, queues = given.text("queue") or given.text("path"), given.text("queueColumn")
    if queue is None and queues is None:
        raise Invalid("Option queue is missing: it says where the messages go; or give queueColumn.")
    if given.text("topic"):
        raise Invalid("Option topic is of no use to the sink: stages and commits are for queues.")
    key = "producer" if stream else "idempotencyKey"
    if given.text("idempotencyKey" if stream else "producer"):
        raise Invalid("Option idempotencyKey is for batch jobs, and option producer for streams.")
    return SinkOptions(
        connection(given),
        queue,
        given.name(key) or (None if stream else f"job-{uuid4().hex}"),
        given.text("bodyColumn") or "body",
        given.text("ackColumn"),
        queues,
        given.text("ttlColumn"),
        given.text("delayColumn"),
        given.text("attributesColumn"),
        given.integer("ttl", None, 1),
        given.integer("delay", None, 0),
    )


@dataclass(frozen=True)
class ClaimingOptions:
    """What a stream takes, and how."""

    connection: Connection
    queue: str
    consumer: str
    body: str
    most: int
    claim_size: int | None
    """None: as large as the server allows."""
    ttl: int
    wait: int
    partitions: int


@dataclass(frozen=True)
class ReadingOptions:
    """What is read without being taken."""

    connection: Connection
    name: str
    state: str
    """live, all, history, or topic."""
    body: str
    partitions: int
    filtered: bool
    most: int
    wait: int
    start: int | None
    """None: the end."""
    strict: bool


def claims(given: Given) -> bool:
    """Whether a source with these options shows what claims have, for all that is known before it is made."""
    return given.choice("mode", "claim", "tail") == "claim" and given.text("consumer") is not None


def state(given: Given) -> str:
    """What a source that does not claim reads."""
    if given.text("topic"):
        return "topic"
    if given.choice("mode", "claim", "tail") == "tail":
        return given.choice("state", "all", "history")
    return given.choice("state", "live", "all", "history")


def body_type(given: Given) -> str:
    """Of the column body."""
    return given.choice("bodyType", *BODY_TYPES)


def reading_options(given: Given) -> ReadingOptions:
    """Raises ``Invalid``."""
    if given.text("topic") and (given.text("queue") or given.text("path")):
        raise Invalid("Option topic and a queue are both given: a source reads one of them.")
    start = given.text("startingOffset") or "earliest"
    if start in ("earliest", "latest"):
        position = 0 if start == "earliest" else None
    else:
        position = given.integer("startingOffset", 0, 0)
    return ReadingOptions(
        connection(given),
        given.text("topic") or source_queue(given),
        state(given),
        body_type(given),
        given.integer("numPartitions", 4, 1, 1000),
        given.choice("pushdown", "false", "true") == "true",
        given.integer("maxMessagesPerBatch", 10_000, 1),
        given.integer("wait", 5, 0, 30),
        position,
        given.choice("failOnDataLoss", "true", "false") == "true",
    )


def claiming_options(given: Given) -> ClaimingOptions:
    """Raises ``Invalid``."""
    if given.text("topic"):
        raise Invalid("Option topic needs mode tail: nothing of a topic is taken away.")
    consumer = given.name("consumer")
    if consumer is None:
        raise Invalid("Option consumer is missing: it names the stream's claims, so that a restart finds them again.")
    return ClaimingOptions(
        connection(given),
        source_queue(given),
        consumer,
        body_type(given),
        given.integer("maxMessagesPerBatch", 10_000, 1),
        given.integer("claimSize", None, 1),
        given.integer("claimTtl", 300, 60),
        given.integer("wait", 5, 0, 30),
        given.integer("numPartitions", 4, 1, 1000),
    )


def source_queue(given: Given) -> str:
    """The queue to be read."""
    return given.text("queue") or given.needed("path", "give option queue, or the queue's name to load().")
