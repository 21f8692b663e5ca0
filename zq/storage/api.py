# SPDX-License-Identifier: Apache-2.0
"""The storage interface: what every driver promises. Here: the store, queues, messages and claims; ``extensions`` has
what goes beyond Zaqar.

A driver knows no default, checks no limit, reads no clock (``Storage.now`` excepted) and makes no policy.
Each verb is atomic: wholly (post, commit), or message by message (claim, renew, release, settle, move, bulk delete),
for any number of threads and processes on one store. A verb returns when its effect is as durable as the driver is
configured to make it.
Messages that have expired (``expires <= now``) exist for no verb. Every verb may raise ``Unavailable``.

Four arguments mean the same wherever they stand. ``history``: seconds for which the queue keeps a record of each
message that finishes in this step; 0 = none. ``once``: if the queue knows the key already, nothing is done, and
``Repeated`` (with what the verb answered the first time) or ``KeyReused`` (for another digest) is raised; else the key
is remembered in the same step as the effect. ``fence``: raises ``Fenced``, and nothing is done, unless its epoch is the
last one given out. ``most_bytes``: where the bodies of what is returned would have more of them together, the
verb ends before, as if its limit were reached; it never ends before the first message.
The laws L1 to L10 that all this must keep are in ``api-ref/laws.md``; ``tests/conformance`` proves them.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from zq.expiry import Expiry, Pace
from zq.measures import Depth, Measure
from zq.model import (
    AT_ONCE,
    UNBOUNDED,
    Claim,
    DeadLetters,
    Draft,
    Fence,
    Lease,
    Message,
    Messages,
    Move,
    Once,
    Page,
    Queue,
    QueueRef,
    Redelivery,
    Seconds,
    Settled,
    Settlement,
    Stats,
    View,
)
from zq.storage.extensions import HistoryController, RecordController, TopicController, TransactionController


class QueueController(Protocol):
    """Queues and their metadata."""

    def create(self, queue: QueueRef, metadata: bytes) -> bool:
        """Create the queue; False, and nothing changed, if it exists."""
        ...

    def get(self, queue: QueueRef) -> Queue | None:
        """The queue, or None."""
        ...

    def update(self, queue: QueueRef, expected: bytes, metadata: bytes) -> bool:
        """Replace the metadata if they still are ``expected``; False if not, or if there is no such queue."""
        ...

    def list(self, project: str, after: str, limit: int) -> Page[Queue]:
        """Queues with names greater than ``after``, ascending in byte order; ``next`` is the last name."""
        ...

    def count(self, project: str) -> int:
        """How many queues the project has."""
        ...

    def delete(self, queue: QueueRef) -> None:
        """Remove the queue with all messages, claims, history and known keys. A missing queue is fine.

        Decided in one step, which every post is wholly before or after; when the verb returns, nothing is left. Readers
        may see a part of the messages until then.
        """
        ...

    def purge(self, queue: QueueRef) -> None:
        """Remove all messages and claims, as ``delete`` does; metadata and history stay. A missing queue is fine."""
        ...

    def stats(self, queue: QueueRef, now: Seconds) -> Stats:
        """Counts and landmarks; zeros for a missing queue."""
        ...

    def entered(self, queue: QueueRef) -> int | None:
        """How many messages have come into the queue, counted from anywhere: what came meanwhile is the difference of
        two answers. Purges and restarts go on counting, deletions need not; None for a missing queue.
        """
        ...

    def ready(self, queue: QueueRef, most: int, now: Seconds) -> int:
        """How many messages are ready, counted up to ``most``."""
        ...

    def due(self, queue: QueueRef, now: Seconds) -> Seconds | None:
        """The earliest moment after ``now`` at which a message becomes ready by itself; None if none will.

        A hint for whoever waits: what expires before that moment may be counted.
        """
        ...


class MessageController(Protocol):
    """Messages, by observers and owners."""

    def post(
        self,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        expected: bytes | None = None,
        once: Once | None = None,
    ) -> bytes | None:
        """Store all drafts in array order, or none; a missing queue is created, without metadata, in the same step.

        Without delay a message is available at the larger of ``now`` and the queue's last such moment (L5).
        Where the queue's metadata are not the ``expected`` ones, no message is stored, and the metadata are the answer
        (``b"{}"`` for a missing queue); otherwise the answer is None. A known ``once`` goes before that; what it
        repeats is the list of the first drafts' ids.
        """
        ...

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Messages:
        """Those of the ids that are in this queue, in the order asked for, each once."""
        ...

    def list(
        self, queue: QueueRef, marker: int, limit: int, view: View, now: Seconds, most_bytes: int = UNBOUNDED
    ) -> Page[Message]:
        """Messages of sequence above ``marker`` that the view shows, in sequence; ``next`` is the last one's."""
        ...

    def delete(self, queue: QueueRef, message: str, now: Seconds, claim: str = "", history: int = 0) -> None:
        """Remove one message. A missing one is fine, whatever the claim (contract 7.6).

        Raises ``MessageClaimed`` if another claim than the named one holds it, ``ClaimNotHeld`` if a claim is named
        and none holds it.
        """
        ...

    def delete_many(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, history: int = 0
    ) -> None:
        """Remove messages by id, claimed or not. With ``claims`` each must be held by one of them, else none goes.

        Raises ``ClaimNotHeld``.
        """
        ...

    def pop(self, queue: QueueRef, limit: int, now: Seconds, history: int = 0, most_bytes: int = UNBOUNDED) -> Messages:
        """Remove and return up to ``limit`` ready messages in the order of (available, sequence)."""
        ...

    def move(self, queue: QueueRef, moves: Sequence[Move], now: Seconds, history: int = 0) -> Sequence[str]:
        """Move those of the messages that are ready, each in one step (L7); their ids, in the order of ``moves``.

        They join the other queue's order as a fresh post does, in this order; a missing queue is created, without
        metadata. Moving into the queue where it is gives a message a new place there.
        """
        ...


class ClaimController(Protocol):
    """Claims: one live claim at most holds a message (L2)."""

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
        """Claim up to ``limit`` ready messages in the order of (available, sequence); None if there are none.

        Held messages get the lease's life (``Lease.life``) and count one claim more. They are available at the claim's
        end + ``redelivery.wait(count)``; that wait stays theirs until the next claim.
        A message that was already claimed ``dead_letters.max_claims`` times moves to the dead letter queue instead:
        ready, unclaimed, count 0, life from now on. A claim that met nothing but such messages looks again.
        """
        ...

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
        """As ``create``, unless a claim of this name lives: then that one as ``get`` has it, unchanged, and True.

        Any number of callers under one name make one claim.
        """
        ...

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        """The live claim with all messages it holds, in sequence. Raises ``ClaimNotFound``."""
        ...

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, fence: Fence | None = None) -> None:
        """Start ``lease.claim`` anew, with the lease's terms. Raises ``ClaimNotFound``."""
        ...

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        """Give back what the claim holds, as ``Release`` says of one message. An unknown claim is fine."""
        ...

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        once: Once | None = None,
        fence: Fence | None = None,
    ) -> Settled:
        """End the claim's work on the named messages, in one round trip; each message in one step.

        Only what the live claim holds is touched. Moved messages join their queues in the order of ``settlement.move``,
        as ``MessageController.move`` has it. Raises ``ClaimNotFound`` if the claim holds nothing; what ``once`` repeats
        is the ``Settled``.
        """
        ...


class Storage(Protocol):
    """An open store. ``connect`` in ``zq.storage`` makes one."""

    @property
    def queues(self) -> QueueController: ...

    @property
    def messages(self) -> MessageController: ...

    @property
    def claims(self) -> ClaimController: ...

    @property
    def history(self) -> HistoryController: ...

    @property
    def transactions(self) -> TransactionController: ...

    @property
    def topics(self) -> TopicController: ...

    @property
    def records(self) -> RecordController: ...

    def now(self) -> Seconds:
        """The store's own time, by which all its servers judge."""
        ...

    def doubted(self) -> Seconds:
        """How far ahead of ``now`` the clock of the store's machine has leapt and is not believed yet; else 0."""
        ...

    def ping(self) -> None:
        """Return if the store can read and write; raises ``Unavailable``."""
        ...

    def configure(self, expiry: Expiry) -> None:
        """Give space back by these options from now on; no verb that is under way fails for it."""
        ...

    def maintain(self, now: Seconds, pace: Pace | None = None) -> int:
        """One round of giving space back, step by step as ``pace`` says (None: ``Steps()``); how many expired messages
        went. Called every few seconds, by one thread of each server; servers that share a store share the work."""
        ...

    def depths(self, now: Seconds, queues: int, most: int) -> Sequence[tuple[QueueRef, Depth]]:
        """The first ``queues`` queues of all projects, and what is in each, counted up to ``most`` of each state.

        A hint where ``most`` or more are in a state: the counts of others may be short then.
        """
        ...

    def measures(self, now: Seconds) -> Sequence[Measure]:
        """What this store has to be watched, besides its queues: ``api-ref/metrics.md`` tells each. Costs little."""
        ...

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        """From now on tell the listener of every queue that a message was given to or back to (post, release, move,
        publishing …; for now or for later), by whatever process, within milliseconds.

        It is called from any thread and returns at once; a later listener replaces it. A call may be lost, or come for
        nothing. What becomes ready by the passing of time is not told: see ``QueueController.due``.
        """
        ...

    def close(self) -> None:
        """Release the store; no verb may follow."""
        ...
