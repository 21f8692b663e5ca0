# SPDX-License-Identifier: Apache-2.0
"""The operations on bindings and freezes with which queues move to another pool; see ``zq.pools.mover``."""

from collections.abc import Sequence
from typing import Final
from uuid import uuid4

from zq.errors import Fenced, PoolNotFound
from zq.model import QueueRef
from zq.model.documents import Document, DocumentRef, Guard
from zq.model.pools import DEFAULT_POOL, Binding, Freeze, PoolProcess, token_ref
from zq.storage.api import Storage
from zq.storage.capabilities import MigratableStorage
from zq.storage.pooling.bindings import Bindings
from zq.storage.pooling.freezes import Freezes
from zq.storage.pooling.stores import Stores

# Kind of the documents that show whether two pools use the same store, and seconds after which they expire.
PROBE: Final = "pool-probe"
PROBE_TTL: Final = 60.0


class Relocation:
    """The operations of a pooled store that move queues between its pools.

    Each operation is idempotent. During the move, the queues must be frozen.

    A mover may be paused at any operation while another server completes the move. Versions and fencing tokens keep
    its operation from taking effect afterwards: the mover reads or replaces them, then checks in the record of the move
    that it is still in the same phase, and then names them in the operation.
    """

    def __init__(self, bindings: Bindings, stores: Stores, freezes: Freezes) -> None:
        self._bindings = bindings
        self._stores = stores
        self._freezes = freezes

    def store(self, pool: str) -> Storage:
        """Return the store of a pool. Raises ``Unavailable`` if the pool does not exist or its store is unavailable."""
        return self._stores.get(pool)

    def binding(self, queue: QueueRef) -> Binding | None:
        """Return the current binding of the queue, or None if the queue is unbound."""
        return self._bindings.read(queue)

    def check_flavor(self, queue: QueueRef, pool: str, flavor: str) -> None:
        """Raise ``Conflict`` if the pool is not of the flavor."""
        self._bindings.check_flavor(queue, pool, flavor)

    def reserve(self, queue: QueueRef, pool: str) -> None:
        """Add the frozen queue to the index of the pool. A pool with queues in its index cannot be deleted.

        If the queue is unbound, bind it to the default pool. Raises ``PoolNotFound`` if the pool was deleted.
        """
        self._bindings.bind_unbound(queue, DEFAULT_POOL)
        self._bindings.add_to_index(queue, pool)
        if pool != DEFAULT_POOL and pool not in self._bindings.pools(fresh=True):
            self._bindings.remove_from_index(queue, pool)
            raise PoolNotFound(f"The pool {pool} no longer exists.")

    def pool_version(self, pool: str) -> tuple[str, str]:
        """Return the version of the pool and a digest of its URI, or "" and "" if the pool does not exist.

        Later calls of ``store`` use this version or a later one.
        """
        return self._bindings.pool_version(pool)

    def version(self, queue: QueueRef) -> str:
        """Return the version of the queue's binding. Each change of the binding changes the version."""
        return self._bindings.version(queue)

    def rebind(self, queue: QueueRef, source: str, target: str, version: str) -> bool:
        """Assign the queue to the pool ``target`` if it is assigned to the pool ``source``.

        The queue must be frozen, and ``target`` must be reserved for it. If the queue is no longer assigned to
        ``source``, return True.

        Otherwise, if the version of the binding is not ``version``, change nothing and return False. A mover that
        continues after a pause therefore does not repeat an earlier move.
        """
        return self._bindings.rebind(queue, source, target, version)

    def issue_token(self, queue: QueueRef, pool: str) -> Guard:
        """Issue a new fencing token of the queue in the pool's store, and return it as a guard.

        All operations with earlier guards then raise ``Fenced``, even if they have already begun. Raises ``Fenced`` if
        another server issues a token at the same time.
        """
        return issue_token(self._stores.get(pool), queue)

    def revoke_token(self, guard: Guard, pool: str) -> None:
        """Replace the fencing token of the guard. Raises ``Fenced`` if another token was issued after it."""
        store = self._stores.get(pool)
        current = store.documents.get(guard.ref, store.now())
        if current is None or current.value != guard.value:
            raise Fenced
        _replace_token(store, guard.ref, current)

    def index_version(self, queue: QueueRef, pool: str) -> str:
        """Return the version of the queue's index entry in the pool."""
        return self._bindings.index_version(queue, pool)

    def release(
        self, queue: QueueRef, pool: str, index_version: str, guard: Guard | None, sequence: int | None = None
    ) -> bool:
        """Delete the copy of a queue in a pool to which the queue is not assigned.

        Then remove the queue from the index of the pool, so that the pool can be deleted. If ``guard`` is None, only
        remove the queue from the index. If the queue is assigned to the pool, change nothing. If the last sequence of
        the copy is not ``sequence``, change nothing and return False.
        """
        binding = self._bindings.read(queue)
        if binding is None or binding.pool != pool:
            store: object = self._stores.get(pool)
            # Another deletion of a missing queue could delay its return to this store.
            if guard is not None and self._stores.get(pool).queues.get(queue) is not None:
                assert isinstance(store, MigratableStorage), "the check of the move has found parcels"
                if not store.parcels.delete_queue(queue, guard, sequence):
                    return False
            self._bindings.remove_from_index(queue, pool, index_version)
        return True

    def share_store(self, pool: str, other: str) -> bool:
        """Return whether both pools use the same store, even if their URIs differ."""
        first, second = self._stores.get(pool), self._stores.get(other)
        ref, now = DocumentRef("", PROBE, uuid4().hex), first.now()
        first.documents.put(ref, b"", now, expires=now + PROBE_TTL)
        found = second.documents.get(ref, now)
        first.documents.delete(ref, now)
        return found is not None

    def freeze(self, move: str, freeze: Freeze) -> None:
        """Begin to freeze the queues of a move. ``move`` is the id of the move.

        Other processes freeze the queues within about a second. The records from ``find_processes`` show which
        processes have done so.
        """
        self._freezes.freeze(move, freeze)

    def freeze_version(self, move: str) -> str:
        """Return the version of a move's freeze, or "" if the freeze does not exist. ``move`` is the id of the move."""
        return self._freezes.version(move)

    def unfreeze(self, move: str, version: str) -> None:
        """End the freeze of a move, if the freeze has this version. ``move`` is the id of the move.

        Other processes follow within about a second.
        """
        self._freezes.unfreeze(move, version)

    def find_processes(self) -> Sequence[PoolProcess]:
        """Return the records of all processes that have the pooled store open."""
        return self._freezes.find_processes()


def issue_token(store: Storage, queue: QueueRef) -> Guard:
    """Issue a new fencing token of the queue in a store, and return it as a guard; see ``Relocation.issue_token``."""
    ref = token_ref(queue)
    return _replace_token(store, ref, store.documents.get(ref, store.now()))


def _replace_token(store: Storage, ref: DocumentRef, current: Document | None) -> Guard:
    token = uuid4().hex.encode()
    expected = "" if current is None else current.version
    if not store.documents.put(ref, token, store.now(), expected, is_vital=True):
        raise Fenced
    return Guard(ref, token)
