# SPDX-License-Identifier: Apache-2.0
"""Execution of commits, which publish staged messages and delete claimed messages in one transaction.

The store first records the commit in one atomic step. A recorded commit is *decided*: it can no longer fail. The
store applies a small commit in the same step. The server applies a large commit afterwards, in slices of limited size.
A slice is idempotent. After each slice the server pauses for twice the duration of the slice, so that other requests
make progress.

The server that received a commit applies it. If that server dies, another server resumes the commit. Each server reads
the unfinished commits once a second. A commit that makes no progress between two reads counts as abandoned.
"""

import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Final

from msgspec import structs

from zq.clock import Clock
from zq.errors import CommitRunning, QuotaExceeded, StoreDamaged
from zq.model import Bounds, Commit, CommitResult, UnfinishedCommit
from zq.storage.capabilities import TransactionController

LOG = logging.getLogger(__name__)
# Log line for a commit that cannot continue because the store is damaged.
DAMAGED: Final = (
    "A commit cannot continue because the store is damaged. Stop the server and run zq-server salvage: it builds a new "
    "store and completes the commit as far as the data is readable."
)
# Target duration of a slice in seconds. The slice size adapts to it.
TARGET_SECONDS: Final = 0.0012
# Number of messages in the first slice.
FIRST_SLICE: Final = 100
# Pause after a slice, as a multiple of the slice's duration.
PAUSE_FACTOR: Final = 2.0
# Longest pause in seconds.
MAX_PAUSE: Final = 0.2
# Result of ``Quotas.admit_work``.
Admission = AbstractContextManager[QuotaExceeded | None]
# Admission of a commit that needs no quota.
NO_ADMISSION: Final = nullcontext()
# Seconds that one maintenance round spends on one commit.
MAINTENANCE_SECONDS: Final = 1.0


class SliceSize:
    """An adaptive slice size. The number of messages in a slice depends on the duration of the previous slice."""

    def __init__(self, minimum: int, maximum: int) -> None:
        self._minimum = min(minimum, maximum)
        self._maximum = maximum
        self.size = min(FIRST_SLICE, maximum)

    def record_duration(self, seconds: float) -> None:
        wanted = self.size * TARGET_SECONDS / max(seconds, 1e-6)
        self.size = max(self._minimum, min(self._maximum, int(wanted), 2 * self.size))


class CommitExecutor:
    """The executor of commits in one server."""

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
        self._seen: dict[UnfinishedCommit, None] = {}
        self._damaged: set[UnfinishedCommit] = set()

    def commit(self, commit: Commit, admitted: Admission = NO_ADMISSION) -> CommitResult:
        """Record and apply a commit. If this takes longer than ``patience`` seconds, return a result with ``open`` set.

        If the producer's previous commit is unfinished, the previous commit is applied first.

        Args:
            admitted: Context manager that reserves quota. It yields an error to raise, or ``None``.

        Raises:
            CommitRunning: The previous commit was not applied within ``patience`` seconds.
            QuotaExceeded: The project has reached a quota.

        Also raises the errors of ``TransactionController.commit``.
        """
        deadline = time.monotonic() + self._patience
        while True:
            with admitted as refusal:
                if refusal is not None:
                    raise refusal
                committed = self._transactions.commit(commit, self._clock.now(), self._bounds)
            admitted = NO_ADMISSION
            if committed.open:
                committed = self._complete(committed, commit.project, commit.producer, deadline)
            if committed.replayed or committed.batch >= commit.batch:
                return committed
            if committed.open:
                raise CommitRunning

    def last(self, project: str, producer: str) -> CommitResult:
        """Return the producer's last commit. If the commit is unfinished, apply it for up to ``patience`` seconds."""
        committed = self._transactions.last(project, producer, self._clock.now())
        if not committed.open:
            return committed
        return self._complete(committed, project, producer, time.monotonic() + self._patience)

    def resume(self) -> None:
        """Resume commits that have made no progress since the last call. Must be called once a second."""
        found = dict.fromkeys(self._transactions.find_unfinished_commits(self._clock.now()))
        left = [one for one in found if one in self._seen]
        self._seen = found
        self._damaged.intersection_update(found)
        ours = {(one.project, one.producer) for one in left if one not in self._damaged and self._resume_abandoned(one)}
        if ours:  # The next poll must not mistake this server's own progress for another server's.
            now = self._transactions.find_unfinished_commits(self._clock.now())
            self._seen |= dict.fromkeys(one for one in now if (one.project, one.producer) in ours)

    def _resume_abandoned(self, one: UnfinishedCommit) -> bool:
        """Apply an abandoned commit for up to ``MAINTENANCE_SECONDS``. Return whether it is still unfinished."""
        LOG.info("Resuming a commit that a stopped server has left unfinished.")
        try:
            return not self._apply_slices(one.project, one.producer, time.monotonic() + MAINTENANCE_SECONDS)
        except StoreDamaged:
            LOG.critical(DAMAGED)
            self._damaged.add(one)
            return False

    def _complete(self, committed: CommitResult, project: str, producer: str, deadline: float) -> CommitResult:
        done = self._apply_slices(project, producer, deadline)
        return structs.replace(committed, open=not done)

    def _apply_slices(self, project: str, producer: str, deadline: float) -> bool:
        slice_size = SliceSize(self._transactions.min_slice, self._bounds.step)
        while True:
            began = time.monotonic()
            left = self._transactions.continue_commit(project, producer, slice_size.size, self._clock.now())
            took = time.monotonic() - began
            if not left:
                return True
            if time.monotonic() > deadline:
                return False
            slice_size.record_duration(took)
            self._sleep(min(MAX_PAUSE, PAUSE_FACTOR * took))
