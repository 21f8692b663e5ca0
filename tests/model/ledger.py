# SPDX-License-Identifier: Apache-2.0
"""The other half of the reference model: what a store remembers beside its messages, in plain lists.

Records of history, keys of requests, fences, stages and producers.
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
    """A record of history; those of one ``step`` finished together, in an order that is the store's."""

    told: HistoryEntry
    expires: float
    step: int


@dataclass
class Stage:
    expires: float
    drafts: list[tuple[QueueRef, Draft]]


class Ledger:
    """Every verb takes what the storage's verb takes and answers what it must answer."""

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
        """A record of each, in this order."""
        self.steps += 1
        self.last_finished[queue] = finished = max(now, self.last_finished.get(queue, 0))
        for message in gone:
            self.positions[queue] = position = self.positions.get(queue, 0) + 1
            expires = round(finished + seconds, 3)
            told = HistoryEntry(structs.replace(message, claim=""), outcome, finished, position, expires)
            self.records.setdefault(queue, []).append(HistoryRow(told, expires, self.steps))

    def join_step(self, queue: QueueRef, first: int) -> None:
        """What finished there since that step, by several claims of a commit, did so in one step."""
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
        """Within each step, records stand as their places say."""
        positions = [record.told.position for record in records]
        ordered = sorted(zip(records, places, strict=True), key=lambda pair: (pair[0].step, pair[1]))
        for position, (record, _) in zip(positions, ordered, strict=True):
            record.told = structs.replace(record.told, position=position)
        self.records.get(queue, []).sort(key=lambda record: record.told.position)

    def ends(self) -> set[float]:
        """All moments at which something is forgotten."""
        records = (record.expires for records in self.records.values() for record in records)
        stages = (stage.expires for stage in self.stages.values())
        return {
            *records,
            *stages,
            *(key[2] for key in self.keys.values()),
            *(one[1] for one in self.producers.values()),
        }

    def recall(self, queue: QueueRef, idempotency_key: IdempotencyKey | None, now: float) -> None:
        """Refuse what was done before."""
        digest, answer, expires = (
            self.keys.get((queue, idempotency_key.key), (b"", None, 0)) if idempotency_key else (b"", None, 0)
        )
        if idempotency_key and expires > now:
            raise Repeated(answer) if digest == idempotency_key.digest else KeyReused

    def recall_each(self, queue: QueueRef, drafts: Sequence[Draft], now: float) -> None:
        """The same for the keys of drafts."""
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
        """The queue is gone, and its records and keys with it; its counters go on."""
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
        """The producer's last batch, if the commit's is not above it; its stages are dropped."""
        last, expires = self.producers.get((commit.project, commit.producer), (None, 0.0))
        if last is None or expires <= now or commit.batch > last.batch:
            return None
        for stage in commit.publish:
            self.drop_stage(commit.project, stage)
        return structs.replace(last, replayed=True)

    def decide(self, commit: Commit, published: int, deleted: int, now: float) -> CommitResult:
        """Its stages are gone and the producer is remembered."""
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
