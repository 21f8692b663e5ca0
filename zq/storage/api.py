# SPDX-License-Identifier: Apache-2.0
"""The storage interface: what every driver promises, on one page.

A driver knows no default, checks no limit, reads no clock (``Storage.now`` excepted) and makes no policy.
Each verb is atomic: wholly (post), or message by message (claim, renew, release, bulk delete), for any number of
threads and processes on one store. A verb returns when its effect is as durable as the driver is configured to make it.
Messages that have expired (``expires <= now``) exist for no verb. Every verb may raise ``Unavailable``.
The laws L1 to L10 that all this must keep are in ``api-ref/laws.md``; ``tests/conformance`` proves them.
"""

from collections.abc import Sequence
from typing import Protocol

from zq.model import Claim, DeadLetters, Draft, Lease, Message, Messages, Page, Queue, QueueRef, Seconds, Stats, View


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
        """Remove the queue with all messages and claims. A missing queue is fine.

        Decided in one step, which every post is wholly before or after; when the verb returns, nothing is left. Readers
        may see a part of the messages until then.
        """
        ...

    def purge(self, queue: QueueRef) -> None:
        """Remove all messages and claims, as ``delete`` does, and keep the metadata. A missing queue is fine."""
        ...

    def stats(self, queue: QueueRef, now: Seconds) -> Stats:
        """Counts and landmarks; zeros for a missing queue."""
        ...


class MessageController(Protocol):
    """Messages, by observers and owners."""

    def post(
        self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, expected: bytes | None = None
    ) -> bytes | None:
        """Store all drafts in array order, or none; a missing queue is created, without metadata, in the same step.

        Without delay a message is available at the larger of ``now`` and the queue's last such moment (L5).
        Where the queue's metadata are not the ``expected`` ones, no message is stored, and the metadata are the answer
        (``b"{}"`` for a missing queue); otherwise the answer is None.
        """
        ...

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Messages:
        """Those of the ids that are in this queue, in the order asked for, each once."""
        ...

    def list(self, queue: QueueRef, marker: int, limit: int, view: View, now: Seconds) -> Page[Message]:
        """Messages of sequence above ``marker`` that the view shows, in sequence; ``next`` is the last one's."""
        ...

    def delete(self, queue: QueueRef, message: str, now: Seconds, claim: str = "") -> None:
        """Remove one message. A missing one is fine, whatever the claim (contract 7.6).

        Raises ``MessageClaimed`` if another claim than the named one holds it, ``ClaimNotHeld`` if a claim is named
        and none holds it.
        """
        ...

    def delete_many(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None
    ) -> None:
        """Remove messages by id, claimed or not. With ``claims`` each must be held by one of them, else none goes.

        Raises ``ClaimNotHeld``.
        """
        ...

    def pop(self, queue: QueueRef, limit: int, now: Seconds) -> Messages:
        """Remove and return up to ``limit`` ready messages in the order of (available, sequence)."""
        ...


class ClaimController(Protocol):
    """Claims: one live claim at most holds a message (L2)."""

    def create(
        self, queue: QueueRef, lease: Lease, limit: int, now: Seconds, dead_letters: DeadLetters | None = None
    ) -> Claim | None:
        """Claim up to ``limit`` ready messages in the order of (available, sequence); None if there are none.

        Held messages get the lease's life (``Lease.life``), are available at the claim's end, and count one claim more.
        A message that was already claimed ``dead_letters.max_claims`` times moves to the dead letter queue instead:
        ready, unclaimed, count 0, life from now on. A claim that met nothing but such messages looks again.
        """
        ...

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        """The live claim with all messages it holds, in sequence. Raises ``ClaimNotFound``."""
        ...

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds) -> None:
        """Start ``lease.claim`` anew, with the lease's terms. Raises ``ClaimNotFound``."""
        ...

    def release(self, queue: QueueRef, claim: str, now: Seconds) -> None:
        """Give back what the claim holds, each message to its former place. An unknown claim is fine."""
        ...


class Storage(Protocol):
    """An open store. ``connect`` in ``zq.storage`` makes one."""

    @property
    def queues(self) -> QueueController: ...

    @property
    def messages(self) -> MessageController: ...

    @property
    def claims(self) -> ClaimController: ...

    def now(self) -> Seconds:
        """The store's own time, by which all its servers judge."""
        ...

    def ping(self) -> None:
        """Return if the store can read and write; raises ``Unavailable``."""
        ...

    def maintain(self, now: Seconds) -> int:
        """One bounded round of giving space back; returns how many messages went. Called every few seconds."""
        ...

    def close(self) -> None:
        """Release the store; no verb may follow."""
        ...
