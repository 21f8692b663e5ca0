# SPDX-License-Identifier: Apache-2.0
"""Fences, stages and commits of the MongoDB store."""

from collections.abc import Sequence

from bson.datetime_ms import DatetimeMS

from zq.errors import ProducerNotFound
from zq.model import MOST_STAGED, Bounds, Commit, Committed, Draft, IdempotencyKey, QueueRef, Seconds, Unfinished
from zq.model.quotas import Work, WorkCount
from zq.storage.capabilities import BOUNDS
from zq.storage.mongodb import layout, stages
from zq.storage.mongodb.changes import advance_fence
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.commits import Commits
from zq.storage.mongodb.documents import ABOVE_ALL
from zq.storage.mongodb.layout import BsonDocument
from zq.storage.mongodb.stages import Stages, Staging


class TransactionController:
    """``zq.storage.api.TransactionController`` on MongoDB."""

    least_slice = 100
    """A transaction takes 6 ms before its first message."""

    def __init__(self, client: StoreClient, stage_store: Stages, commits: Commits) -> None:
        self._client = client
        self._stages = stage_store
        self._commits = commits

    def advance_fence(self, project: str, name: str) -> int:
        with self._client.verb():
            return advance_fence(self._client, project, name)

    def stage(
        self,
        project: str,
        stage: str,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        ttl: int,
        most_bytes: int,
        idempotency_key: IdempotencyKey | None = None,
        most_messages: int = MOST_STAGED,
    ) -> None:
        moment = layout.ms(now)
        self._stages.add(
            Staging(
                project, stage, queue, drafts, moment, moment + ttl * 1000, most_bytes, most_messages, idempotency_key
            )
        )

    def drop_stage(self, project: str, stage: str) -> None:
        self._stages.drop(stages.identity(project, stage))

    def commit(self, commit: Commit, now: Seconds, bounds: Bounds = BOUNDS) -> Committed:
        return self._commits.commit(commit, layout.ms(now), bounds)

    def carry_on(self, project: str, producer: str, most: int, now: Seconds) -> bool:
        return self._commits.carry_on(project, producer, most, layout.ms(now))

    def unfinished(self, now: Seconds) -> Sequence[Unfinished]:
        return self._commits.unfinished()

    def count(self, project: str, work: Work, name: str, now: Seconds) -> WorkCount:
        moment = layout.ms(now)
        living: dict[Work, BsonDocument] = {
            Work.FENCE: {"epoch": {"$gt": 0}},
            Work.STAGE: {"due": {"$gt": moment}},
            Work.PRODUCER: {"batch": {"$exists": True}, "$or": [{"e": None}, {"e": {"$gt": DatetimeMS(moment)}}]},
        }
        prefix = work.value[0] + layout.project_prefix(project)
        names = {"$gte": prefix, "$lt": prefix + ABOVE_ALL}
        with self._client.verb():
            count = self._client.count({"_id": names, **living[work]}, "_id_")
            known = self._client.count({"_id": prefix + layout.text(name), **living[work]}, "_id_")
        return WorkCount(count, known > 0)

    def last(self, project: str, producer: str, now: Seconds) -> Committed:
        found = self._commits.last(project, producer, layout.ms(now))
        if found is None:
            raise ProducerNotFound
        return found
