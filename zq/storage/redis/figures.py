# SPDX-License-Identifier: Apache-2.0
"""What whoever watches the store is told: the depths of its queues, its memory, and how far the sweep is behind."""

from collections.abc import Sequence
from typing import Final

from redis.exceptions import NoPermissionError

from zq.errors import Unavailable
from zq.measures import Depth, Measure
from zq.model import QueueRef
from zq.storage.redis import layout, scripts
from zq.storage.redis.port import Question
from zq.storage.redis.store import Store

PROJECTS: Final = 100
"""Projects whose queues are asked for together."""
QUEUES: Final = 5000
"""Queues whose messages are counted for ``store_messages``: all of them, then."""
DUE: Final = 16
"""Queues of each calendar that are looked at for what waits."""
MOST: Final = 100_000
BY_EXPIRY: Final = ("staging", "producing", "windows:", "fading", "ends")
"""Kinds of a project's sorted sets by expiry."""
CALENDARS: Final = [layout.calendar(number) for number in range(layout.CALENDARS)]


class Figures:
    """The figures of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._port = store.port

    def depths(self, now: int, queues: int, most: int) -> list[tuple[QueueRef, Depth]]:
        """The first queues, in the order of calendars and names, and what is in each."""
        named = self._queues(queues)
        terms = b"%d" % now, b"%d" % most
        told = self._port.each([self._store.question(scripts.DEPTH, queue, *terms) for queue in named])
        return [(queue, _depth(*figures)) for queue, figures in zip(named, told, strict=True)]

    def measures(self, now: int) -> list[Measure]:
        return [*self._store.removals.measures(), *self._memory(), *self._messages(), *self._waiting(now)]

    def _queues(self, most: int) -> list[QueueRef]:
        """The first queues of the store. Calendars name all projects that have any."""
        far = b"%d" % layout.FAR
        bounds = far, far, b"BYSCORE", b"LIMIT", b"0", b"%d" % most
        named = self._port.each([Question(key, (b"ZRANGE", key, *bounds)) for key in CALENDARS])
        projects = [layout.queue_of(member[layout.MOMENT.size :]) for members in named for member in members]
        found: list[QueueRef] = []
        for start in range(0, len(projects), PROJECTS):
            if len(found) >= most:
                break
            part = projects[start : start + PROJECTS]
            last = b"%d" % (most - len(found) - 1)
            keys = [layout.keys(project).names for project in part]
            names = self._port.each([Question(key, (b"ZRANGE", key, b"0", last)) for key in keys])
            for project, its in zip(part, names, strict=True):
                found += [QueueRef(project.project, layout.string(name)) for name in its]
        return found[:most]

    def _memory(self) -> list[Measure]:
        """Of all servers together; nothing where the user must not ask."""
        keys = self._port.one_of_each(CALENDARS)
        try:
            told = self._port.each([Question(key, (b"INFO", b"memory")) for key in keys])
        except Unavailable as unavailable:
            if isinstance(unavailable.__cause__, NoPermissionError):
                return []
            raise
        facts = [dict(line.split(":", 1) for line in one.decode().splitlines() if ":" in line) for one in told]
        used, limit = (sum(int(one[name]) for one in facts) for name in ("used_memory", "maxmemory"))
        return [Measure("store_bytes", used, (("part", "memory"),)), Measure("store_limit_bytes", limit)]

    def _messages(self) -> list[Measure]:
        """How many messages there are; nothing where there are too many queues to count them."""
        queues = self._queues(QUEUES + 1)
        if len(queues) > QUEUES:
            return []
        keys = [layout.keys(queue).avail for queue in queues]
        return [Measure("store_messages", sum(self._port.each([Question(key, (b"ZCARD", key)) for key in keys])))]

    def _waiting(self, now: int) -> list[Measure]:
        """What has expired and is there still: only queues that the calendars have due can have such."""
        bounds = b"-inf", b"%d" % now, b"BYSCORE", b"LIMIT", b"0"
        due = self._port.each([Question(key, (b"ZRANGE", key, *bounds, b"%d" % DUE)) for key in CALENDARS])
        queues = dict.fromkeys(layout.queue_of(member[layout.MOMENT.size :]) for members in due for member in members)
        keys = [key for queue in queues for key in _by_expiry(queue)]
        firsts = self._port.each([Question(key, (b"ZRANGE", key, b"0", b"0", b"WITHSCORES")) for key in keys])
        oldest = min((float(first[1]) for first in firsts if first), default=now)
        named = [layout.keys(queue).expiry for queue in queues if queue.name]
        counts = self._port.each([Question(key, (b"ZCOUNT", key, b"-inf", b"%d" % now)) for key in named])
        return [
            Measure("expired_waiting", min(sum(counts), MOST)),
            Measure("sweep_lag_seconds", max(0.0, now - oldest) / 1000),
        ]


def _depth(ready: int, delayed: int, claimed: int, expired: int, since: int) -> Depth:
    return Depth(ready, delayed, claimed, expired, None if since < 0 else since / 1000)


def _by_expiry(queue: QueueRef) -> Sequence[bytes]:
    """The keys of sorted sets by expiry, of a queue or of a whole project."""
    return layout.keys(queue).by_expiry if queue.name else layout.own(queue.project, *BY_EXPIRY)
