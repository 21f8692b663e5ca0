# SPDX-License-Identifier: Apache-2.0
"""Claims of the embedded store. A claim is nothing but what its messages' records say of it."""

from zq.errors import ClaimNotFound
from zq.model import (
    AT_ONCE,
    UNBOUNDED,
    Claim,
    DeadLetters,
    Fence,
    Lease,
    Once,
    QueueRef,
    Redelivery,
    Seconds,
    Settled,
    Settlement,
)
from zq.storage.rocksdb import fences, layout, settling
from zq.storage.rocksdb.change import Change
from zq.storage.rocksdb.holding import claim_of, give_back, held_by, hold
from zq.storage.rocksdb.keeper import Keeper
from zq.storage.rocksdb.looks import Look, Terms
from zq.storage.rocksdb.moves import Routes, by_name, targets
from zq.storage.rocksdb.once import check_key, remember_key
from zq.storage.rocksdb.stripes import Stripes

NO_CLAIM = "There is no live claim of this id in the queue."


class ClaimController:
    """``zq.storage.api.ClaimController`` on RocksDB."""

    def __init__(self, keeper: Keeper, stripes: Stripes) -> None:
        self._keeper = keeper
        self._stripes = stripes

    def create(
        self,
        queue: QueueRef,
        lease: Lease,
        limit: int,
        now: Seconds,
        dead_letters: DeadLetters | None = None,
        redelivery: Redelivery = AT_ONCE,
        most_bytes: int = UNBOUNDED,
    ) -> Claim | None:
        with self._keeper as opened:
            look = Look(opened, queue, Terms(lease, limit, layout.ms(now), dead_letters, redelivery, most_bytes))
            claim = look.run()
            look.settle()
        return claim

    def create_named(
        self,
        queue: QueueRef,
        lease: Lease,
        limit: int,
        now: Seconds,
        dead_letters: DeadLetters | None = None,
        redelivery: Redelivery = AT_ONCE,
        fence: Fence | None = None,
        most_bytes: int = UNBOUNDED,
    ) -> tuple[Claim | None, bool]:
        with self._keeper as opened:
            terms = Terms(lease, limit, layout.ms(now), dead_letters, redelivery, most_bytes, named=True)
            look = Look(opened, queue, terms)
            with self._stripes.held(*fences.names(queue.project, fence)):
                fences.check(opened.store, queue.project, fence)
                claim = look.run()
            look.settle()
        return claim, look.found is not None

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        with self._keeper as (store, registry), registry.held(queue) as (state,):
            found = claim_of(store, state, claim, layout.ms(now))
        if found is None:
            raise ClaimNotFound(NO_CLAIM)
        return found

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, fence: Fence | None = None) -> None:
        moment = layout.ms(now)
        with self._keeper as (store, registry):
            with self._stripes.held(*fences.names(queue.project, fence)), registry.held(queue) as (state,):
                fences.check(store, queue.project, fence)
                held = held_by(store, state, lease.claim, moment)
                if state is None or not held:
                    raise ClaimNotFound(NO_CLAIM)
                change = Change(store)
                for found in held:
                    hold(change, state, found, lease, found[1].available - found[1].ends, moment)
                change.commit()
            store.settle()

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        moment = layout.ms(now)
        with self._keeper as (store, registry):
            with registry.held(queue) as (state,):
                held = held_by(store, state, claim, moment)
                if state is None or not held:
                    return
                change = Change(store)
                for found in held:
                    give_back(change, state, found, delay, moment)
                change.commit()
            store.settle()

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        once: Once | None = None,
        fence: Fence | None = None,
    ) -> Settled:
        moment = layout.ms(now)
        refs = targets(queue, settlement.move)
        with self._keeper as (store, registry):
            settled = None
            with self._stripes.held(*fences.names(queue.project, fence)):
                while settled is None:
                    with registry.held(queue, *refs) as (state, *others):
                        check_key(store, state, once, Settled, moment)
                        fences.check(store, queue.project, fence)
                        held = {found[1].id: found for found in held_by(store, state, claim, moment)}
                        if state is None or not held:
                            raise ClaimNotFound(NO_CLAIM)
                        routes = Routes(state, by_name(refs, others), settlement.history, moment)
                        missing = routes.missing(move for move in settlement.move if move.id in held)
                        if not missing:
                            change = Change(store)
                            settled = settling.settle(store, change, routes, held, settlement)
                            remember_key(change, state, once, settled, moment)
                            change.commit()
                    for ref in missing:
                        registry.ensure(ref)
            store.settle()
        return settled
