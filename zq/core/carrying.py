# SPDX-License-Identifier: Apache-2.0
"""Large commits: decided in one step of the store, then carried out in slices.

Each slice is one bounded, idempotent step: published messages leave their stage, settled messages are deleted. After
each slice the server sleeps for twice the time that the slice took, so that other requests are served. The server that
received the commit carries it out. If that server dies, another one continues: it recognizes an abandoned commit by the
lack of progress between two polls.
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
# Log line for a commit that cannot continue because the store is damaged.
DAMAGED: Final = (
    "A decided commit stands still where the store is damaged. Stop the server: zq-server salvage makes a new store, "
    "which finishes it as far as it can be read."
)
# Target duration of a slice in seconds; the slice size adapts to it.
TARGET_SECONDS: Final = 0.0012
# Messages in the first slice.
FIRST_SLICE: Final = 100
# Pause after a slice, as a multiple of the slice's duration.
PAUSE_FACTOR: Final = 2.0
# Longest pause in seconds.
MAX_PAUSE: Final = 0.2
# Context for a commit that needs no admission.
NO_ADMISSION: Final = nullcontext()
# Seconds that one round of maintenance spends on one commit.
MAINTENANCE_SECONDS: Final = 1.0


class Slices:
    """The size of the next slice in messages, adapted to the duration of the last one."""

    def __init__(self, least: int, most: int) -> None:
        self._least = min(least, most)
        self._most = most
        self.size = min(FIRST_SLICE, most)

    def took(self, seconds: float) -> None:
        """Adapt the size after a slice that took ``seconds``."""
        wanted = self.size * TARGET_SECONDS / max(seconds, 1e-6)
        self.size = max(self._least, min(self._most, int(wanted), 2 * self.size))


class Carrier:
    """The execution of commits by one server.

    ``patience``: seconds after which a client is answered that its commit is still running.
    """

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

    def commit(self, commit: Commit, admitted: AbstractContextManager[object] = NO_ADMISSION) -> Committed:
        """Commit and carry the commit out. The result is ``open`` if that takes longer than the patience.

        An earlier commit of the same producer is finished first. ``admitted``: a context in which the store may
        register the producer. Raises the errors of ``TransactionController.commit``, and ``CommitRunning`` if the
        earlier commit is not finished in time.
        """
        deadline = time.monotonic() + self._patience
        while True:
            with admitted:
                committed = self._transactions.commit(commit, self._clock.now(), self._bounds)
            admitted = NO_ADMISSION
            if committed.open:
                committed = self._finished(committed, commit.project, commit.producer, deadline)
            if committed.replayed or committed.batch >= commit.batch:
                return committed
            if committed.open:
                raise CommitRunning

    def last(self, project: str, producer: str) -> Committed:
        """Return the producer's last batch; finish it if that is possible in time. Raises ``ProducerNotFound``."""
        committed = self._transactions.last(project, producer, self._clock.now())
        if not committed.open:
            return committed
        return self._finished(committed, project, producer, time.monotonic() + self._patience)

    def resume(self) -> None:
        """Continue commits that made no progress since the last call. Call this every second."""
        found = dict.fromkeys(self._transactions.unfinished(self._clock.now()))
        left = [one for one in found if one in self._seen]
        self._seen = found
        self._damaged.intersection_update(found)
        ours = {(one.project, one.producer) for one in left if one not in self._damaged and self._carry_on(one)}
        if ours:  # progress made by this server does not mean that another server is at work
            now = self._transactions.unfinished(self._clock.now())
            self._seen |= dict.fromkeys(one for one in now if (one.project, one.producer) in ours)

    def _carry_on(self, one: Unfinished) -> bool:
        """Work on an abandoned commit for a while and return whether more is left.

        If the store is damaged, only this commit stops, and the damage is logged once.
        """
        LOG.info("A commit that another server, or this one before it ended, has left is carried on.")
        try:
            return not self._carry_out(one.project, one.producer, time.monotonic() + MAINTENANCE_SECONDS)
        except StoreDamaged:
            LOG.critical(DAMAGED)
            self._damaged.add(one)
            return False

    def _finished(self, committed: Committed, project: str, producer: str, deadline: float) -> Committed:
        done = self._carry_out(project, producer, deadline)
        return structs.replace(committed, open=not done)

    def _carry_out(self, project: str, producer: str, deadline: float) -> bool:
        """Apply slices until the commit is done (``True``) or the deadline has passed (``False``)."""
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
            self._sleep(min(MAX_PAUSE, PAUSE_FACTOR * took))
