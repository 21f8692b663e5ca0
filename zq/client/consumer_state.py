# SPDX-License-Identifier: Apache-2.0
"""The state of a consumer: its claims, the decisions on their messages, and the requests to send.

A decision is to delete, release, move or bury (dead-letter) a message. A consumer gets messages from ``take``, passes
decisions to ``finish``, and sends the requests that ``next_settlement`` and ``next_renewal`` return.

The module does no I/O and uses no threads. Times are in seconds of a monotonic clock.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct
from msgspec.structs import replace

from zq.client.calls import Call, decode_as, may_be_applied
from zq.client.claims import ClaimedDeliveries, claim_call, read_deliveries, renew_call, settle_call
from zq.client.values import Decision, Delivery
from zq.errors import ClaimLapsed, Invalid, NotFound, TooManyRequests
from zq.model import SettleResult
from zq.wire.extensions import MoveTerms, ReleaseTerms, SettleTerms

# Maximum seconds for which a claim request waits for messages. A stopped consumer ends within this time.
MAX_CLAIM_WAIT: Final = 5.0
# Maximum seconds between a decision and its settlement while other messages of the claim are in progress.
SETTLE_DELAY: Final = 1.0
# Number of unsettled claims at which the consumer stops claiming.
MAX_UNSETTLED: Final = 2
# Seconds between the claims of a consumer that polls (``wait`` is 0).
POLL_PAUSE: Final = 1.0
# Maximum total size in bytes of the new bodies in one settlement. A single larger body gets its own settlement.
MAX_MOVED_BYTES: Final = 200_000


class ConsumerLimits(Struct):
    """The server limits that apply to consumers."""

    max_wait: int
    max_messages_per_claim_or_pop: int
    max_message_delay: int


# The call that gets the server limits.
LIMITS: Final = Call(method="GET", path="/v2/limits", read=decode_as(ConsumerLimits))


class ConsumerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a consumer. Times are in seconds.

    ``batch`` is the maximum number of messages per claim. ``count`` is the maximum number of messages in total.
    """

    queue: str
    wait: float = 20
    batch: int = 10
    ttl: int = 300
    grace: int | None = None
    until_empty: bool = False
    count: Annotated[int, Meta(ge=1)] | None = None
    backoff: Annotated[int, Meta(ge=0)] = 5
    max_backoff: int = 900

    def apply_limits(self, limits: ConsumerLimits) -> "ConsumerOptions":
        """Return a copy of the options, capped at the server's limits."""
        return replace(
            self,
            wait=min(self.wait, limits.max_wait) if not self.until_empty else self.wait,
            batch=min(self.batch, limits.max_messages_per_claim_or_pop),
            max_backoff=min(self.max_backoff, limits.max_message_delay),
        )

    def release_after_failure(self, delivery: Delivery) -> ReleaseTerms:
        """Return the terms for the release of a failed message: a delay.

        The delay doubles with each claim of the message, up to ``max_backoff``.
        """
        doublings = min(max(delivery.claim_count, 1) - 1, 20)
        return ReleaseTerms(delivery.id, min(self.backoff * 2**doublings, self.max_backoff))


Decided = list[tuple[Delivery, Decision]]


class ActiveClaim:
    """A claim with its messages.

    Attributes:
        working: Messages in progress, by ``id(delivery)``.
        since: Time of the first decision after the last settlement.
        due: Time of the next renewal.
        retry_pause: Back-off after a failed renewal; 0 = the last renewal succeeded.
    """

    def __init__(self, claimed: ClaimedDeliveries, sent_at: float, ttl: int) -> None:
        self.id = claimed.claim
        self.waiting = deque(claimed.deliveries)
        self.working: dict[int, Delivery] = {}
        self.decided: list[Decided] = [[]]
        """Decisions to settle. Each list is one request; a refused request is split into several lists."""
        self.since = sent_at
        self.settling = False
        self.is_lapsed = False
        self.renew(sent_at, ttl)

    def renew(self, sent_at: float, ttl: int) -> None:
        """Record that the server has renewed the claim. The claim now ends ``ttl`` seconds after ``sent_at``.

        ``sent_at`` is the time just before the request was sent.
        """
        self.ends = sent_at + ttl
        self.due = sent_at + ttl / 3
        self.renewing = False
        self.retry_pause = 0.0

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.working)

    @property
    def is_settled(self) -> bool:
        return not (self.has_work or self.settling or any(self.decided))


class PendingRequest(Struct, frozen=True):
    """A request to send: a settlement of the messages in ``decided``, or a renewal if ``decided`` is empty."""

    claim: ActiveClaim
    call: Call[Any]
    decided: Decided


# A function that takes the current time and returns the request to send now, or the time of the next request.
NextRequest = Callable[[float], PendingRequest | float]


class ConsumerState:
    """The claims of a consumer. ``lost`` are messages whose claim expired before they were settled."""

    def __init__(self, options: ConsumerOptions) -> None:
        self.options = options
        self.lost: list[Delivery] = []
        self.failures: list[Exception] = []
        self.closing = False
        self.unstarted = 0
        """Number of messages that were released without calling the handler."""
        self._empty = False
        self._left: float = inf if options.count is None else options.count
        self._idle = 0.0
        self._claims: list[ActiveClaim] = []
        self._interrupted: list[PendingRequest] = []
        self._claim_of: dict[int, ActiveClaim] = {}
        """Claims by object identity of their messages.

        Message ids are not unique here: a message can be claimed again while a handler works on its expired claim.
        """

    def next_claim(self) -> Call[ClaimedDeliveries]:
        options = self.options
        left = options.wait - self._idle if options.until_empty else options.wait
        return claim_call(
            options.queue,
            None,
            read_deliveries,
            limit=int(min(options.batch, self._left)),
            ttl=options.ttl,
            grace=options.grace,
            wait=int(max(0.0, min(MAX_CLAIM_WAIT, left))),
        )

    def add_claimed(self, claimed: ClaimedDeliveries, sent_at: float, now: float) -> float:
        """Add messages of a claim requested at ``sent_at``. Return the seconds to sleep before the next claim."""
        if claimed.deliveries:
            self._idle = 0.0
            self._claims.append(ActiveClaim(claimed, sent_at, self.options.ttl))
            return 0.0
        self._idle += now - sent_at
        self._empty = self.options.until_empty and self._idle >= self.options.wait - SETTLE_DELAY
        return 0.0 if self._empty else max(claimed.pause, POLL_PAUSE if self.options.wait < 1 else 0.0)

    def take(self, now: float) -> Delivery | None:
        """Return the next message of a claim that has not expired, or ``None``."""
        for claim in self._claims:
            if now >= claim.ends:
                claim.waiting.clear()
            if claim.waiting and self._left:
                self._left -= 1
                return self._start(claim)
        self._claims = [claim for claim in self._claims if not claim.is_settled]
        return None

    @property
    def is_exhausted(self) -> bool:
        """Whether to stop claiming: ``count`` messages were taken, or the queue was empty for ``wait`` seconds."""
        return self._empty or not self._left

    @property
    def is_backlogged(self) -> bool:
        """Whether to postpone the next claim, because ``MAX_UNSETTLED`` finished claims are not settled yet."""
        return sum(not claim.has_work for claim in self._claims) >= MAX_UNSETTLED

    def finish(self, delivery: Delivery, otherwise: Decision, now: float) -> bool:
        """Record the handler's decision on a message, or ``otherwise`` if the handler made no decision.

        Return ``True`` if the next settlement or renewal may be due earlier than before this call.
        """
        claim = self._claim_of.pop(id(delivery), None)
        if claim is None:
            return False  # ``close`` has already released the message
        del claim.working[id(delivery)]
        if claim.is_lapsed:
            self.lost.append(delivery)
            return True
        first = not claim.decided[-1]
        if first:
            claim.since = now
        claim.decided[-1].append((delivery, delivery.decisions[-1] if delivery.decisions else otherwise))
        return first or not claim.has_work

    def close(self, now: float) -> None:
        """Record a decision on each remaining message. Later calls of ``finish`` have no effect.

        If a message is in progress, record the handler's last decision. Without such a decision, release the message
        with a back-off. Release all other messages without a delay.
        """
        self.closing = True
        for claim in self._claims:
            for delivery in list(claim.working.values()):
                self.finish(delivery, self.options.release_after_failure(delivery), now)
            while claim.waiting:
                self.unstarted += 1
                delivery = self._start(claim)
                self.finish(delivery, ReleaseTerms(delivery.id), now)

    def next_settlement(self, now: float) -> PendingRequest | float:
        """Return the settlement to send now, or the time at which the next settlement is due.

        After sending, the caller must call ``record_success``, ``record_failure`` or ``record_interruption``.
        """
        if self._interrupted:
            return self._interrupted.pop()
        moments = [inf]
        for claim in self._claims:
            if not claim.settling and any(claim.decided):
                if self._is_settlement_due(claim, now):
                    return self._build_settlement(claim)
                moments.append(claim.since + SETTLE_DELAY)
        return min(moments)

    def next_renewal(self, now: float) -> PendingRequest | float:
        """Return the renewal to send now, or the time at which the next renewal is due.

        After sending, the caller must call ``record_success``, ``record_failure`` or ``record_interruption``.
        """
        options, moments = self.options, [inf]
        for claim in self._claims:
            if claim.has_work and not (claim.renewing or claim.is_lapsed):
                if now >= claim.due:
                    claim.renewing = True
                    return PendingRequest(claim, renew_call(options.queue, claim.id, options.ttl, options.grace), [])
                moments.append(claim.due)
        return min(moments)

    def record_success(self, request: PendingRequest, settled: SettleResult | None, sent_at: float) -> None:
        """Record that the server has applied a request.

        Args:
            settled: The result of a settlement, or ``None`` if the request renewed the claim.
            sent_at: The time just before the request was sent.
        """
        if settled is None:
            request.claim.renew(sent_at, self.options.ttl)
        else:
            request.claim.settling = False
            lost = set(settled.lost)
            self.lost += [delivery for delivery, _ in request.decided if delivery.id in lost]

    def record_failure(self, request: PendingRequest, error: Exception, now: float) -> None:
        """Record a failed request, and schedule a retry if a retry can succeed.

        A renewal is retried with a back-off. If the server rejects a settlement of several messages as invalid, the
        settlement is split into two halves. If the server rejects the settlement of a single message, the message is
        released instead.
        """
        claim, decided = request.claim, request.decided
        if decided:
            claim.settling = False
        else:
            claim.renewing = False
        if isinstance(error, NotFound | ClaimLapsed):
            self._lapse(claim, decided)
        elif not decided:
            self._renewal_failed(claim, error, now)
        elif isinstance(error, Invalid) and len(decided) > 1:
            # The server refuses the whole request because of one decision. Bisect to settle all others.
            middle = len(decided) // 2
            claim.decided[:0] = [decided[:middle], decided[middle:]]
        else:
            self.failures.append(error)
            (delivery, decision), *_ = decided
            if isinstance(error, Invalid) and decision != ReleaseTerms(delivery.id):
                claim.decided.insert(0, [(delivery, ReleaseTerms(delivery.id))])

    def record_interruption(self, request: PendingRequest) -> None:
        """Record a cancelled request, so that it is sent again."""
        if request.decided:
            self._interrupted.append(request)
        request.claim.renewing = False

    def take_unreported(self) -> tuple[list[Delivery], list[Exception]]:
        """Return the messages that were lost because their claim expired, and the errors, since the last call."""
        found = self.lost, self.failures
        self.lost, self.failures = [], []
        return found

    def _start(self, claim: ActiveClaim) -> Delivery:
        delivery = claim.waiting.popleft()
        claim.working[id(delivery)] = delivery
        self._claim_of[id(delivery)] = claim
        return delivery

    def _is_settlement_due(self, claim: ActiveClaim, now: float) -> bool:
        due = now >= claim.since + SETTLE_DELAY
        return any(claim.decided) and (self.closing or not claim.has_work or due or len(claim.decided) > 1)

    def _build_settlement(self, claim: ActiveClaim) -> PendingRequest:
        decided, rest, room = claim.decided.pop(0), [], MAX_MOVED_BYTES
        for index, (_, decision) in enumerate(decided):
            room -= len(bytes(decision.body)) if isinstance(decision, MoveTerms) and decision.body is not UNSET else 0
            if room < 0 and index:
                decided, rest = decided[:index], decided[index:]
                break
        if rest or not claim.decided:
            claim.decided.insert(0, rest)
        claim.settling = True
        return PendingRequest(claim, settle_call(self.options.queue, claim.id, _terms(decided)), decided)

    def _renewal_failed(self, claim: ActiveClaim, error: Exception, now: float) -> None:
        if not claim.retry_pause:
            self.failures.append(error)
        claim.retry_pause = claim.retry_pause * 2 or max(SETTLE_DELAY, self.options.ttl / 10)
        passes = may_be_applied(error) or isinstance(error, TooManyRequests)
        claim.due = now + claim.retry_pause if passes else inf

    def _lapse(self, claim: ActiveClaim, decided: Decided) -> None:
        claim.is_lapsed = True
        claim.waiting.clear()
        self.lost += [delivery for part in [decided, *claim.decided] for delivery, _ in part]
        claim.decided = [[]]


def _terms(decided: Decided) -> SettleTerms:
    terms = SettleTerms([], [], [], [])
    for _, decision in decided:
        if isinstance(decision, str):
            terms.delete.append(decision)  # type: ignore[union-attr]  # it is a list here
        elif isinstance(decision, ReleaseTerms):
            terms.release.append(decision)
        elif isinstance(decision, MoveTerms):
            terms.move.append(decision)
        else:
            terms.bury.append(decision)
    return terms
