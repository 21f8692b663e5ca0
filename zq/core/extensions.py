# SPDX-License-Identifier: Apache-2.0
"""Metadata keys and documents that optional features add to the core."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct


class ProtocolKey(Struct, frozen=True):
    """A reserved metadata key for queue attributes of another protocol, such as SQS.

    A queue with this key may name itself, or a queue that does not exist yet, as its dead-letter queue. Unless the
    queue sets a ttl for dead letters, they get the default ttl of the dead-letter queue.

    Args:
        check: Raises ``InvalidBody`` if the other metadata contradicts the value.
        check_change: Raises ``MetadataConflict`` if an update of the metadata changes an immutable attribute.
    """

    name: str
    schema: dict[str, Any]
    check: Callable[[dict[str, Any]], None]
    check_change: Callable[[dict[str, Any], dict[str, Any]], None]


class OwnedDocuments(Struct, frozen=True):
    """A kind of documents that are deleted together with their project.

    Documents that belong to no project are deleted as well if their kind is in ``deployment_kinds`` and they have the
    same name as a deleted document.
    """

    kind: str
    deployment_kinds: Sequence[str] = ()


class Extension(Struct, frozen=True):
    """The metadata keys and documents that one feature adds to the core."""

    protocol_keys: Sequence[ProtocolKey] = ()
    owned_documents: Sequence[OwnedDocuments] = ()


def uses_protocol(keys: Sequence[ProtocolKey], metadata: Mapping[str, Any]) -> bool:
    """Return whether the queue's metadata contains attributes of another protocol, such as SQS."""
    return any(metadata.get(key.name) for key in keys)
