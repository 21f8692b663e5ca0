# SPDX-License-Identifier: Apache-2.0
"""The reference model of data besides messages, in plain lists.

History entries, idempotency keys, fences, stages and producers.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import structs

from zq.errors import DraftsRepeated, Fenced, KeyReused, ProducerNotFound, Repeated, StageFull, StageNotFound
from zq.model import (
    Commit,
    CommitResult,
    Draft,
    Fence,
    HistoryEntry,
    IdempotencyKey,
    KnownFence,
    KnownProducer,
    KnownStage,
    KnownWork,
    Message,
    Outcome,
    Page,
    QueueRef,
)
from zq.model.quotas import Work


@dataclass
class HistoryRow:
    """A history entry; entries of one ``step`` finished together, in an order that the store chooses."""

    told: HistoryEntry
    expires: float
    step: int


@dataclass
class Stage:
    expires: float
    drafts: list[tuple[QueueRef, Draft]]


class Ledger:
    """The model of a store: each verb has the arguments and results of the storage's verb."""

    def __init__(self) -> None:
        self.records: dict[QueueRef, list[HistoryRow]] = {}
        self.positions: dict[QueueRef, int] = {}
        self.last_finished: dict[QueueRef, float] = {}
        self.steps = 0
        self.keys: dict[tuple[QueueRef, str], tuple[bytes, Any, float]] = {}
        self.fences: dict[tuple[str, str], int] = {}
        self.advanced: dict[tuple[str, str], float] = {}
        self.stages: dict[tuple[str, str], Stage] = {}
        self.producers: dict[tuple[str, str], tuple[CommitResult, float]] = {}
        self.decided: dict[tuple[str, str], float] = {}

    def keep(self, queue: QueueRef, gone: list[Message], outcome: Outcome, now: float, seconds: int) -> None:
        """Add a history entry for each message, in this order."""
        self.steps += 1
        self.last_finished[queue] = finished = max(now, self.last_finished.get(queue, 0))
        for message in gone:
            self.positions[queue] = position = self.positions.get(queue, 0) + 1
            expires = round(finished + seconds, 3)
            told = HistoryEntry(structs.replace(message, claim=""), outcome, finished, position, expires)
            self.records.setdefault(queue, []).append(HistoryRow(told, expires, self.steps))

    def join_step(self, queue: QueueRef, first: int) -> None:
        """Merge the entries since step ``first``, which several claims of one commit finished, into one step."""
        for record in self.records.get(queue, []):
            record.step = min(record.step, first)

    def records_of(self, queue: QueueRef, now: float) -> list[HistoryRow]:
        return [record for record in self.records.get(queue, []) if record.expires > now]

    def history(
        self, queue: QueueRef, marker: int, limit: int, since: float, until: float, now: float
    ) -> Page[HistoryEntry]:
        records = [record.told for record in self.records_of(queue, now)]
        page = [told for told in records if told.position > marker and since <= told.finished < until][:limit]
        return Page(page, str(page[-1].position) if page else None)

    def history_get(self, queue: QueueRef, ids: Sequence[str], now: float) -> list[HistoryEntry]:
        latest = {record.told.message.id: record.told for record in self.records_of(queue, now)}
        return [latest[id] for id in dict.fromkeys(ids) if id in latest]

    def reorder(self, queue: QueueRef, records: list[HistoryRow], places: list[int]) -> None:
        """Order the entries within each step by their places."""
        positions = [record.told.position for record in records]
        ordered = sorted(zip(records, places, strict=True), key=lambda pair: (pair[0].step, pair[1]))
        for position, (record, _) in zip(positions, ordered, strict=True):
            record.told = structs.replace(record.told, position=position)
        self.records.get(queue, []).sort(key=lambda record: record.told.position)

    def ends(self) -> set[float]:
        """Return all times at which data expire."""
        records = (record.expires for records in self.records.values() for record in records)
        stages = (stage.expires for stage in self.stages.values())
        return {
            *records,
            *stages,
            *(key[2] for key in self.keys.values()),
            *(one[1] for one in self.producers.values()),
        }

    def recall(self, queue: QueueRef, idempotency_key: IdempotencyKey | None, now: float) -> None:
        """Raise `Repeated` or `KeyReused` if the idempotency key is known."""
        digest, answer, expires = (
            self.keys.get((queue, idempotency_key.key), (b"", None, 0)) if idempotency_key else (b"", None, 0)
        )
        if idempotency_key and expires > now:
            raise Repeated(answer) if digest == idempotency_key.digest else KeyReused

    def recall_each(self, queue: QueueRef, drafts: Sequence[Draft], now: float) -> None:
        """Raise `DraftsRepeated` for drafts whose idempotency keys are known."""
        first: dict[str, Repeated] = {}
        for draft in drafts:
            try:
                self.recall(queue, draft.once, now)
            except Repeated as told:
                first[draft.id] = told
        if first:
            raise DraftsRepeated(first)

    def remember(self, queue: QueueRef, idempotency_key: IdempotencyKey | None, answer: Any, now: float) -> None:
        if idempotency_key:
            self.keys[queue, idempotency_key.key] = (
                idempotency_key.digest,
                answer,
                round(now + idempotency_key.window, 3),
            )

    def forget(self, queue: QueueRef) -> None:
        """Remove the history and keys of a deleted queue; its counters stay."""
        self.records.pop(queue, None)
        self.keys = {known: value for known, value in self.keys.items() if known[0] != queue}

    def guard(self, project: str, fence: Fence | None) -> None:
        if fence and fence.epoch != self.fences.get((project, fence.name), 0):
            raise Fenced

    def advance_fence(self, project: str, name: str, now: float) -> int:
        self.advanced[project, name] = now
        self.fences[project, name] = epoch = self.fences.get((project, name), 0) + 1
        return epoch

    def stage(
        self,
        project: str,
        stage: str,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: float,
        ttl: int,
        max_bytes: int,
        idempotency_key: IdempotencyKey | None = None,
    ) -> None:
        self.recall(queue, idempotency_key, now)
        found = self.stages.get((project, stage))
        if found is None or found.expires <= now:
            found = Stage(round(now + ttl, 3), [])
        new = [*found.drafts, *((queue, draft) for draft in drafts)]
        if sum(draft.size for _, draft in new) > max_bytes:
            raise StageFull
        self.stages[project, stage] = Stage(found.expires, new)
        self.remember(queue, idempotency_key, [draft.id for draft in drafts], now)

    def staged(self, project: str, stage: str, now: float) -> Stage:
        found = self.stages.get((project, stage))
        if found is None or found.expires <= now:
            raise StageNotFound.of(stage)
        return found

    def drop_stage(self, project: str, stage: str) -> None:
        self.stages.pop((project, stage), None)

    def replay(self, commit: Commit, now: float) -> CommitResult | None:
        """Return the producer's last commit if this one is not newer, and drop its stages; otherwise `None`."""
        last, expires = self.producers.get((commit.project, commit.producer), (None, 0.0))
        if last is None or expires <= now or commit.batch > last.batch:
            return None
        for stage in commit.publish:
            self.drop_stage(commit.project, stage)
        return structs.replace(last, replayed=True)

    def decide(self, commit: Commit, published: int, deleted: int, now: float) -> CommitResult:
        """Drop the commit's stages and record the producer's last commit."""
        for stage in commit.publish:
            self.drop_stage(commit.project, stage)
        committed = CommitResult(commit.batch, published, deleted)
        self.producers[commit.project, commit.producer] = (committed, round(now + commit.ttl, 3))
        self.decided[commit.project, commit.producer] = now
        return committed

    def list_work(self, project: str, work: Work, after: str, limit: int, now: float) -> Page[KnownWork]:
        known: list[KnownWork] = []
        if work is Work.STAGE:
            for (owner, name), stage in self.stages.items():
                if owner == project and stage.expires > now:
                    size = sum(draft.size for _, draft in stage.drafts)
                    known.append(KnownStage(name, len(stage.drafts), size, stage.expires))
        elif work is Work.FENCE:
            known += [
                KnownFence(name, epoch, self.advanced[owner, name])
                for (owner, name), epoch in self.fences.items()
                if owner == project
            ]
        else:
            known += [
                KnownProducer(name, last, self.decided[owner, name], None if last.open else expires)
                for (owner, name), (last, expires) in self.producers.items()
                if owner == project and expires > now
            ]
        page = sorted((one for one in known if one.name > after), key=lambda one: one.name)[:limit]
        return Page(page, page[-1].name if page else None)

    def last(self, project: str, producer: str, now: float) -> CommitResult:
        last, expires = self.producers.get((project, producer), (None, 0.0))
        if last is None or expires <= now:
            raise ProducerNotFound
        return last
