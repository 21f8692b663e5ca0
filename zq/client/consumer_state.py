# SPDX-License-Identifier: Apache-2.0
"""The state of one consumer: its claims, the decisions on their messages, and the next due request.

No I/O, no threads. Times are arguments, in seconds of any monotonic clock. A consumer gets messages with ``take``,
reports their end with ``finish``, and sends the requests that are due.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Annotated, Any, Final

from msgspec import UNSET, Meta, Struct
from msgspec.structs import replace

from zq.client.calls import Call, decode_as, maybe_applied
from zq.client.claims import ClaimedDeliveries, claim_call, read_deliveries, renew_call, settle_call
from zq.client.values import Decision, Delivery
from zq.errors import ClaimLapsed, Invalid, NotFound, TooManyRequests
from zq.model import Settled
from zq.wire.extensions import Moved, Released, SettleTerms

# Maximum seconds for which one request waits for messages. A stopped consumer ends within this time.
MAX_CLAIM_WAIT: Final = 5.0
# Seconds after which decisions are settled even if other messages of the claim are in progress.
SETTLE_DELAY: Final = 1.0
# Maximum number of unsettled claims before the next claim is created.
MAX_UNSETTLED: Final = 2
# Seconds between claims of a consumer that does not wait for messages.
POLL_PAUSE: Final = 1.0
# Maximum total size in bytes of new bodies in a settlement of several messages.
MAX_MOVED_BYTES: Final = 200_000


class ConsumerLimits(Struct):
    """The server limits that apply to consumers."""

    max_wait: int
    max_messages_per_claim_or_pop: int
    max_message_delay: int


# Call that gets the server limits.
LIMITS: Final = Call(method="GET", path="/v2/limits", read=decode_as(ConsumerLimits))


class ConsumerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a consumer. Times are in seconds.

    Attributes:
        batch: Maximum number of messages per claim.
        count: Maximum number of messages in total.
        most_delay: Maximum back-off.
    """

    queue: str
    wait: float = 20
    batch: int = 10
    ttl: int = 300
    grace: int | None = None
    until_empty: bool = False
    count: Annotated[int, Meta(ge=1)] | None = None
    backoff: Annotated[int, Meta(ge=0)] = 5
    most_delay: int = 900

    def within(self, limits: ConsumerLimits) -> "ConsumerOptions":
        """Return the options, reduced to the server's limits."""
        return replace(
            self,
            wait=min(self.wait, limits.max_wait) if not self.until_empty else self.wait,
            batch=min(self.batch, limits.max_messages_per_claim_or_pop),
            most_delay=min(self.most_delay, limits.max_message_delay),
        )

    def after_failure(self, delivery: Delivery) -> Released:
        """Return the release of a message after a failure, with a back-off that doubles with each claim."""
        doublings = min(max(delivery.claim_count, 1) - 1, 20)
        return Released(delivery.id, min(self.backoff * 2**doublings, self.most_delay))


Decided = list[tuple[Delivery, Decision]]


class ActiveClaim:
    """A claim and its messages: waiting, in progress, and decided but not settled."""

    def __init__(self, claimed: ClaimedDeliveries, asked: float, ttl: int) -> None:
        self.id = claimed.claim
        self.waiting = deque(claimed.deliveries)
        self.working: dict[int, Delivery] = {}
        self.decided: list[Decided] = [[]]
        """Decisions that no request contains yet; several lists after the server refused to settle them together."""
        self.since = asked
        self.settling = False
        self.lapsed = False
        self.renew(asked, ttl)

    def renew(self, asked: float, ttl: int) -> None:
        """Record that the claim was renewed for ``ttl`` seconds by a request sent at ``asked``."""
        self.ends = asked + ttl
        self.due = asked + ttl / 3
        self.renewing = False
        self.retry_pause = 0.0

    @property
    def has_work(self) -> bool:
        """Whether messages of the claim are waiting or in progress."""
        return bool(self.waiting or self.working)

    @property
    def finished(self) -> bool:
        """Whether all messages of the claim are settled."""
        return not (self.has_work or self.settling or any(self.decided))


class PendingRequest(Struct, frozen=True):
    """A request about a claim: a settlement of ``decided``, or a renewal if ``decided`` is empty."""

    claim: ActiveClaim
    call: Call[Any]
    decided: Decided


# Returns the request that is due now, or the time at which the next one will be due.
NextRequest = Callable[[float], PendingRequest | float]


class ConsumerState:
    """The claims of one consumer.

    Attributes:
        lost: Messages whose claim expired before they were settled.
    """

    def __init__(self, options: ConsumerOptions) -> None:
        self.options = options
        self.lost: list[Delivery] = []
        self.failures: list[Exception] = []
        self.closing = False
        self.unstarted = 0
        """Number of messages that were released without being handled."""
        self._empty = False
        self._left: float = inf if options.count is None else options.count
        """Number of messages that may still be handled."""
        self._idle = 0.0
        self._claims: list[ActiveClaim] = []
        self._interrupted: list[PendingRequest] = []
        self._claim_of: dict[int, ActiveClaim] = {}
        """Claims by message identity, because a message may be claimed again while its lapsed claim is in progress."""

    def next_claim(self) -> Call[ClaimedDeliveries]:
        """Return the call for the next claim."""
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

    def received(self, claimed: ClaimedDeliveries, asked: float, now: float) -> float:
        """Add the result of a claim call. Return the seconds to pause before the next one."""
        if claimed.deliveries:
            self._idle = 0.0
            self._claims.append(ActiveClaim(claimed, asked, self.options.ttl))
            return 0.0
        self._idle += now - asked
        self._empty = self.options.until_empty and self._idle >= self.options.wait - SETTLE_DELAY
        return 0.0 if self._empty else max(claimed.pause, POLL_PAUSE if self.options.wait < 1 else 0.0)

    def take(self, now: float) -> Delivery | None:
        """Return the next message to handle, skipping claims that have expired."""
        for claim in self._claims:
            if now >= claim.ends:
                claim.waiting.clear()
            if claim.waiting and self._left:
                self._left -= 1
                return self._start(claim)
        self._claims = [claim for claim in self._claims if not claim.finished]
        return None

    @property
    def exhausted(self) -> bool:
        """Whether claiming must end: ``count`` messages were taken, or the queue was empty for ``wait`` seconds."""
        return self._empty or not self._left

    @property
    def backlogged(self) -> bool:
        """Whether too many claims are unsettled to create another one."""
        return sum(not claim.has_work for claim in self._claims) >= MAX_UNSETTLED

    def finish(self, delivery: Delivery, otherwise: Decision, now: float) -> bool:
        """Record that the handling of a message has ended.

        Return whether a request may be due earlier than before.

        Args:
            otherwise: Decision on the message if its handler made none.
        """
        claim = self._claim_of.pop(id(delivery), None)
        if claim is None:
            return False  # already released together with all others
        del claim.working[id(delivery)]
        if claim.lapsed:
            self.lost.append(delivery)
            return True
        first = not claim.decided[-1]
        if first:
            claim.since = now
        claim.decided[-1].append((delivery, delivery.decisions[-1] if delivery.decisions else otherwise))
        return first or not claim.has_work

    def close(self, now: float) -> None:
        """End all work: release messages in progress as after a failure, and waiting ones by the queue's rules."""
        self.closing = True
        for claim in self._claims:
            for delivery in list(claim.working.values()):
                self.finish(delivery, self.options.after_failure(delivery), now)
            while claim.waiting:
                self.unstarted += 1
                delivery = self._start(claim)
                self.finish(delivery, Released(delivery.id), now)

    def settlement(self, now: float) -> PendingRequest | float:
        """Return the settlement that is due now, or the time at which the next one will be due.

        The outcome must be reported with ``succeeded``, ``failed`` or ``interrupted``.
        """
        if self._interrupted:
            return self._interrupted.pop()
        moments = [inf]
        for claim in self._claims:
            if not claim.settling and any(claim.decided):
                if self._to_settle(claim, now):
                    return self._settlement(claim)
                moments.append(claim.since + SETTLE_DELAY)
        return min(moments)

    def renewal(self, now: float) -> PendingRequest | float:
        """Return the renewal that is due now, or the time at which the next one will be due; see ``settlement``."""
        options, moments = self.options, [inf]
        for claim in self._claims:
            if claim.has_work and not (claim.renewing or claim.lapsed):
                if now >= claim.due:
                    claim.renewing = True
                    return PendingRequest(claim, renew_call(options.queue, claim.id, options.ttl, options.grace), [])
                moments.append(claim.due)
        return min(moments)

    def succeeded(self, request: PendingRequest, answer: Settled | None, asked: float) -> None:
        """Record that the server has applied a request that was sent at ``asked``."""
        if answer is None:
            request.claim.renew(asked, self.options.ttl)
        else:
            request.claim.settling = False
            lost = set(answer.lost)
            self.lost += [delivery for delivery, _ in request.decided if delivery.id in lost]

    def failed(self, request: PendingRequest, error: Exception, now: float) -> None:
        """Record that the server refused a request, or that it failed."""
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
            # One refused decision fails the whole request: bisection isolates it and settles the others.
            middle = len(decided) // 2
            claim.decided[:0] = [decided[:middle], decided[middle:]]
        else:
            self.failures.append(error)
            (delivery, decision), *_ = decided
            if isinstance(error, Invalid) and decision != Released(delivery.id):
                claim.decided.insert(0, [(delivery, Released(delivery.id))])

    def interrupted(self, request: PendingRequest) -> None:
        """Record that a request was cancelled. A settlement is sent again; a renewal becomes due again."""
        if request.decided:
            self._interrupted.append(request)
        request.claim.renewing = False

    def unreported(self) -> tuple[list[Delivery], list[Exception]]:
        """Return and clear lost messages and failures since the last call."""
        found = self.lost, self.failures
        self.lost, self.failures = [], []
        return found

    def _start(self, claim: ActiveClaim) -> Delivery:
        delivery = claim.waiting.popleft()
        claim.working[id(delivery)] = delivery
        self._claim_of[id(delivery)] = claim
        return delivery

    def _to_settle(self, claim: ActiveClaim, now: float) -> bool:
        due = now >= claim.since + SETTLE_DELAY
        return any(claim.decided) and (self.closing or not claim.has_work or due or len(claim.decided) > 1)

    def _settlement(self, claim: ActiveClaim) -> PendingRequest:
        decided, rest, room = claim.decided.pop(0), [], MAX_MOVED_BYTES
        for index, (_, decision) in enumerate(decided):
            room -= len(bytes(decision.body)) if isinstance(decision, Moved) and decision.body is not UNSET else 0
            if room < 0 and index:
                decided, rest = decided[:index], decided[index:]
                break
        if rest or not claim.decided:
            claim.decided.insert(0, rest)
        claim.settling = True
        return PendingRequest(claim, settle_call(self.options.queue, claim.id, _terms(decided)), decided)

    def _renewal_failed(self, claim: ActiveClaim, error: Exception, now: float) -> None:
        """Record a failed renewal: report it once, and retry with growing pauses unless the server refused it."""
        if not claim.retry_pause:
            self.failures.append(error)
        claim.retry_pause = claim.retry_pause * 2 or max(SETTLE_DELAY, self.options.ttl / 10)
        passes = maybe_applied(error) or isinstance(error, TooManyRequests)
        claim.due = now + claim.retry_pause if passes else inf

    def _lapse(self, claim: ActiveClaim, decided: Decided) -> None:
        """Mark the claim as lapsed. Waiting messages are not lost, because they were not handled."""
        claim.lapsed = True
        claim.waiting.clear()
        self.lost += [delivery for part in [decided, *claim.decided] for delivery, _ in part]
        claim.decided = [[]]


def _terms(decided: Decided) -> SettleTerms:
    terms = SettleTerms([], [], [], [])
    for _, decision in decided:
        if isinstance(decision, str):
            terms.delete.append(decision)  # type: ignore[union-attr]  # it is a list here
        elif isinstance(decision, Released):
            terms.release.append(decision)
        elif isinstance(decision, Moved):
            terms.move.append(decision)
        else:
            terms.bury.append(decision)
    return terms
