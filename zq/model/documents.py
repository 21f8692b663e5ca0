# SPDX-License-Identifier: Apache-2.0
"""Documents: small values that a store keeps without interpreting them."""

from typing import NamedTuple

from msgspec import Struct

from zq.model import Seconds


class DocumentRef(NamedTuple):
    """The full name of a document.

    Attributes:
        project: Project id; "" for documents of the deployment.
        kind: Type of the document, such as "token".
    """

    project: str
    kind: str
    name: str


class Document(Struct, frozen=True):
    """A stored document.

    Attributes:
        version: Changes with every write, and is never reused for this name.
        expires: Expiry time; ``None`` = no expiry.
    """

    ref: DocumentRef
    value: bytes
    version: str
    expires: Seconds | None = None
