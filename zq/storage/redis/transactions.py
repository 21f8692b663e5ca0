# SPDX-License-Identifier: Apache-2.0
"""Fences, stages and commits in Redis. All of a project is in one place, so the decision on a commit is one script."""

from collections.abc import Sequence

from zq.errors import ProducerNotFound
from zq.model import MOST_STAGED, Bounds, Commit, Committed, Draft, Once, QueueRef, Seconds, Unfinished
from zq.storage.extensions import BOUNDS
from zq.storage.redis import layout, opened, refusals, scripts, stages
from zq.storage.redis.committing import Attempt
from zq.storage.redis.port import Question
from zq.storage.redis.refusals import checked
from zq.storage.redis.store import Store


class TransactionController:
    """``zq.storage.api.TransactionController`` on Redis."""

    least_slice = 40

    def __init__(self, store: Store) -> None:
        self._store = store

    def advance_fence(self, project: str, name: str) -> int:
        whole = layout.whole(project)
        return int(self._store.run(scripts.FENCE, whole, layout.text(name), more=[layout.keys(whole).fences]))

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
        moment, keys = layout.ms(now), layout.keys(queue)
        expires = moment + ttl * 1000
        self._store.expect(layout.whole(project), expires, moment)
        least = min(draft.ttl for draft in drafts) * 1000
        terms = [
            b"%d" % moment,
            layout.text(stage),
            keys.name,
            *(b"%d" % term for term in (expires, most_bytes, most_messages, least)),
        ]
        more = [keys.transactions, layout.content(project, stage)]
        if once is not None:
            answers, remembered = self._store.answers(queue, once, moment)
            more.append(answers)
            terms += [*remembered, refusals.ids(drafts)]
        pairs = [part for draft in drafts for part in (layout.record(draft, 0), draft.body)]
        checked(self._store.run(scripts.STAGE, queue, *terms, *pairs, more=more), once)

    def drop_stage(self, project: str, stage: str) -> None:
        whole = layout.whole(project)
        more = [layout.keys(whole).transactions, layout.content(project, stage)]
        self._store.run(scripts.STAGE_DROP, whole, layout.text(stage), more=more)

    def commit(self, commit: Commit, now: Seconds, bounds: Bounds = BOUNDS) -> Committed:
        return Attempt(self._store, commit, layout.ms(now), bounds).run()

    def carry_on(self, project: str, producer: str, most: int, now: Seconds) -> bool:
        return opened.carry_on(self._store, project, producer, most, layout.ms(now))

    def unfinished(self, now: Seconds) -> Sequence[Unfinished]:
        return opened.unfinished(self._store, layout.ms(now))

    def last(self, project: str, producer: str, now: Seconds) -> Committed:
        keys, name = layout.keys(layout.whole(project)), layout.text(producer)
        told = self._store.port.each(
            [Question(keys.anchor, (b"HGET", key, name)) for key in (keys.open, keys.producers)]
        )
        if told[1] is None or stages.expiry(told[1]) <= layout.ms(now):
            raise ProducerNotFound("The producer has committed nothing, or nothing for long.")
        return stages.committed(told[1], is_open=told[0] is not None)
