# SPDX-License-Identifier: Apache-2.0
"""Rules for requests with idempotency keys, fences, stages and commits."""

from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from msgspec import structs

from tests.model.pair import EPOCHS, FEW, KEPT, PICKS, QUEUES, Pair
from zq.model import ClaimRef, Commit, IdempotencyKey
from zq.model.quotas import Work

ONCES = st.builds(
    IdempotencyKey,
    st.sampled_from(["post:1", "post:2"]),
    st.sampled_from([b"a", b"a", b"b"]),
    st.sampled_from([5, 600]),
)
PRODUCERS = st.sampled_from(["etl", "etl", "other"])
STAGES = ["s1", "s2", "s.3"]


class Batches(Pair):
    """Rules that apply each request to the store and to its oracle."""

    @rule(at=QUEUES, batch=FEW, once=ONCES)
    def post_once(self, at: int, batch: Sequence[tuple[int, int, str]], once: IdempotencyKey) -> None:
        messages, drafts = self.holder.storage.messages, self.drafts(at, batch)
        self.agree(messages.post, self.oracle.post, self.queues[at], drafts, self.now, None, once)

    @rule(at=QUEUES, batch=FEW, onces=st.lists(ONCES, min_size=1, max_size=3, unique_by=lambda once: once.key))
    def post_each_once(self, at: int, batch: Sequence[tuple[int, int, str]], onces: Sequence[IdempotencyKey]) -> None:
        """Post messages, some of which have idempotency keys of their own."""
        drafts = self.drafts(at, batch)
        keyed = [structs.replace(draft, once=once) for draft, once in zip(drafts, onces, strict=False)]
        messages = self.holder.storage.messages
        self.agree(messages.post, self.oracle.post, self.queues[at], keyed + drafts[len(keyed) :], self.now)

    @rule(
        at=QUEUES,
        name=st.sampled_from(STAGES),
        batch=FEW,
        ttl=st.sampled_from([60, 600, 9000]),
        most=st.sampled_from([3, 10, 100000]),
        once=st.none() | ONCES,
    )
    def stage(
        self,
        at: int,
        name: str,
        batch: Sequence[tuple[int, int, str]],
        ttl: int,
        most: int,
        once: IdempotencyKey | None,
    ) -> None:
        queue, transactions = self.queues[at], self.holder.storage.transactions
        terms = (queue.project, name, queue, self.drafts(at, batch), self.now, ttl, most, once)
        self.agree(transactions.stage, self.oracle.stage, *terms)

    @precondition(lambda self: self.oracle.stages)
    @rule(at=QUEUES, name=st.sampled_from(STAGES))
    def drop_stage(self, at: int, name: str) -> None:
        transactions = self.holder.storage.transactions
        self.agree(transactions.drop_stage, self.oracle.drop_stage, self.queues[at].project, name)

    @rule(at=QUEUES)
    def advance_fence(self, at: int) -> None:
        transactions = self.holder.storage.transactions
        self.agree(transactions.advance_fence, self.oracle.advance_fence, self.queues[at].project, "job", self.now)

    @rule(
        at=QUEUES,
        batch=FEW,
        new=st.sampled_from(["stage", "claim", "both", "nothing"]),
        producer=PRODUCERS,
        ahead=st.sampled_from([1, 1, 1, 2, 0, -1]),
        stages=st.lists(PICKS, max_size=2),
        picks=st.lists(st.tuples(PICKS, KEPT), max_size=2),
        ttl=st.sampled_from([600, 90000]),
        epoch=EPOCHS,
    )
    def commit(
        self,
        at: int,
        batch: Sequence[tuple[int, int, str]],
        new: str,
        producer: str,
        ahead: int,
        stages: Sequence[int],
        picks: Sequence[tuple],
        ttl: int,
        epoch: str,
    ) -> None:
        """Commit mostly existing stages and mostly live claims."""
        queue = self.queues[at]
        if new in ("stage", "both"):
            self.stage(at, STAGES[len(batch) % 3], batch, 600, 100000, None)
        if new in ("claim", "both"):
            self.supply(at, batch, 60)
        last, _ = self.oracle.producers.get((queue.project, producer), (None, 0))
        known = self.oracle.stages.items()
        there = [name for (project, name), one in known if project == queue.project and one.expires > self.now]
        names = dict.fromkeys(there[pick % len(there)] if pick % 8 and there else "s1" for pick in stages)
        live = self.live(queue.project)
        claims = {self.pick_held(at, pick, queue.project): kept for pick, kept in picks if live or pick % 4 == 0}
        held = [ClaimRef(*claim, history) for claim, history in claims.items()]
        number, fence = (last.batch if last else 10) + ahead, self.pick_fence(queue.project, epoch)
        commit = Commit(queue.project, producer, number, list(names), held, ttl, fence)
        self.agree(self.holder.storage.transactions.commit, self.oracle.commit, commit, self.now)

    @precondition(lambda self: self.oracle.producers)
    @rule(at=QUEUES, producer=PRODUCERS)
    def last(self, at: int, producer: str) -> None:
        transactions = self.holder.storage.transactions
        self.agree(transactions.last, self.oracle.last, self.queues[at].project, producer, self.now)

    @rule(
        at=QUEUES, work=st.sampled_from(Work), after=st.sampled_from(["", "etl", "s1"]), limit=st.sampled_from([1, 10])
    )
    def list_work(self, at: int, work: Work, after: str, limit: int) -> None:
        transactions = self.holder.storage.transactions
        self.agree(transactions.list, self.oracle.list_work, self.queues[at].project, work, after, limit, self.now)
