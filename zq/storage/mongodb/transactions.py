# SPDX-License-Identifier: Apache-2.0
"""Fences, stages and commits of the MongoDB store."""

from collections.abc import Sequence

from zq.errors import ProducerNotFound
from zq.model import MOST_STAGED, Bounds, Commit, Committed, Draft, Once, QueueRef, Seconds, Unfinished
from zq.storage.extensions import BOUNDS
from zq.storage.mongodb import fences, layout, stages
from zq.storage.mongodb.commits import Commits
from zq.storage.mongodb.port import Port
from zq.storage.mongodb.stages import Stages, Staging


class TransactionController:
    """``zq.storage.api.TransactionController`` on MongoDB."""

    least_slice = 100
    """A transaction takes 6 ms before its first message."""

    def __init__(self, port: Port, keeper: Stages, commits: Commits) -> None:
        self._port = port
        self._stages = keeper
        self._commits = commits

    def advance_fence(self, project: str, name: str) -> int:
        with self._port.verb():
            return fences.advance(self._port, project, name)

    def stage(
        self,
        project: str,
        stage: str,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        ttl: int,
        most_bytes: int,
        once: Once | None = None,
        most_messages: int = MOST_STAGED,
    ) -> None:
        moment = layout.ms(now)
        self._stages.add(
            Staging(project, stage, queue, drafts, moment, moment + ttl * 1000, most_bytes, most_messages, once)
        )

    def drop_stage(self, project: str, stage: str) -> None:
        self._stages.drop(stages.identity(project, stage))

    def commit(self, commit: Commit, now: Seconds, bounds: Bounds = BOUNDS) -> Committed:
        return self._commits.commit(commit, layout.ms(now), bounds)

    def carry_on(self, project: str, producer: str, most: int, now: Seconds) -> bool:
        return self._commits.carry_on(project, producer, most, layout.ms(now))

    def unfinished(self, now: Seconds) -> Sequence[Unfinished]:
        return self._commits.unfinished()

    def last(self, project: str, producer: str, now: Seconds) -> Committed:
        found = self._commits.last(project, producer, layout.ms(now))
        if found is None:
            raise ProducerNotFound("The producer has committed nothing, or not for long.")
        return found
