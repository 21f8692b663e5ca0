# SPDX-License-Identifier: Apache-2.0
"""Topics of the embedded store."""

from collections.abc import Sequence

from zq.errors import Unavailable
from zq.model import Once, Seconds, Stats
from zq.storage.rocksdb import layout, reading
from zq.storage.rocksdb.feed import Feed
from zq.storage.rocksdb.keeper import Keeper
from zq.storage.rocksdb.log import Log
from zq.storage.rocksdb.once import check_key, key_writes
from zq.storage.rocksdb.port import Store
from zq.topics import Batch, Entry, Keep, Listener, Pattern, Reading, TopicRef


class TopicController:
    """``zq.storage.api.TopicController`` on RocksDB."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._feed = Feed()

    def publish(
        self, topic: TopicRef, entries: Sequence[Entry], now: Seconds, keep: Keep, once: Once | None = None
    ) -> int:
        moment = layout.ms(now)
        with self._keeper as (store, registry):
            log = registry.logs.ensure(topic.project)
            with log.lock:
                check_key(store, log, once, int, moment)
                batch = Batch(topic.name, log.view.record.last + 1, moment / 1000, list(entries))
                log.append(store, batch, keep, key_writes(log, once, batch.sequence, moment))
                self._feed.line_up(log, batch.last, batch)
            self._settle(store, log, batch.last)
        return batch.sequence

    def read(self, project: str, after: int, limit: int, pattern: Pattern) -> Reading:
        after = max(after, 0)
        with self._keeper as (store, registry):
            log = registry.logs.find(project)
            if log is None:
                return Reading([], after, False, 0, 0, registry.logs.origin)
            return reading.read(store, log, after, limit, pattern)

    def purge(self, topic: TopicRef) -> None:
        with self._keeper as (store, registry):
            log = registry.logs.find(topic.project)
            if log is None:
                return
            with log.lock:
                last = log.view.record.last
                newest = reading.newest(store, log, topic.name)
                if newest is not None:
                    log.set_floor(store, topic.name, newest)
                    self._feed.line_up(log, last, None)
            self._settle(store, log, last)

    def stats(self, topic: TopicRef, now: Seconds) -> Stats:
        with self._keeper as (store, registry):
            log = registry.logs.find(topic.project)
            return Stats() if log is None else reading.stats(store, log, topic.name, now)

    def listen(self, listener: Listener) -> None:
        self._feed.listener = listener

    def follow(self, project: str) -> None:
        self._feed.follow(project)

    def unfollow(self, project: str) -> None:
        self._feed.unfollow(project)

    def _settle(self, store: Store, log: Log, last: int) -> None:
        try:
            store.settle()
        except Unavailable:
            self._feed.lose(log)
            raise
        self._feed.tell(log, last)
