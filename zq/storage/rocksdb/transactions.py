# SPDX-License-Identifier: Apache-2.0
"""Fences, stages and commits of the embedded store. The decision on a commit is one write."""

from collections.abc import Sequence

from zq.errors import ProducerNotFound
from zq.model import MOST_STAGED, Bounds, Commit, Committed, Draft, Once, QueueRef, Seconds, Unfinished
from zq.storage.extensions import BOUNDS
from zq.storage.rocksdb import commits, fences, layout, stages
from zq.storage.rocksdb.change import Change
from zq.storage.rocksdb.keeper import Keeper
from zq.storage.rocksdb.once import check_key, remember_key
from zq.storage.rocksdb.stripes import Stripes


class TransactionController:
    """``zq.storage.api.TransactionController`` on RocksDB."""

    least_slice = 40

    def __init__(self, keeper: Keeper, stripes: Stripes) -> None:
        self._keeper = keeper
        self._stripes = stripes

    def advance_fence(self, project: str, name: str) -> int:
        with self._keeper as (store, _):
            with self._stripes.held(fences.name(project, name)):
                epoch = fences.advance(store, project, name)
            store.settle()
        return epoch

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
        prefix = stages.prefix(project, stage)
        with self._keeper as (store, registry):
            staged = False
            while not staged:
                with self._stripes.held(stages.name(prefix)), registry.known(queue) as state:
                    check_key(store, state, once, list[str], moment)
                    key, shelf = stages.open_until(store, registry, prefix, moment, moment + ttl * 1000)
                    change = Change(store)
                    change.also(*stages.addition(key, shelf, queue.name, drafts, (most_bytes, most_messages)))
                    if once is not None and state is not None:
                        remember_key(change, state, once, [draft.id for draft in drafts], moment)
                    if once is None or state is not None:
                        change.commit()
                        staged = True
                if not staged:  # the key is the queue's, and staging makes no queue
                    registry.hide(queue)
            store.settle()

    def drop_stage(self, project: str, stage: str) -> None:
        prefix = stages.prefix(project, stage)
        with self._keeper as (store, _):
            with self._stripes.held(stages.name(prefix)):
                writes = stages.removal_of_all(store, prefix)
                if not writes:
                    return
                store.write(writes)
            store.settle()

    def commit(self, commit: Commit, now: Seconds, bounds: Bounds = BOUNDS) -> Committed:
        with self._keeper as opened:
            with self._stripes.held(*commits.names(commit)):
                committed = commits.run(opened, commit, layout.ms(now), bounds)
            opened.store.settle()
        return committed

    def carry_on(self, project: str, producer: str, most: int, now: Seconds) -> bool:
        with self._keeper as opened:
            with self._stripes.held(commits.producer_name(project, producer)):
                left = commits.carry_on(opened, project, producer, most, layout.ms(now))
            if not left:
                opened.store.settle()
        return left

    def unfinished(self, now: Seconds) -> Sequence[Unfinished]:
        with self._keeper as (store, _):
            return commits.every_open(store)

    def last(self, project: str, producer: str, now: Seconds) -> Committed:
        with self._keeper as (store, _):
            found = commits.last(store, project, producer, layout.ms(now))
            store.settle()  # whoever reads of a batch will not send it again
        if found is None:
            raise ProducerNotFound("The producer has committed nothing, or not for long.")
        return found[1]
