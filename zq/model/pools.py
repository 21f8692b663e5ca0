# SPDX-License-Identifier: Apache-2.0
"""Pools, flavors and which queue is in which pool, as the documents of the catalogue hold them.

("", "pool", name)               a ``Pool``
(project, "flavor", name)        empty: which pools it has, they tell themselves
(project, "binding", queue)      a ``Binding``
("", "pool-queue", <of both>)    empty: for each binding one, by its pool; see ``bound_ref``
("", "unbound", <of the queue>)  an ``Unbound``, until the binding of a deleted queue has gone
"""

from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, Final

import msgspec
from msgspec import Struct

from zq.model import QueueRef, Seconds
from zq.model.documents import Document, DocumentRef

POOL: Final = "pool"
FLAVOR: Final = "flavor"
BINDING: Final = "binding"
BOUND: Final = "pool-queue"
UNBOUND: Final = "unbound"
# The pool of queues that are in the configured store, beside the catalogue.
DEFAULT_POOL: Final = ""
# Documents that a walk through all of a kind reads at a time.
STEP: Final = 100


class Pool(Struct, frozen=True):
    """A store for queues. ``weight``: its share of new queues among the pools of its flavor; 0 = none."""

    uri: str
    weight: int
    flavor: str | None = None
    options: dict[str, Any] = {}


class Binding(Struct, frozen=True):
    """In which pool a queue is. ``deleted``: when the queue was deleted, if nobody has posted to it since."""

    pool: str
    deleted: Seconds | None = None


class Unbound(Struct, frozen=True):
    """A queue that was deleted, and whose binding is to go."""

    project: str
    queue: str


def pool_ref(name: str) -> DocumentRef:
    return DocumentRef("", POOL, name)


def flavor_ref(project: str, name: str) -> DocumentRef:
    return DocumentRef(project, FLAVOR, name)


def binding_ref(queue: QueueRef) -> DocumentRef:
    return DocumentRef(queue.project, BINDING, queue.name)


def bound_ref(pool: str, queue: QueueRef) -> DocumentRef:
    """What shows that the pool has the queue: found by its pool, with ``bound_prefix``."""
    return DocumentRef("", BOUND, bound_prefix(pool) + _short(f"{queue.name}/{queue.project}"))


def bound_prefix(pool: str) -> str:
    return _short(pool) + "/"


def unbound_ref(queue: QueueRef) -> DocumentRef:
    return DocumentRef("", UNBOUND, _short(f"{queue.name}/{queue.project}"))


def read_pool(document: Document) -> Pool:
    return msgspec.json.decode(document.value, type=Pool)


def read_binding(document: Document) -> Binding:
    return msgspec.json.decode(document.value, type=Binding)


def read_unbound(document: Document) -> Unbound:
    return msgspec.json.decode(document.value, type=Unbound)


def each(documents: Any, kind: str, now: Seconds) -> Iterator[Document]:
    """All documents of the deployment of this kind; ``documents``: a ``DocumentController``."""
    after: str | None = ""
    while after is not None:
        page = documents.list("", kind, "", after, STEP, now)
        yield from page.items
        after = page.next


def _short(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
