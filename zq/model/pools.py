# SPDX-License-Identifier: Apache-2.0
"""Pools, flavors and bindings of queues to pools, as stored in documents.

| Reference | Content |
|---|---|
| ("", "pool", name) | a ``Pool`` |
| (project, "flavor", name) | empty; a ``Pool`` contains the name of its flavor |
| (project, "binding", queue) | a ``Binding`` |
| ("", "pool-queue", digest of pool and queue) | empty; an index of bindings by pool, see ``index_ref`` |
| ("", "unbound", digest of queue) | an ``UnboundQueue``, until the binding of a deleted queue is removed |
| ("", "pool-freeze", id of a move) | a ``Freeze``, while queues move to another pool |
| ("", "pool-process", random) | a ``PoolProcess``, which expires unless the process renews it |
| ("", "pool-move", digest of the pool/id) | a ``zq.pools.moves.Move`` |
| ("", "pool-move-active", digest of the pool/id) | empty, while the move has not ended |
| (project, "pool-token", queue) | in the store of a pool: the fencing token of the last mover, see ``token_ref`` |
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
FREEZE: Final = "pool-freeze"
PROCESS: Final = "pool-process"
MOVE: Final = "pool-move"
# Documents that list the moves that have not ended. Their names are those of the moves.
ACTIVE: Final = "pool-move-active"
TOKEN: Final = "pool-token"  # noqa: S105 (the kind of a document)
# The pool of queues in the configured store, which also holds the catalog.
DEFAULT_POOL: Final = ""
# Maximum length of a pool or flavor name and of a pool URI, in characters.
MAX_TEXT: Final = 255
# Maximum weight of a pool.
MAX_WEIGHT: Final = 2**32 - 1
# Number of documents read at a time when all documents of a kind are read.
PAGE_SIZE: Final = 100


class Pool(Struct, frozen=True):
    """A store for queues."""

    uri: str
    weight: int
    flavor: str | None = None
    options: dict[str, Any] = {}


class Binding(Struct, frozen=True):
    """The assignment of a queue to a pool."""

    pool: str
    deleted: Seconds | None = None


class UnboundQueue(Struct, frozen=True):
    """A deleted queue whose binding must be removed."""

    project: str
    queue: str


class Freeze(Struct, frozen=True):
    """A set of queues that are read-only while they are moved to the pool ``target``."""

    project: str
    queues: list[str]
    target: str = ""


class MovingQueues(Struct, frozen=True):
    """The queues of a move, and the time at which it ended. The document has further fields."""

    project: str
    queues: list[str]
    ended: Seconds | None = None


class PoolProcess(Struct, frozen=True):
    """A process that has the pools open, such as a server process. Each process renews its document regularly.

    Attributes:
        host: The name of the process's host.
        process: The process id.
        freezes: Ids of the ``Freeze`` documents that the process enforces: it rejects changes to their queues, and has
            completed all earlier changes.
    """

    host: str
    process: int
    freezes: list[str]


def pool_ref(name: str) -> DocumentRef:
    return DocumentRef("", POOL, name)


def flavor_ref(project: str, name: str) -> DocumentRef:
    return DocumentRef(project, FLAVOR, name)


def binding_ref(queue: QueueRef) -> DocumentRef:
    return DocumentRef(queue.project, BINDING, queue.name)


def index_ref(pool: str, queue: QueueRef) -> DocumentRef:
    """Return the name of the index entry for a queue in a pool."""
    return DocumentRef("", BOUND, index_prefix(pool) + _short(f"{queue.name}/{queue.project}"))


def index_prefix(pool: str) -> str:
    return _short(pool) + "/"


def unbound_ref(queue: QueueRef) -> DocumentRef:
    return DocumentRef("", UNBOUND, _short(f"{queue.name}/{queue.project}"))


def read_pool(document: Document) -> Pool:
    return msgspec.json.decode(document.value, type=Pool)


def read_binding(document: Document) -> Binding:
    return msgspec.json.decode(document.value, type=Binding)


def freeze_ref(move: str) -> DocumentRef:
    return DocumentRef("", FREEZE, move)


def read_freeze(document: Document) -> Freeze:
    return msgspec.json.decode(document.value, type=Freeze)


def token_ref(queue: QueueRef) -> DocumentRef:
    """Return the name of the document with the fencing token of the queue, in the store of a pool.

    A mover replaces the token before it copies the queue to this store, or deletes it there. Each of these operations,
    and each creation of the queue by a server, has a ``Guard`` with the token that was current before.
    """
    return DocumentRef(queue.project, TOKEN, queue.name)


def read_moving(document: Document) -> MovingQueues:
    return msgspec.json.decode(document.value, type=MovingQueues)


def read_process(document: Document) -> PoolProcess:
    return msgspec.json.decode(document.value, type=PoolProcess)


def read_unbound(document: Document) -> UnboundQueue:
    return msgspec.json.decode(document.value, type=UnboundQueue)


def each(documents: Any, kind: str, now: Seconds) -> Iterator[Document]:
    """Yield all documents of this kind that belong to the deployment. ``documents`` is a ``DocumentController``."""
    after: str | None = ""
    while after is not None:
        page = documents.list("", kind, "", after, PAGE_SIZE, now)
        yield from page.items
        after = page.next


def _short(text: str) -> str:
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
