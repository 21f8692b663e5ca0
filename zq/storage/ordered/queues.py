# SPDX-License-Identifier: Apache-2.0
"""Queues in an ordered store."""

from itertools import islice, takewhile

from zq.model import EndMessage, Grouping, Page, Queue, QueueRef, ReadyMessages, Seconds, Stats
from zq.storage.ordered import groups, layout, scans, startup
from zq.storage.ordered.handle import StoreHandle
from zq.storage.ordered.ready import scan_fresh_times
from zq.storage.ordered.registry import QueueState
from zq.storage.ordered.store import Store


class QueueController:
    """The implementation of ``zq.storage.api.QueueController`` over an ordered store."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle

    def create(self, queue: QueueRef, metadata: bytes, grouping: Grouping = Grouping.NONE) -> bool:
        with self._handle as (store, registry):
            created = registry.ensure(queue, metadata, grouping)
            if created:
                store.wait_durable()
            return created

    def get(self, queue: QueueRef) -> Queue | None:
        with self._handle as (_, registry):
            state = registry.find(queue)
            return None if state is None else Queue(queue, state.metadata, state.grouping)

    def update(self, queue: QueueRef, expected: bytes, metadata: bytes) -> bool:
        with self._handle as (store, registry):
            with registry.locked(queue) as (state,):
                if state is None or state.metadata != expected:
                    return False
                registry.update(state, metadata)
            store.wait_durable()
            return True

    def list(self, project: str, after: str, limit: int) -> Page[Queue]:
        prefix = layout.project_prefix(project)
        start = layout.queue_key(QueueRef(project, after)) + b"\0" if after else prefix
        with self._handle as (store, _):
            queues: list[Queue] = []
            for key, value in store.scan("queues", start, layout.prefix_end(prefix)):
                name = key[len(prefix) :].decode("utf-8", "surrogatepass")
                record = layout.decode_queue(value)
                queues.append(Queue(QueueRef(project, name), record.metadata, record.grouping))
                if len(queues) == limit:
                    break
        return Page(queues, queues[-1].ref.name if queues else None)

    def count(self, project: str) -> int:
        prefix = layout.project_prefix(project)
        with self._handle as (store, _):
            return sum(1 for _ in store.scan("queues", prefix, layout.prefix_end(prefix)))

    def delete(self, queue: QueueRef) -> None:
        with self._handle as (store, registry):
            with registry.locked_or_hidden(queue) as state:
                if state is None:
                    return
                registry.delete(state)
            store.wait_durable()

    def purge(self, queue: QueueRef) -> None:
        with self._handle as (store, registry):
            with registry.locked(queue) as (state,):
                if state is None:
                    return
                registry.purge(state)
            store.wait_durable()

    def stats(self, queue: QueueRef, now: Seconds) -> Stats:
        moment = layout.ms(now)
        with self._handle as (store, registry), registry.locked(queue) as (state,):
            if state is None:
                return Stats()
            total = state.tally.count - _count_expired(store, state, moment)
            claimed = _count_claimed(store, state, moment)
            ends = [scans.find_edge(store, state, moment, newest) if total else None for newest in (False, True)]
        oldest, newest = (edge and EndMessage(edge[1].id, edge[1].created / 1000, edge[0]) for edge in ends)
        return Stats(
            claimed, total - claimed, oldest, newest, state.tally.sequence - startup.initial_value(state.tally.start)
        )

    def ready(self, queue: QueueRef, max_count: int, now: Seconds) -> ReadyMessages:
        moment = layout.ms(now)
        with self._handle as (store, registry):
            state = registry.find(queue)
            if state is None:
                return ReadyMessages()
            if state.grouping:
                with registry.locked(queue):
                    return groups.count_ready(store, state, max_count, moment)
            present = layout.pair.pack(state.number, moment + 1)
            came = state.ready_cursor.entries(store, present) if max_count else iter(())
            ready = (
                1 for key, expires in came if _decode(expires) > moment and _decode(key[-8:]) not in state.reserved
            )
            count = sum(1 for _ in islice(ready, max_count))
            fresh = scan_fresh_times(store, state, moment)
            count += sum(1 for _ in islice(takewhile(lambda available: available <= moment, fresh), max_count - count))
            later = next(store.scan("available", present, state.bounds()[1], spare=True), None)
            moments = [] if later is None else [layout.triple.unpack(later[0])[1]]
            moments += islice((available for available in fresh if available > moment), 1)
        return ReadyMessages(count, min(moments) / 1000 if moments else None)


def _count_expired(store: Store, state: QueueState, now: int) -> int:
    """Count the queue's expired messages that are not removed yet. The scan reads the index entries of all queues."""
    due = store.scan("expiry", layout.number.pack(0), layout.number.pack(now + 1), spare=True)
    number = layout.number.pack(state.number)
    return sum(1 for key, _ in due if key[8:16] == number)


def _count_claimed(store: Store, state: QueueState, now: int) -> int:
    """Count the messages that have a live claim or that a transaction commit in progress will delete."""
    groups = (layout.decode_group(value) for _, value in store.scan("claims", *state.bounds(), spare=True))
    return sum(
        len(sequences) if ends > now else len(state.reserved.intersection(sequences)) for ends, sequences in groups
    )


def _decode(value: bytes) -> int:
    return int.from_bytes(value)
