# SPDX-License-Identifier: Apache-2.0
"""Operations on transactions: fences, stages and commits (extensions contract, section 9)."""

from collections.abc import Callable, Sequence
from typing import TypeVar

from zq.clock import Clock
from zq.core.commit_executor import CommitExecutor
from zq.core.markers import Markers
from zq.core.quotas import AnyQuotas
from zq.core.resources import READ_AHEAD
from zq.core.rules import RulesCache
from zq.core.values import ReadResult
from zq.errors import Invalid
from zq.events import Events
from zq.model import Bounds, ClaimRef, Commit, CommitResult, Fence, KnownWork, Outcome, Page, QueueRef
from zq.model.allowance import EVERYTHING, Allowance
from zq.model.hidden import HIDDEN, copies_of
from zq.model.limits import (
    DEFAULT_PAGE,
    MAX_COMMITTED,
    MAX_FREE_NAME,
    MAX_WORK_PAGE,
    Limits,
    check_free_name,
    check_range,
    project_id,
    reachable_queue_ref,
)
from zq.model.quotas import Work
from zq.model.scopes import Kind, Verb
from zq.storage.api import Storage
from zq.storage.capabilities import MissingCapability
from zq.wire.extensions import CommitTerms, HeldClaim
from zq.wire.numbers import MAX_BODY_NUMBER

T = TypeVar("T")


class Transactions:
    """Transactions for restartable batch jobs.

    - A stage holds messages that are invisible until a commit publishes them.
    - A fence rejects requests of outdated job processes. Each request contains an epoch (a fencing token), and the
      fence rejects old epochs.
    - A commit publishes stages and deletes the messages of claims atomically.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        limits: Limits,
        rules_cache: RulesCache,
        events: Events,
        patience: float,
        quotas: AnyQuotas,
    ) -> None:
        self._transactions = storage.transactions
        bounds = Bounds(limits.commit_slice, limits.max_commit_messages)
        self._resumes = not isinstance(storage.transactions, MissingCapability)
        self._executor = CommitExecutor(storage.transactions, clock, bounds, patience)
        self._clock = clock
        self._limits = limits
        self._markers = Markers(storage.documents, clock, MAX_FREE_NAME)
        self._rules_cache = rules_cache
        self._events = events
        self._quotas = quotas

    def advance_fence(self, project: str, name: str) -> int:
        """Increment the epoch of a fence. Return the new epoch. Requests with older epochs are rejected from now on."""
        project, name = project_id(project), check_free_name("fence", name)
        with self._quotas.admit_work(project, Work.FENCE, name) as refusal:
            if refusal is not None:
                raise refusal
            return self._transactions.advance_fence(project, name, self._clock.now())

    def drop_stage(self, project: str, stage: str) -> None:
        """Delete a stage and its uncommitted messages, unless a commit is publishing it. Ignore an unknown stage."""
        project, stage = project_id(project), check_free_name("stage", stage)
        self._transactions.drop_stage(project, stage)
        self._transactions.drop_stage(project, copies_of(stage))
        self._quotas.forget_work(project, Work.STAGE, stage)

    def commit(
        self, project: str, terms: CommitTerms, fence: Fence | None, allowance: Allowance = EVERYTHING
    ) -> CommitResult:
        """Publish staged messages and delete the messages of claims atomically.

        If the commit is recorded but not completely applied yet, ``CommitResult.open`` is set. Such a commit can no
        longer fail. Raises ``NotAuthorized`` if the caller may not use a queue, a stage or the producer. Also raises
        ``Invalid``, ``QuotaExceeded`` and the errors of ``TransactionController.commit``.
        """
        stages = terms.stages
        _authorize(allowance, terms, stages)
        held = _each_once("settle", [_named(project, each) for each in terms.settle])
        publish = _each_once("publish", [check_free_name("publish", stage) for stage in stages])
        commit = Commit(
            project=project_id(project),
            producer=check_free_name("producer", terms.producer),
            batch=check_range("batch", terms.batch, 0, MAX_BODY_NUMBER),
            publish=publish,
            beside=[copies_of(stage) for stage in publish],
            settle=[ClaimRef(queue, claim, self._rules_cache.recent(queue).history_ttl) for queue, claim in held],
            ttl=self._limits.producer_ttl,
            fence=fence,
            expected={
                stage: check_range("messages", count, 0, MAX_BODY_NUMBER) for stage, count in terms.expected.items()
            },
        )
        committed = self._executor.commit(
            commit, self._quotas.admit_work(commit.project, Work.PRODUCER, commit.producer)
        )
        for stage in commit.publish:
            self._quotas.forget_work(commit.project, Work.STAGE, stage)
        if not committed.replayed:
            settled = {queue for queue, _ in held}
            queue = settled.pop() if len(settled) == 1 else QueueRef(commit.project, "")
            self._events.finished(queue, Outcome.DELETED, committed.deleted)
        self._events.committed(committed)
        return committed

    def last(self, project: str, producer: str) -> CommitResult:
        """Return the producer's last commit. Raises ``ProducerNotFound``.

        If the commit is recorded but not completely applied yet, ``CommitResult.open`` is set.
        """
        return self._executor.last(project_id(project), check_free_name("producer", producer))

    def list(
        self,
        project: str,
        work: Work,
        marker: str,
        limit: int | None,
        visible: Callable[[str], bool] | None = None,
    ) -> ReadResult[Page[KnownWork]]:
        """Return a page of the project's stages, fences or producers, ordered by name.

        A filtered page may be short or empty although more names follow. The marker of the next page reveals no name
        for which ``visible`` is false. On the last page, the marker is ``None``.
        """
        about, now = f"{work} {project_id(project)}", self._clock.now()
        after = self._markers.open(about, marker)
        size = DEFAULT_PAGE if limit is None else check_range("limit", limit, 1, MAX_WORK_PAGE)
        walk = self._limits.max_metadata_walk
        chunk = size if visible is None else min(READ_AHEAD, walk)
        found: list[KnownWork] = []
        for _ in range(0, walk, chunk):
            page = self._transactions.list(project, work, after, chunk, now)
            for one in page.items:
                after = one.name
                if after.startswith(HIDDEN):
                    return ReadResult(Page(found, None), now)
                found += [one] if visible is None or visible(after) else []
                if len(found) == size:
                    return ReadResult(Page(found, after), now)
            if len(page.items) < chunk:
                return ReadResult(Page(found, None), now)
        is_hidden = visible is not None and not visible(after)
        return ReadResult(Page(found, self._markers.seal(about, after) if is_hidden else after), now)

    def resume(self) -> None:
        """Resume commits that have made no progress since the last call. Must be called once a second."""
        if self._resumes:
            self._executor.resume()


def _authorize(allowance: Allowance, terms: CommitTerms, stages: Sequence[str]) -> None:
    for queue in {held.queue for held in terms.settle}:
        allowance.authorize("claims:update", Verb.CONSUME, Kind.QUEUE, queue)
    verb = Verb.CONSUME if terms.settle and not stages else Verb.PRODUCE
    allowance.authorize("messages:create", verb, Kind.WORK, terms.producer)
    for stage in set(stages):
        allowance.authorize("messages:create", Verb.PRODUCE, Kind.WORK, stage)


def _named(project: str, held: HeldClaim) -> tuple[QueueRef, str]:
    if not held.claim:
        raise Invalid("Each member of settle must name a claim.")
    return reachable_queue_ref(project, held.queue), held.claim


def _each_once(field: str, values: Sequence[T]) -> Sequence[T]:
    if len(values) > MAX_COMMITTED:
        raise Invalid(f"{field} must contain at most {MAX_COMMITTED} values, not {len(values)}.")
    if len(set(values)) < len(values):
        raise Invalid(f"{field} must contain each value only once.")
    return values
