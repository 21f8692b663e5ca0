# SPDX-License-Identifier: Apache-2.0
"""Rules for messages that were claimed and not deleted: redelivery delays with back-off, and dead letters.

Contract 8.6, extensions 4. Drivers implement neither rule.
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from zq.model import MAX_LOOKS, Claimed, ClaimRequest, Move, QueueRef, Seconds
from zq.storage.api import Storage

# Number of doublings after which a delay exceeds every possible cap.
MAX_DOUBLINGS: Final = 31
# The reason stored with a message that became a dead letter because of its claim count.
MAX_CLAIM_COUNT: Final = "max_claim_count"


class Redelivery(Struct, frozen=True):
    """The delay before a message is redelivered after its claim lapsed, or released it without an explicit delay.

    ``delay`` and ``cap`` are seconds; ``cap`` limits an exponential delay.
    """

    delay: int = 0
    exponential: bool = False
    cap: int = 0

    def waits(self) -> tuple[int, ...]:
        """Return the delays after the first, second, … claim in seconds, for ``ClaimRequest.waits``."""
        if not self.delay:
            return ()
        waits = [min(self.delay, self.cap)]
        while self.exponential and waits[-1] < self.cap and len(waits) <= MAX_DOUBLINGS:
            waits.append(min(self.delay << len(waits), self.cap))
        return tuple(waits)


AT_ONCE: Final = Redelivery()


class DeadLetters(Struct, frozen=True):
    """The dead-letter queue of a queue, and the number of claims after which a message moves there.

    Attributes:
        ttl: Seconds that a message lives there; ``None`` = the message's own ttl, starting again.
        history: Seconds for which the source queue keeps a history entry; 0 = none.
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
    """Claim messages, and move messages with too many claims to the dead-letter queue.

    Each message moves only if it is still ready, so two servers may safely do so at once. If a claim found only such
    messages, it is repeated. ``before_move`` is called with the queue, the moves and ``now``.
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
