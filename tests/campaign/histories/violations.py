# SPDX-License-Identifier: Apache-2.0
"""The facts that a history proves about each claim and message, for all possible times of its calls' effects.

A claim holds from the end of its call at the latest. It may end, at the earliest, a ttl after its call's *start*, or
when a release of it starts. A post has stored its messages by its end; a message may be gone from the start of the
first call that may have removed it. Between these times nothing is proved.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from tests.campaign.histories.history import FAILED, OK, UNKNOWN, Call, New, home
from zq.model import QueueRef

# Seconds by which the clocks of two servers may differ.
TOLERANCE = 0.05
# Seconds after its lost response within which a call may still take effect.
LINGER = 10.0


class Violation(NamedTuple):
    """A broken law, in a sentence, with the calls that prove it."""

    law: str
    sentence: str
    calls: tuple[Call, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.law} {self.sentence}", *(f"    {call}" for call in self.calls)])


class Holding:
    """The guarantees of a claim's consumer, derived from the claim and its later calls."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.left = {message.name: inf for message in call.seen}
        """Start of the time in which the consumer may have deleted each message."""
        self.until = call.start + call.ttl - TOLERANCE
        self.at_latest = call.end + call.ttl + TOLERANCE
        self.lives_at_least = call.start + call.ttl + call.grace
        self.lives_at_most = call.end + call.ttl + call.grace
        """The messages live until this time, even if the claim is released."""
        self.gave_back = False
        """Whether the claim was certainly released before its end, so that its messages kept their positions."""
        self.wrong: list[Violation] = []

    def surely_until(self, name: str) -> float:
        """Return the earliest time at which the claim may have lost this message."""
        return min(self.until, self.left[name])

    def follow(self, call: Call) -> None:
        """Apply the consumer's next call."""
        if call.verb == "delete" and call.name not in self.left:
            return
        names = [call.name] if call.verb == "delete" else list(self.left)
        held = [name for name in names if call.end < self.surely_until(name)]
        if call.outcome == FAILED:
            if held:
                self.wrong.append(Violation("L2", f"The holder of {held[0]} was refused.", (self.call, call)))
        elif call.verb == "delete":
            self.left[call.name] = min(self.left[call.name], call.start)
        elif call.verb == "release":
            self._released(call)
        elif call.verb == "renew":
            self._renewed(call)

    def _released(self, call: Call) -> None:
        self.gave_back = call.outcome == OK and call.end < self.until
        self.until = min(self.until, call.start)
        if call.outcome == OK:
            self.at_latest = min(self.at_latest, call.end)

    def _renewed(self, call: Call) -> None:
        """Apply a renewal; success covers all messages only if the claim cannot have expired in the meantime."""
        ok = call.outcome == OK
        if ok and call.start > self.at_latest:
            self.wrong.append(Violation("L2", "A claim was renewed after it had ended.", (self.call, call)))
        whole = ok and (call.end < self.until or len(self.left) == 1)
        ends = call.start + call.ttl - TOLERANCE
        self.until = ends if whole else min(self.until, ends)
        self.at_latest = max(0 if whole else self.at_latest, call.end + call.ttl + TOLERANCE + LINGER * (not ok))
        self.lives_at_most = max(self.lives_at_most, call.end + call.ttl + call.grace + LINGER * (not ok))


class History:
    """The calls, indexed by message name for the rules."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = sorted(calls, key=lambda call: call.start)
        self.posts: dict[str, Call] = {}
        self.terms: dict[str, New] = {}
        self.sightings: dict[str, list[Call]] = defaultdict(list)
        self.removals: dict[str, list[Call]] = defaultdict(list)
        """Every delete and pop that removed the message, or may have removed it."""
        self.holdings: dict[str, list[Holding]] = defaultdict(list)
        self.by_claim: dict[str, Holding] = {}
        self.walks: dict[str, list[Call]] = defaultdict(list)
        self.unsure: dict[tuple[str, QueueRef], list[Call]] = defaultdict(list)
        """Calls with unknown effect, by operation and queue."""
        for call in self.calls:
            self._take_in(call)

    def _take_in(self, call: Call) -> None:
        for new in call.posted:
            self.posts[new.name], self.terms[new.name] = call, new
        for message in call.seen:
            self.sightings[message.name].append(call)
        if call.outcome == UNKNOWN:
            self.unsure[call.verb, call.queue].append(call)
        if call.verb == "pop":
            for message in call.seen:
                self.removals[message.name].append(call)
        if call.verb == "delete" and call.outcome != FAILED and home(call.name) == call.queue:
            self.removals[call.name].append(call)
        if call.verb == "claim" and call.seen:
            self.by_claim[call.claim] = Holding(call)
            for message in call.seen:
                self.holdings[message.name].append(self.by_claim[call.claim])
        elif call.claim in self.by_claim:
            self.by_claim[call.claim].follow(call)
        if call.reader and call.outcome == OK:
            self.walks[call.reader].append(call)

    def late(self, verb: str, queue: QueueRef, moment: float) -> int:
        """Return the number of messages that calls without a response may have taken after `moment`."""
        calls = self.unsure.get((verb, queue), ())
        return sum(call.limit for call in calls if call.end + LINGER >= moment)

    def stored_by(self, name: str) -> float:
        """Return the time by which the message was certainly stored.

        For a post without a response, this is the first time at which one of its messages was seen.
        """
        post = self.posts[name]
        if post.outcome == OK:
            return post.end
        return min((call.end for new in post.posted for call in self.sightings.get(new.name, ())), default=inf)

    def expires_at_earliest(self, name: str) -> float:
        """Return the earliest expiry, which assumes that no claim has extended the message's life."""
        return self.posts[name].start + self.terms[name].ttl - TOLERANCE

    def surely_lived(self, name: str, call: Call) -> bool:
        """Return whether the message cannot have expired before the end of the call."""
        claims = [holding for holding in self.holdings.get(name, ()) if holding.call.end < call.start]
        ends = [self.expires_at_earliest(name), *(holding.lives_at_least - TOLERANCE for holding in claims)]
        return call.end < max(ends)

    def expires_at_latest(self, name: str) -> float:
        """Return the latest expiry; claims and renewals, also with unknown outcome, may extend the life."""
        post, ttl = self.posts[name], self.terms[name].ttl
        ends = [post.end + ttl + LINGER * (post.outcome == UNKNOWN)]
        ends += [holding.lives_at_most for holding in self.holdings.get(name, ())]
        for verb in ("claim", "renew"):
            ends += [call.end + LINGER + call.ttl + call.grace for call in self.unsure.get((verb, home(name)), ())]
        return max(ends) + TOLERANCE

    def gone_at_earliest(self, name: str) -> float:
        """Return the earliest removal, excluding pops with unknown outcome, which may have removed any message."""
        starts = [call.start for call in self.removals.get(name, ())]
        return min([self.expires_at_earliest(name), *starts])
