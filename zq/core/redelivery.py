# SPDX-License-Identifier: Apache-2.0
"""Rules for messages that were claimed but not deleted: redelivery delay, back-off and dead letters.

The core applies these rules for all drivers (contract sections 8.6, extensions 4).
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from zq.model import MAX_CLAIM_ATTEMPTS, ClaimRequest, ClaimResult, Move, QueueRef, Seconds
from zq.storage.api import Storage

# Number of doublings after which a delay exceeds every possible cap.
MAX_DOUBLINGS: Final = 31
# Reason stored with a dead letter that reached the maximum claim count.
MAX_CLAIM_COUNT: Final = "max_claim_count"


class Redelivery(Struct, frozen=True):
    """The redelivery delay of a queue. ``delay`` and ``cap`` are in seconds.

    If ``exponential`` is true, the delay doubles with each claim, up to ``cap``.
    """

    delay: int = 0
    exponential: bool = False
    cap: int = 0

    def delays(self) -> tuple[int, ...]:
        """Return the redelivery delay in seconds after the first claim, after the second claim, and so on."""
        if not self.delay:
            return ()
        delays = [min(self.delay, self.cap)]
        while self.exponential and delays[-1] < self.cap and len(delays) <= MAX_DOUBLINGS:
            delays.append(min(self.delay << len(delays), self.cap))
        return tuple(delays)


AT_ONCE: Final = Redelivery()


class DeadLetters(Struct, frozen=True):
    """The dead-letter settings of a source queue.

    Attributes:
        queue: The dead-letter queue.
        max_claims: Number of claims after which a message is moved to the dead-letter queue.
        ttl: Ttl in seconds of a dead letter, counted from the move; ``None`` = the ttl that the message already has.
        history: Seconds for which the source queue keeps a history entry of a moved message; 0 = no entry.
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
) -> ClaimResult:
    """Claim messages, and move messages that reached the claim limit to the dead-letter queue.

    If the store finds only messages to move, the claim is repeated after the move, up to ``MAX_CLAIM_ATTEMPTS`` times.
    Concurrent calls on several servers are safe, because only ready messages are moved. ``before_move`` is called
    before each move with the queue, the moves and the time.
    """
    for _ in range(MAX_CLAIM_ATTEMPTS):
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
