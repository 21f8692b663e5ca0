# SPDX-License-Identifier: Apache-2.0
"""Transactions of producers in MongoDB: fences, stages and commits."""

from collections.abc import Sequence
from typing import Final

from bson.datetime_ms import DatetimeMS

from zq.errors import ProducerNotFound
from zq.model import (
    MAX_STAGED,
    Bounds,
    Commit,
    CommitResult,
    Draft,
    IdempotencyKey,
    KnownFence,
    KnownProducer,
    KnownStage,
    KnownWork,
    Page,
    QueueRef,
    Seconds,
    UnfinishedCommit,
)
from zq.model.quotas import Work, WorkCount
from zq.storage.capabilities import BOUNDS
from zq.storage.mongodb import layout, producers, stages
from zq.storage.mongodb.changes import advance_fence
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.commits import Commits
from zq.storage.mongodb.documents import LAST_CHARACTER
from zq.storage.mongodb.layout import BsonDocument
from zq.storage.mongodb.producers import DECIDED
from zq.storage.mongodb.stages import StageRequest, Stages


class TransactionController:
    """The MongoDB implementation of ``zq.storage.capabilities.TransactionController``."""

    min_slice = 100
    """The smallest useful number of messages per slice of a commit. Each slice has a fixed cost of 6 ms."""

    def __init__(self, client: StoreClient, stage_store: Stages, commits: Commits) -> None:
        self._client = client
        self._stages = stage_store
        self._commits = commits

    def advance_fence(self, project: str, name: str, now: Seconds) -> int:
        with self._client.verb():
            return advance_fence(self._client, project, name, layout.ms(now))

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
        self._stages.add(
            StageRequest(
                project, stage, queue, drafts, moment, moment + ttl * 1000, max_bytes, max_messages, idempotency_key
            )
        )

    def drop_stage(self, project: str, stage: str) -> None:
        self._stages.drop(stages.identity(project, stage))

    def commit(self, commit: Commit, now: Seconds, bounds: Bounds = BOUNDS) -> CommitResult:
        return self._commits.commit(commit, layout.ms(now), bounds)

    def continue_commit(self, project: str, producer: str, max_messages: int, now: Seconds) -> bool:
        return self._commits.continue_commit(project, producer, max_messages, layout.ms(now))

    def find_unfinished_commits(self, now: Seconds, project: str | None = None) -> Sequence[UnfinishedCommit]:
        if project is None:
            return self._commits.find_unfinished_commits()
        return [commit for commit, _ in self._commits.find_commits(project, [DECIDED])]

    def is_idle(self, project: str, now: Seconds) -> bool:
        # A stage has one document until it is published or dropped. Separate searches for stages that no commit uses
        # and for commits could miss a stage that an aborted commit returns and the next commit reserves again.
        usable = [_living(Work.STAGE, layout.ms(now)), {"commit": {"$exists": True}}]
        staging = {"_id": _names(project, Work.STAGE), "$or": usable}
        # A commit without stages only deletes the messages of claims.
        committing = {"_id": _names(project, Work.PRODUCER), "state": {"$exists": True}}
        with self._client.verb():
            return not any(
                self._client.find(wanted, limit=1, hint="_id_", fields={"_id": 1}) for wanted in (staging, committing)
            )

    def count(self, project: str, work: Work, name: str, now: Seconds) -> WorkCount:
        prefix, living = _prefix(project, work), _living(work, layout.ms(now))
        with self._client.verb():
            count = self._client.count({"_id": _names(project, work), **living}, "_id_")
            known = self._client.count({"_id": prefix + layout.encode_text(name), **living}, "_id_")
        return WorkCount(count, known > 0)

    def list(self, project: str, work: Work, after: str, limit: int, now: Seconds) -> Page[KnownWork]:
        prefix = _prefix(project, work)
        names = {"$gt": prefix + layout.encode_text(after), "$lt": prefix + LAST_CHARACTER}
        conditions = {"_id": names, **_living(work, layout.ms(now))}
        with self._client.verb():
            found = self._client.find(
                conditions, limit=limit, sort={"_id": 1}, hint="_id_", fields=dict.fromkeys(LISTED_FIELDS[work], 1)
            )
        items = [_known(work, layout.decode_text(one["_id"][len(prefix) :]), one) for one in found]
        return Page(items, items[-1].name if items else None)

    def last(self, project: str, producer: str, now: Seconds) -> CommitResult:
        found = self._commits.last(project, producer, layout.ms(now))
        if found is None:
            raise ProducerNotFound
        return found


# The fields that a listing reads.
LISTED_FIELDS: Final = {
    Work.STAGE: ("count", "bytes", "expires"),
    Work.FENCE: ("epoch", "advanced"),
    Work.PRODUCER: (*producers.LAST_COMMIT_FIELDS, "state", "e"),
}


def _prefix(project: str, work: Work) -> str:
    return work.value[0] + layout.project_prefix(project)


def _names(project: str, work: Work) -> BsonDocument:
    prefix = _prefix(project, work)
    return {"$gte": prefix, "$lt": prefix + LAST_CHARACTER}


def _living(work: Work, now: int) -> BsonDocument:
    living: dict[Work, BsonDocument] = {
        Work.FENCE: {"epoch": {"$gt": 0}},
        Work.STAGE: {"due": {"$gt": now}},
        Work.PRODUCER: {"batch": {"$exists": True}, "$or": [{"e": None}, {"e": {"$gt": DatetimeMS(now)}}]},
    }
    return living[work]


def _known(work: Work, name: str, found: BsonDocument) -> KnownWork:
    if work is Work.STAGE:
        return KnownStage(name, int(found["count"]), int(found["bytes"]), found["expires"] / 1000)
    if work is Work.FENCE:
        return KnownFence(name, int(found["epoch"]), _moment(found.get("advanced")))
    last, expires = producers.last_batch(found), found.get("e")
    return KnownProducer(
        name, last, _moment(found.get("decided")), None if last.open or expires is None else int(expires) / 1000
    )


def _moment(stored: int | None) -> Seconds | None:
    return None if stored is None else stored / 1000
