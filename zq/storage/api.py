# SPDX-License-Identifier: Apache-2.0
"""The storage interface, the contract of every driver: store, queues, messages, claims and documents.

``capabilities`` has the optional parts of the contract. The laws L1 to L10 in ``api-ref/laws.md`` bind every driver;
``zq/conformance`` tests them.

- A driver has no defaults, limits or policies, and reads no clock except in ``Storage.now``.
- Each verb is atomic for any number of threads and processes on one store: as a whole (post, commit), or message by
  message (claim, renew, release, settle, move, bulk delete).
- A verb returns when its effect is as durable as the driver is configured to make it.
- Expired messages (``expires <= now``) do not exist for any verb.
- Every verb may raise ``Unavailable``.

Arguments that several verbs share:

- ``history``: seconds for which the queue keeps an entry of each message that finishes in this step; 0 keeps none.
- ``idempotency_key``: if the queue knows the key, the verb changes nothing. It raises ``Repeated`` with the first
  result, or ``KeyReused`` for another digest. Otherwise the key is stored in the same step as the effect.
- ``fence``: the verb changes nothing and raises ``Fenced``, unless the epoch is the last one granted.
- ``most_bytes``: the largest total size of the returned bodies. The verb stops before it exceeds the size, as if its
  limit were reached, but returns at least one message.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, cast

from zq.model import (
    UNBOUNDED,
    Browsed,
    Claim,
    Claimed,
    ClaimRequest,
    ClaimSummary,
    Copies,
    Draft,
    Fence,
    Grip,
    Grouping,
    Handled,
    IdempotencyKey,
    Lease,
    ListFilter,
    Located,
    Message,
    Messages,
    Move,
    Page,
    Position,
    Queue,
    QueueRef,
    Ready,
    Seconds,
    Settled,
    Settlement,
    State,
    Stats,
)
from zq.model.documents import Document, DocumentRef
from zq.model.expiry import Expiry, Pace
from zq.model.quotas import Usage
from zq.model.stats import Depth, Measure
from zq.storage import browsing, capabilities
from zq.storage.capabilities import HistoryController, TopicController, TransactionController


class QueueController(Protocol):
    """Queues and their metadata."""

    def create(self, queue: QueueRef, metadata: bytes, grouping: Grouping = Grouping.NONE) -> bool:
        """Create the queue. Return False, without a change, if it exists. ``grouping`` cannot be changed later."""

    def get(self, queue: QueueRef) -> Queue | None:
        """Return the queue, or None if it does not exist."""

    def update(self, queue: QueueRef, expected: bytes, metadata: bytes) -> bool:
        """Replace the metadata if they equal ``expected``. Return False if they differ, or the queue does not exist."""

    def list(self, project: str, after: str, limit: int) -> Page[Queue]:
        """Return queues with names greater than ``after``, ascending in byte order; ``next`` is the last name."""

    def count(self, project: str) -> int:
        """Return the number of queues of the project. A driver may inherit this, which pages through ``list``."""
        return sum(1 for _ in browsing.queues(self, project))

    def delete(self, queue: QueueRef) -> None:
        """Delete the queue with its messages, claims, history and idempotency keys, if it exists.

        The deletion takes effect in one step: each post is entirely before or after it. When the verb returns, nothing
        is left. Until then, readers may see a part of the messages.
        """

    def purge(self, queue: QueueRef) -> None:
        """Remove all messages and claims, as ``delete`` does, but keep metadata and history. Ignore a missing queue."""

    def stats(self, queue: QueueRef, now: Seconds) -> Stats:
        """Return message counts and the oldest and newest message; zeros for a missing queue."""

    def ready(self, queue: QueueRef, most: int, now: Seconds) -> Ready:
        """Return the number of ready messages, counted up to ``most``, and when the next message becomes ready.

        ``most`` may be 0. In a grouped queue, only messages that a claim would return are ready. The moment is a hint
        for waiting consumers: that message may expire before it.
        """


class MessageController(Protocol):
    """Messages of queues, for observers and owners."""

    def post(
        self,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        expected: bytes | None = None,
        idempotency_key: IdempotencyKey | None = None,
        copies: Copies | None = None,
        create: bool = True,
    ) -> bytes | None:
        """Store all drafts in array order, or none.

        A missing queue is created in the same step, without metadata. If ``create`` is False, ``QueueNotFound`` is
        raised instead. Without delay, a message is available at the later of ``now`` and the queue's last available-at
        moment (L5).

        ``expected``: if the queue's metadata differ from it, no message is stored, and the metadata are returned
        (``b"{}"`` for a missing queue). Otherwise None is returned.

        ``idempotency_key`` is checked before ``expected``; the result that it repeats is the list of message ids. Keys
        of drafts are also checked before: if any is known, nothing is stored, and ``DraftsRepeated`` is raised, or
        ``KeyReused`` if one has another digest.

        ``copies`` are posted to another queue in the same step, or not at all.
        """

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Messages:
        """Return the messages of these ids that are in the queue, in the order of ``ids``, without repetitions."""

    def list(
        self,
        queue: QueueRef,
        marker: int,
        limit: int,
        list_filter: ListFilter,
        now: Seconds,
        most_bytes: int = UNBOUNDED,
        expected: bytes | None = None,
    ) -> Page[Message]:
        """Return messages with sequences above ``marker`` that match the filter, in sequence.

        ``next`` is the sequence of the last message. ``expected``: if the queue's metadata differ from it, they are the
        page's ``metadata``.
        """

    def browse(
        self, queue: QueueRef, state: State, after: Position, limit: int, now: Seconds, most_bytes: int = UNBOUNDED
    ) -> Browsed:
        """Return messages of one state after a position.

        Ready and delayed messages are in the order of claims, claimed ones in sequence. Pages neither skip nor repeat a
        message that stays in its state. A page may end early, but is empty only if there are no more messages. A driver
        may inherit this method, which scans the whole queue.
        """
        return browsing.browse(self, queue, state, after, limit, now, most_bytes)

    def delete(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, history: int = 0
    ) -> None:
        """Delete messages by id. Ignore missing messages, whatever the claims (contract 7.6).

        ``claims``: the claims of the caller. With None, claimed messages are deleted too. Otherwise each message must
        be held by one of these claims, or be unclaimed if there are none (``()``). If a message is not, nothing is
        deleted, and the first such message decides the error: ``MessageClaimed`` if another claim holds it,
        ``ClaimNotHeld`` if no claim does.
        """

    def pop(
        self,
        queue: QueueRef,
        limit: int,
        now: Seconds,
        history: int = 0,
        most_bytes: int = UNBOUNDED,
        expected: bytes | None = None,
    ) -> Messages:
        """Remove and return up to ``limit`` ready messages in the order of (available, sequence).

        If the queue's metadata differ from ``expected``, nothing is removed, and ``OtherMetadata`` is raised. If no
        message is ready, a driver need not compare the metadata.
        """

    def move(self, queue: QueueRef, moves: Sequence[Move], now: Seconds, history: int = 0) -> Sequence[str]:
        """Move the ready ones of the messages, each in one step (L7), and return their ids in the order of ``moves``.

        The messages join the order of the other queue as new posts do, in this order. A missing queue is created
        without metadata. A message that is moved into its own queue gets a new position there.
        """


class ClaimController(Protocol):
    """Claims on messages. At most one live claim holds a message (L2)."""

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> Claimed:
        """Claim up to ``request.limit`` ready messages in the order of (available, sequence).

        ``Lease.extend`` determines the expiry of claimed messages, and their claim counts increase by one. They become
        available at the end of the claim plus ``request.wait(count)``, a delay that stays until the next claim.
        Messages that were claimed ``request.max_claims`` times are not changed, and their ids are returned
        (``Claimed.spent``). With ``request.named``, all callers with one id share one claim. Raise ``Fenced``.
        """

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        """Return the live claim with all messages that it holds, in sequence. Raise ``ClaimNotFound``."""

    def list(self, project: str, after: str, limit: int, now: Seconds, queue: str = "") -> Page[ClaimSummary]:
        """Return live claims of a project, or of one queue, in the driver's order.

        ``after``: ``next`` of the previous page. A page may be short or empty although there are more claims, because
        its work is bounded. A driver without this capability inherits a refusal.
        """
        return capabilities.NO_CLAIM_LISTS.list()

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, fence: Fence | None = None) -> None:
        """Renew ``lease.claim`` with the terms of the lease. Raise ``ClaimNotFound``."""

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        """Release all messages of the claim, as ``Release`` does with one message. Ignore an unknown claim."""

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        idempotency_key: IdempotencyKey | None = None,
        fence: Fence | None = None,
    ) -> Settled:
        """Settle the named messages of the claim in one round trip, each message in one step.

        Only messages that the live claim holds are changed. Moved messages join their queues in the order of
        ``settlement.move``, as with ``MessageController.move``. Raise ``ClaimNotFound`` if the claim holds no message.
        The result that ``idempotency_key`` repeats is the ``Settled``.
        """

    def handle(
        self, queue: QueueRef, grips: Sequence[Grip], now: Seconds, late: bool = False, history: int = 0
    ) -> Sequence[Handled]:
        """Delete claimed messages, or change the ends of their claims, and return the outcome of each in order.

        The driver handles the messages in order, each in one step, by the rules of ``Grip``. The claim and the claim
        count of a grip must be those of the message. ``late``: whether an expired claim still counts if it is the
        message's last one; otherwise the outcome is ``EXPIRED``. A hold beyond ``Grip.max_hold`` is ``TOO_LONG``.

        A message that is not deleted is available at the new end plus its redelivery delay. Its expiry is not extended,
        and it keeps its claim and claim count.
        """


class DocumentController(Protocol):
    """Small documents of any kind, each replaced as a whole: metadata of topics, subscriptions, pools ...

    An expired document (``Document.expires <= now``) does not exist for any verb.
    """

    def get(self, ref: DocumentRef, now: Seconds) -> Document | None:
        """Return the document, or None if it does not exist."""

    def put(
        self, ref: DocumentRef, value: bytes, now: Seconds, expected: str | None = None, expires: Seconds | None = None
    ) -> bool:
        """Store the value in one step, under a new version, if the document's version is ``expected``.

        Return False, without a change, if the version differs. ``expected``: "" if the document must not exist; None to
        store unconditionally. ``expires``: None for never.
        """

    def list(self, project: str, kind: str, prefix: str, after: str, limit: int, now: Seconds) -> Page[Document]:
        """Return documents of a kind, in ascending byte order of names; ``next`` is the last name.

        Their names begin with ``prefix`` and are greater than ``after``.
        """

    def delete(self, ref: DocumentRef, now: Seconds, expected: str | None = None) -> bool:
        """Delete the document. Return False if it does not exist, or its version is not ``expected``."""


class Storage(Protocol):
    """An open store. ``zq.storage.connect`` opens one."""

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
    def documents(self) -> DocumentController: ...

    @property
    def prompt(self) -> bool:
        """Whether short verbs may currently run on the event loop's thread.

        They then access memory only and leave the wait for the disk to ``zq.storage.inline.Ticket``.
        """

    def now(self) -> Seconds:
        """Return the store's own time, which all servers of the store use."""

    def doubted(self) -> Seconds:
        """Return how many seconds the clock of the store's machine is ahead of ``now`` after a leap, or 0.

        After a leap forward, ``now`` does not follow the clock at once.
        """

    def ping(self) -> None:
        """Raise ``Unavailable`` if the store cannot read and write."""

    def maintain(self, now: Seconds, expiry: Expiry | None = None, pace: Pace | None = None) -> int:
        """Run one round of reclaiming space, and return the number of expired messages removed.

        One thread of each server calls this every few seconds. Servers that share a store share the work. ``pace``
        divides the round into steps (None: ``Steps()``). ``expiry``: new options from now on, also for reads of expired
        messages; None keeps the current ones. A change does not make a running verb fail.
        """

    def usage(self, project: str, now: Seconds) -> Usage | None:
        """Return the messages and bytes in the project's queues and stages; None if unknown.

        The cost grows with the number of queues. Expired messages count until they are removed. Messages stored by a
        version of the driver that did not count bytes have none.
        """

    def depths(self, now: Seconds, queues: int, most: int) -> Sequence[tuple[QueueRef, Depth]]:
        """Return the first ``queues`` queues of all projects with their depths, counted up to ``most`` in each state.

        If a state has ``most`` messages or more, the depth is a hint: the counts of the other states may be too low.
        """

    def depth(self, queue: QueueRef, now: Seconds, most: int) -> Depth:
        """Return the depth of one queue, counted up to ``most`` in each state or further; zeros for a missing queue.

        ``expired`` may be 0 instead of its count.
        """

    def locate(self, project: str, message: str, now: Seconds) -> Located | None:
        """Return the queue of the project that has the message, or its latest history entry if no queue has it."""

    def measures(self, now: Seconds) -> Sequence[Measure]:
        """Return the store's own metrics, without its queues; cheap. ``api-ref/metrics.md`` describes them."""

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        """Notify the listener within milliseconds of each queue that gains a message, in any process of the store.

        Posts, releases, moves and publishes notify, with or without delay. The listener may be called from any thread
        and must return at once; a later listener replaces it. A call may be lost or spurious. A message that becomes
        ready by the passing of time causes no call: see ``QueueController.ready``.
        """

    def close(self) -> None:
        """Close the store. Call no verb afterwards."""


class Defaults:
    """Defaults that a driver inherits for optional capabilities, hints and figures.

    A server refuses requests that need a missing capability (decision 0046).
    """

    history: HistoryController = cast(HistoryController, capabilities.NO_HISTORY)
    transactions: TransactionController = cast(TransactionController, capabilities.NO_TRANSACTIONS)
    topics: TopicController = cast(TopicController, capabilities.NO_TOPICS)
    prompt = False

    def doubted(self) -> Seconds:
        """Return 0: ``now`` always follows the clock of the store's machine."""
        return 0.0

    def usage(self, project: str, now: Seconds) -> Usage | None:
        """Return None: the usage is unknown, and quotas of stored messages and bytes are not enforced."""
        return None

    def depths(self, now: Seconds, queues: int, most: int) -> Sequence[tuple[QueueRef, Depth]]:
        """Return an empty sequence."""
        return ()

    def depth(self, queue: QueueRef, now: Seconds, most: int) -> Depth:
        """Compute the depth from the statistics, whose cost grows with the messages; without ``oldest_ready``."""
        queues = cast(Storage, self).queues
        stats, ready = queues.stats(queue, now), queues.ready(queue, most, now).count
        return Depth(ready, max(0, stats.free - ready) if ready < most else 0, stats.claimed)

    def locate(self, project: str, message: str, now: Seconds) -> Located | None:
        """Search all queues of the project."""
        return browsing.locate(cast(Storage, self), project, message, now)

    def measures(self, now: Seconds) -> Sequence[Measure]:
        """Return an empty sequence."""
        return ()

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        """Ignore the listener: a waiting request queries the store again every few seconds."""
