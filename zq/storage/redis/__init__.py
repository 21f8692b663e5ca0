# SPDX-License-Identifier: Apache-2.0
"""The Redis driver, for Redis or Valkey: one server, a master behind Sentinels, or a cluster.

The folder ``lua`` contains the scripts that implement the operations, and ``layout`` describes the keys. ``network``
selects the server for a key, and ``client`` sends commands and scripts.

In this package, a time of type ``int``, such as ``now``, is in milliseconds since the Unix epoch.
"""

from collections.abc import Callable, Sequence
from typing import Any

from zq.errors import StartRefused
from zq.model import LocatedMessage, QueueRef, Seconds, levels
from zq.model.expiry import Expiry, Pace, Steps
from zq.model.levels import Initial
from zq.model.quotas import Usage
from zq.model.stats import Depth, Measure
from zq.storage import browsing
from zq.storage.api import FALSE_FUTURE, Defaults, Storage
from zq.storage.options import RedisOptions
from zq.storage.redis import address, layout, network, scripts, startup
from zq.storage.redis.claims import ClaimController
from zq.storage.redis.client import Client
from zq.storage.redis.documents import DocumentController
from zq.storage.redis.history import HistoryController
from zq.storage.redis.maintenance import ActiveExpiry, StoreStats
from zq.storage.redis.messages import MessageController, locate
from zq.storage.redis.notices import LogSubscriber, QueueSubscriber
from zq.storage.redis.parcels import ParcelController
from zq.storage.redis.queues import QueueController
from zq.storage.redis.store import Store
from zq.storage.redis.topics import TopicController
from zq.storage.redis.transactions import TransactionController

SWEPT = Expiry()


class RedisStorage(Defaults):
    """The Redis implementation of ``zq.storage.api.Storage``."""

    def __init__(self, client: Client, expiry: Expiry, database: int) -> None:
        self._client = client
        self._expiry = expiry
        self._store = store = Store(client)
        self._active_expiry = ActiveExpiry(store)
        self._stats = StoreStats(store)
        self._follower = LogSubscriber(client.network, database)
        self._listener: QueueSubscriber | None = None
        self.queues = QueueController(store)
        self.messages = MessageController(store)
        self.claims = ClaimController(store)
        self.history = HistoryController(store)
        self.transactions = TransactionController(store)
        self.topics = TopicController(store, self._follower)
        self.documents = DocumentController(store)
        self.parcels = ParcelController(store, self)

    def now(self) -> Seconds:
        return self._clock(scripts.CLOCK)

    def clock_lead(self) -> Seconds:
        return 0.0

    def ping(self) -> None:
        self._clock(scripts.PING)

    def read_level(self) -> bytes | None:
        level: bytes | None = self._client.command(layout.LEVEL_KEY, b"GET", layout.LEVEL_KEY)
        return level

    def replace_level(self, former: bytes | None, new: bytes) -> bool:
        return bool(self._client.run(scripts.LEVEL, (layout.LEVEL_KEY,), former or b"", new))

    def maintain(self, now: Seconds, expiry: Expiry | None = None, pace: Pace | None = None) -> int:
        self._expiry = expiry or self._expiry
        return self._active_expiry.sweep(layout.ms(now), pace or Steps()) if self._expiry.sweep else 0

    def usage(self, project: str, now: Seconds) -> Usage | None:
        key = layout.keys(layout.project_ref(project)).usage
        messages, size = self._client.command(key, b"HMGET", key, b"messages", b"bytes")
        return Usage(int(messages or 0), int(size or 0))

    def depths(self, now: Seconds, queues: int, max_count: int) -> Sequence[tuple[QueueRef, Depth]]:
        return self._stats.depths(layout.ms(now), queues, max_count)

    def depth(self, queue: QueueRef, now: Seconds, max_count: int) -> Depth:
        return self._stats.depth(queue, layout.ms(now), max_count)

    def locate(self, project: str, message: str, now: Seconds) -> LocatedMessage | None:
        for queues in browsing.pages(self.queues, project):
            if located := locate(self._store, queues, message, layout.ms(now)):
                return located
        return browsing.find_latest(self, project, message, now)

    def measures(self, now: Seconds) -> Sequence[Measure]:
        return self._stats.measures(layout.ms(now))

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        if self._listener is None:
            self._listener = QueueSubscriber(self._client.network, listener)
        else:
            self._listener.set_listener(listener)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._follower.close()
        self._client.close()

    def _clock(self, script: scripts.Script) -> Seconds:
        return float(self._client.run(script, (layout.CLOCK_KEY,), b"%d" % (FALSE_FUTURE * 1_000_000))) / 1_000_000


def connect(uri: str, expiry: Expiry = SWEPT, initial: Initial = levels.initial, **options: Any) -> Storage:
    """Open the store at a ``redis:``, ``rediss:`` or ``unix:`` URI; see ``zq.storage.redis.address``.

    Raises ``StartRefused`` if the URI or the server is unsuitable, and ``Unavailable`` if the server is unavailable.
    """
    chosen = RedisOptions(**options)
    timeout, wait_replicas = chosen.timeout, chosen.wait_replicas
    if timeout <= 0 or wait_replicas < 0:
        raise StartRefused("[storage:redis] timeout must be greater than 0, and wait_replicas must be 0 or greater.")
    where = address.parse(uri)
    client = Client(network.reach(where, timeout), timeout, wait_replicas)
    try:
        startup.check(client, where, wait_replicas, initial)
        return RedisStorage(client, expiry, where.db)
    except BaseException:
        client.close()
        raise
