# SPDX-License-Identifier: Apache-2.0
"""Documents: small values that a store keeps without interpreting them."""

from typing import NamedTuple

from msgspec import Struct

from zq.model import Seconds


class DocumentRef(NamedTuple):
    """The full name of a document. ``project`` is "" for documents of the deployment."""

    project: str
    kind: str
    name: str


class Guard(NamedTuple):
    """The condition of a guarded operation: the document ``ref`` of the same store has this value.

    An empty value means that the document does not exist. The document must not have an expiry.
    """

    ref: DocumentRef
    value: bytes


class Document(Struct, frozen=True):
    """A stored document. ``version`` changes with every write, and is never reused for this name."""

    ref: DocumentRef
    value: bytes
    version: str
    expires: Seconds | None = None
