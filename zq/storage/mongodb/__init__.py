# SPDX-License-Identifier: Apache-2.0
"""The MongoDB driver: a replica set or a sharded cluster, shared by any number of zq servers.

``layout`` is what lies in the database, ``address`` and ``schema`` the way in, ``port`` the server's commands;
``combine`` lets those that wait go together: posts in ``posting``, claims and pops in ``taking``, and ``deletions``.
"""

from collections.abc import Callable, Sequence
from typing import Final

from zq.errors import StartRefused, Unavailable
from zq.expiry import Expiry, Pace, Steps
from zq.measures import Depth, Measure
from zq.model import QueueRef, Seconds
from zq.storage.mongodb import address, layout, schema, steps
from zq.storage.mongodb.claims import ClaimController
from zq.storage.mongodb.commits import Commits
from zq.storage.mongodb.feed import Feed
from zq.storage.mongodb.figures import Figures
from zq.storage.mongodb.history import HistoryController
from zq.storage.mongodb.live import Live
from zq.storage.mongodb.messages import MessageController
from zq.storage.mongodb.port import Port
from zq.storage.mongodb.queues import QueueController
from zq.storage.mongodb.records import RecordController
from zq.storage.mongodb.removal import Removal
from zq.storage.mongodb.stages import Stages
from zq.storage.mongodb.sweeper import Sweeper
from zq.storage.mongodb.takers import Takers
from zq.storage.mongodb.topics import TopicController
from zq.storage.mongodb.transactions import TransactionController

SWEPT: Final = Expiry()
FALSE_FUTURE: Final = 60_000
"""Milliseconds by which the largest moment seen may be ahead of the server's clock before it is disbelieved."""


class MongoStorage:
    """``zq.storage.api.Storage`` on MongoDB."""

    def __init__(self, port: Port, watcher: steps.Steps | None = None, expiry: Expiry = SWEPT) -> None:
        """``watcher`` is told of the steps of commits, for tests of what becomes of them half-way."""
        self._feed = Feed(port)
        self._live = Live(port, self._feed)
        takers, stages = Takers(port, self._feed.announce), Stages(port)
        removal = Removal(port, self._live.purged)
        commits = Commits(port, stages, takers, self._feed.announce, watcher or steps.Unwatched())
        self._port = port
        self._expiry = expiry
        self._sweeper = Sweeper(port, removal, commits)
        self._figures = Figures(port)
        self.queues = QueueController(port, removal)
        self.messages = MessageController(port, takers, self._feed.announce)
        self.claims = ClaimController(port, takers, self._feed.announce)
        self.history = HistoryController(port)
        self.transactions = TransactionController(port, stages, commits)
        self.topics = TopicController(port, removal, self._live)
        self.records = RecordController(port)

    def now(self) -> Seconds:
        """The server's time, never less than what any zq server was told before.

        Answered by the primary alone: the sooner it comes, the better it tells the time.
        """
        return self._tell_time(durable=False)

    def doubted(self) -> Seconds:
        return 0.0

    def ping(self) -> None:
        self._tell_time(durable=True)

    def _tell_time(self, *, durable: bool) -> Seconds:
        believed = {"$lte": ["$t", {"$add": ["$$NOW", FALSE_FUTURE]}]}
        step = [{"$set": {"t": {"$cond": [believed, {"$max": ["$t", "$$NOW"]}, "$$NOW"]}}}]
        command: layout.Document = {"query": {"_id": layout.CLOCK}, "update": step, "upsert": True, "new": True}
        with self._port.verb():
            clock = self._port.modify(command, collection=layout.CLOCK, durable=durable)
        if clock is None:
            raise Unavailable("The store does not tell its time.")
        return int(clock["t"]) / 1000

    def configure(self, expiry: Expiry) -> None:
        self._expiry = expiry

    def maintain(self, now: Seconds, pace: Pace | None = None) -> int:
        return self._sweeper.sweep(layout.ms(now), pace or Steps(), expired=self._expiry.sweep)

    def depths(self, now: Seconds, queues: int, most: int) -> Sequence[tuple[QueueRef, Depth]]:
        return self._figures.depths(layout.ms(now), queues, most)

    def measures(self, now: Seconds) -> Sequence[Measure]:
        return self._figures.measures(layout.ms(now))

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        self._feed.listen(listener)

    def close(self) -> None:
        self._live.close()
        self._feed.close()
        self._port.client.close()


def connect(
    uri: str,
    *,
    timeout: float = 5.0,
    database: str = "zq",
    write_concern: str = "majority",
    journal: bool = True,
    expiry: Expiry = SWEPT,
) -> MongoStorage:
    """Open ``mongodb://hosts/database?options``. Raises ``StartRefused``, ``Unavailable`` with a sentence.

    ``timeout``: seconds within which every verb ends. ``database`` holds the store if the URI names none.
    ``write_concern`` (``majority`` or a number of servers) and ``journal`` hold where the URI does not say otherwise.
    """
    found = address.parse(uri, timeout, database, write_concern, journal)
    client, cluster = address.connect(found)
    try:
        if cluster:
            schema.check_sharded(client, found.database)
        schema.ensure_indexes(client, found.database)
        schema.ensure_feed(client, found.database)
    except (StartRefused, Unavailable):
        client.close()
        raise
    return MongoStorage(Port(client, found.database, timeout, found.durable, cluster), expiry=expiry)


def prepare(
    uri: str,
    *,
    timeout: float = 5.0,
    database: str = "zq",
    write_concern: str = "majority",
    journal: bool = True,
) -> None:
    """Make the collection and its indexes, and shard it on a cluster: once, before the first server (--init-store)."""
    found = address.parse(uri, timeout, database, write_concern, journal)
    client, cluster = address.connect(found)
    try:
        if cluster:
            schema.shard(client, found.database)
        schema.ensure_indexes(client, found.database)
        schema.ensure_feed(client, found.database)
    finally:
        client.close()
