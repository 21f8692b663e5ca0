# SPDX-License-Identifier: Apache-2.0
"""The storage interface that every driver implements.

This module defines the operations on the store and its queues, messages, claims and documents. The module
``capabilities`` defines optional operations. The laws L1 to L10 in ``api-ref/laws.md`` bind every driver;
``zq/conformance`` tests them. An *operation*, also called *verb*, is a method of this interface.

- A driver has no defaults, limits or policies, and reads no clock except in ``Storage.now``.
- Each operation is atomic for any number of threads and processes on one store. Post and commit are atomic as a whole;
  claim, renew, release, settle, move and bulk delete are atomic for each message.
- An operation returns when its effect is as durable as the driver is configured to make it.
- Expired messages (``expires <= now``) do not exist for any operation.
- Every operation may raise ``Unavailable``.

Arguments that several operations share:

- ``history``: seconds for which the queue keeps a history entry of each message that this operation finishes; 0 = no
  entries.
- ``idempotency_key``: if the key is new, it is stored in the same step as the effect. If the queue has already stored
  the key, the operation changes nothing. It raises ``Repeated`` with the result of the first request. If the first
  request had a different digest, the operation raises ``KeyReused`` instead.
- ``fence``: a fencing token. If its epoch is not the last one issued, the operation changes nothing and raises
  ``Fenced``.
- ``max_bytes``: the maximum total size of the returned bodies and attributes. The operation returns fewer messages
  than ``limit`` to stay within this size, but at least one message if there is one.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, cast

from zq.model import (
    UNBOUNDED,
    BrowsePage,
    Claim,
    ClaimRequest,
    ClaimResult,
    ClaimSummary,
    Copies,
    Draft,
    Fence,
    Grouping,
    HandleOutcome,
    IdempotencyKey,
    Lease,
    ListFilter,
    LocatedMessage,
    Message,
    MessageHandle,
    Messages,
    Move,
    Page,
    Position,
    Queue,
    QueueRef,
    ReadyMessages,
    Seconds,
    Settlement,
    SettleResult,
    State,
    Stats,
)
from zq.model.documents import Document, DocumentRef
from zq.model.expiry import Expiry, Pace
from zq.model.quotas import Usage
from zq.model.stats import Depth, Measure
from zq.storage import browsing, capabilities
from zq.storage.capabilities import HistoryController, TopicController, TransactionController

# Maximum seconds by which a stored time may be in the future. All drivers reject a later time, because it comes from a
# wrong clock.
FALSE_FUTURE: Final = 60


class QueueController(Protocol):
    """The operations on queues and their metadata."""

    def create(self, queue: QueueRef, metadata: bytes, grouping: Grouping = Grouping.NONE) -> bool:
        """Create the queue, and return True. If it exists, return False. ``grouping`` cannot be changed later."""

    def get(self, queue: QueueRef) -> Queue | None:
        """Return the queue, or None if it does not exist."""

    def update(self, queue: QueueRef, expected: bytes, metadata: bytes) -> bool:
        """Replace the metadata if it equals ``expected``. Return False if it differs or the queue does not exist."""

    def list(self, project: str, after: str, limit: int) -> Page[Queue]:
        """Return up to ``limit`` queues with names greater than ``after``, in ascending byte order of names."""

    def count(self, project: str) -> int:
        """Return the number of queues of the project."""
        return sum(1 for _ in browsing.queues(self, project))

    def delete(self, queue: QueueRef) -> None:
        """Delete the queue with its messages, claims, history and idempotency keys. Ignore a missing queue.

        The deletion takes effect in one step: a concurrent post takes effect either before or after it. Until this
        method returns, readers may see some of the messages; afterwards, they see none.
        """

    def purge(self, queue: QueueRef) -> None:
        """Remove all messages and claims. Keep the queue, its metadata and its history. Ignore a missing queue.

        Like ``delete``, a purge takes effect in one step.
        """

    def stats(self, queue: QueueRef, now: Seconds) -> Stats:
        """Return the counts of unexpired messages, and the oldest and newest message (None in an empty queue)."""

    def ready(self, queue: QueueRef, max_count: int, now: Seconds) -> ReadyMessages:
        """Return the number of ready messages, and the time when the next delayed or claimed message becomes ready.

        The number is counted up to ``max_count``. The time is None if no message is delayed or claimed. It is a hint,
        because the message may expire earlier. If ``max_count`` is 0, only the time is determined. In a grouped queue
        (with message groups), only messages that a claim would return count as ready.
        """


class MessageController(Protocol):
    """The operations on messages."""

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
        """Store all drafts atomically, in the given order.

        Messages without a delay become available at ``now``, or slightly later to keep the order of posts (law L5).

        Args:
            expected: The expected value of the queue's metadata. If the actual value differs, no message is stored, and
                the actual value is returned (``b"{}"`` for a missing queue). In all other cases, None is returned.
            idempotency_key: The idempotency key of the whole request. The driver stores the list of message ids as the
                result of the request. A draft may have its own key in addition.
            copies: Messages that are posted to another queue in the same step.
            create: Whether to create a missing queue, without metadata, in the same step.

        After one of the following errors, nothing is stored. Idempotency keys are checked before the metadata.

        Raises:
            QueueNotFound: The queue is missing, and ``create`` is False.
            Repeated: The queue has already stored the key of the request.
            DraftsRepeated: The queue has already stored the key of a draft.
            KeyReused: The queue has stored one of these keys for a request or draft with a different digest.
        """

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Messages:
        """Return the queue's messages with these ids, in the order of ``ids``. Skip missing and duplicate ids."""

    def list(
        self,
        queue: QueueRef,
        marker: int,
        limit: int,
        list_filter: ListFilter,
        now: Seconds,
        max_bytes: int = UNBOUNDED,
        expected: bytes | None = None,
    ) -> Page[Message]:
        """Return up to ``limit`` messages that match the filter, in ascending order of sequence numbers.

        The sequence numbers are greater than ``marker``. ``Page.next`` is the sequence number of the last message. If
        ``expected`` is not None and differs from the queue's metadata, the page has no messages, and
        ``Page.metadata`` is the queue's metadata.
        """

    def browse(
        self, queue: QueueRef, state: State, after: Position, limit: int, now: Seconds, max_bytes: int = UNBOUNDED
    ) -> BrowsePage:
        """Return messages in one state, beginning after the position ``after``.

        Ready and delayed messages are in claim order (by available-at, then by sequence), claimed messages in order of
        sequence. A message that stays in its state is neither skipped nor repeated. A page may have fewer messages than
        ``limit``, but it is empty only if there are no more messages.
        """
        return browsing.browse(self, queue, state, after, limit, now, max_bytes)

    def delete(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, history: int = 0
    ) -> None:
        """Delete messages by id, and ignore missing ones.

        ``claims`` determines the condition that each message must meet:

        - None: no condition; claimed messages are deleted too.
        - Empty: no claim holds the message.
        - Not empty: one of these claims holds the message.

        If a message violates the condition, nothing is deleted. The first violation determines the error:
        ``MessageClaimed`` if another claim holds the message, ``ClaimNotHeld`` if no claim holds it.
        """

    def pop(
        self,
        queue: QueueRef,
        limit: int,
        now: Seconds,
        history: int = 0,
        max_bytes: int = UNBOUNDED,
        expected: bytes | None = None,
    ) -> Messages:
        """Remove and return up to ``limit`` ready messages, in the order in which they became available.

        Messages that became available at the same time are in order of sequence numbers. If ``expected`` is not None
        and differs from the queue's metadata, nothing is removed, and ``OtherMetadata`` is raised. If no message is
        ready, the driver may skip this comparison.
        """

    def move(self, queue: QueueRef, moves: Sequence[Move], now: Seconds, history: int = 0) -> Sequence[str]:
        """Move the ready messages in ``moves``. Return the ids of the moved messages, in the order of ``moves``.

        Each message is moved atomically (law L7). The messages are appended to their target queues in the order of
        ``moves``, like new posts. A missing target queue is created without metadata. If it must not be created
        (``Move.may_create``), nothing is moved, and ``QueueNotFound`` is raised. A message that is moved to its own
        queue gets a new position there.
        """


class ClaimController(Protocol):
    """The operations on claims. At most one live claim holds a message (law L2)."""

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> ClaimResult:
        """Claim up to ``request.limit`` ready messages, in order of (available-at, sequence).

        - The claim count of each claimed message increases by one.
        - If a message would expire before the end of the claim and ``request.lease.prolong`` is true, its expiry is
          postponed to ``request.lease.grace`` seconds after the end of the claim.
        - After the claim has expired, a message becomes available again with a back-off:
          ``request.redelivery_delay(count)`` seconds, where ``count`` is the message's claim count. A renewal of the
          claim keeps this back-off.
        - Messages that were already claimed ``request.max_claims`` times are not claimed. ``ClaimResult.spent`` has
          their ids.
        - If ``request.named`` is true and the requested claim id is that of a live claim, this claim is returned.

        Raises ``Fenced`` if the epoch of ``request.fence`` is not the last one issued.
        """

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        """Return the live claim and its messages, in the order of their sequences.

        Raises ``ClaimNotFound`` if the claim holds no message.
        """

    def list(self, project: str, after: str, limit: int, now: Seconds, queue: str = "") -> Page[ClaimSummary]:
        """Return up to ``limit`` live claims of a project or, if ``queue`` is not "", of one queue.

        The order depends on the driver. ``after`` is the ``next`` of the previous page. A page may be short or empty
        although more claims follow.
        """
        return capabilities.NO_CLAIM_LISTS.list()

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, fence: Fence | None = None) -> None:
        """Renew the claim for ``lease.ttl`` seconds from ``now``. Raises ``ClaimNotFound`` if it holds no message."""

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        """Release all messages of the claim; they become available after ``delay`` seconds. Ignore an unknown claim.

        If ``delay`` is None, the redelivery delay of the claim applies. If this redelivery delay is 0, the messages
        return to their previous positions.
        """

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        idempotency_key: IdempotencyKey | None = None,
        fence: Fence | None = None,
    ) -> SettleResult:
        """Settle messages of the claim in one round trip, each atomically.

        Only messages that the live claim holds are changed. Moved messages are appended to their target queues in the
        order of ``settlement.move``. With ``idempotency_key``, the driver stores the ``SettleResult`` for repeated
        requests. Raises ``ClaimNotFound`` if the claim holds no message, and ``QueueNotFound`` as ``move`` does.
        """

    def handle(
        self,
        queue: QueueRef,
        handles: Sequence[MessageHandle],
        now: Seconds,
        accepts_expired: bool = False,
        history: int = 0,
    ) -> Sequence[HandleOutcome]:
        """Delete single claimed messages or change their visibility timeouts. Return the outcomes in input order.

        A handle identifies one message by id, claim and claim count, like an SQS receipt handle. It requests either a
        deletion or a new time at which the claim on this message expires. The other messages of the claim are not
        affected. The driver applies the handles in order, each atomically.

        - A changed timeout changes neither the message's claim count nor the message's own expiry. When the claim on
          the message expires, the message becomes available after its back-off.
        - If ``accepts_expired`` is true, the handle of an expired claim is accepted, unless the message has been
          claimed again.
        - If an outcome is not ``DONE``, its message is unchanged.
        """


class DocumentController(Protocol):
    """The operations on small documents, such as topic metadata, subscriptions and pools.

    Each document is replaced as a whole. An expired document (``Document.expires <= now``) does not exist for any
    operation.
    """

    def get(self, ref: DocumentRef, now: Seconds) -> Document | None:
        """Return the document, or None if it does not exist."""

    def put(
        self,
        ref: DocumentRef,
        value: bytes,
        now: Seconds,
        expected: str | None = None,
        expires: Seconds | None = None,
        is_vital: bool = False,
    ) -> bool:
        """Store the value under a new version, in one step. Return False if the stored version is not ``expected``.

        ``expected`` is "" if the document must not exist, and None to store unconditionally. ``expires`` is a Unix time
        in seconds. If ``is_vital`` is true, the store accepts the document even if it has reached its
        memory limit.
        """

    def list(self, project: str, kind: str, prefix: str, after: str, limit: int, now: Seconds) -> Page[Document]:
        """Return up to ``limit`` documents of a kind, in ascending byte order of names.

        The names begin with ``prefix`` and are greater than ``after``. ``next`` is the last name on the page.
        """

    def delete(self, ref: DocumentRef, now: Seconds, expected: str | None = None) -> bool:
        """Delete the document, and return True. If ``expected`` is None, ignore the document's version.

        If the document does not exist or has a version other than ``expected``, return False.
        """


class Storage(Protocol):
    """An open store, as ``zq.storage.connect`` returns it."""

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
    def is_prompt(self) -> bool:
        """Whether short operations are currently fast enough for the event loop's thread.

        These operations access memory only, and return before their changes are on disk. The HTTP server waits for the
        disk on another thread before it sends the response; see ``zq.storage.inline``.
        """

    def now(self) -> Seconds:
        """Return the store's Unix time in seconds. All servers of the store use this time."""

    def clock_lead(self) -> Seconds:
        """Return the seconds by which the machine's clock is ahead of ``now``, at least 0.

        After a forward jump of the machine's clock, ``now`` ignores the jump for some time.
        """

    def ping(self) -> None:
        """Check that the store can be read and written. Raises ``Unavailable`` if it cannot."""

    def maintain(self, now: Seconds, expiry: Expiry | None = None, pace: Pace | None = None) -> int:
        """Run one maintenance round that reclaims space, and return the number of removed expired messages.

        One thread of each server calls this method every few seconds. Servers that share a store share the work.
        ``expiry`` contains new expiry settings, or is None if the settings have not changed. The settings also apply to
        lazy expiry, in which readers remove the expired messages that they find. Operations in progress do not fail
        when the settings change. ``pace`` limits the work of the round; by default, the round makes no pauses.
        """

    def usage(self, project: str, now: Seconds) -> Usage | None:
        """Return the number of messages and bytes in the project's queues and stages, or None if it is unknown.

        Expired messages count until they are removed. Messages stored by an older version of the driver add no bytes.
        """

    def depths(self, now: Seconds, queues: int, max_count: int) -> Sequence[tuple[QueueRef, Depth]]:
        """Return the message counts of up to ``queues`` queues, which may belong to any project.

        The result has a count for each message state. Each state is counted up to ``max_count`` messages. If a state
        reaches this maximum, the other counts may be too low.
        """

    def depth(self, queue: QueueRef, now: Seconds, max_count: int) -> Depth:
        """Return the message counts of one queue by state. If the queue does not exist, all counts are 0.

        Each state is counted up to at least ``max_count`` messages. If a count reaches ``max_count``, all counts may be
        too low. A driver that does not count expired messages returns 0 for ``expired``.
        """

    def locate(self, project: str, message: str, now: Seconds) -> LocatedMessage | None:
        """Find a message by its id in all queues of a project.

        If the message exists, return it with its queue. Otherwise, return its latest history entry. If the message has
        no history entry either, return None.
        """

    def measures(self, now: Seconds) -> Sequence[Measure]:
        """Return the metrics of the store, except queue metrics; see ``api-ref/metrics.md``. The call must be cheap."""

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        """Notify the listener, within milliseconds, of each queue that receives a message from any process.

        Each post, release, move and publish notifies the listener, even if the message is delayed. When a delay or a
        claim ends, the listener is not notified; see ``QueueController.ready``. Notifications may be lost or
        spurious. The listener may be called from any thread and must not block. The next call replaces the listener.
        """

    def close(self) -> None:
        """Close the store. No operation may be called afterwards."""


class Defaults:
    """The base class of drivers. It implements the optional operations for drivers that do not support them.

    The server rejects requests that need a missing capability (decision 0046).
    """

    history: HistoryController = cast(HistoryController, capabilities.NO_HISTORY)
    transactions: TransactionController = cast(TransactionController, capabilities.NO_TRANSACTIONS)
    topics: TopicController = cast(TopicController, capabilities.NO_TOPICS)
    is_prompt = False

    def clock_lead(self) -> Seconds:
        """Return 0: ``now`` always follows the clock of the store's machine."""
        return 0.0

    def usage(self, project: str, now: Seconds) -> Usage | None:
        """Return None, because the usage is unknown. The server then does not enforce quotas of messages and bytes."""
        return None

    def depths(self, now: Seconds, queues: int, max_count: int) -> Sequence[tuple[QueueRef, Depth]]:
        return ()

    def depth(self, queue: QueueRef, now: Seconds, max_count: int) -> Depth:
        """Compute the counts from the results of ``stats`` and ``ready``. The cost grows with the size of the queue.

        The result has no value for ``oldest_ready``.
        """
        queues = cast(Storage, self).queues
        stats, ready = queues.stats(queue, now), queues.ready(queue, max_count, now).count
        return Depth(ready, max(0, stats.free - ready) if ready < max_count else 0, stats.claimed)

    def locate(self, project: str, message: str, now: Seconds) -> LocatedMessage | None:
        return browsing.locate(cast(Storage, self), project, message, now)

    def measures(self, now: Seconds) -> Sequence[Measure]:
        return ()

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        """Ignore the listener. Without notifications, waiting requests query the store every few seconds."""
