# SPDX-License-Identifier: Apache-2.0
"""What a history proves about each claim and each message, whatever the instants at which its calls took effect.

A claim holds from the end of its call at the latest; it may end, at the earliest, a ttl after its call's *start*, or
when a release of it starts. A post has stored its messages by its end; a message may be gone from the start of the
first call that may have removed it. What happens in between proves nothing.
"""

from collections import defaultdict
from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from tests.campaign.histories.history import FAILED, OK, UNKNOWN, Call, New, home
from zq.model import QueueRef

# Seconds by which the clocks of two servers may differ.
TOLERANCE = 0.05
# Seconds after its lost answer in which a call may still take effect.
LINGER = 10.0


class Violation(NamedTuple):
    """A law that was broken, in a sentence, with the calls that prove it."""

    law: str
    sentence: str
    calls: tuple[Call, ...]

    def __str__(self) -> str:
        return "\n".join([f"{self.law} {self.sentence}", *(f"    {call}" for call in self.calls)])


class Holding:
    """What one claim's holder may rely on, from the claim and the calls that its holder made under it."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.left = {message.name: inf for message in call.seen}
        """From when on the holder may have deleted it."""
        self.until = call.start + call.ttl - TOLERANCE
        self.at_latest = call.end + call.ttl + TOLERANCE
        self.lives_at_least = call.start + call.ttl + call.grace
        self.lives_at_most = call.end + call.ttl + call.grace
        """Its messages live so long, even if it is released."""
        self.gave_back = False
        """Released for sure while it lived: its messages returned to their places."""
        self.wrong: list[Violation] = []

    def surely_until(self, name: str) -> float:
        """The earliest moment at which it may have lost this message."""
        return min(self.until, self.left[name])

    def follow(self, call: Call) -> None:
        """Take in the holder's next call."""
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
        """An answer of ok speaks for every message only if the claim cannot have begun to lapse meanwhile."""
        ok = call.outcome == OK
        if ok and call.start > self.at_latest:
            self.wrong.append(Violation("L2", "A claim was renewed after it had ended.", (self.call, call)))
        whole = ok and (call.end < self.until or len(self.left) == 1)
        ends = call.start + call.ttl - TOLERANCE
        self.until = ends if whole else min(self.until, ends)
        self.at_latest = max(0 if whole else self.at_latest, call.end + call.ttl + TOLERANCE + LINGER * (not ok))
        self.lives_at_most = max(self.lives_at_most, call.end + call.ttl + call.grace + LINGER * (not ok))


class History:
    """The calls, and by name whatever the rules ask for."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = sorted(calls, key=lambda call: call.start)
        self.posts: dict[str, Call] = {}
        self.terms: dict[str, New] = {}
        self.sightings: dict[str, list[Call]] = defaultdict(list)
        self.removals: dict[str, list[Call]] = defaultdict(list)
        """Every delete and pop that removed the message, or may have."""
        self.holdings: dict[str, list[Holding]] = defaultdict(list)
        self.by_claim: dict[str, Holding] = {}
        self.walks: dict[str, list[Call]] = defaultdict(list)
        self.unsure: dict[tuple[str, QueueRef], list[Call]] = defaultdict(list)
        """Calls of which nobody knows what they did, by verb and queue."""
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
        """How many messages calls without answer may have taken after a moment."""
        calls = self.unsure.get((verb, queue), ())
        return sum(call.limit for call in calls if call.end + LINGER >= moment)

    def stored_by(self, name: str) -> float:
        """When the message was surely there; for a post without answer, when one message of it was first seen."""
        post = self.posts[name]
        if post.outcome == OK:
            return post.end
        return min((call.end for new in post.posted for call in self.sightings.get(new.name, ())), default=inf)

    def expires_at_earliest(self, name: str) -> float:
        """If no claim has lengthened its life."""
        return self.posts[name].start + self.terms[name].ttl - TOLERANCE

    def surely_lived(self, name: str, call: Call) -> bool:
        """Whether it cannot have expired before the call was over."""
        claims = [holding for holding in self.holdings.get(name, ()) if holding.call.end < call.start]
        ends = [self.expires_at_earliest(name), *(holding.lives_at_least - TOLERANCE for holding in claims)]
        return call.end < max(ends)

    def expires_at_latest(self, name: str) -> float:
        """Claims and renewals may have lengthened its life, those of unknown outcome too."""
        post, ttl = self.posts[name], self.terms[name].ttl
        ends = [post.end + ttl + LINGER * (post.outcome == UNKNOWN)]
        ends += [holding.lives_at_most for holding in self.holdings.get(name, ())]
        for verb in ("claim", "renew"):
            ends += [call.end + LINGER + call.ttl + call.grace for call in self.unsure.get((verb, home(name)), ())]
        return max(ends) + TOLERANCE

    def gone_at_earliest(self, name: str) -> float:
        """Pops of unknown outcome are counted apart: each could be the end of any message."""
        starts = [call.start for call in self.removals.get(name, ())]
        return min([self.expires_at_earliest(name), *starts])
