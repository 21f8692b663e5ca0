# SPDX-License-Identifier: Apache-2.0
"""What a consumer has on its desk: the claims that it holds, what was decided about their messages, and what is to be
asked of the server next. No I/O, no threads; moments are arguments, in seconds of any steady clock.

Whoever drives a desk hands out what ``take`` gives, reports with ``finish``, and carries out the errands that are due.
"""

from collections import deque
from collections.abc import Callable
from math import inf
from typing import Any, Final

from msgspec import UNSET, Struct

from zq.client.calls import Call, unsure
from zq.client.claims import Taken, claim_call, renew_call, settle_call, taken
from zq.client.habits import Habits
from zq.client.values import Decision, Delivery
from zq.errors import ClaimLapsed, Invalid, NotFound
from zq.model import Settled
from zq.wire.settling import Moved, Released, Terms

PATIENCE: Final = 5.0
"""Seconds that one request waits for messages at most: so soon does a loop notice that it is to stop."""
SOON: Final = 1.0
"""Seconds after which a decision is carried out though others of its claim are still to come."""
UNSETTLED: Final = 2
"""Claims that may wait for their settlement before the next one is made."""
PAUSE: Final = 1.0
"""Seconds between two looks of those who do not want to wait."""
MOVED_BYTES: Final = 200_000
"""New bodies in one settlement, if there is more than one."""

Decided = list[tuple[Delivery, Decision]]


class Held:
    """A claim and its messages: waiting for work, in work, and decided about but not settled."""

    def __init__(self, got: Taken, asked: float, ttl: int) -> None:
        self.claim = got.claim
        self.waiting = deque(got.deliveries)
        self.working: dict[int, Delivery] = {}
        self.decided: list[Decided] = [[]]
        """What has no errand yet; more than one list when the server refused to settle them together."""
        self.since = asked
        self.settling = False
        self.lapsed = False
        self.renew(asked, ttl)

    def renew(self, asked: float, ttl: int) -> None:
        """It lives ``ttl`` seconds from the moment at which it was asked for."""
        self.ends = asked + ttl
        self.due = asked + ttl / 3
        self.renewing = False
        self.trouble = 0.0

    @property
    def open(self) -> bool:
        """Whether there is work left on it."""
        return bool(self.waiting or self.working)

    @property
    def over(self) -> bool:
        """Whether nothing of it is left to do."""
        return not (self.open or self.settling or any(self.decided))


class Errand(Struct, frozen=True):
    """One request about a claim: what it settles; nothing = a renewal."""

    held: Held
    call: Call[Any]
    decided: Decided


Find = Callable[[float], Errand | float]
"""Finds the errand that is due at a moment, or the moment at which one will be."""


class Desk:
    """What one consumer holds. ``lost``: messages whose claim was over before they could be settled."""

    def __init__(self, habits: Habits) -> None:
        self.habits = habits
        self.lost: list[Delivery] = []
        self.failures: list[Exception] = []
        self.closing = False
        self.unstarted = 0
        """Messages that were given back without having been worked on."""
        self._empty = False
        self._left: float = inf if habits.count is None else habits.count
        """Messages that may still be worked on."""
        self._idle = 0.0
        self._claims: list[Held] = []
        self._returned: list[Errand] = []
        self._homes: dict[int, Held] = {}
        """By identity: a message whose claim lapsed may come a second time while it is still in work."""

    def ask(self) -> Call[Taken]:
        """The call for the next claim."""
        habits = self.habits
        left = habits.wait - self._idle if habits.until_empty else habits.wait
        return claim_call(
            habits.queue,
            None,
            taken,
            limit=int(min(habits.batch, self._left)),
            ttl=habits.ttl,
            grace=habits.grace,
            wait=int(max(0.0, min(PATIENCE, left))),
        )

    def received(self, got: Taken, asked: float, now: float) -> float:
        """Take in what the call brought; seconds to rest before the next one."""
        if got.deliveries:
            self._idle = 0.0
            self._claims.append(Held(got, asked, self.habits.ttl))
            return 0.0
        self._idle += now - asked
        self._empty = self.habits.until_empty and self._idle >= self.habits.wait - SOON
        return 0.0 if self._empty else max(got.pause, PAUSE if self.habits.wait < 1 else 0.0)

    def take(self, now: float) -> Delivery | None:
        """The next message to work on; none of a claim that is over."""
        for held in self._claims:
            if now >= held.ends:
                held.waiting.clear()
            if held.waiting and self._left:
                self._left -= 1
                return self._hand_out(held)
        self._claims = [held for held in self._claims if not held.over]
        return None

    @property
    def ended(self) -> bool:
        """Whether nothing more is to be claimed: there were so many, or nothing for as long as the consumer waits."""
        return self._empty or not self._left

    @property
    def crowded(self) -> bool:
        """Whether enough is waiting to be settled."""
        return sum(not held.open for held in self._claims) >= UNSETTLED

    def finish(self, delivery: Delivery, otherwise: Decision, now: float) -> bool:
        """The work on a message has ended; ``otherwise``: what becomes of it if its worker did not say.

        True if an errand may be due earlier than before.
        """
        held = self._homes.pop(id(delivery), None)
        if held is None:
            return False  # it was given back meanwhile, with all others
        del held.working[id(delivery)]
        if held.lapsed:
            self.lost.append(delivery)
            return True
        first = not held.decided[-1]
        if first:
            held.since = now
        held.decided[-1].append((delivery, delivery.words[-1] if delivery.words else otherwise))
        return first or not held.open

    def leave(self, now: float) -> None:
        """Nothing more is worked on: what is in hand goes back as after a failure, the rest by the queue's rules."""
        self.closing = True
        for held in self._claims:
            for delivery in list(held.working.values()):
                self.finish(delivery, self.habits.after_failure(delivery), now)
            while held.waiting:
                self.unstarted += 1
                delivery = self._hand_out(held)
                self.finish(delivery, Released(delivery.id), now)

    def settlement(self, now: float) -> Errand | float:
        """What is to be settled now, or the moment at which something will be, unless something happens before.

        The end of an errand must be told with ``went``, ``failed`` or ``returned``.
        """
        if self._returned:
            return self._returned.pop()
        moments = [inf]
        for held in self._claims:
            if not held.settling and any(held.decided):
                if self._to_settle(held, now):
                    return self._settlement(held)
                moments.append(held.since + SOON)
        return min(moments)

    def renewal(self, now: float) -> Errand | float:
        """As ``settlement``: the claim that is to be renewed, so that neither waits for the other."""
        habits, moments = self.habits, [inf]
        for held in self._claims:
            if held.open and not (held.renewing or held.lapsed):
                if now >= held.due:
                    held.renewing = True
                    return Errand(held, renew_call(habits.queue, held.claim, habits.ttl, habits.grace), [])
                moments.append(held.due)
        return min(moments)

    def went(self, errand: Errand, answer: Settled | None, asked: float) -> None:
        """The errand was carried out; it was begun at ``asked``."""
        if answer is None:
            errand.held.renew(asked, self.habits.ttl)
        else:
            errand.held.settling = False
            lost = set(answer.lost)
            self.lost += [delivery for delivery, _ in errand.decided if delivery.id in lost]

    def failed(self, errand: Errand, error: Exception, now: float) -> None:
        """The errand was refused, or could not be carried out."""
        held, decided = errand.held, errand.decided
        if decided:
            held.settling = False
        else:
            held.renewing = False
        if isinstance(error, NotFound | ClaimLapsed):
            self._lapse(held, decided)
        elif not decided:
            self._not_renewed(held, error, now)
        elif isinstance(error, Invalid) and len(decided) > 1:
            # One refused decision refuses them all: the search for it settles the others.
            middle = len(decided) // 2
            held.decided[:0] = [decided[:middle], decided[middle:]]
        else:
            self.failures.append(error)
            (delivery, decision), *_ = decided
            if isinstance(error, Invalid) and decision != Released(delivery.id):
                held.decided.insert(0, [(delivery, Released(delivery.id))])

    def returned(self, errand: Errand) -> None:
        """Whoever carried the errand out was stopped on the way: the next one gets the same."""
        if errand.decided:
            self._returned.append(errand)
        errand.held.renewing = False

    def news(self) -> tuple[list[Delivery], list[Exception]]:
        """What the consumer was not told of yet: lost messages, and failures."""
        told = self.lost, self.failures
        self.lost, self.failures = [], []
        return told

    def _hand_out(self, held: Held) -> Delivery:
        delivery = held.waiting.popleft()
        held.working[id(delivery)] = delivery
        self._homes[id(delivery)] = held
        return delivery

    def _to_settle(self, held: Held, now: float) -> bool:
        soon = self.closing or not held.open or now >= held.since + SOON or len(held.decided) > 1
        return soon and any(held.decided)

    def _settlement(self, held: Held) -> Errand:
        decided, rest, room = held.decided.pop(0), [], MOVED_BYTES
        for place, (_, decision) in enumerate(decided):
            room -= len(bytes(decision.body)) if isinstance(decision, Moved) and decision.body is not UNSET else 0
            if room < 0 and place:
                decided, rest = decided[:place], decided[place:]
                break
        if rest or not held.decided:
            held.decided.insert(0, rest)
        held.settling = True
        return Errand(held, settle_call(self.habits.queue, held.claim, _terms(decided)), decided)

    def _not_renewed(self, held: Held, error: Exception, now: float) -> None:
        """Told once; tried again later and later, unless the server refused it."""
        if not held.trouble:
            self.failures.append(error)
        held.trouble = held.trouble * 2 or max(SOON, self.habits.ttl / 10)
        held.due = now + held.trouble if unsure(error) else inf

    def _lapse(self, held: Held, decided: Decided) -> None:
        """Others may have the messages by now; those that wait were not touched, so nothing is lost with them."""
        held.lapsed = True
        held.waiting.clear()
        self.lost += [delivery for part in [decided, *held.decided] for delivery, _ in part]
        held.decided = [[]]


def _terms(decided: Decided) -> Terms:
    terms = Terms([], [], [], [])
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
