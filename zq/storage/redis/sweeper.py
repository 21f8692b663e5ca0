# SPDX-License-Identifier: Apache-2.0
"""Gives back the memory of what has expired, queue by queue as the calendars say. Several servers may do it at once.

A round costs what there is to remove and what the calendars have due, not what lives. An entry is struck off only
after its queue was looked at and the next expiry of that queue is entered, so an interrupted round loses nothing.
"""

from zq.model import QueueRef
from zq.storage.redis import layout, scripts
from zq.storage.redis.store import Store

BATCH = 500
"""Messages that one script removes: it holds up the server for some milliseconds."""
QUEUES = 100
"""Entries read from a calendar at a time."""
MAX_REMOVED = 100_000


class Sweeper:
    """Rounds over all calendars."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._first = 0

    def sweep(self, now: int) -> int:
        """Remove up to about ``MAX_REMOVED`` messages that nobody can see any more; returns how many."""
        removed = 0
        for step in range(layout.CALENDARS):
            number = (self._first + step) % layout.CALENDARS
            removed += self._clear(layout.calendar(number), now, MAX_REMOVED - removed)
            if removed >= MAX_REMOVED:
                self._first = number
                break
        return removed

    def _clear(self, calendar: bytes, now: int, most: int) -> int:
        """Look at every queue that the calendar has due."""
        removed, due = 0, [b""]
        while due and removed < most:
            due = self._due(calendar, now, QUEUES)
            for member in due:
                queue = layout.queue_of(member[layout.MOMENT.size :])
                count = BATCH
                while count == BATCH and removed < most:
                    count, gone, following = self._look(queue, now)
                    removed += gone
                if count == BATCH:
                    break
                self._store.enter(queue, following, member)
        return removed

    def _look(self, queue: QueueRef, now: int) -> tuple[int, int, int]:
        """What went of one kind at most, what went in all, and when there is something to do again (0: never)."""
        terms, keys = [b"%d" % now, b"%d" % BATCH], layout.keys(queue)
        script, more = scripts.SWEEP, [keys.answers, keys.history]
        if queue == layout.whole(queue.project):
            names = self._due(keys.staging, now, BATCH)
            script, more = (
                scripts.SWEEP_PROJECT,
                [keys.transactions, *(layout.content(queue.project, layout.string(name)) for name in names)],
            )
            terms += names
        most, gone, following = self._store.run(script, queue, *terms, more=more)
        return most, gone, following

    def _due(self, key: bytes, now: int, limit: int) -> list[bytes]:
        """The members of a sorted set up to the present moment."""
        terms = b"-inf", b"%d" % now, b"BYSCORE", b"LIMIT", b"0", b"%d" % limit
        found: list[bytes] = self._store.port.command(key, b"ZRANGE", key, *terms)
        return found
