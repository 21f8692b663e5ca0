# SPDX-License-Identifier: Apache-2.0
"""Rules that features add to those of the core: metadata keys of a protocol, and documents that a project owns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct


class ProtocolKey(Struct, frozen=True):
    """A reserved metadata key under which a protocol keeps attributes of its own for a queue.

    Dead letters of a queue with this key live as long as messages of their dead-letter queue. Such a queue may be its
    own dead-letter queue, and may name a dead-letter queue that does not exist yet.

    Args:
        name: The key.
        schema: The JSON Schema of its value.
        check: Raises ``InvalidBody`` for metadata whose other keys contradict the value.
        check_change: Raises ``MetadataConflict`` if former and new metadata of a queue differ in a fixed attribute.
    """

    name: str
    schema: dict[str, Any]
    check: Callable[[dict[str, Any]], None]
    check_change: Callable[[dict[str, Any], dict[str, Any]], None]


class OwnedDocuments(Struct, frozen=True):
    """Documents that are deleted with their project.

    Args:
        kind: The kind of documents in the project.
        deployment_kinds: The kinds of the deployment's documents that have the same names and are deleted, too.
    """

    kind: str
    deployment_kinds: Sequence[str] = ()


class Extension(Struct, frozen=True):
    """The rules of one feature."""

    protocol_keys: Sequence[ProtocolKey] = ()
    owned_documents: Sequence[OwnedDocuments] = ()


def uses_protocol(keys: Sequence[ProtocolKey], metadata: Mapping[str, Any]) -> bool:
    """Return whether the metadata of a queue have attributes of a protocol."""
    return any(metadata.get(key.name) for key in keys)
