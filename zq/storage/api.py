# SPDX-License-Identifier: Apache-2.0
"""The storage interface: what every driver promises. Here: what a first driver needs, that is the store, queues,
messages, claims and documents; ``capabilities`` has what it may leave out.

A driver knows no default, checks no limit, reads no clock (``Storage.now`` excepted) and makes no policy.
Each verb is atomic: wholly (post, commit), or message by message (claim, renew, release, settle, move, bulk delete),
for any number of threads and processes on one store. A verb returns when its effect is as durable as the driver is
configured to make it.
Messages that have expired (``expires <= now``) exist for no verb. Every verb may raise ``Unavailable``.

Four arguments mean the same wherever they stand. ``history``: seconds for which the queue keeps a record of each
message that finishes in this step; 0 = none. ``idempotency_key``: if the queue knows the key already, nothing is done,
and ``Repeated`` (with what the verb answered the first time) or ``KeyReused`` (for another digest) is raised; else the
key is remembered in the same step as the effect. ``fence``: raises ``Fenced``, and nothing is done, unless its epoch is
the last one given out. ``most_bytes``: where the bodies of what is returned would have more of them together, the
verb ends before, as if its limit were reached; it never ends before the first message.
The laws L1 to L10 that all this must keep are in ``api-ref/laws.md``; ``zq/conformance`` proves them.
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
        """Create the queue; False, and nothing changed, if it exists. ``grouping`` is for good."""

    def get(self, queue: QueueRef) -> Queue | None:
        """The queue, or None."""

    def update(self, queue: QueueRef, expected: bytes, metadata: bytes) -> bool:
        """Replace the metadata if they still are ``expected``; False if not, or if there is no such queue."""

    def list(self, project: str, after: str, limit: int) -> Page[Queue]:
        """Queues with names greater than ``after``, ascending in byte order; ``next`` is the last name."""

    def count(self, project: str) -> int:
        """How many queues the project has. A driver may inherit this: it pages through ``list``."""
        return sum(1 for _ in browsing.queues(self, project))

    def delete(self, queue: QueueRef) -> None:
        """Remove the queue with all messages, claims, history and known keys. A missing queue is fine.

        Decided in one step, which every post is wholly before or after; when the verb returns, nothing is left. Readers
        may see a part of the messages until then.
        """

    def purge(self, queue: QueueRef) -> None:
        """Remove all messages and claims, as ``delete`` does; metadata and history stay. A missing queue is fine."""

    def stats(self, queue: QueueRef, now: Seconds) -> Stats:
        """Counts and landmarks; zeros for a missing queue."""

    def ready(self, queue: QueueRef, most: int, now: Seconds) -> Ready:
        """How many messages are ready, counted up to ``most``, which may be 0, and when the next one will be. In a
        grouped queue those are ready that a claim would find.

        That moment is a hint for whoever waits: it may be one of a message that expires before.
        """


class MessageController(Protocol):
    """Messages, by observers and owners."""

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
        """Store all drafts in array order, or none; a missing queue is created, without metadata, in the same step, or
        ``QueueNotFound`` is raised if the post may not ``create`` it.

        Without delay a message is available at the larger of ``now`` and the queue's last such moment (L5).
        Where the queue's metadata are not the ``expected`` ones, no message is stored, and the metadata are the answer
        (``b"{}"`` for a missing queue); otherwise the answer is None. A known ``idempotency_key`` goes before that;
        what it repeats is the list of the first drafts' ids. So do keys of drafts: where any are known, nothing is
        stored, and ``DraftsRepeated`` is raised, or ``KeyReused`` if one of them has another digest. ``copies`` are
        posted in the same step, or not at all, to their own queue, which is another one.
        """

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Messages:
        """Those of the ids that are in this queue, in the order asked for, each once."""

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
        """Messages of sequence above ``marker`` that the filter lets through, in sequence; ``next`` is the last one's.

        ``expected``: as for ``post``; what differs is the page's ``metadata``.
        """

    def browse(
        self, queue: QueueRef, state: State, after: Position, limit: int, now: Seconds, most_bytes: int = UNBOUNDED
    ) -> Browsed:
        """Messages of one state behind a position: ready, delayed in the order of claims, claimed in sequence. Pages
        neither skip nor repeat what stays in its state; one may end early, but not without any if there are any.
        A driver may inherit this: it walks over the whole queue.
        """
        return browsing.browse(self, queue, state, after, limit, now, most_bytes)

    def delete(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, history: int = 0
    ) -> None:
        """Remove messages by id. Missing ones are fine, whatever the claims (contract 7.6).

        ``claims``: those of the caller. None = it stands above claims: messages go whoever holds them. Otherwise each
        must be held by one of them or, if there are none of them (``()``), by nobody; else nothing goes, and the first
        such message decides: ``MessageClaimed`` if another claim holds it, ``ClaimNotHeld`` if none does.
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

        Where the queue's metadata are not the ``expected`` ones, none is removed, and ``OtherMetadata`` is raised; if
        none is ready, a driver need not look.
        """

    def move(self, queue: QueueRef, moves: Sequence[Move], now: Seconds, history: int = 0) -> Sequence[str]:
        """Move those of the messages that are ready, each in one step (L7); their ids, in the order of ``moves``.

        They join the other queue's order as a fresh post does, in this order; a missing queue is created, without
        metadata. Moving into the queue where it is gives a message a new position there.
        """


class ClaimController(Protocol):
    """Claims: one live claim at most holds a message (L2)."""

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> Claimed:
        """Claim up to ``request.limit`` ready messages in the order of (available, sequence).

        Claimed messages live as ``Lease.extend`` says and count one claim more. They are available at the claim's end +
        ``request.wait(count)``; that wait stays theirs until the next claim. Messages among these that were handed out
        ``request.max_claims`` times are left as they are, and their ids are returned (``Claimed.spent``).
        With ``request.named``, any number of callers under one id make one claim. Raises ``Fenced``.
        """

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        """The live claim with all messages it holds, in sequence. Raises ``ClaimNotFound``."""

    def list(self, project: str, after: str, limit: int, now: Seconds, queue: str = "") -> Page[ClaimSummary]:
        """Live claims of a project, or of one queue, in the driver's order; ``after``: the last page's ``next``.
        A page may end early, or have none, though there are more: its work is bounded. A driver may inherit a refusal.
        """
        return capabilities.NO_CLAIM_LISTS.list()

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, fence: Fence | None = None) -> None:
        """Start ``lease.claim`` anew, with the lease's terms. Raises ``ClaimNotFound``."""

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        """Give back what the claim holds, as ``Release`` says of one message. An unknown claim is fine."""

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        idempotency_key: IdempotencyKey | None = None,
        fence: Fence | None = None,
    ) -> Settled:
        """End the claim's work on the named messages, in one round trip; each message in one step.

        Only what the live claim holds is touched. Moved messages join their queues in the order of ``settlement.move``,
        as ``MessageController.move`` has it. Raises ``ClaimNotFound`` if the claim holds nothing; what
        ``idempotency_key`` repeats is the ``Settled``.
        """

    def handle(
        self, queue: QueueRef, grips: Sequence[Grip], now: Seconds, late: bool = False, history: int = 0
    ) -> Sequence[Handled]:
        """Delete messages by the claims that handed them out, or let these end at other moments.

        The driver does so one by one in order, each in one step, and returns what became of each, in order. ``Grip``
        has the rules. Claim and count must be those of the message. ``late``: its last holder counts though its time
        is up; else that is ``EXPIRED``. A hold beyond ``Grip.max_hold`` is ``TOO_LONG``.

        A message that stays is available at its new end + its redelivery delay, never lives longer for it, and still
        knows its holder; its claim count stays.
        """


class DocumentController(Protocol):
    """Small documents of any kind, each changed as a whole: topics' metadata, subscriptions, pools ...

    One that has expired (``Document.expires <= now``) exists for no verb.
    """

    def get(self, ref: DocumentRef, now: Seconds) -> Document | None:
        """The document, or None."""

    def put(
        self, ref: DocumentRef, value: bytes, now: Seconds, expected: str | None = None, expires: Seconds | None = None
    ) -> bool:
        """Store the value, in one step, if the document's version is ``expected``; False, and nothing changed, if not.

        ``expected``: "" = there must be no such document; None = whatever there is. ``expires``: None = never. The
        document has a new version then.
        """

    def list(self, project: str, kind: str, prefix: str, after: str, limit: int, now: Seconds) -> Page[Document]:
        """Documents of a kind whose names begin with ``prefix`` and are greater than ``after``, ascending in byte
        order; ``next`` is the last name."""

    def delete(self, ref: DocumentRef, now: Seconds, expected: str | None = None) -> bool:
        """Remove the document; False if there is none, or none of the ``expected`` version."""


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
    def documents(self) -> DocumentController: ...

    @property
    def prompt(self) -> bool:
        """Whether short verbs may run on the event loop's thread now: they wait for memory only, and leave the wait for
        the disk to ``zq.storage.inline.Ticket``."""

    def now(self) -> Seconds:
        """The store's own time, by which all its servers judge."""

    def doubted(self) -> Seconds:
        """How far ahead of ``now`` the clock of the store's machine has leapt and is not believed yet; else 0."""

    def ping(self) -> None:
        """Return if the store can read and write; raises ``Unavailable``."""

    def maintain(self, now: Seconds, expiry: Expiry | None = None, pace: Pace | None = None) -> int:
        """One round of giving space back, step by step as ``pace`` says (None: ``Steps()``); how many expired messages
        went. Called every few seconds, by one thread of each server; servers that share a store share the work.

        ``expiry``: the options from now on, for what reads of expired messages too; None = those of before. No verb
        that is under way fails for a change.
        """

    def usage(self, project: str, now: Seconds) -> Usage | None:
        """What the project's queues and stages hold; None = not known. Costs as much as the project has queues.

        What has expired counts until it is removed. Messages that were stored by versions of the driver that did not
        count bytes are of none.
        """

    def depths(self, now: Seconds, queues: int, most: int) -> Sequence[tuple[QueueRef, Depth]]:
        """The first ``queues`` queues of all projects, and what is in each, counted up to ``most`` of each state.

        A hint where ``most`` or more are in a state: the counts of others may be short then.
        """

    def depth(self, queue: QueueRef, now: Seconds, most: int) -> Depth:
        """What is in one queue, counted up to ``most`` of each state or further, but for ``expired``, which may be 0;
        zeros for a missing queue."""

    def locate(self, project: str, message: str, now: Seconds) -> Located | None:
        """In which queue of the project the message of this id is, or, if it lives in none, its latest record."""

    def measures(self, now: Seconds) -> Sequence[Measure]:
        """What this store has to be watched, besides its queues: ``api-ref/metrics.md`` tells each. Costs little."""

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        """From now on tell the listener of every queue that a message was given to or back to (post, release, move,
        publishing …; for now or for later), by whatever process, within milliseconds.

        It is called from any thread and returns at once; a later listener replaces it. A call may be lost, or come for
        nothing. What becomes ready by the passing of time brings no call: see ``QueueController.ready``.
        """

    def close(self) -> None:
        """Release the store; no verb may follow."""


class Defaults:
    """What a driver may leave out and inherit: capabilities that it does not have, hints and figures that it does not
    give. A server answers a request for such a capability as for all that is not built (decision 0046)."""

    history: HistoryController = cast(HistoryController, capabilities.NO_HISTORY)
    transactions: TransactionController = cast(TransactionController, capabilities.NO_TRANSACTIONS)
    topics: TopicController = cast(TopicController, capabilities.NO_TOPICS)
    prompt = False

    def doubted(self) -> Seconds:
        """The machine's clock is believed."""
        return 0.0

    def usage(self, project: str, now: Seconds) -> Usage | None:
        """It is not known, so that quotas of what is stored do not bind."""
        return None

    def depths(self, now: Seconds, queues: int, most: int) -> Sequence[tuple[QueueRef, Depth]]:
        """None."""
        return ()

    def depth(self, queue: QueueRef, now: Seconds, most: int) -> Depth:
        """By the statistics, which cost as much as the queue has messages, and without the oldest."""
        queues = cast(Storage, self).queues
        stats, ready = queues.stats(queue, now), queues.ready(queue, most, now).count
        return Depth(ready, max(0, stats.free - ready) if ready < most else 0, stats.claimed)

    def locate(self, project: str, message: str, now: Seconds) -> Located | None:
        """By all queues of the project."""
        return browsing.locate(cast(Storage, self), project, message, now)

    def measures(self, now: Seconds) -> Sequence[Measure]:
        """None."""
        return ()

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        """All calls are lost: a request that waits looks again every few seconds."""
