# SPDX-License-Identifier: Apache-2.0
"""Rules for settling, moving, named claims and history."""

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec import structs

from tests.model.pair import (
    EPOCHS,
    FAR,
    FEW,
    GRACES,
    KEPT,
    LATER,
    LEASES,
    LIMITS,
    PICKS,
    QUEUES,
    UNKNOWN,
    WAITS,
    Pair,
    plain,
)
from zq.core.redelivery import DeadLetters, Redelivery
from zq.model import ClaimRequest, IdempotencyKey, Lease, MessageHandle, Move, QueueRef, Release, Settlement, Span

TERMS = st.tuples(
    st.sampled_from(["jobs", "dead", "dead"]),
    st.sampled_from([None, 5, 60, 9999]),
    st.sampled_from([0, 0, 0, 5, 60]),
    st.sampled_from([(None, ""), (None, ""), (b'"new"', ""), (b'"new"', "MD5:new")]),
    st.sampled_from(["", "", "schema mismatch"]),
    st.booleans(),
)
"""Terms of a move: target, TTL, delay, body with checksum, reason, and whether the message keeps its age."""
FATES = st.one_of(st.just("delete"), st.builds(lambda delay: ("release", delay), LATER), TERMS)
HOLDS = st.none() | st.sampled_from([0, 0, 1, 5, 60, 400])
NAMES = st.sampled_from(["n.0", "n.1", "n.2"])
ONCES = st.none() | st.builds(
    IdempotencyKey,
    st.sampled_from(["settle:1", "settle:2"]),
    st.sampled_from([b"a", b"a", b"b"]),
    st.sampled_from([5, 600]),
)


def move_of(id: str, terms: tuple) -> Move:
    to, ttl, delay, (body, checksum), reason, keeps_age = terms
    return Move(id, to, ttl, delay, body, checksum, reason, keeps_age)


class Settlements(Pair):
    """Rules that apply each request to the store and to its oracle."""

    @rule(
        at=QUEUES,
        pick=PICKS,
        batch=FEW,
        ttl=LEASES,
        wait=WAITS,
        fates=st.lists(st.tuples(PICKS, FATES), max_size=5),
        rest=st.booleans(),
        history=KEPT,
        once=ONCES,
        epoch=EPOCHS,
    )
    def settle(
        self,
        at: int,
        pick: int,
        batch: Sequence[tuple[int, int, str]],
        ttl: int,
        wait: Redelivery,
        fates: Sequence[tuple],
        rest: bool,
        history: int,
        once: IdempotencyKey | None,
        epoch: str,
    ) -> None:
        """Settle mostly ids that the claim holds; either the idempotency key or the fence may be checked first."""
        if pick % 2 or not self.live():
            self.supply(at, batch, ttl, wait)
        queue, claim = self.pick_held(at, pick)
        holds = [entry.draft.id for entry in self.oracle.living(queue, self.now) if entry.claim == claim]
        chosen: dict[str, object] = {}
        for place, fate in fates:
            chosen[holds[place % len(holds)] if holds and place % 6 else self.pick_id(place)] = fate
        settlement = Settlement(
            [id for id, fate in chosen.items() if fate == "delete"],
            rest,
            [Release(id, fate[1]) for id, fate in chosen.items() if fate[0] == "release"],
            [move_of(id, fate) for id, fate in chosen.items() if fate != "delete" and fate[0] != "release"],
            history,
        )
        fence = None if once else self.pick_fence(queue.project, epoch)
        claims = self.holder.storage.claims
        self.agree(claims.settle, self.oracle.settle, queue, claim, settlement, self.now, once, fence)

    @rule(
        at=QUEUES,
        batch=FEW,
        ttl=LEASES,
        wait=WAITS,
        picks=st.lists(st.tuples(PICKS, HOLDS), min_size=1, max_size=5),
        late=st.booleans(),
        history=KEPT,
    )
    def handle(
        self,
        at: int,
        batch: Sequence[tuple[int, int, str]],
        ttl: int,
        wait: Redelivery,
        picks: Sequence[tuple[int, int | None]],
        late: bool,
        history: int,
    ) -> None:
        """Handle mostly by current or last handles, sometimes by older ones."""
        queue = self.queues[at]
        if not any(entry.claim for entry in self.oracle.living(queue, self.now)):
            self.supply(at, batch, ttl, wait)
        claimed = [entry for entry in self.oracle.queues.get(queue, []) if entry.claim]
        handles = []
        for pick, hold in picks:
            if claimed and pick % 5:
                entry = claimed[pick % len(claimed)]
                self.handles.append(MessageHandle(entry.draft.id, entry.claim, entry.count))
            handles += [structs.replace(handle, hold=hold) for handle in self.handles[-1 - pick % 9 :][:1]]
        self.agree(self.holder.storage.claims.handle, self.oracle.handle, queue, handles, self.now, late, history)

    @rule(at=QUEUES, batch=FEW, picks=st.lists(st.tuples(PICKS, TERMS), min_size=1, max_size=4), history=KEPT)
    def move(
        self, at: int, batch: Sequence[tuple[int, int, str]], picks: Sequence[tuple[int, tuple]], history: int
    ) -> None:
        """Move mostly ready messages."""
        queue = self.queues[at]
        if not self.oracle.ready(queue, self.now):
            self.supply(at, batch)
        ready = [entry.draft.id for entry in self.oracle.ready(queue, self.now)]
        ids = {ready[pick % len(ready)] if ready and pick % 4 else self.pick_id(pick): terms for pick, terms in picks}
        moves = [move_of(id, terms) for id, terms in ids.items()]
        self.agree(self.holder.storage.messages.move, self.oracle.move, queue, moves, self.now, history)

    @rule(
        at=QUEUES,
        batch=FEW,
        name=NAMES,
        limit=LIMITS,
        ttl=LEASES,
        grace=GRACES,
        wait=WAITS,
        most=st.sampled_from([None, None, 0, 2]),
        epoch=EPOCHS,
    )
    def claim_named(
        self,
        at: int,
        batch: Sequence[tuple[int, int, str]],
        name: str,
        limit: int,
        ttl: int,
        grace: int,
        wait: Redelivery,
        most: int | None,
        epoch: str,
    ) -> None:
        queue, lease = self.queues[at], Lease(name, ttl, grace)
        if (queue, name) not in self.live() and limit < 10:
            self.supply(at, batch)
        self.claims.append(name)
        dead = None if most is None else DeadLetters(self.queues[at ^ 1], most, None, 600)
        fence = self.pick_fence(queue.project, epoch)
        self.agree_on_claim(queue, ClaimRequest(lease, limit, wait.delays(), named=True, fence=fence), dead)

    @precondition(lambda self: self.oracle.records)
    @rule(at=QUEUES, pick=PICKS, limit=LIMITS, since=PICKS, until=PICKS)
    def history(self, at: int, pick: int, limit: int, since: int, until: int) -> None:
        """List the history from the start or after any returned position, within a period or without one."""
        queue = self.queues[at]
        self.agree_on_history(queue)
        ours, theirs = self.marker(self.places[queue], pick)
        moments = [record.told.finished for record in self.oracle.records.get(queue, [])]
        start = moments[since % len(moments)] if moments and since % 3 == 0 else 0.0
        end = moments[until % len(moments)] if moments and until % 3 == 0 else FAR
        told = self.holder.storage.history.list(queue, theirs, limit, Span(start, end), self.now)
        assert plain(told) == plain(self.oracle.history(queue, ours, limit, start, end, self.now))
        assert told.next == (str(told.items[-1].position) if told.items else None)

    def agree_on_history(self, queue: QueueRef) -> None:
        """Compare the whole history; the oracle takes over the store's order of entries of one step."""
        told = self.holder.storage.history.list(queue, 0, 100000, Span(0.0, FAR), self.now).items
        seen: dict[str, list[int]] = {}
        for place, theirs in enumerate(told):
            seen.setdefault(theirs.message.id, []).append(place)
        records = self.oracle.records_of(queue, self.now)
        self.oracle.reorder(queue, records, [(seen.get(one.told.message.id) or [0]).pop(0) for one in records])
        ours = self.oracle.history(queue, 0, 100000, 0.0, FAR, self.now).items
        assert plain(told) == plain(ours)
        self.learn_records(queue, told, ours)

    @rule(at=QUEUES, pick=PICKS, limit=LIMITS)
    def tail(self, at: int, pick: int, limit: int) -> None:
        """List live and finished messages from the start or after any returned sequence."""
        queue = self.queues[at]
        ours, theirs = self.marker(self.markers[queue], pick)
        told = self.holder.storage.history.list(queue, theirs, limit, None, self.now)
        own = self.oracle.list_all(queue, ours, limit, self.now)
        assert plain(told) == plain(own)
        assert told.next == (str(told.items[-1].message.sequence) if told.items else None)

    @precondition(lambda self: self.oracle.records)
    @rule(at=QUEUES, picks=st.lists(PICKS, max_size=4))
    def get_records(self, at: int, picks: Sequence[int]) -> None:
        ids = [*(self.pick_id(pick) for pick in picks), UNKNOWN]
        self.agree(self.holder.storage.history.get, self.oracle.history_get, self.queues[at], ids, self.now)
