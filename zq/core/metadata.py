# SPDX-License-Identifier: Apache-2.0
"""Metadata of queues and topics: reserved keys, validation, JSON patches, and defaults shown to clients.

The metadata is validated with JSON Schema whenever it changes. See contract 6.1, 6.5, 13 and extensions 4.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from jsonschema import Draft4Validator, ValidationError
from msgspec import UNSET

from zq import wire
from zq.core.extensions import ProtocolKey, uses_protocol
from zq.errors import InvalidBody, MetadataConflict, NotBuilt
from zq.model.hidden import MARK
from zq.model.limits import QUEUE_RULE, Limits, check_nesting, is_long_queue_name
from zq.wire.metadata import KEYS, RETRY_POLICY, build_key_schemas, check_retry_span, shown_defaults

Metadata = dict[str, Any]

# Key of the time since which all bodies are encrypted; set if the queue or topic was created with encryption.
SEALED_SINCE_KEY: Final = "~sealed"
# Internal keys, which clients can neither read nor write.
INTERNAL_KEYS: Final = frozenset({MARK, SEALED_SINCE_KEY})
# Key that selects the message group mode. It cannot be changed after creation.
GROUPED: Final = "_grouped"
# Key that enables message encryption.
ENCRYPTS: Final = "_enable_encrypt_messages"
NOT_ENCRYPTED: Final = "this server cannot encrypt messages because message_encryption_key_file is not set."


class MetadataSchema:
    """The metadata schema of "queue" or "topic". ``unbuilt`` maps each unsupported key to the reason."""

    def __init__(
        self,
        kind: str,
        limits: Limits,
        ttl: Callable[[str], int],
        unbuilt: Mapping[str, str] = MappingProxyType({}),
        protocol_keys: Sequence[ProtocolKey] = (),
    ) -> None:
        self.kind = kind
        self._protocol_keys = protocol_keys
        is_topic = kind == "topic"
        self._shown = shown_defaults(limits, is_topic)
        self._ttl = ttl
        refused = {name: key.refusal for name, (_, key) in KEYS.items() if is_topic and key.refusal}
        self._unbuilt = refused | dict(unbuilt)
        self._validator = Draft4Validator(metadata_schema(limits, protocol_keys))

    def shown(self, name: str, metadata: Metadata) -> Metadata:
        """Return the metadata as shown to clients: reserved keys that are unset or falsy get their defaults."""
        defaults = self._shown | {"_default_message_ttl": self._ttl(name)}
        return metadata | {key: metadata.get(key) or default for key, default in defaults.items()}

    def check(self, metadata: Metadata, name: str) -> None:
        """Validate the metadata of the resource ``name``.

        Raises ``InvalidBody`` for the first invalid reserved key, and ``NotBuilt`` for a key that this server does not
        support.
        """
        check_nesting("metadata", metadata)
        for key in INTERNAL_KEYS.intersection(metadata):
            raise InvalidBody(f"metadata must not contain {key}, which is reserved for internal use.")
        retry_policy = metadata.get("_retry_policy")
        given = {key: value for key, value in metadata.items() if key != "_retry_policy" or retry_policy}
        for error in sorted(self._validator.iter_errors(given), key=lambda error: list(map(str, error.path))):
            raise InvalidBody(_describe(error))
        if (dead := metadata.get("_dead_letter_queue")) is not None and not is_long_queue_name(dead):
            raise InvalidBody(f"_dead_letter_queue {QUEUE_RULE}, or null.")
        if self.kind == "queue" and dead == name and not uses_protocol(self._protocol_keys, metadata):
            raise InvalidBody("_dead_letter_queue must not name its own queue.")
        for protocol_key in self._protocol_keys:
            protocol_key.check(metadata)
        check_retry_span(retry_policy or {})
        for key, sentence in self._unbuilt.items():
            if metadata.get(key):
                raise NotBuilt(f"{key}: {sentence}")

    def patched(self, metadata: Metadata, operations: Sequence[wire.Operation]) -> Metadata:
        """Return a copy of the metadata with the operations applied.

        Raises ``MetadataConflict`` if an operation replaces or removes a key that does not exist.
        """
        result = dict(metadata)
        for operation, key in [(operation, _key(operation)) for operation in operations]:
            missing = key not in result and key not in self._shown
            if missing and operation.op != "add":
                raise MetadataConflict(f"The {self.kind} has no metadata key {key!r} to {operation.op}.")
            if operation.op == "remove":
                result.pop(key, None)
            else:
                result[key] = operation.value
        return result


def check_operations(operations: Sequence[wire.Operation]) -> None:
    """Raise ``InvalidBody`` if a JSON Patch operation on metadata is malformed (contract section 6.5)."""
    for operation in operations:
        _key(operation)


def find_assigned_values(operations: Sequence[wire.Operation], key: str) -> list[object]:
    return [operation.value for operation in operations if operation.op != "remove" and _key(operation) == key]


def _key(operation: wire.Operation) -> str:
    if operation.op not in ("add", "remove", "replace"):
        raise InvalidBody(f"op must be add, remove or replace; it is {operation.op[:32]!r}.")
    start, *parts = operation.path.split("/")
    if start or len(parts) != 2 or not all(part.strip() for part in parts) or parts[0].lower() != "metadata":
        raise InvalidBody(f"path must be /metadata/<key>; it is {operation.path[:80]!r}.")
    if "~" in parts[1].replace("~0", "").replace("~1", ""):
        raise InvalidBody(f"path may contain ~ only as ~0 or ~1; it is {operation.path[:80]!r}.")
    if operation.op != "remove" and operation.value is UNSET:
        raise InvalidBody(f"value is missing: the operation {operation.op} requires a value.")
    return parts[1].replace("~1", "/").replace("~0", "~")


def metadata_schema(limits: Limits, protocol_keys: Sequence[ProtocolKey] = ()) -> Metadata:
    own = {key.name: key.schema for key in protocol_keys}
    return {"type": "object", "properties": build_key_schemas(limits) | own}


def check_retry_policy(policy: object, field: str) -> None:
    """Raise ``InvalidBody`` if a ``_retry_policy`` is not valid. A falsy policy is valid (contract section 6.1)."""
    if not policy:
        return
    for error in Draft4Validator(RETRY_POLICY).iter_errors(policy):
        raise InvalidBody(f"{field}: {error.message[:200]}.")
    assert isinstance(policy, dict)  # ensured by the schema
    check_retry_span(policy, field)


def _describe(error: ValidationError) -> str:
    field = ".".join(str(part) for part in error.path)
    schema = error.schema if isinstance(error.schema, dict) else {}
    if "description" in schema:
        return f"{field} {schema['description']}."
    return f"{field}: {error.message[:200]}."
