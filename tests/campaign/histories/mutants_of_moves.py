# SPDX-License-Identifier: Apache-2.0
"""Mutants of the engine's settlements and moves with one fault each, which a token ring must find."""

import time
from collections.abc import Sequence

from tests.campaign.histories.mutants import RACE, NowAndThen, changing
from zq.model import Draft, Fence, IdempotencyKey, Move, QueueRef, Seconds, Settlement, SettleResult
from zq.storage.ordered import layout
from zq.storage.ordered.changes import Change, Routes, map_states, read_bodies, target_queues
from zq.storage.ordered.claims import ClaimController, find_held
from zq.storage.ordered.layout import StoredMessage
from zq.storage.ordered.messages import MessageController
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.scans import locate


class Copying(Change):
    """A change that removes nothing."""

    def remove(self, state: QueueState, sequence: int, record: StoredMessage) -> None:
        pass


class CopyThenDelete(NowAndThen, MessageController):
    """A move in two steps, the copy first: another consumer may claim the original in between (L7)."""

    def move(self, queue: QueueRef, moves: Sequence[Move], now: Seconds, *_: object) -> Sequence[str]:
        moment, refs = layout.ms(now), target_queues(queue, moves)
        with self._handle as (store, registry), registry.locked(queue, *refs) as (state, *others):
            if state is None or None in others:
                return []
            found = locate(store, state, [move.id for move in moves], moment)
            ready = {f[1].id: f for f in found if not f[1].is_held(moment) and f[1].available <= moment}
            copying = Copying(store, moment)
            routes = Routes(state, map_states(refs, others), 0, moment)
            routes.move_all(store, copying, ready, [move for move in moves if move.id in ready])
            copying.commit()
        time.sleep(RACE)
        with changing(self._handle, queue) as (_store, state, change):
            for sequence, record in ready.values():
                if not self.now_and_then():
                    change.remove(state, sequence, record)
        return list(ready)


class DeleteThenCopy(NowAndThen, ClaimController):
    """A move in two steps, the deletion first: sometimes it stops in between (L1)."""

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        idempotency_key: IdempotencyKey | None = None,
        fence: Fence | None = None,
    ) -> SettleResult:
        done = super().settle(queue, claim, settlement, now, idempotency_key, fence)
        for move in settlement.move[:1]:
            if move.id not in done.lost and self.now_and_then():
                with changing(self._handle, QueueRef(queue.project, move.to)) as (store, state, change):
                    for found in locate(store, state, [move.id], layout.ms(now)):
                        change.remove(state, *found)
        return done


class IdleSettle(NowAndThen, ClaimController):
    """A settlement that sometimes omits a move without reporting it (L7)."""

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        idempotency_key: IdempotencyKey | None = None,
        fence: Fence | None = None,
    ) -> SettleResult:
        if self.now_and_then():
            settlement = Settlement(settlement.delete, False, settlement.release, settlement.move[1:])
        return super().settle(queue, claim, settlement, now, idempotency_key, fence)


class ForgottenKey(NowAndThen, MessageController):
    """A repeated post, after a lost response, that is executed twice."""

    def post(
        self,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        expected: bytes | None = None,
        idempotency_key: IdempotencyKey | None = None,
    ) -> None:
        super().post(queue, drafts, now, expected, idempotency_key)
        if self.now_and_then():
            super().post(queue, drafts, now)


class FreeForAll(NowAndThen, ClaimController):
    """A move that leaves the original, which can be claimed in parallel to the moved message (L2)."""

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        idempotency_key: IdempotencyKey | None = None,
        fence: Fence | None = None,
    ) -> SettleResult:
        moment, goes_wrong = layout.ms(now), self.now_and_then()
        with changing(self._handle, queue) as (store, state, _):
            held = find_held(store, state, claim, moment)
            texts = {one.id: body for (_, one), body in zip(held, read_bodies(store, state.number, held), strict=True)}
        done = super().settle(queue, claim, settlement, now, idempotency_key, fence)
        moved = {move.id for move in settlement.move} - set(done.lost)
        with changing(self._handle, queue) as (store, state, change):
            for message in moved if goes_wrong else ():
                body = texts.get(message)
                if body is not None:
                    change.post(state, Draft(message, body, 3600, 0, ""), moment)
        return done
