# SPDX-License-Identifier: Apache-2.0
"""The prefix rule of grouped queues, for any operations in any order (decision 0129).

In an ordered queue, a claim gets the oldest messages of a group up to the first that is not ready; in a fair one, the
ready messages of a group in the order of claims. A claim takes from one group before the next, and leaves no message
for which it had room.
"""

from collections.abc import Callable
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct, structs

from tests.model.pair import Holder
from tests.model.test_model import budget
from zq.clock import ManualClock
from zq.conformance.builders import Scene, drafts
from zq.model import Grouping, HandleOutcome, Message, MessageHandle, QueueRef, Release
from zq.storage.api import Storage

GRACE = 60


class Known(Struct):
    """The expected state of a message."""

    id: str
    sequence: int
    group: str
    available: float
    expires: float
    claim: str = ""
    ends: float = 0.0
    count: int = 0


class Run:
    """A queue and its expected content."""

    def __init__(self, storage: Storage, grouping: Grouping) -> None:
        self.scene = Scene(storage, ManualClock(storage.now()), QueueRef(f"p-{uuid4().hex}", "jobs"))
        assert storage.queues.create(self.scene.queue, b"{}", grouping)
        self.grouping = grouping
        self.known: dict[str, Known] = {}
        self.posted = 0

    @property
    def now(self) -> float:
        return round(self.scene.now, 3)

    def living(self) -> list[Known]:
        return sorted((one for one in self.known.values() if one.expires > self.now), key=lambda one: one.sequence)

    def claimable(self) -> dict[str, list[str]]:
        """Return the messages of each group that a claim can take, in order."""
        found: dict[str, list[str]] = {}
        busy: set[str] = set()
        ordered = self.grouping is Grouping.ORDERED
        for one in sorted(self.living(), key=lambda one: (0.0 if ordered else one.available, one.sequence)):
            if one.available > self.now:
                busy.add(one.group)
            elif not (ordered and one.group in busy):
                found.setdefault(one.group, []).append(one.id)
        return found

    def post(self, groups: list[str], delay: int, ttl: int) -> None:
        new = [
            structs.replace(draft, group=group)
            for draft, group in zip(drafts(len(groups), self.now), groups, strict=True)
        ]
        new = [structs.replace(draft, delay=delay, ttl=ttl) for draft in new]
        self.scene.storage.messages.post(self.scene.queue, new, self.now)
        for draft in new:
            self.posted += 1
            available = round(self.now + delay, 3)
            self.known[draft.id] = Known(draft.id, self.posted, draft.group, available, round(self.now + ttl, 3))

    def taken(self, messages: list[Message], limit: int) -> None:
        """Assert that the messages are the ones that a claim must take."""
        claimable = self.claimable()
        groups = list(dict.fromkeys(message.group for message in messages))
        got = [[message.id for message in messages if message.group == group] for group in groups]
        assert [id for some in got for id in some] == [message.id for message in messages], "one group after the other"
        assert got == [claimable[group][: len(some)] for group, some in zip(groups, got, strict=True)]
        assert all(len(some) == len(claimable[group]) for group, some in zip(groups[:-1], got[:-1], strict=True))
        assert len(messages) == min(limit, sum(map(len, claimable.values())))

    def claim(self, limit: int, ttl: int) -> None:
        assert self.scene.ready() == sum(map(len, self.claimable().values()))
        claim = self.scene.claim(limit, ttl=ttl, grace=GRACE)
        messages = claim.messages if claim is not None else []
        self.taken(messages, limit)
        for message in messages:
            one = self.known[message.id]
            one.claim, one.count, one.ends = message.claim, one.count + 1, round(self.now + ttl, 3)
            one.available = one.ends
            if one.expires < one.ends:
                one.expires = round(one.ends + GRACE, 3)

    def pop(self, limit: int) -> None:
        messages = self.scene.storage.messages.pop(self.scene.queue, limit, self.now)
        self.taken(messages, limit)
        for message in messages:
            del self.known[message.id]

    def held(self, which: int) -> Known | None:
        held = [one for one in self.living() if one.claim and one.ends > self.now]
        return held[which % len(held)] if held else None

    def delete(self, which: int) -> None:
        if one := self.held(which):
            self.scene.delete(one.id, one.claim)
            del self.known[one.id]

    def release(self, which: int, delay: int) -> None:
        if one := self.held(which):
            self.scene.settle(one.claim, release=[Release(one.id, delay)])
            one.claim, one.ends, one.available = "", 0.0, round(self.now + delay, 3)

    def hide(self, which: int, hold: int) -> None:
        if one := self.held(which):
            handle = MessageHandle(one.id, one.claim, one.count, hold)
            assert self.scene.storage.claims.handle(self.scene.queue, [handle], self.now) == [HandleOutcome.DONE]
            one.ends = one.available = round(self.now + hold, 3)

    def drop(self, which: int) -> None:
        """Delete any message, at any position."""
        if living := self.living():
            one = living[which % len(living)]
            self.scene.delete_many([one.id])
            del self.known[one.id]

    def tick(self, seconds: int) -> None:
        self.scene.tick(seconds)

    def reclaim(self) -> None:
        self.scene.storage.maintain(self.now)


few = st.integers(0, 7)
STEPS: dict[str, st.SearchStrategy[tuple[object, ...]]] = {
    "post": st.tuples(
        st.lists(st.sampled_from(["a", "b", ""]), min_size=1, max_size=4),
        st.sampled_from([0, 0, 5]),
        st.sampled_from([60, 600]),
    ),
    "claim": st.tuples(st.integers(1, 5), st.sampled_from([1, 10, 100])),
    "pop": st.tuples(st.integers(1, 3)),
    "delete": st.tuples(few),
    "release": st.tuples(few, st.sampled_from([0, 5])),
    "hide": st.tuples(few, st.sampled_from([0, 5, 50])),
    "drop": st.tuples(few),
    "tick": st.tuples(st.sampled_from([1, 5, 10, 60])),
    "reclaim": st.tuples(),
}
steps = st.one_of(*(st.tuples(st.just(name), terms) for name, terms in STEPS.items()))


@pytest.mark.timeout(36000)
def test_the_prefix_rule_holds(holder: Holder) -> None:
    """After any operations, all messages can be claimed in the end."""

    @budget(holder, 40)
    @given(st.sampled_from([Grouping.ORDERED, Grouping.FAIR]), st.lists(steps, max_size=25))
    def run(grouping: Grouping, plan: list[tuple[str, tuple[object, ...]]]) -> None:
        model = Run(holder.storage, grouping)
        for name, terms in plan:
            act: Callable[..., None] = getattr(model, name)
            act(*terms)
        model.tick(100)
        while model.living():
            model.pop(4)

    run()
