# SPDX-License-Identifier: Apache-2.0
"""Use cases on fences, stages and commits (extensions 9)."""

from collections.abc import Sequence
from typing import TypeVar

from zq.broker.carrying import Carrier
from zq.broker.metadata import Book
from zq.broker.watch import Watch
from zq.clock import Clock
from zq.errors import Invalid
from zq.limits import MAX_BODY_NUMBER, MAX_COMMITTED, Limits, free_name, project_id, queue_ref, within
from zq.model import Bounds, Commit, Committed, Fence, Held, Outcome, QueueRef
from zq.storage.api import Storage
from zq.wire.committing import CommitTerms, HeldClaim

T = TypeVar("T")


class Transactions:
    """What a batch job can do that may be restarted anywhere."""

    def __init__(
        self, storage: Storage, clock: Clock, limits: Limits, book: Book, watch: Watch, patience: float
    ) -> None:
        """``patience``: seconds after which the caller of a large commit is told that it is under way."""
        self._transactions = storage.transactions
        bounds = Bounds(limits.commit_slice, limits.max_commit_messages)
        self._carrier = Carrier(storage.transactions, clock, bounds, patience)
        self._limits = limits
        self._book = book
        self._watch = watch

    def advance_fence(self, project: str, name: str) -> int:
        """The fence's next epoch; whoever holds an older one cannot work on."""
        return self._transactions.advance_fence(project_id(project), free_name("fence", name))

    def drop_stage(self, project: str, stage: str) -> None:
        """Drop what is staged there, unless a commit has named it; an unknown stage is fine."""
        self._transactions.drop_stage(project_id(project), free_name("stage", stage))

    def commit(self, project: str, terms: CommitTerms, fence: Fence | None) -> Committed:
        """Publish the stages and delete what the claims hold, as one decision; ``open`` if that takes longer.

        Raises ``Invalid``, ``StageNotFound``, ``StageDiffers``, ``ClaimLapsed``, ``CommitTooLarge``, ``CommitRunning``,
        ``Fenced``: nothing has changed.
        """
        held = _each_once("settle", [_named(project, each) for each in terms.settle])
        commit = Commit(
            project=project_id(project),
            producer=free_name("producer", terms.producer),
            batch=within("batch", terms.batch, 0, MAX_BODY_NUMBER),
            publish=_each_once("publish", [free_name("publish", stage) for stage in terms.stages]),
            settle=[Held(queue, claim, self._book.recent(queue).history_ttl) for queue, claim in held],
            ttl=self._limits.producer_ttl,
            fence=fence,
            expected={stage: _count(count) for stage, count in terms.expected.items()},
        )
        committed = self._carrier.commit(commit)
        if not committed.replayed:
            self._watch.finished(Outcome.DELETED, committed.deleted)
        self._watch.committed(committed)
        return committed

    def last(self, project: str, producer: str) -> Committed:
        """The producer's last batch; ``open`` if it is still being carried out. Raises ``ProducerNotFound``."""
        return self._carrier.last(project_id(project), free_name("producer", producer))

    def resume(self) -> None:
        """Go on with commits whose server has left them: to be called every second."""
        self._carrier.resume()


def _count(count: int) -> int:
    return within("messages", count, 0, MAX_BODY_NUMBER)


def _named(project: str, held: HeldClaim) -> tuple[QueueRef, str]:
    if not held.claim:
        raise Invalid("settle must name a claim in each member.")
    return queue_ref(project, held.queue), held.claim


def _each_once(field: str, values: Sequence[T]) -> Sequence[T]:
    if len(values) > MAX_COMMITTED:
        raise Invalid(f"{field} must name at most {MAX_COMMITTED} values; it names {len(values)}.")
    if len(set(values)) < len(values):
        raise Invalid(f"{field} must name each value once.")
    return values
