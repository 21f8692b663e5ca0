# SPDX-License-Identifier: Apache-2.0
"""The state of one consumer: its claims, what was decided about their messages, and which request is due next.

No I/O, no threads; moments are arguments, in seconds of any steady clock. A consumer hands out what ``take`` gives,
reports with ``finish``, and sends the requests that are due.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Annotated, Any, Final

import msgspec
from msgspec import UNSET, Meta, Struct
from msgspec.structs import replace

from zq.client.calls import Call, maybe_applied
from zq.client.claims import ClaimedDeliveries, claim_call, read_deliveries, renew_call, settle_call
from zq.client.values import Decision, Delivery
from zq.errors import ClaimLapsed, Invalid, NotFound, TooManyRequests
from zq.model import Settled
from zq.wire.extensions import Moved, Released, SettleTerms

# Seconds that one request waits for messages at most: a consumer notices no later that it is to stop.
MAX_CLAIM_WAIT: Final = 5.0
# Seconds after which a decision is settled although other messages of its claim are still in work.
SETTLE_DELAY: Final = 1.0
# Claims that may wait for their settlement before the next one is made.
MAX_UNSETTLED: Final = 2
# Seconds between two claims of a consumer that does not wait for messages.
POLL_PAUSE: Final = 1.0
# Bytes of new bodies in one settlement that holds more than one.
MAX_MOVED_BYTES: Final = 200_000


class ConsumerLimits(Struct):
    """Those of a server's limits that consumers keep to."""

    max_wait: int
    max_messages_per_claim_or_pop: int
    max_message_delay: int


# Asks for the server's limits.
LIMITS: Final = Call(
    method="GET", path="/v2/limits", read=lambda answer: msgspec.json.decode(answer.body, type=ConsumerLimits)
)


class ConsumerOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a queue is consumed. Seconds, but ``batch``, messages of a claim, and ``count``, of all.

    ``most_delay`` bounds the back-off.
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
        """The same, as far as a server with these limits allows."""
        return replace(
            self,
            wait=min(self.wait, limits.max_wait) if not self.until_empty else self.wait,
            batch=min(self.batch, limits.max_messages_per_claim_or_pop),
            most_delay=min(self.most_delay, limits.max_message_delay),
        )

    def after_failure(self, delivery: Delivery) -> Released:
        """Releases a message after a back-off that doubles with each claim of it."""
        doublings = min(max(delivery.claim_count, 1) - 1, 20)
        return Released(delivery.id, min(self.backoff * 2**doublings, self.most_delay))


Decided = list[tuple[Delivery, Decision]]


class ActiveClaim:
    """A claim and its messages: waiting for work, in work, and decided about but not settled."""

    def __init__(self, claimed: ClaimedDeliveries, asked: float, ttl: int) -> None:
        self.id = claimed.claim
        self.waiting = deque(claimed.deliveries)
        self.working: dict[int, Delivery] = {}
        self.decided: list[Decided] = [[]]
        """Decisions that are in no request yet; several lists once the server refused to settle them together."""
        self.since = asked
        self.settling = False
        self.lapsed = False
        self.renew(asked, ttl)

    def renew(self, asked: float, ttl: int) -> None:
        """It lives ``ttl`` seconds from the moment at which it was asked for."""
        self.ends = asked + ttl
        self.due = asked + ttl / 3
        self.renewing = False
        self.retry_pause = 0.0

    @property
    def has_work(self) -> bool:
        """Whether messages of it are waiting or in work."""
        return bool(self.waiting or self.working)

    @property
    def finished(self) -> bool:
        """Whether all of its messages are settled."""
        return not (self.has_work or self.settling or any(self.decided))


class PendingRequest(Struct, frozen=True):
    """One request about a claim: a settlement of what was decided, or a renewal if ``decided`` is empty."""

    claim: ActiveClaim
    call: Call[Any]
    decided: Decided


# Gives the request that is due at a moment, or the moment at which one will be.
NextRequest = Callable[[float], PendingRequest | float]


class ConsumerState:
    """What one consumer has claimed. ``lost``: messages whose claim was over before they could be settled."""

    def __init__(self, options: ConsumerOptions) -> None:
        self.options = options
        self.lost: list[Delivery] = []
        self.failures: list[Exception] = []
        self.closing = False
        self.unstarted = 0
        """Messages that were given back without having been worked on."""
        self._empty = False
        self._left: float = inf if options.count is None else options.count
        """Messages that may still be worked on."""
        self._idle = 0.0
        self._claims: list[ActiveClaim] = []
        self._interrupted: list[PendingRequest] = []
        self._claim_of: dict[int, ActiveClaim] = {}
        """By identity: a message whose claim lapsed may come a second time while it is still in work."""

    def next_claim(self) -> Call[ClaimedDeliveries]:
        """The call for the next claim."""
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
        """Take in the result of the call; seconds to pause before the next one."""
        if claimed.deliveries:
            self._idle = 0.0
            self._claims.append(ActiveClaim(claimed, asked, self.options.ttl))
            return 0.0
        self._idle += now - asked
        self._empty = self.options.until_empty and self._idle >= self.options.wait - SETTLE_DELAY
        return 0.0 if self._empty else max(claimed.pause, POLL_PAUSE if self.options.wait < 1 else 0.0)

    def take(self, now: float) -> Delivery | None:
        """The next message to work on; none of a claim that is over."""
        for claim in self._claims:
            if now >= claim.ends:
                claim.waiting.clear()
            if claim.waiting and self._left:
                self._left -= 1
                return self._hand_out(claim)
        self._claims = [claim for claim in self._claims if not claim.finished]
        return None

    @property
    def exhausted(self) -> bool:
        """Whether no more is claimed: ``count`` messages came, or none for as long as ``until_empty`` waits."""
        return self._empty or not self._left

    @property
    def backlogged(self) -> bool:
        """Whether so many claims wait for their settlement that no other one is made."""
        return sum(not claim.has_work for claim in self._claims) >= MAX_UNSETTLED

    def finish(self, delivery: Delivery, otherwise: Decision, now: float) -> bool:
        """The work on a message has ended; ``otherwise``: the decision about it if its worker made none.

        True if a request may be due earlier than before.
        """
        claim = self._claim_of.pop(id(delivery), None)
        if claim is None:
            return False  # it was given back meanwhile, with all others
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
        """No more is worked on: messages in work go back as after a failure, waiting ones by the queue's rules."""
        self.closing = True
        for claim in self._claims:
            for delivery in list(claim.working.values()):
                self.finish(delivery, self.options.after_failure(delivery), now)
            while claim.waiting:
                self.unstarted += 1
                delivery = self._hand_out(claim)
                self.finish(delivery, Released(delivery.id), now)

    def settlement(self, now: float) -> PendingRequest | float:
        """The settlement that is due now, or the moment at which one will be, unless something happens before.

        How a request ended must be reported with ``succeeded``, ``failed`` or ``interrupted``.
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
        """As ``settlement``, for renewals: neither kind of request waits for the other."""
        options, moments = self.options, [inf]
        for claim in self._claims:
            if claim.has_work and not (claim.renewing or claim.lapsed):
                if now >= claim.due:
                    claim.renewing = True
                    return PendingRequest(claim, renew_call(options.queue, claim.id, options.ttl, options.grace), [])
                moments.append(claim.due)
        return min(moments)

    def succeeded(self, request: PendingRequest, answer: Settled | None, asked: float) -> None:
        """The server carried the request out; it was begun at ``asked``."""
        if answer is None:
            request.claim.renew(asked, self.options.ttl)
        else:
            request.claim.settling = False
            lost = set(answer.lost)
            self.lost += [delivery for delivery, _ in request.decided if delivery.id in lost]

    def failed(self, request: PendingRequest, error: Exception, now: float) -> None:
        """The request was refused, or could not be carried out."""
        claim, decided = request.claim, request.decided
        if decided:
            claim.settling = False
        else:
            claim.renewing = False
        if isinstance(error, NotFound | ClaimLapsed):
            self._lapse(claim, decided)
        elif not decided:
            self._not_renewed(claim, error, now)
        elif isinstance(error, Invalid) and len(decided) > 1:
            # One refused decision refuses them all: bisection finds it and settles the others.
            middle = len(decided) // 2
            claim.decided[:0] = [decided[:middle], decided[middle:]]
        else:
            self.failures.append(error)
            (delivery, decision), *_ = decided
            if isinstance(error, Invalid) and decision != Released(delivery.id):
                claim.decided.insert(0, [(delivery, Released(delivery.id))])

    def interrupted(self, request: PendingRequest) -> None:
        """The request was cancelled on its way: a settlement is handed out once more, a renewal is due again."""
        if request.decided:
            self._interrupted.append(request)
        request.claim.renewing = False

    def unreported(self) -> tuple[list[Delivery], list[Exception]]:
        """Lost messages and failures since the last call."""
        found = self.lost, self.failures
        self.lost, self.failures = [], []
        return found

    def _hand_out(self, claim: ActiveClaim) -> Delivery:
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

    def _not_renewed(self, claim: ActiveClaim, error: Exception, now: float) -> None:
        """The failure is reported once; the renewal is tried later and later, unless the server refused it."""
        if not claim.retry_pause:
            self.failures.append(error)
        claim.retry_pause = claim.retry_pause * 2 or max(SETTLE_DELAY, self.options.ttl / 10)
        passes = maybe_applied(error) or isinstance(error, TooManyRequests)
        claim.due = now + claim.retry_pause if passes else inf

    def _lapse(self, claim: ActiveClaim, decided: Decided) -> None:
        """Others may have the messages by now; waiting ones were not touched, so they are not lost."""
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
