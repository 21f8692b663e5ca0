# SPDX-License-Identifier: Apache-2.0
"""Moves of queues to another pool: start, list, get and cancel (contract section 11).

A move has these phases. A background thread carries out the move and changes the phase; see ``zq.pools.mover``.

| Phase | Meaning |
|---|---|
| waiting | the move has not begun |
| freezing | all servers begin to refuse changes of the queues |
| copying | the queues are copied to the pool, and the copy is compared |
| switching | the queues are assigned to the pool |
| cleaning | the queues are deleted in the former pool |
| reverting | the copy has failed, or the move is cancelled; the copy is deleted |
| done, failed, cancelled | the move has ended |
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, Protocol
from uuid import uuid4

import msgspec
from jsonschema import Draft4Validator
from msgspec import Struct
from msgspec.structs import replace

from zq.clock import Clock
from zq.errors import (
    Conflict,
    InvalidName,
    MoveNotFound,
    MoveRefused,
    PoolNotFound,
    QueueNotFound,
)
from zq.model import Page, QueueRef, Seconds
from zq.model.documents import Document, DocumentRef, Guard
from zq.model.hidden import is_hidden, owner_of
from zq.model.limits import DEFAULT_PAGE, Limits, check_range
from zq.model.pools import (
    ACTIVE,
    BINDING,
    DEFAULT_POOL,
    FREEZE,
    MAX_TEXT,
    MOVE,
    PAGE_SIZE,
    Binding,
    Freeze,
    PoolProcess,
    each,
    index_prefix,
    pool_ref,
    read_binding,
    read_freeze,
)
from zq.pools.catalogue import check_name, decode_body
from zq.storage.api import Storage
from zq.storage.capabilities import MigratableStorage, MissingCapability

# Seconds after which a document that lists an active move expires, if the move is not stored.
ACTIVE_TTL: Final = 60.0
# Seconds between two searches for moves that no document lists.
SEARCH_INTERVAL: Final = 60.0
# The document with the rate of the latest move, in messages per second.
RATE: Final = DocumentRef("", "pool-move-rate", "")
# Seconds for which the record of a move that has ended is kept.
RETENTION: Final = 7 * 86_400
# Messages per second, and seconds to freeze and to switch, that an estimate assumes before the first measured move.
ASSUMED_RATE: Final = 2000.0
FIXED_SECONDS: Final = 4.0
# Number of queues read at a time.
LIST_PAGE: Final = 500
# Minimum number of messages of a move from which the rate is measured.
MIN_MEASURED: Final = 1000
NEW_MOVE: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "queue": {"type": "string", "minLength": 1, "maxLength": MAX_TEXT},
        "project": {"type": "string", "maxLength": MAX_TEXT},
    },
    "required": ["queue"],
    "additionalProperties": False,
}
_new_move: Final = Draft4Validator(NEW_MOVE)
Phase = Literal["waiting", "freezing", "copying", "switching", "cleaning", "reverting", "done", "failed", "cancelled"]
ENDED: Final = frozenset({"done", "failed", "cancelled"})
# Phases in which a move can be cancelled.
CANCELLABLE: Final = frozenset({"waiting", "freezing", "copying"})


class Move(Struct, frozen=True):
    """A move of a queue, and of the queues that must be in the same pool, to another pool.

    Attributes:
        queues: All queues that move, including hidden ones.
        messages: Number of messages when the move was requested or, later, when the copy began.
        copied: Number of copied items: queues, messages, history entries and idempotency keys.
        has_copy: Whether the pool may contain a copy.
        rate: Expected number of copied messages per second.
        is_measured: Whether ``rate`` was measured during an earlier move. If not, it is a default.
        began: Time at which the queues were frozen.
        is_cancelled: Whether a client has cancelled the move.
        error: The reason why the move, or the last attempt to copy, has failed.
        attempt: Number of the attempt to copy, from 1 on.
        not_before: Time before which the next attempt does not begin.
        versions: Versions of the bindings when the copy began, by queue.
        target_version: Version of the pool ``target``, and a digest of its URI, when the copy began.
        sequences: Last sequences of the copied queues in the former pool, by queue. Messages with later sequences were
            added by servers that were paused before the freeze. Empty if the freeze has ended, so that later messages
            are deleted.
    """

    id: str
    project: str
    queue: str
    source: str
    target: str
    queues: list[str]
    messages: int
    rate: float
    is_measured: bool
    requested: Seconds
    phase: Phase = "waiting"
    copied: int = 0
    has_copy: bool = False
    began: Seconds | None = None
    ended: Seconds | None = None
    is_cancelled: bool = False
    error: str = ""
    attempt: int = 1
    not_before: Seconds = 0.0
    versions: dict[str, str] = {}
    target_version: tuple[str, str] = ("", "")
    sequences: dict[str, int] = {}

    @property
    def ref(self) -> DocumentRef:
        return DocumentRef("", MOVE, index_prefix(self.target) + self.id)

    @property
    def refs(self) -> list[QueueRef]:
        """The queues that move."""
        return [QueueRef(self.project, name) for name in self.queues]

    @property
    def estimate(self) -> Seconds:
        """The estimated seconds for which the queues accept no changes.

        The estimate ignores history entries and idempotency keys, although they are copied too, because no operation of
        a store counts them for one queue.
        """
        return FIXED_SECONDS + self.messages / self.rate


class PoolRelocation(Protocol):
    """Interface of the store operations with which queues are moved; see ``zq.storage.pooling.relocation``."""

    def store(self, pool: str) -> Storage: ...

    def binding(self, queue: QueueRef) -> Binding | None: ...

    def check_flavor(self, queue: QueueRef, pool: str, flavor: str) -> None: ...

    def reserve(self, queue: QueueRef, pool: str) -> None: ...

    def pool_version(self, pool: str) -> tuple[str, str]: ...

    def version(self, queue: QueueRef) -> str: ...

    def rebind(self, queue: QueueRef, source: str, target: str, version: str) -> bool: ...

    def issue_token(self, queue: QueueRef, pool: str) -> Guard: ...

    def revoke_token(self, guard: Guard, pool: str) -> None: ...

    def index_version(self, queue: QueueRef, pool: str) -> str: ...

    def release(
        self, queue: QueueRef, pool: str, index_version: str, guard: Guard | None, sequence: int | None = None
    ) -> bool: ...

    def share_store(self, pool: str, other: str) -> bool: ...

    def freeze(self, move: str, freeze: Freeze) -> None: ...

    def freeze_version(self, move: str) -> str: ...

    def unfreeze(self, move: str, version: str) -> None: ...

    def find_processes(self) -> Sequence[PoolProcess]: ...


class _Metadata(Struct, rename={"flavor": "_flavor", "dead_letters": "_dead_letter_queue"}):
    flavor: Any = None
    dead_letters: Any = None


_decode_metadata: Final = msgspec.json.Decoder(_Metadata).decode
_decode: Final = msgspec.json.Decoder(Move).decode


def read_move(document: Document) -> Move:
    return _decode(document.value)


class Group(Struct, frozen=True):
    """A set of queues that must be in the same pool, such as a queue and its dead-letter queue.

    ``flavors`` contains the flavor of each queue that has one, by queue name.
    """

    names: list[str]
    flavors: dict[str, str]


class Moves:
    """The moves of queues to another pool.

    Args:
        wake: Called after a move is requested or cancelled.
    """

    def __init__(
        self, relocation: PoolRelocation, catalogue: Storage, clock: Clock, limits: Limits, wake: Callable[[], object]
    ) -> None:
        self._relocation = relocation
        self._catalogue = catalogue
        self._documents = catalogue.documents
        self._clock = clock
        self._limits = limits
        self._wake = wake
        self._next_search = 0.0

    def start(self, pool: str, project: str, raw: bytes) -> Move:
        """Request the move of a queue to the pool, and return the move. The JSON body ``raw`` names the queue.

        Raises:
            InvalidBody: The body is malformed.
            PoolNotFound, QueueNotFound: The pool or the queue does not exist.
            MoveRefused: The queue cannot move to the pool.
        """
        given = decode_body(raw, _new_move)
        project, queue = given.get("project", project), given["queue"]
        check_name("pool", pool)
        if self._documents.get(pool_ref(pool), self._clock.now()) is None:
            raise PoolNotFound(f"There is no pool {pool}.")
        rate, is_measured = self._find_rate()
        source = self._pool_of(QueueRef(project, queue))
        now = self._clock.now()
        id = f"{int(now * 1000):013x}{uuid4().hex[:8]}"
        move = self.check(Move(id, project, queue, source, pool, [], 0, rate, is_measured, now))
        for other in self.list_active():
            if other.project == project and set(other.queues) & set(move.queues):
                raise MoveRefused(
                    f"The queue {queue}, or a queue that must move with it, is already part of the move {other.id} to "
                    f"the pool {other.target}."
                )
        self._documents.put(_active_ref(move), b"", now, expires=now + ACTIVE_TTL)
        self.write(move, "")
        self.activate(move)
        self._wake()
        return move

    def check(self, move: Move) -> Move:
        """Check whether the queue can be moved. Return the move with its current queues and number of messages.

        Raises ``QueueNotFound`` if the queue does not exist, or ``MoveRefused`` if the queue cannot be moved.
        """
        queue, source, target = QueueRef(move.project, move.queue), move.source, move.target
        if is_hidden(queue):
            raise InvalidName("queue must not begin with ~.")
        former = self._relocation.store(source)
        if former.queues.get(queue) is None:
            raise QueueNotFound(f"The project has no queue {move.queue}.")
        if source == target:
            raise MoveRefused(f"The queue {move.queue} is already in the pool {target}.")
        group = self._find_group(queue, source)
        for name in group.names:
            binding = self._relocation.binding(QueueRef(move.project, name))
            if binding is not None and binding.pool != source:
                raise MoveRefused(
                    f"The queues {name} and {move.queue} must be in the same pool, but are in different pools."
                )
            if binding is not None and binding.deleted is not None and name == move.queue:
                raise MoveRefused(f"The queue {name} is being deleted. Try again in two minutes.")
        for name, flavor in group.flavors.items():
            try:
                self._relocation.check_flavor(QueueRef(move.project, name), target, flavor)
            except Conflict as error:
                raise MoveRefused(
                    f"The queue {name} has the _flavor {flavor}, but the pool {target} does not belong to this flavor."
                ) from error
        for pool in (source, target):
            store: object = self._relocation.store(pool)
            if not isinstance(store, MigratableStorage):
                raise MoveRefused(f"The store of {_describe(pool)} cannot export or import queues.")
        if self._relocation.share_store(source, target):
            raise MoveRefused(f"{_describe(source).capitalize()} and the pool {target} use the same store.")
        if source == DEFAULT_POOL:
            self._check_transactions(move.project)
        now = self._clock.now()
        counts = (former.queues.stats(QueueRef(move.project, name), now) for name in group.names)
        return replace(move, queues=group.names, messages=sum(stats.free + stats.claimed for stats in counts))

    def list(self, pool: str, marker: str, limit: int | None) -> Page[Move]:
        """Return a page of the moves to the pool after the id ``marker``, oldest first.

        Raises ``Invalid`` for a bad ``limit``.
        """
        size = DEFAULT_PAGE if limit is None else check_range("limit", limit, 1, self._limits.max_pools_per_page)
        prefix = index_prefix(pool)
        page = self._documents.list("", MOVE, prefix, prefix + marker if marker else "", size, self._clock.now())
        return Page([read_move(document) for document in page.items], page.next and page.next.removeprefix(prefix))

    def get(self, pool: str, id: str) -> Move:
        """Return the move. Raises ``MoveNotFound``."""
        return read_move(self._stored(pool, id))

    def cancel(self, pool: str, id: str) -> None:
        """Cancel the move. Raises ``MoveNotFound``, or ``MoveRefused`` if the queues are already in the pool."""
        while True:
            stored = self._stored(pool, id)
            move = read_move(stored)
            if move.is_cancelled:
                return
            if move.phase not in CANCELLABLE:
                raise MoveRefused(f"The move cannot be cancelled, because its phase is {move.phase}.")
            if self.write(replace(move, is_cancelled=True), stored.version):
                self._wake()
                return

    def list_active(self) -> Sequence[Move]:
        """Return the moves that have not ended, oldest first. The moves can concern any pool."""
        now, found = self._clock.now(), []
        for entry in each(self._documents, ACTIVE, now):
            stored = self._documents.get(DocumentRef("", MOVE, entry.ref.name), now)
            if stored is not None and (move := read_move(stored)).phase not in ENDED:
                found.append(move)
            elif stored is not None:
                self._documents.delete(entry.ref, now, expected=entry.version)
        return sorted(found, key=lambda move: move.id)

    def activate(self, move: Move) -> None:
        """Add the move to the index of moves that have not ended. Idempotent."""
        self._documents.put(_active_ref(move), b"", self._clock.now(), is_vital=True)

    def reconcile(self) -> None:
        """Repair the data of moves after a server was killed or paused.

        - Delete the ``Freeze`` of each move that has ended or does not exist.
        - Add missing moves to the index of moves that have not ended. Moves without a ``Freeze`` are searched for only
          every ``SEARCH_INTERVAL`` seconds.
        """
        now = self._clock.now()
        for document in each(self._documents, FREEZE, now):
            target = read_freeze(document).target
            stored = self._documents.get(DocumentRef("", MOVE, index_prefix(target) + document.ref.name), now)
            if target and (stored is None or read_move(stored).phase in ENDED):
                self._relocation.unfreeze(document.ref.name, document.version)
            elif stored is not None:
                self._restore_active(read_move(stored))
        if now >= self._next_search:
            self._next_search = now + SEARCH_INTERVAL
            for document in each(self._documents, MOVE, now):
                self._restore_active(read_move(document))

    def _restore_active(self, move: Move) -> None:
        if move.phase not in ENDED and self._documents.get(_active_ref(move), self._clock.now()) is None:
            self.activate(move)

    def write(self, move: Move, version: str) -> bool:
        """Store the move if the stored version is ``version``. Return whether the move was stored.

        With the version "", the move is stored only if it does not exist yet.
        """
        now = self._clock.now()
        expires = now + RETENTION if move.phase in ENDED else None
        value = msgspec.json.encode(move)
        # A store that has reached its memory limit must not keep a freeze from ending.
        return self._documents.put(move.ref, value, now, expected=version, expires=expires, is_vital=True)

    def find(self, move: Move) -> Document | None:
        """Return the stored document of the move."""
        return self._documents.get(move.ref, self._clock.now())

    def _stored(self, pool: str, id: str) -> Document:
        stored = self._documents.get(DocumentRef("", MOVE, index_prefix(pool) + id), self._clock.now())
        if stored is None:
            raise MoveNotFound
        return stored

    def _pool_of(self, queue: QueueRef) -> str:
        binding = self._relocation.binding(queue)
        return DEFAULT_POOL if binding is None else binding.pool

    def record_rate(self, messages: int, seconds: Seconds) -> None:
        """Record how long a copy has taken. Ignore small copies."""
        if messages >= MIN_MEASURED:
            rate = msgspec.json.encode(messages / max(seconds, 0.001))
            self._documents.put(RATE, rate, self._clock.now())

    def _find_rate(self) -> tuple[float, bool]:
        """Return the rate of the latest measured move, or the assumed rate, and whether the rate is measured."""
        stored = self._documents.get(RATE, self._clock.now())
        return (ASSUMED_RATE, False) if stored is None else (msgspec.json.decode(stored.value, type=float), True)

    def _find_group(self, queue: QueueRef, pool: str) -> Group:
        """Return all queues that must be in the same pool as the queue, including the queue itself.

        A queue and its dead-letter queue must be in the same pool, and so must a queue and its hidden queues. The
        result contains all queues that are connected in this way, directly or indirectly.
        """
        dead_letters, flavors, hidden = dict[str, str](), dict[str, str](), set[QueueRef]()
        for ref, metadata in self._list_queues(queue.project, pool):
            if is_hidden(ref):
                hidden.add(ref)
            elif b'"_' in metadata:
                known = _decode_metadata(metadata)
                if isinstance(known.flavor, str) and known.flavor:
                    flavors[ref.name] = known.flavor
                # The store may have the remainder of a queue that is in another pool now.
                if isinstance(known.dead_letters, str) and known.dead_letters and self._pool_of(ref) == pool:
                    dead_letters[ref.name] = known.dead_letters
        names = _connected(queue.name, dead_letters.items())
        hidden |= {ref for ref, _ in self._list_bindings(queue.project, "~")}
        names |= {ref.name for ref in hidden if _is_owned(ref, names)}
        store = self._relocation.store(pool)
        there = {
            name
            for name in names
            if self._relocation.binding(QueueRef(queue.project, name)) is not None
            or store.queues.get(QueueRef(queue.project, name)) is not None
        }
        return Group(sorted(there), {name: flavor for name, flavor in flavors.items() if name in there})

    def _list_queues(self, project: str, pool: str) -> Iterator[tuple[QueueRef, bytes]]:
        """Yield the queues of the project in the pool, with their metadata."""
        store, after = self._relocation.store(pool), ""
        while page := store.queues.list(project, after, LIST_PAGE).items:
            yield from ((queue.ref, queue.metadata) for queue in page)
            after = page[-1].ref.name

    def _list_bindings(self, project: str, prefix: str) -> Iterator[tuple[QueueRef, Binding]]:
        after: str | None = ""
        while after is not None:
            page = self._documents.list(project, BINDING, prefix, after, PAGE_SIZE, self._clock.now())
            for document in page.items:
                yield QueueRef(project, document.ref.name), read_binding(document)
            after = page.next

    def _check_transactions(self, project: str) -> None:
        """Raise ``MoveRefused`` if the project has stages or unfinished commits, which may change the queues.

        Once the queues are frozen, the result stays correct, because no server adds messages for them to a stage.
        """
        work = self._catalogue.transactions
        if not isinstance(work, MissingCapability) and not work.is_idle(project, self._clock.now()):
            raise MoveRefused(
                "The project has open stages or commits, which only the default pool supports. Wait until they are "
                "committed or dropped."
            )


def _active_ref(move: Move) -> DocumentRef:
    return DocumentRef("", ACTIVE, move.ref.name)


def _connected(name: str, pairs: Iterable[tuple[str, str]]) -> set[str]:
    """Return all names that pairs connect with ``name``, directly or indirectly."""
    neighbours: dict[str, set[str]] = {}
    for one, other in pairs:
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    found, left = {name}, [name]
    while left:
        new = neighbours.get(left.pop(), set()) - found
        found |= new
        left += new
    return found


def _is_owned(hidden: QueueRef, names: set[str]) -> bool:
    owner = owner_of(hidden)
    return owner is not None and owner.kind == "queue" and owner.name in names


def _describe(pool: str) -> str:
    return f"the pool {pool}" if pool else "the default pool"
