# SPDX-License-Identifier: Apache-2.0
"""History entries (finished messages that a queue keeps) in Redis."""

from collections.abc import Sequence

from zq.model import UNBOUNDED, HistoryEntry, Page, QueueRef, Seconds, Span, take_portion
from zq.storage.redis import layout, replies, scripts
from zq.storage.redis.store import Store


class HistoryController:
    """The Redis implementation of ``zq.storage.capabilities.HistoryController``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def list(
        self,
        queue: QueueRef,
        marker: int,
        limit: int,
        span: Span | None,
        now: Seconds,
        max_bytes: int = UNBOUNDED,
        newest_first: bool = False,
    ) -> Page[HistoryEntry]:
        if span is None:
            everything = self._read_page(scripts.HISTORY_ALL, queue, marker, (limit, max_bytes), now)
            return Page(everything, str(everything[-1].message.sequence) if everything else None)
        bounds = layout.ms(span.since), layout.ms(min(span.until, layout.MAX_MOMENT))
        script = scripts.HISTORY_NEWEST if newest_first else scripts.HISTORY_LIST
        found = self._read_page(script, queue, marker, (limit, max_bytes), now, *bounds)
        return Page(found, str(found[-1].position) if found else None)

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Sequence[HistoryEntry]:
        moment = layout.ms(now)
        wanted = [layout.pack_id(id) for id in dict.fromkeys(ids)]
        blob = self._store.run(scripts.HISTORY_GET, queue, b"%d" % moment, *wanted, more=[layout.keys(queue).history])
        return replies.finished(blob, 0, moment)

    def _read_page(
        self,
        script: scripts.Script,
        queue: QueueRef,
        marker: int,
        page_limits: tuple[int, int],
        now: Seconds,
        *bounds: int,
    ) -> "Records":
        """Return a page of history entries after ``marker``.

        ``page_limits`` consists of the maximum number of entries and their maximum total size in bytes. ``bounds`` are
        additional arguments of the script.
        """
        limit, max_bytes = page_limits
        moment, position = layout.ms(now), min(marker, layout.MAX_SEQUENCE)
        found: Records = []
        while True:
            left = max_bytes - sum(record.message.size for record in found)
            terms = [b"%d" % number for number in (moment, position, limit - len(found), left, *bounds)]
            blob = self._store.run(script, queue, *terms, more=[layout.keys(queue).history])
            read = found + replies.finished(blob, layout.MOMENT.size, moment)
            found = list(take_portion(read, max_bytes, lambda record: record.message.size))
            position = layout.MOMENT.unpack_from(blob)[0]
            if not position or len(found) < len(read):
                return found


Records = list[HistoryEntry]
