# SPDX-License-Identifier: Apache-2.0
"""Queues of the embedded store."""

from itertools import islice

from zq.model import Landmark, Page, Queue, QueueRef, Seconds, Stats
from zq.storage.rocksdb import layout, listing, starts
from zq.storage.rocksdb.keeper import Keeper
from zq.storage.rocksdb.port import Store
from zq.storage.rocksdb.registry import QueueState


class QueueController:
    """``zq.storage.api.QueueController`` on RocksDB."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def create(self, queue: QueueRef, metadata: bytes) -> bool:
        with self._keeper as (store, registry):
            created = registry.ensure(queue, metadata)
            if created:
                store.settle()
            return created

    def get(self, queue: QueueRef) -> Queue | None:
        with self._keeper as (_, registry):
            state = registry.find(queue)
            return None if state is None else Queue(queue, state.metadata)

    def update(self, queue: QueueRef, expected: bytes, metadata: bytes) -> bool:
        with self._keeper as (store, registry):
            with registry.held(queue) as (state,):
                if state is None or state.metadata != expected:
                    return False
                registry.update(state, metadata)
            store.settle()
            return True

    def list(self, project: str, after: str, limit: int) -> Page[Queue]:
        prefix = layout.project_prefix(project)
        start = layout.queue_key(QueueRef(project, after)) + b"\0" if after else prefix
        with self._keeper as (store, _):
            queues: list[Queue] = []
            for key, value in store.scan("queues", start, layout.after(prefix)):
                name = key[len(prefix) :].decode("utf-8", "surrogatepass")
                queues.append(Queue(QueueRef(project, name), layout.decode_queue(value).metadata))
                if len(queues) == limit:
                    break
        return Page(queues, queues[-1].ref.name if queues else None)

    def count(self, project: str) -> int:
        prefix = layout.project_prefix(project)
        with self._keeper as (store, _):
            return sum(1 for _ in store.scan("queues", prefix, layout.after(prefix)))

    def delete(self, queue: QueueRef) -> None:
        with self._keeper as (store, registry):
            with registry.known(queue) as state:
                if state is None:
                    return
                registry.drop(state)
            store.settle()

    def purge(self, queue: QueueRef) -> None:
        with self._keeper as (store, registry):
            with registry.held(queue) as (state,):
                if state is None:
                    return
                registry.replace(state)
            store.settle()

    def stats(self, queue: QueueRef, now: Seconds) -> Stats:
        moment = layout.ms(now)
        with self._keeper as (store, registry), registry.held(queue) as (state,):
            if state is None:
                return Stats()
            total = state.tally.count - _expired(store, state, moment)
            claimed = _claimed(store, state, moment)
            ends = [listing.edge(store, state, moment, newest) if total else None for newest in (False, True)]
        oldest, newest = (edge and Landmark(edge[1].id, edge[1].created / 1000, edge[0]) for edge in ends)
        return Stats(claimed, total - claimed, oldest, newest)

    def entered(self, queue: QueueRef) -> int | None:
        with self._keeper as (_, registry):
            state = registry.find(queue)
            return None if state is None else state.tally.sequence - starts.origin(state.tally.start)

    def ready(self, queue: QueueRef, most: int, now: Seconds) -> int:
        moment = layout.ms(now)
        with self._keeper as (store, registry):
            state = registry.find(queue)
            if state is None:
                return 0
            came = state.front.entries(store, layout.pair.pack(state.number, moment + 1))
            ready = (1 for key, expires in came if _moment(expires) > moment and _moment(key[-8:]) not in state.pinned)
            return sum(1 for _ in islice(ready, most))

    def due(self, queue: QueueRef, now: Seconds) -> Seconds | None:
        with self._keeper as (store, registry):
            state = registry.find(queue)
            if state is None:
                return None
            lower = layout.pair.pack(state.number, layout.ms(now) + 1)
            first = next(store.scan("available", lower, state.bounds()[1], spare=True), None)
        return None if first is None else layout.triple.unpack(first[0])[1] / 1000


def _expired(store: Store, state: QueueState, now: int) -> int:
    """Messages of the queue that have expired and wait for the sweeper; grows with its arrears, of all queues."""
    due = store.scan("expiry", layout.number.pack(0), layout.number.pack(now + 1), spare=True)
    number = layout.number.pack(state.number)
    return sum(1 for key, _ in due if key[8:16] == number)


def _claimed(store: Store, state: QueueState, now: int) -> int:
    """Messages under a live claim, or pinned; grows with the claimed, lapsed ones included."""
    entries, pinned = store.scan("claims", *state.bounds(), spare=True), state.pinned
    return sum(1 for key, ends in entries if _moment(ends) > now or _moment(key[-8:]) in pinned)


def _moment(value: bytes) -> int:
    return int.from_bytes(value)
