# SPDX-License-Identifier: Apache-2.0
"""What the controllers share: scripts run on a queue, and the sweeper told in time what will expire."""

from collections.abc import Iterable
from typing import Final

from zq.measures import Removals
from zq.model import Once, QueueRef
from zq.storage.redis import layout, scripts
from zq.storage.redis.layout import Block
from zq.storage.redis.lines import Reply
from zq.storage.redis.port import Port, Question
from zq.storage.redis.scripts import Script

PROJECT_KEYS: Final = len(layout.PROJECT_KINDS)
QUEUE_KEYS: Final = len(layout.QUEUE_KINDS)
GRID: Final = 15_000
"""Milliseconds to which moments in the calendars are rounded down, so that servers enter the same ones."""
MARGIN: Final = 30_000
"""Milliseconds before an entry's moment from which no new message relies on it: whoever comes at that moment may be
done before the message has arrived."""
BURIAL: Final = 60_000
"""Milliseconds after which a queue is looked at to which messages move whose expiry is known only afterwards, in case a
server dies between moving and saying so."""
MOST_KNOWN: Final = 100_000


class Store:
    """Runs scripts, and keeps the calendars.

    A calendar says when a queue has to be looked at because something may have expired. It lies in another cluster slot
    than the queue, so an entry is made before the message that needs it; one entry serves all that expire later.
    """

    def __init__(self, port: Port) -> None:
        self.port = port
        self.removals = Removals("read", "sweep")
        self._entered: dict[QueueRef, int] = {}
        self._registered: set[str] = set()

    def run(self, script: Script, queue: QueueRef, *arguments: bytes, more: Iterable[Block] = ()) -> Reply:
        """Run a script on a queue, with more keys of the same project."""
        keys = layout.keys(queue)
        packed, count = keys.project + keys.queue, PROJECT_KEYS + QUEUE_KEYS
        for block in more:
            packed, count = packed + block.packed, count + block.number
        return self.port.run(script, keys.anchor, count, packed, *arguments)

    def question(self, script: Script, queue: QueueRef, *arguments: bytes) -> Question:
        """The same for ``Port.each``, of a script that only reads."""
        keys = layout.keys(queue)
        return Question(keys.anchor, arguments, script, PROJECT_KEYS + QUEUE_KEYS, keys.project + keys.queue)

    def history(self, queue: QueueRef, seconds: int, now: int) -> list[Block]:
        """The keys of a queue's history, none for 0 seconds. The sweeper knows of records made at ``now``, in ms."""
        if not seconds:
            return []
        self.expect(queue, now + seconds * 1000, now)
        return [layout.keys(queue).history]

    def answers(self, queue: QueueRef, once: Once, now: int) -> tuple[Block, list[bytes]]:
        """The keys for requests that a queue knows; key, digest and last moment of this one, as scripts take them."""
        expires = now + once.window * 1000
        self.expect(queue, expires, now)
        return layout.keys(queue).answers, [layout.text(once.key), once.digest, b"%d" % expires]

    def expect(self, queue: QueueRef, expires: int, now: int) -> None:
        """Have the queue looked at by ``expires``, in ms: to be called before a message is stored that expires then."""
        entered = self._entered.get(queue, 0)
        if entered <= expires and now < entered - MARGIN:
            return
        moment = max(1, expires // GRID * GRID)
        self.register(queue.project)
        self.enter(queue, moment)
        if len(self._entered) >= MOST_KNOWN:
            self._entered.clear()
        self._entered[queue] = moment

    def register(self, project: str) -> None:
        """Have the project known as one that has queues: to be called before the first one is made."""
        if project not in self._registered:
            self.enter(layout.whole(project), layout.FAR)
            if len(self._registered) >= MOST_KNOWN:
                self._registered.clear()
            self._registered.add(project)

    def enter(self, queue: QueueRef, moment: int, done: bytes = b"") -> None:
        """Enter a moment (0: none) into the queue's calendar and strike ``done`` off."""
        key = layout.calendar_of(queue)
        member = layout.day(queue, moment)
        self.port.run(scripts.EXPECT, key, 1, layout.wire(key), b"%d" % moment, member, done, b"")
