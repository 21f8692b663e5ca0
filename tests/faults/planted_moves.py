# SPDX-License-Identifier: Apache-2.0
"""A store in memory that settles and moves, and the same with one fault each, which a conveyor must find."""

import time
from collections.abc import Sequence

from tests.faults.planted import RACE, MemoryStorage
from zq.model import Fence, Move, Once, QueueRef, Settled, Settlement


class MovingStorage(MemoryStorage):
    """Every verb is the oracle's, under one lock."""

    def post(self, queue, drafts, now, expected=None, once=None) -> None:
        with self.lock:
            self.oracle.post(queue, drafts, now, expected, once)

    def move(self, queue: QueueRef, moves: Sequence[Move], now: float, history: int = 0) -> Sequence[str]:
        with self.lock:
            return self.oracle.move(queue, moves, now, history)

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: float,
        once: Once | None = None,
        fence: Fence | None = None,
    ) -> Settled:
        with self.lock:
            return self.oracle.settle(queue, claim, settlement, now, once, fence)


class CopyThenDelete(MovingStorage):
    """L7: two steps, the copy first; whoever comes between takes the message where it was."""

    def move(self, queue: QueueRef, moves: Sequence[Move], now: float, history: int = 0) -> Sequence[str]:
        with self.lock:
            ways = {move.id: QueueRef(queue.project, move.to) for move in moves}
            there = [entry for entry in self.oracle.ready(queue, now) if entry.draft.id in ways]
            for entry in there:
                self.oracle.insert(ways[entry.draft.id], entry.draft, now, entry.ttl, 0, now)
        time.sleep(RACE)
        with self.lock:
            self.oracle.remove(queue, [entry for entry in there if not self.now_and_then()])
        return [entry.draft.id for entry in there]


class DeleteThenCopy(MovingStorage):
    """L1: two steps, the deletion first; some die in between."""

    def settle(self, queue, claim, settlement, now, once=None, fence=None) -> Settled:
        done = super().settle(queue, claim, settlement, now, once, fence)
        with self.lock:
            for move in settlement.move[:1]:
                if move.id not in done.lost and self.now_and_then():
                    target = QueueRef(queue.project, move.to)
                    self.oracle.remove(target, self.oracle.named(target, [move.id], now))
        return done


class IdleSettle(MovingStorage):
    """L7: now and then leaves a move undone, and says nothing of it."""

    def settle(self, queue, claim, settlement, now, once=None, fence=None) -> Settled:
        if self.now_and_then():
            settlement = Settlement(settlement.delete, False, settlement.release, settlement.move[1:])
        return super().settle(queue, claim, settlement, now, once, fence)


class ForgottenKey(MovingStorage):
    """A request that was repeated, since its answer was lost, is carried out twice."""

    def post(self, queue, drafts, now, expected=None, once=None) -> None:
        super().post(queue, drafts, now, expected, once)
        if self.now_and_then():
            with self.lock:
                self.oracle.post(queue, drafts, now)


class FreeForAll(MovingStorage):
    """L2: a message that was moved keeps its old place, where it may be claimed beside the new one."""

    def settle(self, queue, claim, settlement, now, once=None, fence=None) -> Settled:
        with self.lock:
            before = list(self.oracle.queues.get(queue, []))
            done = self.oracle.settle(queue, claim, settlement, now, once, fence)
            if self.now_and_then():
                moved = {move.id for move in settlement.move} - set(done.lost)
                again = [entry for entry in before if entry.draft.id in moved]
                for entry in again:
                    entry.claim, entry.available = "", now
                self.oracle.queues[queue] = [*again, *self.oracle.queues[queue]]
            return done
