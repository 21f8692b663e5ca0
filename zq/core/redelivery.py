# SPDX-License-Identifier: Apache-2.0
"""Redelivery delays with back-off, and dead letters, for messages that were claimed and not finished (contract 8.6,
extensions 4). No driver knows either rule."""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from zq.model import MAX_LOOKS, Claimed, ClaimRequest, Move, QueueRef, Seconds
from zq.storage.api import Storage

# Doublings of a redelivery delay after which any bound is reached.
MAX_DOUBLINGS: Final = 31
# The reason of a dead letter that was claimed too often.
MAX_CLAIM_COUNT: Final = "max_claim_count"


class Redelivery(Struct, frozen=True):
    """The delay in seconds of a message whose claim lapsed, or released it without another delay.

    ``cap`` bounds the result of the back-off.
    """

    delay: int = 0
    exponential: bool = False
    cap: int = 0

    def waits(self) -> tuple[int, ...]:
        """Return the delays after the first, second, … claim, in the form of ``ClaimRequest.waits``."""
        if not self.delay:
            return ()
        waits = [min(self.delay, self.cap)]
        while self.exponential and waits[-1] < self.cap and len(waits) <= MAX_DOUBLINGS:
            waits.append(min(self.delay << len(waits), self.cap))
        return tuple(waits)


AT_ONCE: Final = Redelivery()


class DeadLetters(Struct, frozen=True):
    """The dead-letter queue of messages that were claimed ``max_claims`` times.

    ``ttl``: None = the message's own, counted anew. ``history``: seconds for which the source keeps an entry; 0 = none.
    """

    queue: QueueRef
    max_claims: int
    ttl: int | None
    history: int = 0


def claim(
    storage: Storage,
    queue: QueueRef,
    request: ClaimRequest,
    dead_letters: DeadLetters | None,
    now: Seconds,
    before_move: Callable[[QueueRef, Sequence[Move], Seconds], object] | None = None,
) -> Claimed:
    """Claim messages, and move those that were claimed too often to the dead-letter queue.

    Each dead letter moves in one step, if it is still ready: two servers that bury the same message do no harm. A claim
    that found nothing but dead letters is repeated. ``before_move`` is called with the queue, the moves and ``now``.
    """
    for _ in range(MAX_LOOKS):
        claimed = storage.claims.create(queue, request, now)
        if dead_letters is not None and claimed.spent:
            moves = [
                Move(id, dead_letters.queue.name, dead_letters.ttl, reason=MAX_CLAIM_COUNT) for id in claimed.spent
            ]
            if before_move is not None:
                before_move(queue, moves, now)
            storage.messages.move(queue, moves, now, dead_letters.history)
        if claimed.claim is not None or not claimed.spent or dead_letters is None:
            break
    return claimed
