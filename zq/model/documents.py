# SPDX-License-Identifier: Apache-2.0
"""The values of documents: small documents that a store keeps for the use cases, whatever stands in them."""

from typing import NamedTuple

from msgspec import Struct

from zq.model import Seconds


class DocumentRef(NamedTuple):
    """A document's full name. ``kind``: which use case's it is; ``project`` "" = of the whole deployment."""

    project: str
    kind: str
    name: str


class Document(Struct, frozen=True):
    """A document as stored. ``version``: another one after each change, and never again a former one of this name.

    ``expires`` None = it stays.
    """

    ref: DocumentRef
    value: bytes
    version: str
    expires: Seconds | None = None
