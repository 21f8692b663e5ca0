# SPDX-License-Identifier: Apache-2.0
"""Gives back the memory of what has expired, queue by queue as the calendars say, together with other servers.

A round costs what there is to remove and what the calendars have due, not what lives. Of the rounds of several servers
one works on a calendar at a time, the others go on to the next one; a calendar whose server died is free again after
``LEASE``. An entry is struck off only after its queue was looked at and the next expiry of that queue is entered, so an
interrupted round loses nothing.
"""

import random
import time
from typing import Final
from uuid import uuid4

from zq.expiry import Pace
from zq.model import QueueRef
from zq.storage.redis import batches, layout, scripts
from zq.storage.redis.store import Store

MOST: Final = 300
"""Things that one script removes: it holds up the server for 3 to 4 ms."""
QUEUES: Final = 100
"""Entries read from a calendar at a time."""
LEASE: Final = 5.0
"""Seconds for which a round has a calendar, from its last word on."""


class Sweeper:
    """The rounds of one server."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._first = random.randrange(layout.CALENDARS)

    def sweep(self, now: int, pace: Pace) -> int:
        """One round over all calendars; how many expired messages went."""
        sweep = Round(self._store, now, pace)
        for step in range(layout.CALENDARS):
            number = (self._first + step) % layout.CALENDARS
            sweep.clear(number)
            if sweep.over:
                self._first = number
                break
        return sweep.removed


class Round:
    """One round. ``over``: the pace ended it."""

    def __init__(self, store: Store, now: int, pace: Pace) -> None:
        self._store = store
        self._now = now
        self._pace = pace
        self._name = uuid4().bytes
        self._heard = 0.0
        self.removed = 0
        self.over = False

    def clear(self, number: int) -> None:
        """Look at every queue that the calendar has due, unless another round is at it."""
        due = self._due(number, QUEUES)
        if not due:
            return
        try:
            while due and all(self._look(number, member) for member in due):
                due = self._due(number, QUEUES)
        finally:
            key = layout.sweeper(number)
            self._store.port.run(scripts.DUE_DONE, key, 1, layout.wire(key), self._name)

    def _look(self, number: int, member: bytes) -> bool:
        """Remove what has expired in a queue; whether this round goes on with the calendar."""
        queue = layout.queue_of(member[layout.MOMENT.size :])
        while size := min(self._pace.step(), MOST):
            # The pace may have slept for so long that the calendar is another round's.
            if time.monotonic() - self._heard > LEASE / 2 and not self._due(number, 1):
                return False
            messages, others, following = self._remove(queue, size)
            self.removed += messages
            self._store.removals.add("sweep", messages)
            if messages:
                self._pace.removed(messages, queue)
            if others:
                self._pace.removed(others)
            if messages + others < size:
                self._store.enter(queue, following, member)
                return True
        self.over = True
        return False

    def _due(self, number: int, limit: int) -> list[bytes]:
        """What the calendar has due, which is this round's alone from now on; nothing if it is another one's."""
        keys = layout.calendar(number), layout.sweeper(number)
        terms = b"%d" % self._now, b"%d" % limit, self._name, b"%d" % (LEASE * 1000)
        asked = time.monotonic()
        found: list[bytes] = self._store.port.run(scripts.DUE, keys[0], 2, layout.wire(*keys), *terms)
        self._heard = asked
        return found

    def _remove(self, queue: QueueRef, size: int) -> tuple[int, int, int]:
        """How many messages went, how much else, and when there is something to do again (0: never)."""
        terms, keys = [b"%d" % self._now, b"%d" % size], layout.keys(queue)
        script, more = scripts.SWEEP, [keys.answers, keys.history]
        if queue == layout.whole(queue.project):
            bounds = b"-inf", terms[0], b"BYSCORE", b"LIMIT", b"0", terms[1]
            names = self._store.port.command(keys.staging, b"ZRANGE", keys.staging, *bounds)
            stages = [layout.content(queue.project, layout.string(name)) for name in names]
            script = scripts.SWEEP_PROJECT
            more = [keys.transactions, keys.answers, *batches.whole(queue.project), *stages]
            terms += names
        messages, others, following = self._store.run(script, queue, *terms, more=more)
        return messages, others, following
