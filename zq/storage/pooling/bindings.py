# SPDX-License-Identifier: Apache-2.0
"""The bindings, which assign queues to pools.

Bindings are stored in the catalogue, the store that contains all data except the queues in pools. Each server caches
them for ``CACHE_TTL`` seconds.

A server uses a cached binding without a query. After the deletion of a queue, the catalogue therefore keeps the binding
for ``BINDING_RETENTION`` seconds, which is longer than any server caches it. A post to the deleted queue restores the
binding.

The restoration and the removal of a binding both compare its version, so only one of them can succeed. Every message is
therefore stored in the pool that readers search.
"""

import random
import time
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from hashlib import sha256
from typing import Final, NamedTuple

import msgspec

from zq.cache import ReadThroughCache
from zq.errors import Conflict, PoolsApart, Unavailable
from zq.model import QueueRef, Seconds
from zq.model.documents import Document, DocumentRef
from zq.model.hidden import Owner, owner_of
from zq.model.pools import (
    ACTIVE,
    DEFAULT_POOL,
    MOVE,
    POOL,
    UNBOUND,
    Binding,
    Pool,
    UnboundQueue,
    binding_ref,
    each,
    flavor_ref,
    index_ref,
    pool_ref,
    read_binding,
    read_moving,
    read_pool,
    read_unbound,
    unbound_ref,
)
from zq.storage.api import Storage
from zq.storage.pooling.freezes import Freezes

# Maximum age in seconds of a server's cached catalogue data.
CACHE_TTL: Final = 2.0
# Seconds for which the binding of a deleted queue is kept: more than ``CACHE_TTL`` plus the duration of the longest
# request.
BINDING_RETENTION: Final = 120.0
# Maximum number of queues whose pools a process caches.
MAX_CACHED_BINDINGS: Final = 10_000

Weigh = Callable[[Mapping[str, int]], str]


def by_weight(weights: Mapping[str, int]) -> str:
    """Return a randomly chosen name, with probabilities in proportion to the weights."""
    return random.choices(list(weights), list(weights.values()))[0]


def describe(pool: str) -> str:
    return f"the pool {pool}" if pool else "the default pool"


class BindingLookup(NamedTuple):
    """The result of a lookup of a queue's binding. ``pool`` is None if the queue is unbound or deleted."""

    document: Document | None
    pool: str | None


class Bindings:
    """The assignments of queues to pools.

    If ``virtual`` is true and there is no suitable pool for a new queue, the queue is bound to the default pool.
    """

    def __init__(
        self,
        catalogue: Storage,
        virtual: bool,
        monotonic: Callable[[], float] = time.monotonic,
        choose: Weigh = by_weight,
    ) -> None:
        self._catalogue = catalogue
        self._documents = catalogue.documents
        self._virtual = virtual
        self._choose = choose
        self._lookups = ReadThroughCache(
            self._look_up, MAX_CACHED_BINDINGS, lambda found: 0.0 if found.pool is None else CACHE_TTL, monotonic
        )
        self._pools = ReadThroughCache(self._read_pools, 1, CACHE_TTL, monotonic)
        self.freezes = Freezes(catalogue, self._lookups.clear)

    def pools(self, fresh: bool = False) -> Mapping[str, Pool]:
        """Return the pools by name. They are at most ``CACHE_TTL`` seconds old or, if ``fresh`` is true, current."""
        if fresh:
            self._pools.forget(None)
        return self._pools.get(None)

    def _read_pools(self, _key: None) -> Mapping[str, Pool]:
        found = each(self._documents, POOL, self._catalogue.now())
        return {document.ref.name: read_pool(document) for document in found}

    def find(self, queue: QueueRef) -> str:
        """Return the name of the pool in which to look for a queue. For an unbound queue, this is the default pool."""
        document, pool = self._find_binding(queue)
        if pool is None:
            return DEFAULT_POOL if document is None else read_binding(document).pool
        return pool

    def bind(self, queue: QueueRef, flavor: str | None = None, preferred_pool: str | None = None) -> str:
        """Return the name of the pool that stores the queue. If the queue is not bound to a pool yet, bind it first.

        A queue without a stored binding is bound to the first pool in this list that applies:

        - The pool ``preferred_pool``, if it is given.
        - The pool of a related queue. A hidden queue (an internal queue of a feature) shares a pool with the queue that
          it serves. All other hidden queues are in the default pool.
        - The default pool, if the queue already exists.
        - A pool of the flavor ``flavor``, chosen by weight.

        Raises ``Unavailable`` if there is no suitable pool, and ``QueueMoving`` if the queue moves to another pool.
        """
        self.freezes.check(queue)
        while True:
            document, pool = self._find_binding(queue)
            if pool is None:
                pool = self._bind(queue, flavor, preferred_pool) if document is None else self._revive(queue, document)
            if pool is not None:
                return pool

    def bind_together(self, queue: QueueRef, other: QueueRef) -> None:
        """Bind ``other`` to the pool of ``queue``. Raises ``PoolsApart`` if ``other`` is already in another pool."""
        pool = self.bind(queue)
        target = self.bind(other, preferred_pool=pool)
        if target != pool:
            raise PoolsApart(
                f"The queue {queue.name} is in {describe(pool)} and the queue {other.name} in {describe(target)}: "
                "messages cannot move between pools."
            )

    def rebind_missing(self, queue: QueueRef, target: str, fence_off: Callable[[str], bool]) -> None:
        """Change the binding of a missing queue to the pool ``target``, unless a server creates the queue meanwhile.

        ``fence_off`` refuses all creations of the queue in a pool that have already begun. It returns False if the
        queue exists there.
        """
        self.release(queue)  # from now on, a creation must first revive the binding
        document = self._read(queue)
        binding = None if document is None else read_binding(document)
        if document is None or binding is None or binding.deleted is None:
            return
        now = self._catalogue.now()
        self.add_to_index(queue, target)
        if fence_off(binding.pool) and self._documents.put(
            document.ref, msgspec.json.encode(Binding(target)), now, expected=document.version, is_vital=True
        ):
            self.remove_from_index(queue, binding.pool)
        elif (current := self._read(queue)) is None or read_binding(current).pool != target:
            self.remove_from_index(queue, target)
        self._lookups.forget(queue)

    def check_flavor(self, queue: QueueRef, pool: str, flavor: str) -> None:
        """Raise ``Conflict`` if the pool is not of the flavor. The default pool matches a flavor without pools."""
        known = self.pools().get(pool) or self.pools(fresh=True).get(pool)
        if (known is None or known.flavor != flavor) and (pool or self._weights(flavor)):
            raise Conflict(
                f"The queue {queue.name} is in {describe(pool)}, which does not belong to the flavor {flavor}. "
                f"A deleted queue stays in its pool for {BINDING_RETENTION:.0f} seconds: delete the queue, wait, and "
                "create it again."
            )

    def knows_flavor(self, project: str, flavor: str) -> bool:
        return self._documents.get(flavor_ref(project, flavor), self._catalogue.now()) is not None

    def release(self, queue: QueueRef) -> None:
        """Schedule the removal of a queue's binding after ``BINDING_RETENTION`` seconds.

        Call this method before the queue is deleted.
        """
        while (document := self._read(queue)) is not None:
            now, binding = self._catalogue.now(), read_binding(document)
            note = msgspec.json.encode(UnboundQueue(queue.project, queue.name))
            self._documents.put(unbound_ref(queue), note, now)
            marked = msgspec.json.encode(Binding(binding.pool, now))
            if self._documents.put(document.ref, marked, now, expected=document.version):
                break
        self._lookups.forget(queue)

    def is_bound(self, queue: QueueRef, pool: str) -> bool:
        """Return whether the queue is bound to the pool and not deleted. If it is not, forget the cached binding."""
        binding = self.read(queue)
        if binding == Binding(pool):
            return True
        self._lookups.forget(queue)
        return False

    def read(self, queue: QueueRef) -> Binding | None:
        """Return the current binding, or None if the queue is unbound."""
        document = self._read(queue)
        return None if document is None else read_binding(document)

    def add_to_index(self, queue: QueueRef, pool: str) -> None:
        self._documents.put(index_ref(pool, queue), b"", self._catalogue.now(), is_vital=True)

    def index_version(self, queue: QueueRef, pool: str) -> str:
        """Return the version of the queue's index entry in the pool, or "" if there is none."""
        document = self._documents.get(index_ref(pool, queue), self._catalogue.now())
        return "" if document is None else document.version

    def remove_from_index(self, queue: QueueRef, pool: str, version: str | None = None) -> None:
        """Remove the queue's index entry. If ``version`` is given, remove only this version."""
        self._documents.delete(index_ref(pool, queue), self._catalogue.now(), version)

    def pool_version(self, pool: str) -> tuple[str, str]:
        """Return the current version of the pool and a digest of its URI, and refresh the cached pools.

        If the pool does not exist, return "" and "".
        """
        document = self._documents.get(pool_ref(pool), self._catalogue.now())
        self.pools(fresh=True)
        if document is None:
            return "", ""
        return document.version, sha256(read_pool(document).uri.encode("utf-8", "surrogatepass")).hexdigest()

    def version(self, queue: QueueRef) -> str:
        """Return the version of the current binding, or "" if the queue is unbound."""
        document = self._read(queue)
        return "" if document is None else document.version

    def bind_unbound(self, queue: QueueRef, pool: str) -> None:
        """Bind the queue to the pool if it is unbound."""
        value = msgspec.json.encode(Binding(pool))
        self._documents.put(binding_ref(queue), value, self._catalogue.now(), "", is_vital=True)

    def rebind(self, queue: QueueRef, source: str, target: str, version: str) -> bool:
        """Change the binding of a frozen queue from the pool ``source`` to the pool ``target``.

        If the queue is bound to a pool other than ``source``, change nothing and return True. Otherwise, change the
        binding only if it has the version ``version``, and return whether it was changed. An unbound queue has the
        version "".
        """
        document = self._read(queue)
        binding = None if document is None else read_binding(document)
        if binding is not None and binding.pool != source:
            return True
        value = msgspec.json.encode(Binding(target, None if binding is None else binding.deleted))
        return self._documents.put(binding_ref(queue), value, self._catalogue.now(), version, is_vital=True)

    def sweep(self, store_of: Callable[[str], Storage]) -> None:
        """Remove the binding of each queue that was deleted at least ``BINDING_RETENTION`` seconds ago.

        If such a queue exists again, keep its binding. If the queue is in a move that has not ended, also keep its
        binding, because its former store may still have an old copy, which a new queue of this name must not use.
        """
        now, moving = self._catalogue.now(), None
        for note in each(self._documents, UNBOUND, now):
            gone = read_unbound(note)
            queue = QueueRef(gone.project, gone.queue)
            moving = self._find_moving(now) if moving is None else moving
            if queue not in moving:
                with suppress(Unavailable):
                    self._sweep(queue, note, now, store_of)

    def _find_moving(self, now: Seconds) -> Set[QueueRef]:
        """Return the queues of all moves that have not ended."""
        found = set[QueueRef]()
        for entry in each(self._documents, ACTIVE, now):
            stored = self._documents.get(DocumentRef("", MOVE, entry.ref.name), now)
            move = None if stored is None else read_moving(stored)
            if move is not None and move.ended is None:
                found |= {QueueRef(move.project, name) for name in move.queues}
        return found

    def _sweep(self, queue: QueueRef, note: Document, now: Seconds, store_of: Callable[[str], Storage]) -> None:
        document = self._read(queue)
        binding = None if document is None else read_binding(document)
        if document is not None and binding is not None and binding.deleted is not None:
            if binding.deleted + BINDING_RETENTION > now:
                return
            if store_of(binding.pool).queues.get(queue) is not None:  # created again by a server with a cached binding
                self._revive(queue, document)
            else:
                self._documents.delete(index_ref(binding.pool, queue), now)
                if not self._documents.delete(document.ref, now, expected=document.version):
                    self._documents.put(index_ref(binding.pool, queue), b"", now)
        self._documents.delete(note.ref, now, expected=note.version)

    def _bind(self, queue: QueueRef, flavor: str | None, preferred_pool: str | None) -> str | None:
        """Bind the queue as ``bind`` does, and return the pool's name.

        Return None if another server has bound the queue in the meantime, or if the chosen pool was removed. The caller
        then tries again.
        """
        now = self._catalogue.now()
        preferred_pool = self._required_pool(queue) if preferred_pool is None else preferred_pool
        if preferred_pool is not None:
            pool = preferred_pool
        elif self._catalogue.queues.get(queue) is not None:  # the queue was created before the first pool
            pool = DEFAULT_POOL
        else:
            pool = self._choose_pool(flavor)
        self._documents.put(index_ref(pool, queue), b"", now)
        value = msgspec.json.encode(Binding(pool))
        if not self._documents.put(binding_ref(queue), value, now, expected=""):
            if (other := self._read(queue)) is None or read_binding(other).pool != pool:
                self._documents.delete(index_ref(pool, queue), now)
            return None
        if pool and self._documents.get(pool_ref(pool), now) is None:
            self.pools(fresh=True)
            made = self._read(queue)
            if made is not None and made.value == value and self._documents.delete(made.ref, now, made.version):
                self._documents.delete(index_ref(pool, queue), now)
            if preferred_pool is not None:
                raise Unavailable(f"The pool {pool} no longer exists.")
            return None
        return pool

    def _required_pool(self, queue: QueueRef) -> str | None:
        """Return the pool in which the queue must be, or None if it may be in any pool.

        A queue and its hidden queues (internal queues of a feature) must be in the same pool. All other hidden queues
        must be in the default pool.
        """
        owner = owner_of(queue)
        if owner is None:
            notices = self._read(Owner(queue.project, "queue", queue.name).notices)
            return read_binding(notices).pool if notices else None
        return self.find(QueueRef(owner.project, owner.name)) if owner.kind == "queue" else DEFAULT_POOL

    def _choose_pool(self, flavor: str | None) -> str:
        weights = self._weights(flavor)
        if weights:
            return self._choose(weights)
        if self._virtual:
            return DEFAULT_POOL
        what = f"of the flavor {flavor}" if flavor else "without a flavor"
        raise Unavailable(f"There is no pool {what} for a new queue. An administrator must add one.")

    def _weights(self, flavor: str | None) -> dict[str, int]:
        for fresh in (False, True):
            pools = self.pools(fresh).items()
            if weights := {name: pool.weight for name, pool in pools if pool.flavor == flavor and pool.weight}:
                break
        return weights

    def _revive(self, queue: QueueRef, document: Document) -> str | None:
        """Cancel the removal of the binding, and return the name of the binding's pool.

        Return None if another server has changed the binding.
        """
        binding = read_binding(document)
        if binding.deleted is None:
            return binding.pool
        now = self._catalogue.now()
        self._documents.put(index_ref(binding.pool, queue), b"", now)
        live = msgspec.json.encode(Binding(binding.pool))
        return binding.pool if self._documents.put(document.ref, live, now, expected=document.version) else None

    def _read(self, queue: QueueRef) -> Document | None:
        return self._documents.get(binding_ref(queue), self._catalogue.now())

    def _find_binding(self, queue: QueueRef) -> BindingLookup:
        return self._look_up(queue) if self.freezes.is_frozen(queue) else self._lookups.get(queue)

    def _look_up(self, queue: QueueRef) -> BindingLookup:
        document = self._read(queue)
        binding = None if document is None else read_binding(document)
        return BindingLookup(document, binding.pool if binding is not None and binding.deleted is None else None)
