# SPDX-License-Identifier: Apache-2.0
"""Large commits: decided in one step of the store, then carried out in slices, the same way on every store.

A slice is one bounded step, and idempotent: what is published has left its stage, what is settled is gone. After each
one this server rests for twice as long as the slice took, so that others are served. Whoever has asked for the commit
carries it out; if that server dies, another one that sees no progress between two looks goes on with it.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from msgspec import structs

from zq.clock import Clock
from zq.errors import CommitRunning, StoreDamaged
from zq.model import Bounds, Commit, Committed, Unfinished
from zq.storage.capabilities import TransactionController

LOG = logging.getLogger(__name__)
# What the log says of a commit that a damaged store holds up.
DAMAGED: Final = (
    "A decided commit stands still where the store is damaged. Stop the server: zq-server salvage makes a new store, "
    "which finishes it as far as it can be read."
)
# Seconds that a slice is to take: its size follows what the last ones took.
AIM: Final = 0.0012
# Messages in the first slice.
FIRST: Final = 100
# A carrier rests so many times as long as its last slice took.
REST: Final = 2.0
# Seconds that it rests at most.
LONGEST_REST: Final = 0.2
# Where nobody bounds producers, or they have been admitted.
ANYBODY: Final = nullcontext()
# Seconds that the upkeep gives to one commit at a time.
SHARE: Final = 1.0


class Slices:
    """How many messages, ``least`` to ``most``, the next slice has, by how long the last one took."""

    def __init__(self, least: int, most: int) -> None:
        self._least = min(least, most)
        self._most = most
        self.size = min(FIRST, most)

    def took(self, seconds: float) -> None:
        """The last slice took so long."""
        wanted = self.size * AIM / max(seconds, 1e-6)
        self.size = max(self._least, min(self._most, int(wanted), 2 * self.size))


class Carrier:
    """Commits of one server; ``patience``: seconds after which a caller is told that it is under way."""

    def __init__(
        self,
        transactions: TransactionController,
        clock: Clock,
        bounds: Bounds,
        patience: float,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._transactions = transactions
        self._clock = clock
        self._bounds = bounds
        self._patience = patience
        self._sleep = sleep
        self._seen: dict[Unfinished, None] = {}
        self._damaged: set[Unfinished] = set()

    def commit(self, commit: Commit, admitted: AbstractContextManager[object] = ANYBODY) -> Committed:
        """The commit, done, or ``open`` if that takes longer than the patience; one of the producer that is in its way
        is finished first. ``admitted``: within it the producer may become known. Raises as the store does;
        ``CommitRunning`` too if that one is not done in time."""
        deadline = time.monotonic() + self._patience
        while True:
            with admitted:
                committed = self._transactions.commit(commit, self._clock.now(), self._bounds)
            admitted = ANYBODY
            if committed.open:
                committed = self._finished(committed, commit.project, commit.producer, deadline)
            if committed.replayed or committed.batch >= commit.batch:
                return committed
            if committed.open:
                raise CommitRunning

    def last(self, project: str, producer: str) -> Committed:
        """The producer's last batch, finished if that can be done in time. Raises ``ProducerNotFound``."""
        committed = self._transactions.last(project, producer, self._clock.now())
        if not committed.open:
            return committed
        return self._finished(committed, project, producer, time.monotonic() + self._patience)

    def resume(self) -> None:
        """Go on for a while with what nobody has carried on since the last look. To be called every second."""
        found = dict.fromkeys(self._transactions.unfinished(self._clock.now()))
        left = [one for one in found if one in self._seen]
        self._seen = found
        self._damaged.intersection_update(found)
        ours = {(one.project, one.producer) for one in left if one not in self._damaged and self._carry_on(one)}
        if ours:  # what this server has got on with is no sign of another at work
            now = self._transactions.unfinished(self._clock.now())
            self._seen |= dict.fromkeys(one for one in now if (one.project, one.producer) in ours)

    def _carry_on(self, one: Unfinished) -> bool:
        """Whether more is left to do after its share of the time. Damage of the store stops this commit alone, and is
        told once."""
        LOG.info("A commit that another server, or this one before it ended, has left is carried on.")
        try:
            return not self._carry_out(one.project, one.producer, time.monotonic() + SHARE)
        except StoreDamaged:
            LOG.critical(DAMAGED)
            self._damaged.add(one)
            return False

    def _finished(self, committed: Committed, project: str, producer: str, deadline: float) -> Committed:
        done = self._carry_out(project, producer, deadline)
        return structs.replace(committed, open=not done)

    def _carry_out(self, project: str, producer: str, deadline: float) -> bool:
        """Slice by slice until all is done, True, or the time is up."""
        slices = Slices(self._transactions.least_slice, self._bounds.step)
        while True:
            began = time.monotonic()
            left = self._transactions.carry_on(project, producer, slices.size, self._clock.now())
            took = time.monotonic() - began
            if not left:
                return True
            if time.monotonic() > deadline:
                return False
            slices.took(took)
            self._sleep(min(LONGEST_REST, REST * took))
