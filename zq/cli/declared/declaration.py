# SPDX-License-Identifier: Apache-2.0
"""The data types of a declaration file, and checks of the references between its objects."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec
from msgspec import Struct

from zq import wire
from zq.cli.declared.document import FileErrors, Json, read_yaml
from zq.cli.declared.schema import form_errors
from zq.cli.output import as_text
from zq.client.warnings import did_you_mean
from zq.errors import Invalid
from zq.model import store_uri
from zq.model.limits import Limits
from zq.model.scopes import parse
from zq.wire.metadata import check_retry_span

# Maximum number of errors to report. Each may need a search for a similar name.
MAX_ERRORS: Final = 20
DEAD_LETTERS_KEY: Final = "_dead_letter_queue"
# Metadata key of a queue for SQS clients. An SQS queue may be its own dead-letter queue.
SQS_KEY: Final = "_sqs"


class Resource(Struct, omit_defaults=True, frozen=True):
    """The declaration of a queue or topic."""

    settings: Json = {}


class Subscription(Struct, omit_defaults=True, frozen=True):
    """The declaration of a subscription to a queue or a topic. Either ``queue`` or ``topic`` is empty."""

    queue: str = ""
    topic: str = ""
    subscriber: str = ""
    ttl: int = 0
    options: Json = {}

    @property
    def label(self) -> str:
        """The source and the subscriber, which identify the subscription."""
        return f"{f'queue {self.queue}' if self.queue else f'topic {self.topic}'} {self.subscriber}"


class Pool(Struct, omit_defaults=True, frozen=True):
    uri: str
    weight: int
    options: Json = {}


class Flavor(Struct, omit_defaults=True, frozen=True):
    pools: list[str]


class ProjectQuota(Struct, frozen=True):
    limits: dict[str, int]


class Token(Struct, omit_defaults=True, frozen=True):
    """The declaration of a token. ``days`` is the lifetime of a new token; ``None`` = the server's default."""

    scopes: list[str] | None = None
    roles: list[str] = []
    days: int | None = None


class Declaration(Struct, omit_defaults=True, frozen=True, kw_only=True):
    """The content of a declaration file. A section that the file does not contain is ``None``."""

    version: int
    quotas: dict[str, ProjectQuota] | None = None
    pools: dict[str, Pool] | None = None
    flavors: dict[str, Flavor] | None = None
    queues: dict[str, Resource] | None = None
    topics: dict[str, Resource] | None = None
    subscriptions: list[Subscription] | None = None
    tokens: dict[str, Token] | None = None


def read_declaration(content: bytes, limits: Limits) -> Declaration:
    """Parse a declaration file, and check its syntax, its schema and its references."""
    given = read_yaml(content)
    _refuse(form_errors(given, limits))
    assert isinstance(given, dict)  # ensured by the schema
    for section in ("queues", "topics", "tokens"):
        if section in given:
            given[section] = {name: _without_nulls(entry or {}) for name, entry in given[section].items()}
    declared = msgspec.convert(given, Declaration)
    _refuse(_reference_errors(declared, limits))
    return declared


def _refuse(errors: Iterable[str]) -> None:
    found = [*islice(errors, MAX_ERRORS + 1)]
    if len(found) > MAX_ERRORS:
        found[MAX_ERRORS:] = ["Further errors are not shown."]
    if found:
        raise FileErrors([*dict.fromkeys(found)])


def _without_nulls(entry: Json) -> Json:
    return {key: value for key, value in entry.items() if value is not None}


def _reference_errors(declared: Declaration, limits: Limits) -> Iterator[str]:
    """Yield the errors that a JSON Schema cannot detect, such as references to undeclared names."""
    for section in ("queues", "topics"):
        for name, entry in (getattr(declared, section) or {}).items():
            yield from _settings_errors(f"{section}.{name}.settings", entry.settings, limits)
    yield from _subscription_errors(declared)
    yield from _pool_errors(declared)
    for name, entry in (declared.queues or {}).items():
        path = f"queues.{name}.settings"
        if entry.settings.get(DEAD_LETTERS_KEY) == name and SQS_KEY not in entry.settings:
            yield f"{path}.{DEAD_LETTERS_KEY} must not be the queue itself."
        flavor = as_text(entry.settings.get("_flavor") or "")
        if declared.flavors is not None and flavor and flavor not in declared.flavors:
            yield f"{path}._flavor: the file has no flavor {flavor}{did_you_mean(flavor, declared.flavors)}"
    for name, token in (declared.tokens or {}).items():
        try:
            parse(token.scopes)
        except Invalid as error:
            yield f"tokens.{name}.scopes: {error}"


def _settings_errors(path: str, settings: Json, limits: Limits) -> Iterator[str]:
    size = len(wire.encode(_without_nulls(settings)))
    if size > limits.max_queue_metadata:
        yield f"{path} must be at most {limits.max_queue_metadata} bytes as JSON; it is {size}."
    try:
        check_retry_span(settings.get("_retry_policy") or {}, f"{path}._retry_policy")
    except Invalid as error:
        yield str(error)


def _subscription_errors(declared: Declaration) -> Iterator[str]:
    first: dict[str, int] = {}
    for index, entry in enumerate(declared.subscriptions or []):
        path = f"subscriptions[{index}]"
        if bool(entry.queue) == bool(entry.topic):
            yield f"{path} must have either queue or topic."
            continue
        word = "queue" if entry.queue else "topic"
        name = entry.queue or entry.topic
        known = getattr(declared, f"{word}s") or {}
        if name not in known:
            yield f"{path}.{word}: the file has no {word} {name}{did_you_mean(name, known)}"
        earlier = first.setdefault(entry.label, index)
        if earlier != index:
            yield f"{path} repeats subscriptions[{earlier}]: a subscriber can have only one subscription to a {word}."


def _pool_errors(declared: Declaration) -> Iterator[str]:
    for name, pool in (declared.pools or {}).items():
        try:
            store_uri.split(pool.uri)
        except ValueError:
            yield f"pools.{name}.uri is not a valid URI."
    owners: dict[str, str] = {}
    for flavor, entry in (declared.flavors or {}).items():
        for index, pool_name in enumerate(entry.pools):
            path = f"flavors.{flavor}.pools[{index}]"
            if declared.pools is not None and pool_name not in declared.pools:
                yield f"{path}: the file has no pool {pool_name}{did_you_mean(pool_name, declared.pools)}"
            owner = owners.setdefault(pool_name, flavor)
            if owner != flavor:
                yield f"{path}: the pool {pool_name} already has the flavor {owner}."
