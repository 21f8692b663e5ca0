# SPDX-License-Identifier: Apache-2.0
"""Every verb in any order, on a store and on the oracle: both must return the same result, in every field.

One store is used for all examples; each example has two new projects, whose names differ only by a slash, with two
queues each. Time advances by steps, and exactly to the times at which a message becomes available or a claim or message
expires.
"""

import time
from collections.abc import Sequence

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from msgspec import structs

from tests.model.batches import Batches
from tests.model.pair import (
    BATCHES,
    EPOCHS,
    EVERYTHING,
    EXPIRIES,
    FAR,
    GRACES,
    KEPT,
    LATER,
    LEASES,
    LIMITS,
    PICKS,
    QUEUES,
    RIGHTS,
    STEPS,
    UNKNOWN,
    VIEWS,
    WAITS,
    plain,
)
from tests.model.settlements import Settlements
from zq.core.redelivery import AT_ONCE, DeadLetters, Redelivery
from zq.model import ClaimRequest, Lease, ListFilter, QueueRef
from zq.model.expiry import Expiry, Steps
from zq.model.stats import Depth

# Rounds of maintenance after which no expired message is left.
ROUNDS = 200


class StoreMachine(Settlements, Batches):
    """A store and its oracle."""

    watchful = False

    @initialize(watchful=st.booleans())
    def choose(self, watchful: bool) -> None:
        self.watchful = watchful

    @rule(at=QUEUES, batch=BATCHES)
    def post(self, at: int, batch: Sequence[tuple[int, int, str]]) -> None:
        drafts = self.drafts(at, batch)
        self.agree(self.holder.storage.messages.post, self.oracle.post, self.queues[at], drafts, self.now)

    @rule(at=QUEUES, pick=PICKS, limit=LIMITS, view=VIEWS)
    def page(self, at: int, pick: int, limit: int, view: ListFilter) -> None:
        """List from the start, or after any marker that the store returned, even if its message is gone."""
        queue = self.queues[at]
        ours, theirs = self.marker(self.markers[queue], pick)
        told = self.holder.storage.messages.list(queue, theirs, limit, view, self.now)
        assert plain(told) == plain(self.oracle.list(queue, ours, limit, view, self.now))
        assert told.next == (str(told.items[-1].sequence) if told.items else None)
        self.learn(queue, told.items)

    @rule(at=QUEUES, picks=st.lists(PICKS, max_size=4))
    def get(self, at: int, picks: Sequence[int]) -> None:
        ids = [self.pick_id(pick) for pick in picks]
        found = self.agree(self.holder.storage.messages.get, self.oracle.get, self.queues[at], ids, self.now)
        self.learn(self.queues[at], found)

    @rule(at=QUEUES, limit=LIMITS, ttl=LEASES, grace=GRACES, reuse=PICKS, wait=WAITS)
    def claim(self, at: int, limit: int, ttl: int, grace: int, reuse: int, wait: Redelivery = AT_ONCE) -> None:
        self.create_claim(at, limit, Lease(UNKNOWN, ttl, grace), reuse, None, wait)

    @rule(
        at=QUEUES,
        limit=st.sampled_from([1, 10, 200]),
        ttl=LEASES,
        reuse=PICKS,
        most=st.sampled_from([0, 1, 1, 2, 3]),
        life=st.sampled_from([None, 5, 60, 9999]),
        wait=WAITS,
        history=KEPT,
    )
    def claim_or_bury(
        self, at: int, limit: int, ttl: int, reuse: int, most: int, life: int | None, wait: Redelivery, history: int
    ) -> None:
        """Claim, with the project's other queue for dead letters."""
        dead_letters = DeadLetters(self.queues[at ^ 1], most, life, history)
        self.create_claim(at, limit, Lease(UNKNOWN, ttl, 5), reuse, dead_letters, wait)

    def create_claim(
        self, at: int, limit: int, terms: Lease, reuse: int, dead_letters: DeadLetters | None, wait: Redelivery
    ) -> None:
        """Claim, sometimes under a name that was used before, unless a claim of that name is live."""
        queue = self.queues[at]
        name = self.pick_claim(reuse) if reuse % 4 == 0 else UNKNOWN
        if name == UNKNOWN or any(claim == name for _, claim in self.live()):
            name = self.new_claim()
        lease = Lease(name, terms.ttl, terms.grace, prolong=reuse % 3 > 0)
        self.agree_on_claim(queue, ClaimRequest(lease, limit, wait.delays()), dead_letters)

    @precondition(lambda self: self.claims)
    @rule(at=QUEUES, pick=PICKS)
    def claim_get(self, at: int, pick: int) -> None:
        queue, name = self.pick_held(at, pick)
        self.agree(self.holder.storage.claims.get, self.oracle.claim_get, queue, name, self.now)

    @precondition(lambda self: self.claims)
    @rule(at=QUEUES, pick=PICKS, ttl=LEASES, grace=GRACES, epoch=EPOCHS)
    def renew(self, at: int, pick: int, ttl: int, grace: int, epoch: str) -> None:
        queue, name = self.pick_held(at, pick)
        lease, fence = Lease(name, ttl, grace), self.pick_fence(queue.project, epoch)
        self.agree(self.holder.storage.claims.renew, self.oracle.renew, queue, lease, self.now, fence)

    @precondition(lambda self: self.claims)
    @rule(at=QUEUES, pick=PICKS, delay=LATER)
    def release(self, at: int, pick: int, delay: int | None) -> None:
        queue, name = self.pick_held(at, pick)
        self.agree(self.holder.storage.claims.release, self.oracle.release, queue, name, self.now, delay)

    @rule(at=QUEUES, pick=PICKS, right=RIGHTS, other=PICKS, history=KEPT)
    def delete(self, at: int, pick: int, right: str, other: int, history: int) -> None:
        queue = self.queues[at]
        id = self.pick_id(pick, queue)
        claim = self.right_to(queue, id, right, other)
        claims = [claim] if claim else []
        self.agree(self.holder.storage.messages.delete, self.oracle.delete, queue, [id], self.now, claims, history)

    @rule(
        at=QUEUES,
        picks=st.lists(PICKS, min_size=1, max_size=4),
        rights=st.none() | st.lists(RIGHTS, max_size=3),
        history=KEPT,
    )
    def delete_many(self, at: int, picks: Sequence[int], rights: Sequence[str] | None, history: int) -> None:
        queue = self.queues[at]
        ids = [self.pick_id(pick, queue) for pick in picks]
        claims = rights and [self.right_to(queue, ids[0], right, picks[-1]) for right in rights]
        messages = self.holder.storage.messages
        self.agree(messages.delete, self.oracle.delete, queue, ids, self.now, claims, history)

    @rule(at=QUEUES, limit=LIMITS, history=KEPT)
    def pop(self, at: int, limit: int, history: int = 0) -> None:
        self.agree(self.holder.storage.messages.pop, self.oracle.pop, self.queues[at], limit, self.now, history)

    @rule(at=QUEUES, really=PICKS)
    def purge(self, at: int, really: int) -> None:
        if really % 3 == 0:
            self.agree(self.holder.storage.queues.purge, self.oracle.purge, self.queues[at])

    @rule(at=QUEUES, really=PICKS)
    def drop(self, at: int, really: int) -> None:
        if really % 3 == 0:
            self.agree(self.holder.storage.queues.delete, self.oracle.drop, self.queues[at])
            self.markers[self.queues[at]].clear()
            self.places[self.queues[at]].clear()

    @rule(at=QUEUES)
    def stats(self, at: int) -> None:
        self.agree(self.holder.storage.queues.stats, self.oracle.stats, self.queues[at], self.now)

    @rule(at=QUEUES, most=LIMITS)
    def waiting(self, at: int, most: int) -> None:
        """Compare the counts for long polls.

        The next time may be that of a message that expires before it is available.
        """
        queue, queues = self.queues[at], self.holder.storage.queues
        ready = queues.ready(queue, most, self.now)
        assert ready.count == min(most, len(self.oracle.ready(queue, self.now)))
        told, strict = ready.next, self.oracle.due(queue, self.now)
        known = {entry.available for entry in self.oracle.queues.get(queue, []) if entry.available >= entry.expires}
        assert told == strict or (told in known and self.now < told < (strict or FAR))

    @rule(size=st.sampled_from([1, 3, 1000]), most=st.sampled_from([2, 100_000]), options=EXPIRIES)
    def maintain(self, size: int, most: int, options: Expiry) -> None:
        """Run maintenance at any pace, which must not change any visible state."""
        removed = self.holder.storage.maintain(self.now, options, Steps(size, most))
        assert 0 <= removed <= (most if options.sweep else 0)
        self.agree_on_everything()

    @rule()
    def depths(self) -> None:
        """Compare the depths of all queues, once no expired message is waiting for its removal.

        The number of expired messages in the depths is bounded, and earlier examples have left expired messages.
        """
        expected = {queue: self.oracle.depth(queue, self.now) for queue in self.queues if queue in self.oracle.queues}
        for _ in range(ROUNDS):
            if (found := self.depths_found()) == expected:
                break
            time.sleep(0.01)
            self.holder.storage.maintain(self.now, Expiry())
        assert found == expected

    def depths_found(self) -> dict[QueueRef, Depth]:
        told = dict(self.holder.storage.depths(self.now, 1000, 1000))
        return {queue: structs.replace(told[queue], expired=0) for queue in self.queues if queue in told}

    @rule(seconds=STEPS)
    def tick(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @precondition(lambda self: self.moments())
    @rule(pick=st.integers(0, 5), offset=st.sampled_from([-0.001, 0, 0, 0.001]))
    def tick_to(self, pick: int, offset: float) -> None:
        """Advance to one of the next times at which the state changes, or to the millisecond before or after it."""
        moments = self.moments()
        self.clock.advance(max(0, round(moments[min(pick, len(moments) - 1)] + offset - self.now, 3)))

    @rule()
    def agree_on_everything(self) -> None:
        """Compare existence, statistics and every view of every queue, and projects with their queues."""
        storage = self.holder.storage
        for queue in self.queues:
            assert (storage.queues.get(queue) is not None) == (queue in self.oracle.queues)
            self.agree(storage.queues.stats, self.oracle.stats, queue, self.now)
            for view in (ListFilter(), ListFilter(claimed=True), ListFilter(delayed=True), EVERYTHING):
                page = self.agree(storage.messages.list, self.oracle.list, queue, 0, 100000, view, self.now)
                self.learn(queue, page.items)
            self.agree(storage.messages.get, self.oracle.get, queue, self.ids[-200:], self.now)
            self.agree_on_history(queue)
            self.tail(self.queues.index(queue), 0, 100000)
            for claim in self.claims[-3:]:
                self.agree(storage.claims.get, self.oracle.claim_get, queue, claim, self.now)
        for project in {queue.project for queue in self.queues}:
            assert storage.queues.count(project) == sum(queue.project == project for queue in self.oracle.queues)

    @invariant()
    def watch(self) -> None:
        """List all the time in half of the examples, because the store's memory of listings must not hide messages."""
        if self.watchful:
            messages = self.holder.storage.messages
            self.agree(messages.list, self.oracle.list, self.queues[0], 0, 3, ListFilter(), self.now)

    def teardown(self) -> None:
        """Compare everything at the end of an example, and delete the queues so that the store stays small."""
        try:
            self.agree_on_everything()
        finally:
            for queue in self.queues:
                self.holder.storage.queues.delete(queue)

    def right_to(self, queue: QueueRef, id: str, right: str, other: int) -> str:
        """Return a claim for the deletion of a message."""
        if right == "holder":
            return "".join(entry.claim for entry in self.oracle.named(queue, [id], self.now))
        return {"none": "", "any": self.pick_claim(other), "unknown": UNKNOWN}[right]


class RestartingMachine(StoreMachine):
    """A machine whose store is closed and reopened at any time."""

    @rule(really=PICKS)
    def restart(self, really: int) -> None:
        if really % 2 == 0:
            self.holder.reopen()
