# SPDX-License-Identifier: Apache-2.0
"""Queue operations in Redis."""

from typing import Final

from zq.model import EndMessage, Grouping, Page, Queue, QueueRef, ReadyMessages, Seconds, Stats
from zq.model.documents import Guard
from zq.storage.redis import documents, layout, replies, scripts
from zq.storage.redis.store import Store, checked

# Kinds of messages in grouped queues, as stored in their entries.
KINDS: Final = {Grouping.ORDERED: 2, Grouping.FAIR: 3}
# Prefix of a queue's name in the name of the field with its grouping.
GROUPING: Final = b"\0"


class QueueController:
    """The Redis implementation of ``zq.storage.api.QueueController``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, queue: QueueRef, metadata: bytes, grouping: Grouping = Grouping.NONE) -> bool:
        self._store.register_project(queue.project)
        return create(self._store, queue, metadata, grouping)

    def get(self, queue: QueueRef) -> Queue | None:
        keys = layout.keys(queue)
        fields = keys.name, GROUPING + keys.name
        metadata, grouping = self._store.client.command(keys.metadata, b"HMGET", keys.metadata, *fields)
        return None if metadata is None else Queue(queue, metadata, _grouping(grouping))

    def update(self, queue: QueueRef, expected: bytes, metadata: bytes) -> bool:
        return bool(self._store.run(scripts.QUEUE_UPDATE, queue, layout.encode_text(queue.name), expected, metadata))

    def list(self, project: str, after: str, limit: int) -> Page[Queue]:
        start = b"(" + layout.encode_text(after) if after else b"-"
        found = self._store.run(scripts.QUEUE_LIST, QueueRef(project, ""), start, b"%d" % limit)
        queues = [
            Queue(QueueRef(project, layout.decode_text(name)), metadata, _grouping(grouping))
            for name, metadata, grouping in zip(*found, strict=True)
        ]
        return Page(queues, queues[-1].ref.name if queues else None)

    def count(self, project: str) -> int:
        keys = layout.keys(QueueRef(project, ""))
        return int(self._store.client.command(keys.names, b"ZCARD", keys.names))

    def delete(self, queue: QueueRef) -> None:
        delete(self._store, queue)

    def purge(self, queue: QueueRef) -> None:
        self._store.run(scripts.QUEUE_PURGE, queue)

    def ready(self, queue: QueueRef, max_count: int, now: Seconds) -> ReadyMessages:
        moment = b"%d" % layout.ms(now)
        while True:
            found, expired, later = self._store.run(
                scripts.READY, queue, moment, b"%d" % max_count, layout.encode_full_name(queue)
            )
            self._store.removals.add("read", expired)
            if found >= 0:
                return ReadyMessages(min(found, max_count), float(later) / 1000 if later else None)

    def stats(self, queue: QueueRef, now: Seconds) -> Stats:
        moment = b"%d" % layout.ms(now)
        above, below = b"0", b"+inf"
        edges: list[EndMessage | None] = [None, None]
        while True:
            reply = self._store.run(scripts.QUEUE_STATS, queue, moment, above, below)
            claimed, free, entered, *pairs = reply
            for at, blob in enumerate(pairs[::2]):
                edges[at] = edges[at] or _edge(blob)
            oldest, newest = edges
            go_on = (pairs[1] if oldest is None else 0, pairs[3] if newest is None else 0)
            if go_on == (0, 0):
                return Stats(claimed, free, oldest, newest, None if entered < 0 else entered)
            above, below = b"%d" % go_on[0] if go_on[0] else above, b"%d" % go_on[1] if go_on[1] else below


def create(store: Store, queue: QueueRef, metadata: bytes, grouping: Grouping, guard: Guard | None = None) -> bool:
    """Create the queue. Return False if it exists. Raises ``Fenced`` if the guard's document has another value."""
    condition = documents.condition(queue.project, guard)
    terms = layout.encode_text(queue.name), metadata, grouping.encode(), b"%d" % KINDS.get(grouping, 0)
    return bool(checked(store.run(scripts.QUEUE_CREATE, queue, *condition.terms, *terms, more=[condition.keys])))


def delete(store: Store, queue: QueueRef, guard: Guard | None = None, sequence: int | None = None) -> bool:
    """Delete the queue; see ``ParcelController.delete_queue``. Without a guard, delete it unconditionally."""
    keys, condition = layout.keys(queue), documents.condition(queue.project, guard)
    terms = *condition.terms, keys.name, b"%d" % (-1 if sequence is None else sequence)
    more = [condition.keys, keys.answers, keys.history]
    return bool(checked(store.run(scripts.QUEUE_DELETE, queue, *terms, more=more)))


def _grouping(stored: bytes | None) -> Grouping:
    return Grouping(layout.decode_text(stored or b""))


def _edge(blob: bytes) -> EndMessage | None:
    if not blob:
        return None
    found = replies.message(blob, 0, 0)[0]
    return EndMessage(found.id, found.created, found.sequence)
