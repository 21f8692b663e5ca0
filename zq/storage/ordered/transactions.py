# SPDX-License-Identifier: Apache-2.0
"""Fences, stages and commits.

A commit is one batch of a producer. A small commit is completed in one write. For a large commit, the first write only
stores an entry for the open commit, and the commit is then completed in slices. Each slice is one write that also
removes the slice's work from the entry.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import islice
from typing import Final, TypeVar
from zlib import crc32

from msgspec import structs

from zq.errors import ClaimLapsed, CommitRunning, ProducerNotFound, StageNotFound
from zq.model import (
    MAX_STAGED,
    Bounds,
    ClaimRef,
    Commit,
    CommitResult,
    Draft,
    IdempotencyKey,
    KnownWork,
    Outcome,
    Page,
    QueueRef,
    Seconds,
    UnfinishedCommit,
)
from zq.model.quotas import Work, WorkCount
from zq.storage.capabilities import BOUNDS, check_size, check_stage
from zq.storage.concurrency import StripedLocks
from zq.storage.ordered import due, layout, stages
from zq.storage.ordered.changes import Change, Completion
from zq.storage.ordered.claims import find_held, find_sequences
from zq.storage.ordered.handle import Session, StoreHandle
from zq.storage.ordered.idempotency import check_key
from zq.storage.ordered.layout import Batch, Found, Stage, StagedMessage
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.stages import OpenCommit, ReservedMessages, UnpublishedRange
from zq.storage.ordered.store import Store, Write


class TransactionController:
    """The implementation of ``zq.storage.capabilities.TransactionController`` over an ordered store."""

    min_slice = 40

    def __init__(self, handle: StoreHandle, stripes: StripedLocks) -> None:
        self._handle = handle
        self._stripes = stripes

    def advance_fence(self, project: str, name: str, now: Seconds) -> int:
        with self._handle as (store, _):
            with self._stripes.locked(stages.fence_lock(project, name)):
                epoch = stages.advance_fence(store, project, name, layout.ms(now))
            store.wait_durable()
        return epoch

    def stage(
        self,
        project: str,
        stage: str,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        ttl: int,
        max_bytes: int,
        idempotency_key: IdempotencyKey | None = None,
        max_messages: int = MAX_STAGED,
    ) -> None:
        moment = layout.ms(now)
        prefix = stages.prefix(project, stage)
        with self._handle as (store, registry):
            staged = False
            while not staged:
                with self._stripes.locked(stages.stage_lock(prefix)), registry.locked_or_hidden(queue) as state:
                    check_key(store, state, idempotency_key, list[str], moment)
                    key, rest = stages.find_or_create(store, registry.new_number, prefix, moment, moment + ttl * 1000)
                    change = Change(store, moment)
                    change.add_writes(*stages.append_writes(key, rest, queue.name, drafts, (max_bytes, max_messages)))
                    if state is not None:
                        change.remember(state, idempotency_key, [draft.id for draft in drafts], moment, posted=False)
                    if idempotency_key is None or state is not None:
                        change.commit()
                        staged = True
                if not staged:  # the idempotency key belongs to the queue, and staging does not create the queue
                    registry.create_hidden(queue)
            store.wait_durable()

    def drop_stage(self, project: str, stage: str) -> None:
        prefix = stages.prefix(project, stage)
        with self._handle as (store, _):
            with self._stripes.locked(stages.stage_lock(prefix)):
                writes = stages.removal_writes_by_prefix(store, prefix)
                if not writes:
                    return
                store.write(writes)
            store.wait_durable()

    def commit(self, commit: Commit, now: Seconds, bounds: Bounds = BOUNDS) -> CommitResult:
        with self._handle as session:
            attempt = CommitAttempt(session, commit, layout.ms(now), bounds)
            with self._stripes.locked(*attempt.locks()):
                committed = attempt.run()
            session.store.wait_durable()
        return committed

    def continue_commit(self, project: str, producer: str, max_messages: int, now: Seconds) -> bool:
        prefix = _producer_prefix(project, producer)
        with self._handle as session:
            with self._stripes.locked(_producer_lock(prefix)):
                left = _process_slice(session, prefix, max_messages, layout.ms(now))
            session.registry.context.housekeeping.bound_memory()
            if not left:
                session.store.wait_durable()
        return left

    def find_unfinished_commits(self, now: Seconds, project: str | None = None) -> Sequence[UnfinishedCommit]:
        with self._handle as (store, _):
            return [_describe_commit(producer, value) for producer, value in stages.scan_commits(store, project)]

    def is_idle(self, project: str, now: Seconds) -> bool:
        # The stages are read first, because a single write turns the stages of a large commit into an open commit.
        with self._handle as (store, _):
            is_staging = bool(stages.list_names(store, project, Work.STAGE, layout.ms(now)))
            return not is_staging and next(stages.scan_commits(store, project), None) is None

    def count(self, project: str, work: Work, name: str, now: Seconds) -> WorkCount:
        with self._handle as (store, _):
            names = stages.list_names(store, project, work, layout.ms(now))
        return WorkCount(len(names), name in names)

    def list(self, project: str, work: Work, after: str, limit: int, now: Seconds) -> Page[KnownWork]:
        with self._handle as (store, _):
            items = list(islice(stages.list_work(store, project, work, after, layout.ms(now)), limit))
        return Page(items, items[-1].name if items else None)

    def last(self, project: str, producer: str, now: Seconds) -> CommitResult:
        with self._handle as (store, _):
            found = _find_last(store, _producer_prefix(project, producer), layout.ms(now))
            store.wait_durable()  # the batch must be durable, because a client that sees it does not send it again
        if found is None:
            raise ProducerNotFound
        return found[1]


# Maximum size of a small commit in messages, even if the bounds allow more. A write blocks all other writers.
MAX_SMALL_COMMIT: Final = 1000
# Maximum number of messages in one slice. Each message takes 8 to 35 microseconds, during which no other thread writes.
MAX_SLICE: Final = 500
# Maximum total size in bytes of the bodies in one slice, except for a single message.
MAX_SLICE_BYTES: Final = 4 << 20

T = TypeVar("T")


class CommitAttempt:
    """The commit of one batch of a producer. The caller of ``run`` holds the ``locks``."""

    def __init__(self, session: Session, commit: Commit, now: int, bounds: Bounds) -> None:
        self._session = session
        self._commit = commit
        self._now = now
        self._bounds = bounds
        self._producer_prefix = _producer_prefix(commit.project, commit.producer)
        self._claims = list({(claim.queue, claim.claim): claim for claim in commit.settle}.values())
        # The keys and records of all stages to publish.
        self._stages: list[tuple[bytes, Stage]] = []
        # The number of messages to publish, without the stages in ``beside``.
        self._counted = 0
        # The writes that remove the record of the producer's last batch.
        self._former: list[Write] = []

    def locks(self) -> list[bytes]:
        """Return the names of the locks that ``run`` requires."""
        commit = self._commit
        names = [stages.stage_lock(stages.prefix(commit.project, stage)) for stage in (*commit.publish, *commit.beside)]
        return [_producer_lock(self._producer_prefix), *names, *stages.fence_locks(commit.project, commit.fence)]

    def run(self) -> CommitResult:
        """Commit the batch and return its result. If the batch is large, only record it as an open commit.

        An open commit is completed later. In two cases, commit nothing and return the result of the producer's last
        batch:

        - The last batch is still open.
        - The batch repeats an earlier batch, because its number is not above the number of the last batch. In this
          case, the stages of the repeated batch are removed.
        """
        commit, store = self._commit, self._session.store
        known = _find_last(store, self._producer_prefix, self._now)
        found, beside = (
            {name: stages.find(store, stages.prefix(commit.project, name), self._now) for name in names}
            for names in (commit.publish, commit.beside)
        )
        self._stages = [stage for stage in (*found.values(), *beside.values()) if stage is not None]
        self._counted = sum(stage[1].count for stage in found.values() if stage is not None)
        if known is not None and (known[1].open or commit.batch <= known[1].batch):
            replayed = commit.batch <= known[1].batch
            if replayed and self._stages:
                store.write(self._stage_removals())
            return structs.replace(known[1], replayed=replayed)
        if known is None and stages.find_commit(store, self._producer_prefix) is not None:
            raise CommitRunning
        stages.check_fence(store, commit.project, commit.fence)
        for name, stage in found.items():
            if stage is None:
                raise StageNotFound.of(name)
            check_stage(commit, name, stage[1].count)
        if known is not None:
            self._former = due.removals("producers", known[0], due.parse_expiry(known[0]))
        return self._decide_large() or self._commit_small()

    def _decide_large(self) -> CommitResult | None:
        """Record the batch as an open commit if it is too large for one write. Otherwise, return None."""
        store, registry = self._session
        refs = list(dict.fromkeys(claim.queue for claim in self._claims))
        published, size = (sum(getattr(stage, what) for _, stage in self._stages) for what in ("count", "size"))
        with registry.locked(*refs) as found:
            states = {ref: state for ref, state in zip(refs, found, strict=True) if state is not None}
            held = [
                _require_held(find_sequences(store, states.get(claim.queue), claim.claim, self._now), claim)
                for claim in self._claims
            ]
            committed = CommitResult(self._commit.batch, self._counted, sum(map(len, held)))
            check_size(committed, self._bounds)
            if published + committed.deleted <= min(self._bounds.step, MAX_SMALL_COMMIT) and size <= MAX_SLICE_BYTES:
                return None
            together: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
            for claim, sequences in zip(self._claims, held, strict=True):
                together[states[claim.queue].number, claim.history] += sequences
            store.write(
                self._decision(committed, [ReservedMessages(*owner, sorted(its)) for owner, its in together.items()])
            )
            for claim, sequences in zip(self._claims, held, strict=True):
                states[claim.queue].reserved.update(sequences)
        return structs.replace(committed, open=True)

    def _decision(self, committed: CommitResult, reserved: list[ReservedMessages]) -> list[Write]:
        rests = [UnpublishedRange(stage.number, 0, stage.count, stage.size) for _, stage in self._stages if stage.count]
        decided = OpenCommit(committed.batch, committed.published, committed.deleted, reserved, rests)
        taken = (write for key, _ in self._stages for write in due.removals("stages", key, due.parse_expiry(key)))
        return [
            stages.commit_write(self._producer_prefix, decided),
            *self._former,
            *taken,
            *self._batch_writes(committed),
        ]

    def _commit_small(self) -> CommitResult:
        store, registry = self._session
        staged = [item for _, stage in self._stages for item in stages.messages(store, stage)]
        targets = [QueueRef(self._commit.project, name) for name in dict.fromkeys(item.queue for item in staged)]
        refs = list(dict.fromkeys([*(claim.queue for claim in self._claims), *targets]))
        while True:
            with registry.locked(*refs) as found:
                states = {ref: state for ref, state in zip(refs, found, strict=True) if state is not None}
                held = [
                    _require_held(find_held(store, states.get(claim.queue), claim.claim, self._now), claim)
                    for claim in self._claims
                ]
                if len(states) == len(refs):
                    return self._apply(states, staged, held)
            for ref in refs:
                registry.ensure(ref)

    def _apply(
        self, states: dict[QueueRef, QueueState], staged: Sequence[StagedMessage], held: Sequence[list[Found]]
    ) -> CommitResult:
        change = Change(self._session.store, self._now)
        for item in staged:
            change.post(states[QueueRef(self._commit.project, item.queue)], item.draft, self._now)
        for claim, found in zip(self._claims, held, strict=True):
            end = Completion(Outcome.DELETED, claim.history, self._now)
            for sequence, record in found:
                change.finish(states[claim.queue], sequence, record, end)
        committed = CommitResult(self._commit.batch, self._counted, sum(map(len, held)))
        change.add_writes(*self._former, *self._stage_removals(), *self._batch_writes(committed))
        change.commit()
        return committed

    def _stage_removals(self) -> list[Write]:
        return [write for stage in self._stages for write in stages.removal_writes(*stage)]

    def _batch_writes(self, committed: CommitResult) -> list[Write]:
        expires = self._now + self._commit.ttl * 1000
        value = Batch(committed.batch, committed.published, committed.deleted, self._now)
        return due.writes(
            "producers", self._producer_prefix + layout.number.pack(expires), layout.encode(value), expires
        )


def _require_held(held: list[T], claim: ClaimRef) -> list[T]:
    if not held:
        raise ClaimLapsed.of(claim.claim)
    return held


def _producer_prefix(project: str, producer: str) -> bytes:
    return layout.name_prefix(layout.project_prefix(project), producer)


def _producer_lock(producer: bytes) -> bytes:
    return b"producer " + producer


def _find_last(store: Store, producer: bytes, now: int) -> tuple[bytes, CommitResult] | None:
    """Return the key of a producer's record and the result of the producer's last batch.

    Return None if the producer is unknown.
    """
    found = due.find_live(store, "producers", producer, now)
    if found is None:
        return None
    return found[0], stages.build_result(store, producer, layout.decode_batch(found[1]))


def _describe_commit(producer: bytes, value: bytes) -> UnfinishedCommit:
    """Describe an open commit, which is recorded but not completed.

    ``value`` is the commit's stored entry. Each write that advances the commit also changes this entry. Its length and
    checksum therefore show whether the commit has advanced.
    """
    prefix = layout.extract_project_prefix(producer)
    return UnfinishedCommit(
        layout.decode_project(prefix), producer[len(prefix) : -1].decode(), f"{len(value)} {crc32(value)}"
    )


def _process_slice(session: Session, producer: bytes, max_messages: int, now: int) -> bool:
    commit = stages.find_commit(session.store, producer)
    if commit is None:
        return False
    if commit.reserved:
        _delete_slice(session, producer, commit, min(max_messages, MAX_SLICE), now)
    else:
        _publish_slice(session, producer, commit, min(max_messages, MAX_SLICE), now)
    return bool(commit.reserved or commit.rests)


def _delete_slice(session: Session, producer: bytes, commit: OpenCommit, max_messages: int, now: int) -> None:
    """Delete up to ``max_messages`` messages, and update the commit's entry. Skip purged and deleted queues."""
    store, registry = session
    first = commit.reserved[0]
    part, first.sequences = first.sequences[:max_messages], first.sequences[max_messages:]
    if not first.sequences:
        del commit.reserved[0]
    state = registry.find_by_number(first.number)
    with registry.locked(*([state.ref] if state is not None else [])) as held:
        change = Change(store, now)
        if state is not None and held == [state]:
            keys = [layout.pair.pack(first.number, sequence) for sequence in part]
            for sequence, value in zip(part, store.get_many("messages", keys), strict=True):
                if value is not None:
                    end = Completion(Outcome.DELETED, first.history, now)
                    change.finish(state, sequence, layout.decode_record(value), end)
        change.add_writes(stages.commit_write(producer, commit))
        change.commit()
        if state is not None:
            state.reserved.difference_update(part)


def _publish_slice(session: Session, producer: bytes, commit: OpenCommit, max_messages: int, now: int) -> None:
    store, registry = session
    keys, items = _next_staged(store, commit.rests[0], max_messages)
    project = layout.decode_project(layout.extract_project_prefix(producer))
    refs = [QueueRef(project, name) for name in dict.fromkeys(item.queue for item in items)]
    _advance(commit, len(keys), sum(item.draft.size for item in items))
    while True:
        with registry.locked(*refs) as found:
            states = {ref.name: state for ref, state in zip(refs, found, strict=True) if state is not None}
            if len(states) == len(refs):
                change = Change(store, now)
                for item in items:
                    change.post(states[item.queue], item.draft, now)
                change.add_writes(*(("staged", key, None) for key in keys), stages.commit_write(producer, commit))
                change.commit()
                return
        for ref in refs:
            registry.ensure(ref)


def _next_staged(
    store: Store, rest: UnpublishedRange, max_messages: int
) -> tuple[Sequence[bytes], Sequence[StagedMessage]]:
    keys: list[bytes] = []
    items: list[StagedMessage] = []
    size = 0
    entries = store.scan("staged", layout.pair.pack(rest.number, rest.at), layout.number.pack(rest.number + 1))
    for key, value in islice(entries, max_messages):
        item = stages.decode_message(value)
        size += item.draft.size
        if items and size > MAX_SLICE_BYTES:
            break
        keys.append(key)
        items.append(item)
    return keys, items


def _advance(commit: OpenCommit, count: int, size: int) -> None:
    """Remove the first ``count`` messages from the open commit's first stage.

    ``size`` is the total size of their bodies in bytes.
    """
    rest = commit.rests[0]
    rest.at += count
    rest.size -= size
    if rest.at >= rest.end or not count:
        del commit.rests[0]
