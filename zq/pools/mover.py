# SPDX-License-Identifier: Apache-2.0
"""A background thread that moves queues to other pools. A lease ensures that only one server at a time moves queues.

A move has four steps. Clients can read the queues during the move.

1. Freeze the queues: wait until all server processes reject changes and have completed earlier changes.
2. Copy the queues to the new pool, and verify that the copy is complete and that the queues have not changed.
3. Assign the queues to the new pool.
4. Delete the queues in the former pool, and end the freeze.

If a step before step 3 fails, the thread ends the freeze and deletes the copy. A failed copy is repeated later. The
cause may be temporary: the new pool may still remove the data of a deleted queue with the same name.

Each step is idempotent. If the server stops, another server continues with the step in the stored ``Move``. A server
that is paused during a call to a store does not disturb the server that continues:

- Before a step changes a queue in a store, it issues a fencing token there. It then checks that the move is still in
  the phase of the step.
- Each change names the token. The store rejects the change if another server has issued a token since.
- If a paused server has added a message to the former pool after the copy, the message is posted to the new pool before
  step 4. If the former store fails in step 4, the freeze ends at once, and such messages are deleted with the queue.
"""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, NamedTuple
from uuid import uuid4

from msgspec.structs import replace

from zq.clock import Clock
from zq.errors import Fenced, KeyReused, MoveRefused, QueueNotFound, Repeated, Unavailable, ZqError
from zq.model import Draft, IdempotencyKey, Message, Page, QueueRef
from zq.model.contents import Contents
from zq.model.documents import DocumentRef, Guard
from zq.model.parcels import MessageParcel, Parcel, QueueParcel
from zq.model.pools import Freeze
from zq.model.uptime import since_boot
from zq.pools.moves import CANCELLABLE, ENDED, Move, Moves, PoolRelocation, read_move
from zq.storage.api import Storage
from zq.storage.capabilities import MigratableStorage, ParcelController

LOG = logging.getLogger(__name__)
# Seconds between two searches for moves.
POLL_INTERVAL: Final = 2.0
# Seconds after which the lease expires, between two renewals, and after the last renewal in which the holder acts.
LEASE_TTL: Final = 20.0
RENEWAL_INTERVAL: Final = 4.0
MAX_LEASE_AGE: Final = 12.0
LEASE: Final = DocumentRef("", "pool-mover", "lease")
# Maximum seconds to wait until all processes have acknowledged a freeze, and seconds between two looks.
FREEZE_TIMEOUT: Final = 60.0
FREEZE_INTERVAL: Final = 0.05
# Maximum number of attempts to copy the queues of a move, and seconds between two attempts.
MAX_ATTEMPTS: Final = 10
RETRY_INTERVAL: Final = 10.0
# Seconds between the assignment to the new pool and the deletion in the former one, for reads in progress.
READ_GRACE: Final = 0.5
# Seconds between two reports of the progress, which also notice a cancellation.
PROGRESS_INTERVAL: Final = 1.0
# Number of parcels in one page.
PAGE: Final = 500
# Seconds for which a message of a paused server is not posted twice.
LATE_WINDOW: Final = 86_400


class Server(NamedTuple):
    """A server process: its host name, process id and version of zq."""

    host: str
    process: int
    version: str


class _LeaseLost(Exception):
    """Raised if this server's lease may have expired, so that another server may continue the move."""


class Lease:
    """The lease that allows one server to move queues. The holder must renew the lease before it expires."""

    def __init__(self, catalogue: Storage) -> None:
        self._catalogue = catalogue
        self._documents = catalogue.documents
        self._holder = uuid4().hex.encode()
        self._renewed: float | None = None

    def acquire(self) -> bool:
        """Acquire or renew the lease. Return False if another server holds it."""
        began, now = since_boot(), self._catalogue.now()
        stored = self._documents.get(LEASE, now)
        held = None if stored is not None and stored.value != self._holder else stored.version if stored else ""
        is_acquired = held is not None and self._documents.put(
            LEASE, self._holder, now, expected=held, expires=now + LEASE_TTL, is_vital=True
        )
        self._renewed = began if is_acquired else None
        return is_acquired

    def renew(self) -> None:
        """Renew the lease. If it is lost, do not acquire it again, because the current step is outdated."""
        began, now = since_boot(), self._catalogue.now()
        stored = self._documents.get(LEASE, now)
        is_renewed = (
            stored is not None
            and stored.value == self._holder
            and self._renewed is not None
            and self._documents.put(
                LEASE, self._holder, now, expected=stored.version, expires=now + LEASE_TTL, is_vital=True
            )
        )
        self._renewed = began if is_renewed else None

    def check(self) -> None:
        """Raise ``_LeaseLost`` if this server does not hold the lease, or if the lease may expire soon."""
        renewed = self._renewed
        if renewed is None or since_boot() - renewed > MAX_LEASE_AGE:
            raise _LeaseLost

    def release(self) -> None:
        """Release the lease, if this server holds it."""
        stored = self._documents.get(LEASE, self._catalogue.now())
        if stored is not None and stored.value == self._holder:
            self._documents.delete(LEASE, self._catalogue.now(), expected=stored.version)
        self._renewed = None


class Mover:
    """The thread that moves queues to other pools.

    Args:
        find_servers: Returns all server processes. If ``PoolRelocation.find_processes`` does not return one of these
            processes, the process cannot freeze queues. Moves then fail.
        is_read_only: Returns whether the service is in read-only mode. If so, the thread does not move queues.
    """

    def __init__(
        self,
        relocation: PoolRelocation,
        catalogue: Storage,
        clock: Clock,
        moves: Callable[[Callable[[], object]], Moves],
        find_servers: Callable[[], Iterable[Server]],
        is_read_only: Callable[[], bool] = lambda: False,
    ) -> None:
        self._relocation = relocation
        self._clock = clock
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self.moves = moves(self._woken.set)
        self._find_servers = find_servers
        self._is_read_only = is_read_only
        self._lease = Lease(catalogue)
        self._threads = [
            threading.Thread(target=self._run, name="zq-mover", daemon=True),
            threading.Thread(target=self._renew, name="zq-mover-lease", daemon=True),
        ]
        self._is_busy = False

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop after the current step. Another server, or the next start, continues the move."""
        self._stopping.set()
        self._woken.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(MAX_LEASE_AGE)

    def run_round(self) -> None:
        """Run all requested moves, unless another server holds the lease."""
        if self._is_read_only():
            return
        self.moves.reconcile()
        moves = self.moves.list_active()
        if not moves or not self._lease.acquire():
            return
        self._is_busy = True
        try:
            for move in moves:
                self._move(move)
        except _LeaseLost:
            LOG.warning("Another server continues the moves of queues, because this server was too slow.")
        finally:
            self._is_busy = False
            self._lease.release()

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._woken.wait(POLL_INTERVAL)
            self._woken.clear()
            if self._stopping.is_set():
                return
            try:
                self.run_round()
            except Unavailable as error:
                LOG.warning("Moves of queues are delayed: %s", error)
            except Exception:  # the thread must survive every failure
                LOG.critical("Unexpected error while moving queues, will retry.", exc_info=True)

    def _renew(self) -> None:
        while not self._stopping.wait(RENEWAL_INTERVAL):
            if self._is_busy:
                with suppress(Unavailable):
                    self._lease.renew()

    def _move(self, move: Move) -> None:
        steps: dict[str, Callable[[Move], Move]] = {
            "waiting": self._check,
            "freezing": self._freeze,
            "copying": self._copy,
            "switching": self._switch,
            "cleaning": self._clean,
            "reverting": self._revert,
        }
        while move.phase not in ENDED and not self._stopping.is_set():
            self._lease.check()
            is_cancellable = move.phase in CANCELLABLE
            if move.phase == "waiting" and move.not_before > self._clock.now() and not move.is_cancelled:
                return
            try:
                step = self._advance if move.is_cancelled and is_cancellable else steps[move.phase]
                move = step(move)
            except _LeaseLost:
                raise
            except Fenced as error:
                raise _LeaseLost from error
            except Exception as error:
                if not is_cancellable:
                    LOG.warning("The move %s is in the phase %s: %s", move.id, move.phase, error)
                    return  # the next round tries again
                is_expected = isinstance(error, ZqError)
                LOG.warning("The move %s of %s has failed: %s", move.id, move.queue, error, exc_info=not is_expected)
                sentence = str(error) if is_expected else "The move has failed; see the server log for the cause."
                move = self._advance(move, phase="reverting", error=sentence)
        if move.phase in ENDED:
            LOG.info("The move %s of the queue %s to the pool %s is %s.", move.id, move.queue, move.target, move.phase)

    def _advance(self, move: Move, **changes: Any) -> Move:
        """Store the changed move, and return it.

        If a client has cancelled the move and the phase permits it, the new phase is "reverting". Raises ``_LeaseLost``
        if another server has changed the phase or begun another attempt.
        """
        while True:
            self._lease.check()
            stored = self.moves.find(move)
            current = None if stored is None else read_move(stored)
            if stored is None or current is None or (current.phase, current.attempt) != (move.phase, move.attempt):
                raise _LeaseLost
            new = replace(move, is_cancelled=current.is_cancelled, **changes)
            if new.is_cancelled and move.phase in CANCELLABLE:
                new = replace(new, phase="reverting")
            if new.phase not in ENDED:
                self.moves.activate(new)
            if self.moves.write(new, stored.version):
                return new

    def _check(self, move: Move) -> Move:
        checked = self.moves.check(move)
        self._relocation.store(move.target).maintain(self._clock.now())
        return self._advance(checked, phase="freezing", began=self._clock.now(), error="")

    def _freeze(self, move: Move) -> Move:
        self._relocation.freeze(move.id, Freeze(move.project, move.queues, move.target))
        began = reported = time.monotonic()
        while late := self._find_late(move.id):
            if time.monotonic() - began > FREEZE_TIMEOUT:
                raise MoveRefused(
                    f"{late[0]} did not begin to reject changes to the queue within {FREEZE_TIMEOUT:.0f} seconds. "
                    "Restart the process with this version of zq, and request the move again."
                )
            if time.monotonic() - reported > PROGRESS_INTERVAL:
                reported = time.monotonic()
                move = self._advance(move)
            if move.phase != "freezing" or self._stopping.wait(FREEZE_INTERVAL):
                return move
        checked = self.moves.check(move)
        if checked.queues != move.queues:
            raise MoveRefused("The queues that must move together have changed. Request the move again.")
        target = self._relocation.store(move.target)
        for queue in move.refs:
            self._lease.check()
            self._relocation.reserve(queue, move.target)
            if target.queues.get(queue) is not None:
                raise MoveRefused(f"The store of the pool {move.target} already has a queue {queue.name}.")
        versions, target_version = self._read_versions(move), self._relocation.pool_version(move.target)
        return self._advance(checked, phase="copying", has_copy=True, versions=versions, target_version=target_version)

    def _read_versions(self, move: Move) -> dict[str, str]:
        return {queue.name: self._relocation.version(queue) for queue in move.refs}

    def _find_late(self, move: str) -> list[str]:
        """Return the server processes that do not yet reject changes to the move's queues, as text for an error."""
        processes = self._relocation.find_processes()
        known = {(one.host, one.process) for one in processes}
        late = [f"The process {one.process} on host {one.host}" for one in processes if move not in one.freezes]
        return late + [
            f"The process {one.process} on host {one.host} (zq {one.version})"
            for one in self._find_servers()
            if (one.host, one.process) not in known
        ]

    def _copy(self, move: Move) -> Move:
        began = reported = time.monotonic()
        self._check_target(move)
        move, guards = self._issue_tokens(move, move.target)
        if move.phase != "copying":
            return move
        source, target = (_parcels(self._relocation.store(pool)) for pool in (move.source, move.target))
        moment, copied, original = self._clock.now(), 0, Contents()
        for queue in move.refs:
            for page in self._pages(source, queue):
                self._lease.check()
                target.adopt(move.project, page.items, self._clock.now(), guards[queue])
                copied += len(page.items)
                for parcel in page.items:
                    original.add(move.project, parcel, moment)
                if time.monotonic() - reported > PROGRESS_INTERVAL:
                    reported = time.monotonic()
                    move = self._advance(move, copied=copied)
                if move.phase != "copying" or self._stopping.is_set():
                    return move
        copy = self._read_contents(move, target, moment)
        elapsed = time.monotonic() - began
        if _differ(original, copy, elapsed):
            raise MoveRefused(
                f"The copy in the pool {move.target} differs from the queue. Wait a minute, and request the move again."
            )
        # A server that was paused before the freeze may have changed the queues during the copy.
        again = self._read_contents(move, source, moment)
        if _differ(original, again, time.monotonic() - began) or again.lower_counters(original):
            raise MoveRefused("The queue was changed during the copy. Wait a minute, and request the move again.")
        self._revoke_tokens(guards, move.target)
        self._check_target(move)
        self.moves.record_rate(move.messages, elapsed)
        sequences = {name: int(counters[0]) for (_, name), counters in again.counters.items()}
        return self._advance(move, phase="switching", copied=copied, sequences=sequences)

    def _issue_tokens(self, move: Move, pool: str) -> tuple[Move, Mapping[QueueRef, Guard]]:
        """Issue a fencing token for each queue in the pool's store, and return the move and the guards.

        Afterwards, check the phase. All operations of servers that were in this phase earlier are refused.
        """
        guards = {}
        for queue in move.refs:
            self._lease.check()
            guards[queue] = self._relocation.issue_token(queue, pool)
        return self._advance(move), guards

    def _revoke_tokens(self, guards: Mapping[QueueRef, Guard], pool: str) -> None:
        """Make the guards invalid, so that a repeated request that is still on its way has no effect later."""
        for guard in guards.values():
            self._lease.check()
            self._relocation.revoke_token(guard, pool)

    def _read_contents(self, move: Move, parcels: ParcelController, moment: float) -> Contents:
        contents = Contents()
        for queue in move.refs:
            for page in self._pages(parcels, queue):
                self._lease.check()
                for parcel in page.items:
                    contents.add(move.project, parcel, moment)
        return contents

    def _check_target(self, move: Move) -> None:
        """Raise ``MoveRefused`` if the definition of the target pool has changed since the copy began."""
        # The pool may refer to another store now.
        if self._relocation.pool_version(move.target) != move.target_version:
            raise MoveRefused(f"The pool {move.target} was changed during the copy.")

    def _pages(self, parcels: ParcelController, queue: QueueRef) -> Iterator[Page[Parcel]]:
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(parcels.export_queue, queue, "", PAGE, self._clock.now())
            while (page := reading.result()).next is not None:
                reading = pool.submit(parcels.export_queue, queue, page.next, PAGE, self._clock.now())
                yield page

    def _switch(self, move: Move) -> Move:
        try:
            self._check_target(move)
        except MoveRefused as error:
            if not self._has_switched(move):
                return self._undo_switch(move, error)
            if not self._has_same_store(move):
                raise Unavailable(str(error)) from error
        for queue in move.refs:
            self._lease.check()
            if not self._relocation.rebind(queue, move.source, move.target, move.versions.get(queue.name, "")):
                # Only the removal of a deleted queue's binding changes a frozen binding, unless the move has ended.
                self._advance(move, versions=self._read_versions(move))
                raise Unavailable(f"The pool assignment of the queue {queue.name} has changed.")
        self._stopping.wait(READ_GRACE)
        return self._advance(move, phase="cleaning")

    def _undo_switch(self, move: Move, error: MoveRefused) -> Move:
        """Revert the move because of ``error``.

        Raises ``Unavailable`` if the assignment of a queue has changed. The thread then tries again later.
        """
        for queue in move.refs:
            self._lease.check()
            # The new version of the binding keeps a paused mover from assigning the queue.
            if not self._relocation.rebind(queue, move.source, move.source, move.versions.get(queue.name, "")):
                self._advance(move, versions=self._read_versions(move))
                raise Unavailable(str(error))
        if self._has_switched(move):  # a paused mover has assigned a queue before its binding got the new version
            raise Unavailable(str(error))
        return self._advance(move, phase="reverting", error=str(error))

    def _has_switched(self, move: Move) -> bool:
        """Return whether a queue of the move is already assigned to the new pool."""
        bindings = [self._relocation.binding(queue) for queue in move.refs]
        return any(binding is not None and binding.pool != move.source for binding in bindings)

    def _has_same_store(self, move: Move) -> bool:
        """Return whether the new pool still refers to the store to which the queues were copied."""
        return self._relocation.pool_version(move.target)[1] == move.target_version[1]

    def _clean(self, move: Move) -> Move:
        try:
            move = self._release(move, move.source, True)
        except (_LeaseLost, Fenced):
            raise
        except Exception:  # the queues are served again even if their former store fails
            # Consumers may now delete messages in the new pool. Without sequences, the former queues are deleted
            # without a search for late messages, so that no deleted message is posted again.
            self._unfreeze(self._advance(move, sequences={}))
            raise
        move = self._unfreeze(move)
        return self._advance(move, phase="done", ended=self._clock.now())

    def _revert(self, move: Move) -> Move:
        move = self._unfreeze(move)
        # If the pool has another store now, this store may have a queue of this name that is not the copy.
        has_copy = move.has_copy and self._has_same_store(move)
        move = self._release(replace(move, sequences={}), move.target, has_copy)
        now = self._clock.now()
        if not move.is_cancelled and move.has_copy and move.attempt < MAX_ATTEMPTS:
            return self._advance(
                move,
                phase="waiting",
                attempt=move.attempt + 1,
                not_before=now + RETRY_INTERVAL,
                has_copy=False,
                copied=0,
            )
        return self._advance(move, phase="cancelled" if move.is_cancelled else "failed", ended=now)

    def _unfreeze(self, move: Move) -> Move:
        version = self._relocation.freeze_version(move.id)
        move = self._advance(move)
        self._relocation.unfreeze(move.id, version)
        return move

    def _release(self, move: Move, pool: str, has_copy: bool) -> Move:
        """Delete the queues in a pool that they are not assigned to."""
        index_versions = {queue: self._relocation.index_version(queue, pool) for queue in move.refs}
        guards: Mapping[QueueRef, Guard] = {}
        if has_copy:
            move, guards = self._issue_tokens(move, pool)
        else:
            move = self._advance(move)
        for queue in move.refs:
            guard, index_version = guards.get(queue), index_versions[queue]
            while not self._relocation.release(queue, pool, index_version, guard, move.sequences.get(queue.name)):
                move = self._carry_late_messages(move, queue)
            self._lease.check()
        self._revoke_tokens(guards, pool)
        return move

    def _carry_late_messages(self, move: Move, queue: QueueRef) -> Move:
        """Post the messages that a paused server has added to the queue in the former pool to the new pool.

        Each post has an idempotency key, so that another mover does not repeat it.
        """
        source, target = _parcels(self._relocation.store(move.source)), self._relocation.store(move.target)
        last = move.sequences[queue.name]
        for page in self._pages(source, queue):
            self._lease.check()
            for parcel in page.items:
                if isinstance(parcel, QueueParcel):
                    last = parcel.counters.sequence
                elif isinstance(parcel, MessageParcel) and parcel.message.sequence > move.sequences[queue.name]:
                    message, now = parcel.message, self._clock.now()
                    # A message that was moved within the queues of this move is part of the copy.
                    if not any(target.messages.get(one, [message.id], now) for one in move.refs):
                        LOG.warning("A message reached the queue %s in its former pool during the move.", queue.name)
                        with suppress(Repeated, KeyReused, QueueNotFound):
                            _post_again(target, queue, message, now)
        return self._advance(move, sequences={**move.sequences, queue.name: last})


def _post_again(target: Storage, queue: QueueRef, message: Message, now: float) -> None:
    delay = max(0, math.ceil(message.available - now))
    own = message.client, message.checksum, message.attributes, message.group
    draft = Draft(message.id, message.body, message.ttl, delay, *own)
    # The keys of clients contain no spaces, and the keys of SQS begin with "sqs".
    key = IdempotencyKey(f"move {message.id} {message.sequence}", b"", LATE_WINDOW)
    target.messages.post(queue, [draft], now, idempotency_key=key, create=False)


def _differ(original: Contents, other: Contents, elapsed: float) -> bool:
    """Return whether the contents differ, apart from items that may have expired within ``elapsed`` seconds."""
    keys = original.comparable(other, elapsed + 1)
    return any(original.digests[key] != other.digests[key] for key in keys) or bool(original.lower_counters(other))


def _parcels(storage: Storage) -> ParcelController:
    store: object = storage
    assert isinstance(store, MigratableStorage), "the check of the move has found parcels"
    return store.parcels
