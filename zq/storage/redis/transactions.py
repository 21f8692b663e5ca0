# SPDX-License-Identifier: Apache-2.0
"""Fences, stages and commits in Redis. All of a project is in one place, so a commit is one script."""

from collections.abc import Sequence

from zq.errors import ProducerNotFound
from zq.model import Commit, Committed, Draft, Held, Once, QueueRef, Seconds
from zq.storage.redis import layout, refusals, scripts, stages
from zq.storage.redis.layout import Block
from zq.storage.redis.refusals import checked
from zq.storage.redis.store import Store

RESTAGED = [b"restaged"]


class TransactionController:
    """``zq.storage.api.TransactionController`` on Redis."""

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
    ) -> None:
        moment, keys = layout.ms(now), layout.keys(queue)
        expires = moment + ttl * 1000
        self._store.expect(layout.whole(project), expires, moment)
        least = min(draft.ttl for draft in drafts) * 1000
        terms = [
            b"%d" % moment,
            layout.text(stage),
            keys.name,
            *(b"%d" % term for term in (expires, most_bytes, least)),
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

    def commit(self, commit: Commit, now: Seconds) -> Committed:
        moment, whole = layout.ms(now), layout.whole(commit.project)
        fence = (layout.text(commit.fence.name), commit.fence.epoch) if commit.fence else (b"", 0)
        ends = moment + commit.ttl * 1000
        self._store.expect(whole, ends, moment)
        held = list(dict.fromkeys(commit.settle))
        names = list(dict.fromkeys(commit.publish))
        claimed = [block for item in held for block in self._claimed(item, moment)]
        contents = [layout.content(commit.project, name) for name in names]
        front = [b"%d" % moment, layout.text(commit.producer), b"%d" % commit.batch, b"%d" % ends, fence[0]]
        while True:
            packed = self._staged(whole, names)
            targets = self._targets(commit.project, packed, moment)
            numbers = fence[1], len(names), len(held), len(targets)
            terms = front + [b"%d" % number for number in numbers]
            terms += [term for name, stage in zip(names, packed, strict=True) for term in (layout.text(name), stage)]
            terms += [term for item in held for term in (layout.text(item.claim), b"%d" % item.history)]
            terms += [layout.full(target) for target in targets]
            more = [layout.keys(whole).transactions, *contents, *claimed, *(layout.keys(to).target for to in targets)]
            reply = self._store.run(scripts.COMMIT, whole, *terms, more=more)
            if reply != RESTAGED:
                told = checked(reply)
                return stages.committed(told[1:], told[:1] == b"\1")

    def last(self, project: str, producer: str, now: Seconds) -> Committed:
        keys = layout.keys(layout.whole(project))
        packed = self._store.port.command(keys.anchor, b"HGET", keys.producers, layout.text(producer))
        if packed is None or stages.expiry(packed) <= layout.ms(now):
            raise ProducerNotFound("The producer has committed nothing, or nothing for long.")
        return stages.committed(packed, False)

    def _claimed(self, item: Held, moment: int) -> list[Block]:
        return [layout.keys(item.queue).target, *self._store.history(item.queue, item.history, moment)]

    def _staged(self, whole: QueueRef, names: Sequence[str]) -> list[bytes]:
        """What is kept of each stage; b"" for one that is not there."""
        if not names:
            return []
        keys = layout.keys(whole)
        found = self._store.port.command(keys.anchor, b"HMGET", keys.stages, *(layout.text(name) for name in names))
        return [stage or b"" for stage in found]

    def _targets(self, project: str, packed: Sequence[bytes], moment: int) -> list[QueueRef]:
        """The queues that the stages hold messages for; the sweeper knows when these will expire."""
        lives: dict[str, int] = {}
        for stage in packed:
            for name, least in stages.least_lives(stage).items():
                lives[name] = min(least, lives.get(name, least))
        targets = {QueueRef(project, name): least for name, least in lives.items()}
        for target, least in targets.items():
            self._store.expect(target, moment + least, moment)
        return list(targets)
