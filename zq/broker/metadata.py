# SPDX-License-Identifier: Apache-2.0
"""What a queue's metadata may hold and what they mean: reserved keys, their validation, patches, effective rules.

Contract 6.1, 6.5, extensions 4. Validation is by JSON Schema; it runs when metadata change, never when messages move.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from jsonschema import Draft4Validator, ValidationError
from msgspec import UNSET, Struct

from zq import wire
from zq.broker.lifetimes import Lifetimes
from zq.errors import InvalidBody, MetadataConflict, NotBuilt
from zq.limits import MIN_DELAY, MIN_TTL, Limits, is_queue_name, nesting
from zq.model import DeadLetters, QueueRef, Redelivery
from zq.storage.api import Storage

Metadata = dict[str, Any]

MOST_REMEMBERED: Final = 10_000
"""Queues whose metadata a server remembers."""
RECENT: Final = 1.0
"""Seconds for which ``Book.recent`` does not ask the store again."""
RETRY_INTEGERS: Final = (
    "retries_with_no_delay",
    "minimum_delay_retries",
    "minimum_delay",
    "maximum_delay",
    "maximum_delay_retries",
)
RETRY_POLICY: Final[Metadata] = {
    "properties": {
        **{name: {"type": "integer"} for name in RETRY_INTEGERS},
        "retry_backoff_function": {"enum": ["linear", "arithmetic", "geometric", "exponential"]},
        "ignore_subscription_override": {"type": "boolean"},
    },
    "type": "object",
}
"""What ``_retry_policy`` may be, as a JSON Schema."""


class Rules(Struct, frozen=True):
    """What a queue's ``metadata`` mean for its messages, defaults filled in but that of the ttl: ``Book.ttl``."""

    metadata: bytes
    own_ttl: int | None
    default_delay: int
    max_post_size: int
    dead_letter_queue: str
    dead_letter_ttl: int | None
    max_claim_count: int | None
    redelivery: Redelivery
    history_ttl: int

    def dead_letters(self, queue: QueueRef) -> DeadLetters | None:
        """Where messages of ``queue`` go that were claimed too often; None if nowhere (contract 8.6)."""
        if not self.dead_letter_queue or self.max_claim_count is None:
            return None
        target = QueueRef(queue.project, self.dead_letter_queue)
        return DeadLetters(target, self.max_claim_count, self.dead_letter_ttl, self.history_ttl)


class Book:
    """The rules that these limits make of metadata."""

    def __init__(
        self,
        limits: Limits,
        storage: Storage,
        monotonic: Callable[[], float] = time.monotonic,
        lifetimes: Lifetimes | None = None,
    ) -> None:
        self.lifetimes = lifetimes or Lifetimes(limits.default_message_ttl)
        self._shown = shown_defaults(limits)
        self._limits = limits
        self._validator = Draft4Validator(metadata_schema(limits))
        self.rules: Callable[[bytes], Rules] = lru_cache(maxsize=1024)(self._rules)
        """The rules that stored metadata mean; remembered, since every post and claim asks."""
        self._remembered: dict[QueueRef, Rules] = {}
        self._queues = storage.queues
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._recent: dict[QueueRef, tuple[float, Rules]] = {}
        self._changes = 0

    def remembered(self, queue: QueueRef) -> Rules | None:
        """The queue's rules as this server saw them last. They may have changed: only for what the store checks."""
        return self._remembered.get(queue)

    def remember(self, queue: QueueRef, metadata: bytes) -> Rules:
        """The rules that the queue's metadata mean, for next time."""
        if len(self._remembered) >= MOST_REMEMBERED:
            self._remembered.clear()
        rules = self._remembered[queue] = self.rules(metadata)
        return rules

    def recent(self, queue: QueueRef) -> Rules:
        """The queue's rules, at most ``RECENT`` seconds old; those without metadata for a missing queue.

        Exact about what this server changed. What every delete and pop asks for must not cost each a question.
        """
        known = self._recent.get(queue)
        if known is not None and self._monotonic() < known[0]:
            return known[1]
        changes, until = self._changes, self._monotonic() + RECENT
        stored = self._queues.get(queue)
        rules = self.rules(stored.metadata if stored else b"{}")
        with self._lock:
            if changes == self._changes:  # else the answer may be older than the change
                if len(self._recent) >= MOST_REMEMBERED:
                    self._recent.clear()
                self._recent[queue] = until, rules
        return rules

    def forget(self, queue: QueueRef) -> None:
        """This server has created, changed or deleted the queue."""
        self._remembered.pop(queue, None)
        with self._lock:
            self._changes += 1
            self._recent.pop(queue, None)

    def ttl(self, queue: QueueRef, rules: Rules) -> int:
        """How long the queue's messages live that do not say so. Asked for each post: options may change it."""
        return rules.own_ttl or self.lifetimes.of(queue.name)

    def shown(self, queue: str, metadata: Metadata) -> Metadata:
        """Metadata as a reader sees them: reserved keys that are unset or falsy have their defaults."""
        defaults = self._shown | {"_default_message_ttl": self.lifetimes.of(queue)}
        return metadata | {key: metadata.get(key) or default for key, default in defaults.items()}

    def check(self, metadata: Metadata, queue: str) -> None:
        """Raise ``InvalidBody`` for the first reserved key whose value breaks its rule, ``NotBuilt`` for encryption."""
        nesting("metadata", metadata)
        retry_policy = metadata.get("_retry_policy")
        given = {key: value for key, value in metadata.items() if key != "_retry_policy" or retry_policy}
        for error in sorted(self._validator.iter_errors(given), key=lambda error: list(map(str, error.path))):
            raise InvalidBody(_sentence(error))
        if metadata.get("_dead_letter_queue") == queue:
            raise InvalidBody("_dead_letter_queue must not name its own queue.")
        _check_retry_span(retry_policy or {})
        if metadata.get("_enable_encrypt_messages"):
            raise NotBuilt("_enable_encrypt_messages: this version of zq does not encrypt messages yet.")

    def patched(self, metadata: Metadata, operations: Sequence[wire.Operation]) -> Metadata:
        """A copy with the operations applied in order. Raises ``InvalidBody``, ``MetadataConflict``."""
        result = dict(metadata)
        for operation, key in [(operation, _key(operation)) for operation in operations]:
            missing = key not in result and key not in self._shown
            if missing and operation.op != "add":
                raise MetadataConflict(f"The queue has no metadata key {key!r} to {operation.op}.")
            if operation.op == "remove":
                result.pop(key, None)
            else:
                result[key] = operation.value
        return result

    def _rules(self, raw: bytes) -> Rules:
        metadata = wire.json_object(raw)
        target, count = metadata.get("_dead_letter_queue"), metadata.get("_max_claim_count")
        return Rules(
            metadata=raw,
            own_ttl=metadata.get("_default_message_ttl") or None,
            default_delay=metadata.get("_default_message_delay") or self._limits.default_message_delay,
            max_post_size=min(
                metadata.get("_max_messages_post_size") or self._limits.max_messages_post_size,
                self._limits.max_messages_post_size,
            ),
            dead_letter_queue=target if is_queue_name(target) else "",
            dead_letter_ttl=metadata.get("_dead_letter_queue_messages_ttl"),
            max_claim_count=None if count is None or count < 0 else count,
            redelivery=self._redelivery(metadata),
            history_ttl=metadata.get("_history_ttl") or 0,
        )

    def _redelivery(self, metadata: Metadata) -> Redelivery:
        cap = metadata.get("_redelivery_max_delay")
        return Redelivery(
            delay=metadata.get("_redelivery_delay") or 0,
            exponential=metadata.get("_redelivery_backoff") == "exponential",
            cap=self._limits.max_message_delay if cap is None else cap,
        )


def check_operations(operations: Sequence[wire.Operation]) -> None:
    """Raise ``InvalidBody`` for an operation of a wrong shape; before the queue is looked up (contract 6.5)."""
    for operation in operations:
        _key(operation)


def _key(operation: wire.Operation) -> str:
    """The metadata key that an operation names."""
    if operation.op not in ("add", "remove", "replace"):
        raise InvalidBody(f"op must be add, remove or replace; it is {operation.op[:32]!r}.")
    start, *parts = operation.path.split("/")
    if start or len(parts) != 2 or not all(part.strip() for part in parts) or parts[0].lower() != "metadata":
        raise InvalidBody(f"path must be /metadata/<key>; it is {operation.path[:80]!r}.")
    if "~" in parts[1].replace("~0", "").replace("~1", ""):
        raise InvalidBody(f"path may hold ~ only as ~0 or ~1; it is {operation.path[:80]!r}.")
    if operation.op != "remove" and operation.value is UNSET:
        raise InvalidBody(f"value is missing: {operation.op} needs one.")
    return parts[1].replace("~1", "/").replace("~0", "~")


def shown_defaults(limits: Limits) -> Metadata:
    """The reserved keys that are shown when unset, and as what (contract 6.1)."""
    return {
        "_max_messages_post_size": limits.max_messages_post_size,
        "_default_message_ttl": limits.default_message_ttl,
        "_default_message_delay": limits.default_message_delay,
        "_dead_letter_queue": None,
        "_dead_letter_queue_messages_ttl": None,
        "_max_claim_count": None,
        "_enable_encrypt_messages": False,
    }


def metadata_schema(limits: Limits) -> Metadata:
    """What metadata may be, as a JSON Schema."""

    def integer(low: int, high: int) -> Metadata:
        described = f"must be an integer from {low} to {high}, or null"
        return {"type": ["integer", "null"], "minimum": low, "maximum": high, "description": described}

    return {
        "type": "object",
        "properties": {
            "_max_messages_post_size": integer(1, limits.max_messages_post_size),
            "_default_message_ttl": integer(MIN_TTL, limits.max_message_ttl),
            "_default_message_delay": integer(MIN_DELAY, limits.max_message_delay),
            "_dead_letter_queue_messages_ttl": integer(MIN_TTL, limits.max_message_ttl),
            "_max_claim_count": {"type": ["integer", "null"]},
            "_enable_encrypt_messages": {"type": ["boolean", "null"]},
            "_retry_policy": RETRY_POLICY,
            "_redelivery_delay": integer(0, limits.max_message_delay),
            "_redelivery_backoff": {
                "enum": ["constant", "exponential", None],
                "description": "must be constant, exponential or null",
            },
            "_redelivery_max_delay": integer(0, limits.max_message_ttl),
            "_history_ttl": {
                "anyOf": [{"enum": [0, None]}, integer(MIN_TTL, limits.max_message_ttl)],
                "description": f"must be 0, an integer from {MIN_TTL} to {limits.max_message_ttl}, or null",
            },
        },
    }


def _check_retry_span(policy: Metadata) -> None:
    """Contract 6.1: the longest delay is at least ten seconds above the shortest."""
    if policy.get("maximum_delay", 30) - policy.get("minimum_delay", 5) < 10:
        raise InvalidBody("_retry_policy: maximum_delay must be at least 10 above minimum_delay (defaults 30 and 5).")


def _sentence(error: ValidationError) -> str:
    """A schema's complaint with field and bounds; it may quote the value, but not at length."""
    field = ".".join(str(part) for part in error.path)
    schema = error.schema if isinstance(error.schema, dict) else {}
    if "description" in schema:
        return f"{field} {schema['description']}."
    return f"{field}: {error.message[:200]}."
