# SPDX-License-Identifier: Apache-2.0
"""The bindings of queues to pools: chosen once, stored in the catalogue, and cached here for ``AGE`` seconds.

A server uses a cached binding without a query. Therefore a binding stays for ``KEPT`` seconds after its queue was
deleted, until no server has it in its cache. A post to such a queue makes the binding live again. This change and the
removal of the binding both compare its version, so no message is stored in a pool in which readers do not look.
"""

import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

import msgspec
from cachetools import FIFOCache

from zq.errors import Conflict, PoolsApart, Unavailable
from zq.model import QueueRef, Seconds
from zq.model.documents import Document
from zq.model.hidden import Owner, owner_of
from zq.model.pools import (
    DEFAULT_POOL,
    POOL,
    UNBOUND,
    Binding,
    Pool,
    Unbound,
    binding_ref,
    bound_ref,
    each,
    flavor_ref,
    pool_ref,
    read_binding,
    read_pool,
    read_unbound,
    unbound_ref,
)
from zq.storage.api import Storage

# Maximum age in seconds of a server's cached catalogue data.
AGE: Final = 2.0
# Seconds for which the binding of a deleted queue stays: more than ``AGE`` plus the longest request.
KEPT: Final = 120.0
# Maximum number of queues whose pools a process caches.
MOST_REMEMBERED: Final = 10_000

Weigh = Callable[[Mapping[str, int]], str]


def by_weight(weights: Mapping[str, int]) -> str:
    """Return a random name, with probabilities in proportion to the weights."""
    return random.choices(list(weights), list(weights.values()))[0]


def called(pool: str) -> str:
    """Return the pool's name for messages."""
    return f"the pool {pool}" if pool else "the default pool"


class Bindings:
    """The bindings of queues to pools. ``virtual`` means that new queues may also be in the configured store."""

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
        self._monotonic = monotonic
        self._choose = choose
        self._lock = threading.Lock()
        self._known: FIFOCache[QueueRef, tuple[float, str]] = FIFOCache(MOST_REMEMBERED)
        self._pools: tuple[float, Mapping[str, Pool]] = (0.0, {})

    def pools(self, fresh: bool = False) -> Mapping[str, Pool]:
        """Return all pools by name, at most ``AGE`` seconds old."""
        until, pools = self._pools
        asked = self._monotonic()
        if fresh or asked >= until:
            found = each(self._documents, POOL, self._catalogue.now())
            pools = {document.ref.name: read_pool(document) for document in found}
            self._pools = asked + AGE, pools
        return pools

    def find(self, queue: QueueRef) -> str:
        """Return the pool to read a queue from: the default pool for an unbound queue."""
        known = self._remembered(queue)
        if known is not None:
            return known
        asked = self._monotonic()
        document = self._read(queue)
        if document is None:
            return DEFAULT_POOL
        binding = read_binding(document)
        if binding.deleted is None:
            self._remember(queue, binding.pool, asked)
        return binding.pool

    def bind(self, queue: QueueRef, flavor: str | None = None, beside: str | None = None) -> str:
        """Return the pool to write a queue to; bind an unbound queue to a pool of ``flavor``, or to ``beside``."""
        while True:
            known = self._remembered(queue)
            if known is not None:
                return known
            asked = self._monotonic()
            document = self._read(queue)
            pool = self._make(queue, flavor, beside) if document is None else self._revive(queue, document)
            if pool is not None:
                self._remember(queue, pool, asked)
                return pool

    def beside(self, queue: QueueRef, other: QueueRef) -> None:
        """Ensure that messages of ``queue`` can move to ``other`` in one step. Raises ``PoolsApart`` otherwise."""
        pool = self.bind(queue)
        target = self.bind(other, beside=pool)
        if target != pool:
            raise PoolsApart(
                f"The queue {queue.name} is in {called(pool)} and the queue {other.name} in {called(target)}: no "
                "message goes from one pool to another."
            )

    def suits(self, queue: QueueRef, pool: str, flavor: str) -> None:
        """Raise ``Conflict`` unless the queue's pool belongs to the flavor."""
        known = self.pools().get(pool) or self.pools(fresh=True).get(pool)
        if (known is None or known.flavor != flavor) and (pool or self._weights(flavor)):
            raise Conflict(
                f"The queue {queue.name} is in {called(pool)}, which is not of the flavor {flavor}, and stays there "
                f"for {KEPT:.0f} seconds after it was deleted: delete it, wait, and create it again."
            )

    def knows_flavor(self, project: str, flavor: str) -> bool:
        return self._documents.get(flavor_ref(project, flavor), self._catalogue.now()) is not None

    def release(self, queue: QueueRef) -> None:
        """Schedule the removal of a queue's binding, because the queue is about to be deleted."""
        while (document := self._read(queue)) is not None:
            now, binding = self._catalogue.now(), read_binding(document)
            note = msgspec.json.encode(Unbound(queue.project, queue.name))
            self._documents.put(unbound_ref(queue), note, now)
            marked = msgspec.json.encode(Binding(binding.pool, now))
            if self._documents.put(document.ref, marked, now, expected=document.version):
                break
        self.forget(queue)

    def sweep(self, store_of: Callable[[str], Storage]) -> None:
        """Remove the bindings of queues that were deleted at least ``KEPT`` seconds ago and do not exist again."""
        now = self._catalogue.now()
        for note in each(self._documents, UNBOUND, now):
            gone = read_unbound(note)
            with suppress(Unavailable):
                self._sweep(QueueRef(gone.project, gone.queue), note, now, store_of)

    def forget(self, queue: QueueRef) -> None:
        with self._lock:
            self._known.pop(queue, None)

    def _sweep(self, queue: QueueRef, note: Document, now: Seconds, store_of: Callable[[str], Storage]) -> None:
        document = self._read(queue)
        binding = None if document is None else read_binding(document)
        if document is not None and binding is not None and binding.deleted is not None:
            if binding.deleted + KEPT > now:
                return
            if store_of(binding.pool).queues.get(queue) is not None:  # created again by a server with a cached binding
                self._revive(queue, document)
            else:
                self._documents.delete(bound_ref(binding.pool, queue), now)
                if not self._documents.delete(document.ref, now, expected=document.version):
                    self._documents.put(bound_ref(binding.pool, queue), b"", now)
        self._documents.delete(note.ref, now, expected=note.version)

    def _make(self, queue: QueueRef, flavor: str | None, beside: str | None) -> str | None:
        """Bind the queue and return its pool; None if another server was faster or the pool was removed in between."""
        now = self._catalogue.now()
        beside = self._delivered(queue) if beside is None else beside
        if beside is not None:
            pool = beside
        elif self._catalogue.queues.get(queue) is not None:  # the queue was created before the first pool
            pool = DEFAULT_POOL
        else:
            pool = self._chosen(flavor)
        self._documents.put(bound_ref(pool, queue), b"", now)
        value = msgspec.json.encode(Binding(pool))
        if not self._documents.put(binding_ref(queue), value, now, expected=""):
            if (other := self._read(queue)) is None or read_binding(other).pool != pool:
                self._documents.delete(bound_ref(pool, queue), now)
            return None
        if pool and self._documents.get(pool_ref(pool), now) is None:
            self.pools(fresh=True)
            made = self._read(queue)
            if made is not None and made.value == value and self._documents.delete(made.ref, now, made.version):
                self._documents.delete(bound_ref(pool, queue), now)
            if beside is not None:
                raise Unavailable(f"The pool {pool} is not there any more.")
            return None
        return pool

    def _delivered(self, queue: QueueRef) -> str | None:
        """Return the pool of the queue's notices, or that of a hidden queue's owner; None if it is not bound."""
        owner = owner_of(queue)
        if owner is None:
            notices = self._read(Owner(queue.project, "queue", queue.name).notices)
            return read_binding(notices).pool if notices else None
        return self.find(QueueRef(owner.project, owner.name)) if owner.kind == "queue" else DEFAULT_POOL

    def _chosen(self, flavor: str | None) -> str:
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
        """Make a binding live and return its pool, or None if the binding has changed in between."""
        binding = read_binding(document)
        if binding.deleted is None:
            return binding.pool
        now = self._catalogue.now()
        self._documents.put(bound_ref(binding.pool, queue), b"", now)
        live = msgspec.json.encode(Binding(binding.pool))
        return binding.pool if self._documents.put(document.ref, live, now, expected=document.version) else None

    def _read(self, queue: QueueRef) -> Document | None:
        return self._documents.get(binding_ref(queue), self._catalogue.now())

    def _remembered(self, queue: QueueRef) -> str | None:
        try:
            until, pool = self._known[queue]
        except KeyError:
            return None
        return pool if self._monotonic() < until else None

    def _remember(self, queue: QueueRef, pool: str, asked: float) -> None:
        with self._lock:
            self._known[queue] = asked + AGE, pool
