# SPDX-License-Identifier: Apache-2.0
"""The MongoDB driver, which stores data in a replica set or a sharded cluster.

Any number of zq servers can share the database. The modules of this package:

- ``layout`` describes the documents in the database.
- ``startup`` connects to the database and creates its collections and indexes.
- ``client`` sends the commands.
- ``group_commit`` executes concurrent requests of the same type in one transaction.

In this package, a time of type ``int``, such as ``now``, is in milliseconds since the Unix epoch.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from zq.errors import StartRefused, Unavailable
from zq.model import LocatedMessage, QueueRef, Seconds, levels
from zq.model.expiry import Expiry, Pace, Steps
from zq.model.levels import Initial
from zq.model.quotas import Usage
from zq.model.stats import Depth, Measure
from zq.storage import browsing
from zq.storage.api import FALSE_FUTURE, Defaults, Storage
from zq.storage.mongodb import layout, startup
from zq.storage.mongodb.claims import ClaimController
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.commits import Commits
from zq.storage.mongodb.counters import MetadataLookup
from zq.storage.mongodb.documents import DocumentController
from zq.storage.mongodb.expiry import ActiveExpiry, PendingDeletes
from zq.storage.mongodb.feed import Feed
from zq.storage.mongodb.history import HistoryController
from zq.storage.mongodb.messages import MessageController
from zq.storage.mongodb.observing import locate
from zq.storage.mongodb.open_posts import OpenPosts
from zq.storage.mongodb.parcels import ParcelController
from zq.storage.mongodb.producers import CommitEvents
from zq.storage.mongodb.queue_claimer import QueueClaimers
from zq.storage.mongodb.queues import QueueController, StoreStats
from zq.storage.mongodb.stages import Stages
from zq.storage.mongodb.topics import TopicController
from zq.storage.mongodb.transactions import TransactionController
from zq.storage.mongodb.usage import UsageEstimates
from zq.storage.options import MongodbOptions

SWEPT: Final = Expiry()


class MongoStorage(Defaults):
    """The MongoDB implementation of ``zq.storage.api.Storage``."""

    def __init__(self, client: StoreClient, events: CommitEvents | None = None, expiry: Expiry = SWEPT) -> None:
        self._feed = Feed(client)
        client.listen(self._feed.announce)
        lookup, stages = MetadataLookup(client), Stages(client)
        claimers = QueueClaimers(client)
        open_posts = OpenPosts(client)
        pending_deletes = PendingDeletes(client, self._feed, open_posts)
        commits = Commits(client, stages, claimers, self._feed.announce, events or CommitEvents())
        self._client = client
        self._expiry = expiry
        self._active_expiry = ActiveExpiry(client, pending_deletes, commits)
        self._stats = StoreStats(client)
        self.documents = DocumentController(client)
        self._usages = UsageEstimates(client, self.documents)
        self.queues = QueueController(client, lookup, pending_deletes, self._usages, open_posts)
        self.messages = MessageController(client, claimers, self._feed.announce, open_posts)
        self.claims = ClaimController(client, claimers, self._feed.announce)
        self.history = HistoryController(client, open_posts)
        self.transactions = TransactionController(client, stages, commits)
        self.topics = TopicController(client, self._feed)
        self.parcels = ParcelController(client, self, commits, pending_deletes, self._usages)

    def now(self) -> Seconds:
        """Return the time of the database, in seconds since the Unix epoch.

        The time never decreases, even across zq servers, with one exception: if the stored time is more than
        ``FALSE_FUTURE`` seconds ahead of MongoDB's clock, it is reset to MongoDB's clock.

        The method sends a write that does not wait for secondaries, because a shorter round trip gives a more accurate
        time.
        """
        return self._tell_time(durable=False)

    def clock_lead(self) -> Seconds:
        return 0.0

    def ping(self) -> None:
        self._tell_time(durable=True)

    def _tell_time(self, *, durable: bool) -> Seconds:
        believed = {"$lte": ["$t", {"$add": ["$$NOW", FALSE_FUTURE * 1000]}]}
        step = [{"$set": {"t": {"$cond": [believed, {"$max": ["$t", "$$NOW"]}, "$$NOW"]}}}]
        command: layout.BsonDocument = {"query": {"_id": layout.CLOCK}, "update": step, "upsert": True, "new": True}
        with self._client.verb():
            clock = self._client.modify(command, collection=layout.CLOCK, durable=durable)
        if clock is None:
            raise Unavailable
        return int(clock["t"]) / 1000

    def read_level(self) -> bytes | None:
        with self._client.verb():
            found = self._client.read({"find": layout.CLOCK, "filter": {"_id": layout.LAYOUT}})
        return found[0].get("level") if found else None

    def replace_level(self, former: bytes | None, new: bytes) -> bool:
        command: layout.BsonDocument = {
            "query": {"_id": layout.LAYOUT, "level": {"$in": [former, new]}},
            "update": {"$set": {"level": new}},
            "writeConcern": {"w": "majority", "j": True},  # a failover must not undo the change
        }
        with self._client.verb():
            return self._client.modify(command, collection=layout.CLOCK) is not None

    def maintain(self, now: Seconds, expiry: Expiry | None = None, pace: Pace | None = None) -> int:
        self._expiry = expiry or self._expiry
        removed = self._active_expiry.sweep(layout.ms(now), pace or Steps(), expired=self._expiry.sweep)
        self._usages.count_due(now)
        return removed

    def usage(self, project: str, now: Seconds) -> Usage | None:
        return self._usages.usage(project, now)

    def depths(self, now: Seconds, queues: int, max_count: int) -> Sequence[tuple[QueueRef, Depth]]:
        return self._stats.depths(layout.ms(now), queues, max_count)

    def depth(self, queue: QueueRef, now: Seconds, max_count: int) -> Depth:
        return self._stats.depth(layout.key(queue), layout.ms(now), max_count)

    def locate(self, project: str, message: str, now: Seconds) -> LocatedMessage | None:
        with self._client.verb():
            living = locate(self._client, project, message, layout.ms(now))
        return living or browsing.find_latest(self, project, message, now)

    def measures(self, now: Seconds) -> Sequence[Measure]:
        return self._stats.measures(layout.ms(now))

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        self._feed.listen(listener)

    def close(self) -> None:
        self._feed.close()
        self._client.pymongo.close()


def connect(uri: str, expiry: Expiry = SWEPT, initial: Initial = levels.initial, **options: Any) -> Storage:
    """Open the store at ``mongodb://hosts/database?options``.

    The keyword arguments are fields of ``MongodbOptions``.

    Raises ``StartRefused`` if the configuration or the database cannot be used, and ``Unavailable`` if the database
    cannot be reached or prepared.
    """
    chosen = MongodbOptions(**options)
    found = startup.parse(uri, chosen.timeout, chosen.database, chosen.write_concern, chosen.journal)
    client, cluster = startup.connect(found)
    try:
        is_new = startup.check_layout(client, found.database, initial)
        if cluster:
            startup.check_sharded(client, found.database)
        startup.ensure_indexes(client, found.database)
        startup.ensure_feed(client, found.database)
        if is_new:
            startup.store_layout(client, found.database, initial)
    except (StartRefused, Unavailable):
        client.close()
        raise
    opened = StoreClient(client, found.database, chosen.timeout, found.durable, cluster, chosen.drawn_sequences)
    return MongoStorage(opened, expiry=expiry)


def prepare(uri: str, **options: Any) -> None:
    """Create the collections and indexes, as ``zq-server --init-store`` does. On a cluster, also shard ``messages``."""
    chosen = MongodbOptions(**options)
    found = startup.parse(uri, chosen.timeout, chosen.database, chosen.write_concern, chosen.journal)
    client, cluster = startup.connect(found)
    try:
        startup.check_layout(client, found.database)
        if cluster:
            startup.shard(client, found.database)
        startup.ensure_indexes(client, found.database)
        startup.ensure_feed(client, found.database)
        startup.store_layout(client, found.database)
    finally:
        client.close()
