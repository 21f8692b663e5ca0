# SPDX-License-Identifier: Apache-2.0
"""The controllers of a pooled store, which route each operation to the store of its queue.

Most methods pass their arguments on unchanged, so a new argument requires no change here.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial, wraps
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from zq.errors import Fenced, InvalidBody, PoolsApart, QueueNotFound
from zq.model import (
    ClaimRequest,
    ClaimResult,
    ClaimSummary,
    Commit,
    CommitResult,
    Copies,
    Draft,
    Fence,
    Grouping,
    IdempotencyKey,
    Lease,
    Move,
    Page,
    Queue,
    QueueRef,
    Seconds,
    Settlement,
    SettleResult,
)
from zq.model.documents import Guard
from zq.model.pools import BINDING, DEFAULT_POOL, read_binding, token_ref
from zq.model.transactions import Bounds
from zq.storage.api import ClaimController, MessageController, QueueController, Storage
from zq.storage.browsing import PAGE
from zq.storage.capabilities import BOUNDS, HistoryController, MigratableStorage, TransactionController
from zq.storage.pooling.bindings import Bindings, describe
from zq.storage.pooling.relocation import issue_token
from zq.storage.pooling.stores import Stores

# The metadata of a queue that a post or a move creates.
NO_METADATA: Final = b"{}"
R = TypeVar("R")
T = TypeVar("T", bound="type[Controller]")
# The routed methods that change nothing.
READS: Final = frozenset({"get", "list", "browse", "stats", "ready"})


class _PoolMetadata(Struct, rename={"flavor": "_flavor", "dead_letters": "_dead_letter_queue"}):
    flavor: Any = None
    dead_letters: Any = None


_metadata: Final = msgspec.json.Decoder(_PoolMetadata)


class Controller:
    """The base class of the controllers of a pooled store."""

    def __init__(self, catalogue: Storage, bindings: Bindings, stores: Stores) -> None:
        self._catalogue = catalogue
        self._bindings = bindings
        self._stores = stores

    def _source_store(self, queue: QueueRef) -> Storage:
        return self._stores.get(self._bindings.find(queue))

    def _target_store(self, queue: QueueRef, fence: Fence | None) -> Storage:
        """Return the store of the queue.

        Raises ``PoolsApart`` if a fence is given and the queue is not in the default pool.
        """
        pool = self._bindings.find(queue)
        if fence is not None and pool != DEFAULT_POOL:
            raise PoolsApart(
                f"The fence {fence.name} does not apply to the queue {queue.name}, which is in {describe(pool)}: "
                "fences apply only to queues in the default pool."
            )
        return self._stores.get(pool)

    def _create_missing(
        self, queue: QueueRef, metadata: bytes = NO_METADATA, grouping: Grouping = Grouping.NONE
    ) -> bool:
        """Create the queue in the store of its pool if it is missing there. Return whether it was missing.

        If this process is paused while the queue moves to another pool, the former store refuses the creation.
        """
        while True:
            pool = self._bindings.bind(queue)
            store = self._stores.get(pool)
            migratable: object = store
            if not self._bindings.freezes.is_started or not isinstance(migratable, MigratableStorage):
                return store.queues.create(queue, metadata, grouping)
            token = store.documents.get(token_ref(queue), store.now())
            guard = Guard(token_ref(queue), b"" if token is None else token.value)
            if self._bindings.is_bound(queue, pool):  # after the token was read
                with suppress(Fenced):
                    return migratable.parcels.create_queue(queue, metadata, grouping, guard)

    def _with_targets(self, queue: QueueRef, moves: Sequence[Move], change: Callable[[Sequence[Move]], R]) -> R:
        """Bind the target queues of the moves, and call ``change`` with the moves.

        If queues may move between pools, ``change`` must not create a target, because a former store of the target
        would hide the messages.
        """
        while True:
            self._check_targets(queue, moves)
            if not moves or not self._bindings.freezes.is_started:
                return change(moves)
            try:
                return change([replace(move, may_create=False) for move in moves])
            except QueueNotFound:
                for target in {move.to for move in moves}:
                    self._create_missing(QueueRef(queue.project, target))

    def _check_targets(self, queue: QueueRef, moves: Iterable[Move]) -> None:
        """Bind unbound target queues to the pool of ``queue``. Raises ``PoolsApart`` if a target is in another pool."""
        for target in {move.to for move in moves}:
            self._bindings.bind_together(queue, QueueRef(queue.project, target))

    def _bind_hidden(self, queue: QueueRef, hidden: QueueRef) -> None:
        """Bind a hidden queue (an internal queue of a feature) to the pool of ``queue``.

        A server that was paused while ``queue`` moved may have bound the hidden queue to the former pool. If the hidden
        queue is missing there, bind it again. Raises ``PoolsApart`` if it exists there.
        """
        try:
            self._bindings.bind_together(queue, hidden)
        except PoolsApart:
            if not self._bindings.freezes.is_started or self._source_store(hidden).queues.get(hidden) is not None:
                raise
            with suppress(Fenced):
                self._bindings.rebind_missing(hidden, self._bindings.find(queue), partial(self._fence_off, hidden))
            self._bindings.bind_together(queue, hidden)

    def _fence_off(self, queue: QueueRef, pool: str) -> bool:
        """Refuse all creations of the queue in the pool that have begun. Return False if the queue exists there."""
        store = self._stores.get(pool)
        if not isinstance(store, MigratableStorage):  # creations there have no fencing token
            return False
        issue_token(store, queue)
        return store.queues.get(queue) is None


def _change(method: Callable[..., R]) -> Callable[..., R]:
    """Decorate a method that changes a queue, which is its first argument. If the queue moves, refuse the change."""

    @wraps(method)
    def call(self: Controller, queue: QueueRef, *given: Any, **named: Any) -> R:
        with self._bindings.freezes.change(queue):
            return method(self, queue, *given, **named)

    return call


def _route_by_queue(part: str, protocol: type, *methods: str) -> Callable[[T], T]:
    """Return a class decorator that adds ``methods`` of ``protocol``, each routed to the store of its queue.

    ``part`` is the name of the store's controller that has these methods, for example "messages".
    """

    def decorate(controller: T) -> T:
        for method in methods:
            routed = _routed(part, getattr(protocol, method), method)
            setattr(controller, method, routed if method in READS else _change(routed))
        return controller

    return decorate


def _routed(part: str, promised: Callable[..., Any], method: str) -> Callable[..., Any]:
    @wraps(promised)
    def call(self: Controller, queue: QueueRef, *given: Any, **named: Any) -> Any:
        return getattr(getattr(self._source_store(queue), part), method)(queue, *given, **named)

    return call


@_route_by_queue("queues", QueueController, "get", "purge", "stats", "ready")
class Queues(Controller):
    """The queue operations. Each operation runs in the store of the queue's pool."""

    @_change
    def create(self, queue: QueueRef, metadata: bytes, grouping: Grouping = Grouping.NONE) -> bool:
        chosen = _metadata.decode(metadata)
        self._check_flavor(queue, chosen.flavor)
        pool = self._bindings.bind(queue, flavor=chosen.flavor or None)
        store = self._stores.get(pool)
        if store.queues.get(queue) is not None:
            return False
        if chosen.flavor:
            self._bindings.check_flavor(queue, pool, chosen.flavor)
        self._place_dead_letters(queue, chosen.dead_letters)
        return self._create_missing(queue, metadata, grouping)

    @_change
    def update(self, queue: QueueRef, expected: bytes, metadata: bytes) -> bool:
        pool = self._bindings.find(queue)
        before, chosen = _metadata.decode(expected or b"{}"), _metadata.decode(metadata)
        if chosen.flavor and chosen.flavor != before.flavor:
            self._check_flavor(queue, chosen.flavor)
            self._bindings.check_flavor(queue, pool, chosen.flavor)
        if chosen.dead_letters != before.dead_letters:
            self._place_dead_letters(queue, chosen.dead_letters)
        return self._stores.get(pool).queues.update(queue, expected, metadata)

    def list(self, project: str, after: str, limit: int) -> Page[Queue]:
        found: list[Queue] = []
        while len(found) < limit:
            names, own, last = self._names(project, after, limit)
            for name in names:
                after = name
                queue = self._stores.get(names[name]).queues.get(QueueRef(project, name)) if names[name] else own[name]
                found += [queue] if queue is not None else []
                if len(found) == limit:
                    break
            if last:
                break
        return Page(found, found[-1].ref.name if found else None)

    def count(self, project: str) -> int:
        count, after = 0, ""
        while (page := self.list(project, after, PAGE)).next is not None:
            count, after = count + len(page.items), page.next
        return count

    def _names(self, project: str, after: str, limit: int) -> tuple[dict[str, str], dict[str, Queue | None], bool]:
        """Return (pools, queues, is_last) for the next queues with names greater than ``after``, in order of names.

        - ``pools`` maps the name of each queue to the name of its pool; "" is the default pool.
        - ``queues`` maps the name of each queue to the queue, or to None if the caller must read the queue from its
          pool.
        - ``is_last`` is true if no further queues follow.
        """
        bound = self._catalogue.documents.list(project, BINDING, "", after, limit, self._catalogue.now()).items
        own = self._catalogue.queues.list(project, after, limit).items
        names = {document.ref.name: read_binding(document).pool for document in bound}
        queues: dict[str, Queue | None] = dict.fromkeys(names)
        queues |= {queue.ref.name: queue for queue in own}
        names = {queue.ref.name: DEFAULT_POOL for queue in own} | names
        ends = [page[-1].ref.name for page in (bound, own) if len(page) == limit]
        known = sorted(name for name in names if not ends or name <= min(ends))
        return {name: names[name] for name in known}, queues, not ends

    @_change
    def delete(self, queue: QueueRef) -> None:
        store = self._source_store(queue)
        self._bindings.release(queue)
        store.queues.delete(queue)

    def _check_flavor(self, queue: QueueRef, flavor: Any) -> None:
        if flavor is None or flavor == "":
            return
        if not isinstance(flavor, str):
            raise InvalidBody("_flavor must be the name of a flavor, or null.")
        if not self._bindings.knows_flavor(queue.project, flavor):
            raise InvalidBody(f"_flavor is {flavor[:64]!r}, but the project has no flavor with this name.")

    def _place_dead_letters(self, queue: QueueRef, target: Any) -> None:
        if isinstance(target, str) and target:
            self._bindings.bind_together(queue, QueueRef(queue.project, target))


@_route_by_queue("messages", MessageController, "get", "list", "browse", "delete", "pop")
class Messages(Controller):
    """The message operations. Each operation runs in the store of the queue's pool."""

    @_change
    def post(
        self,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        expected: bytes | None = None,
        idempotency_key: IdempotencyKey | None = None,
        copies: Copies | None = None,
        create: bool = True,
    ) -> bytes | None:
        if copies is not None:
            self._bind_hidden(queue, copies.queue)
        store_creates = create and not self._bindings.freezes.is_started
        while True:
            store = self._stores.get(self._bindings.bind(queue) if create else self._bindings.find(queue))
            try:
                return store.messages.post(queue, drafts, now, expected, idempotency_key, copies, store_creates)
            except QueueNotFound:
                if not create:
                    raise
                self._create_missing(queue)

    @_change
    def move(self, queue: QueueRef, moves: Sequence[Move], now: Seconds, history: int = 0) -> Sequence[str]:
        return self._with_targets(
            queue, moves, lambda targeted: self._source_store(queue).messages.move(queue, targeted, now, history)
        )


@_route_by_queue("claims", ClaimController, "get", "release", "handle")
class Claims(Controller):
    """The claim operations. Each operation runs in the store of the queue's pool."""

    @_change
    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> ClaimResult:
        return self._target_store(queue, request.fence).claims.create(queue, request, now)

    def list(self, project: str, after: str, limit: int, now: Seconds, queue: str = "") -> Page[ClaimSummary]:
        """Return a page of the claims of one queue, or of all queues of a project.

        A project's claims are listed pool by pool. In such a page, ``next`` consists of the pool's name, a slash, and
        the position at which to continue in the pool's store.
        """
        if queue:
            return self._source_store(QueueRef(project, queue)).claims.list(project, after, limit, now, queue)
        first, _, inner = after.partition("/")
        pools = [pool for pool in sorted({DEFAULT_POOL, *self._bindings.pools()}) if pool >= first]
        found: list[ClaimSummary] = []
        for pool in pools:
            if len(found) == limit:
                return Page(found, f"{pool}/")
            begin = inner if pool == first else ""
            page = self._stores.get(pool).claims.list(project, begin, limit - len(found), now)
            # Two pools may share a store, each with its own queues.
            found += [one for one in page.items if self._bindings.find(QueueRef(project, one.queue)) == pool]
            if page.next is not None:
                return Page(found, f"{pool}/{page.next}")
        return Page(found, None)

    @_change
    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, fence: Fence | None = None) -> None:
        self._target_store(queue, fence).claims.renew(queue, lease, now, fence)

    @_change
    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        idempotency_key: IdempotencyKey | None = None,
        fence: Fence | None = None,
    ) -> SettleResult:
        def settle(moves: Sequence[Move]) -> SettleResult:
            chosen = replace(settlement, move=moves) if moves else settlement
            # Between two attempts, the queue may have moved to another pool.
            return self._target_store(queue, fence).claims.settle(queue, claim, chosen, now, idempotency_key, fence)

        return self._with_targets(queue, settlement.move, settle)


@_route_by_queue("history", HistoryController, "list", "get")
class History(Controller):
    """The history operations. Each operation runs in the store of the queue's pool."""


def _route_to_catalogue(method: str) -> Callable[..., Any]:
    promised = getattr(TransactionController, method)

    @wraps(promised)
    def call(self: Controller, *given: Any, **named: Any) -> Any:
        return getattr(self._catalogue.transactions, method)(*given, **named)

    return call


class Transactions(Controller):
    """The transaction operations. Stages, and the queues whose claims a commit settles, must be in the default pool."""

    advance_fence = _route_to_catalogue("advance_fence")
    drop_stage = _route_to_catalogue("drop_stage")
    continue_commit = _route_to_catalogue("continue_commit")
    find_unfinished_commits = _route_to_catalogue("find_unfinished_commits")
    is_idle = _route_to_catalogue("is_idle")
    count = _route_to_catalogue("count")
    list = _route_to_catalogue("list")
    last = _route_to_catalogue("last")

    @property
    def min_slice(self) -> int:
        return self._catalogue.transactions.min_slice

    @wraps(TransactionController.stage)
    def stage(self, project: str, stage: str, queue: QueueRef, *given: Any, **named: Any) -> None:
        with self._bindings.freezes.change(queue):
            pool = self._bindings.bind(queue)
            if pool != DEFAULT_POOL:
                raise PoolsApart(
                    f"The queue {queue.name} is in {describe(pool)}, but all stages are in the default pool: the "
                    f"stage {stage} cannot contain messages for this queue."
                )
            self._catalogue.transactions.stage(project, stage, queue, *given, **named)

    def commit(self, commit: Commit, now: Seconds, bounds: Bounds = BOUNDS) -> CommitResult:
        with self._bindings.freezes.change(*(held.queue for held in commit.settle)):
            return self._commit(commit, now, bounds)

    def _commit(self, commit: Commit, now: Seconds, bounds: Bounds) -> CommitResult:
        places = {held.queue.name: self._bindings.find(held.queue) for held in commit.settle}
        apart = {name: pool for name, pool in places.items() if pool != DEFAULT_POOL}
        if apart:
            pools = ", ".join(f"the queue {name} in {describe(pool)}" for name, pool in sorted(places.items()))
            raise PoolsApart(
                "A commit can only settle claims of queues in the default pool. This commit settles claims of "
                f"{pools[:900]}."
            )
        return self._catalogue.transactions.commit(commit, now, bounds)
