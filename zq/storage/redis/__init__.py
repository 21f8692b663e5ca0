# SPDX-License-Identifier: Apache-2.0
"""The Redis driver: any number of zq servers on one Redis or Valkey server, a master behind Sentinels, or a cluster.

``layout`` is what lies in Redis, the ``.lua`` files are the verbs, ``port`` sends them, ``network`` knows where to,
``address`` reads URIs, ``store`` is what the controllers share, ``guard`` has the checks at start.
"""

from collections.abc import Callable, Sequence

from zq.errors import StartRefused
from zq.expiry import Expiry, Pace, Steps
from zq.measures import Depth, Measure
from zq.model import QueueRef, Seconds
from zq.storage.redis import address, guard, layout, network, scripts
from zq.storage.redis.claims import ClaimController
from zq.storage.redis.figures import Figures
from zq.storage.redis.follower import Follower
from zq.storage.redis.history import HistoryController
from zq.storage.redis.listener import Listener
from zq.storage.redis.messages import MessageController
from zq.storage.redis.port import Port
from zq.storage.redis.queues import QueueController
from zq.storage.redis.records import RecordController
from zq.storage.redis.store import Store
from zq.storage.redis.sweeper import Sweeper
from zq.storage.redis.topics import TopicController
from zq.storage.redis.transactions import TransactionController

SWEPT = Expiry()
FALSE_FUTURE = 60_000_000
"""Microseconds ahead of Redis's clock at which the largest moment seen is not believed."""


class RedisStorage:
    """``zq.storage.api.Storage`` on Redis."""

    def __init__(self, port: Port, expiry: Expiry, database: int) -> None:
        self._port = port
        self._expiry = expiry
        store = Store(port)
        self._sweeper = Sweeper(store)
        self._figures = Figures(store)
        self._follower = Follower(port.network, database)
        self._listener: Listener | None = None
        self.queues = QueueController(store)
        self.messages = MessageController(store)
        self.claims = ClaimController(store)
        self.history = HistoryController(store)
        self.transactions = TransactionController(store)
        self.topics = TopicController(store, self._follower)
        self.records = RecordController(store)

    def now(self) -> Seconds:
        return self._clock(scripts.CLOCK)

    def doubted(self) -> Seconds:
        return 0.0

    def ping(self) -> None:
        self._clock(scripts.PING)

    def configure(self, expiry: Expiry) -> None:
        self._expiry = expiry

    def maintain(self, now: Seconds, pace: Pace | None = None) -> int:
        return self._sweeper.sweep(layout.ms(now), pace or Steps()) if self._expiry.sweep else 0

    def depths(self, now: Seconds, queues: int, most: int) -> Sequence[tuple[QueueRef, Depth]]:
        return self._figures.depths(layout.ms(now), queues, most)

    def measures(self, now: Seconds) -> Sequence[Measure]:
        return self._figures.measures(layout.ms(now))

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        if self._listener is None:
            self._listener = Listener(self._port.network, listener)
        self._listener.hear = listener

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        self._follower.close()
        self._port.close()

    def _clock(self, script: scripts.Script) -> Seconds:
        key = layout.CLOCK_KEY
        return float(self._port.run(script, key, 1, layout.wire(key), b"%d" % FALSE_FUTURE)) / 1_000_000


def connect(uri: str, timeout: float = 5.0, wait_replicas: int = 0, expiry: Expiry = SWEPT) -> RedisStorage:
    """Open a store (forms of the URI: see ``address``). Raises ``StartRefused`` or ``Unavailable`` with a sentence.

    ``timeout``: seconds within which every verb answers. ``wait_replicas``: how many replicas must have a change before
    it is acknowledged.
    """
    if timeout <= 0 or wait_replicas < 0:
        raise StartRefused("[storage:redis] timeout must be above 0, and wait_replicas 0 or more.")
    where = address.parse(uri)
    port = Port(network.reach(where, timeout), timeout, wait_replicas)
    try:
        guard.check(port, where, wait_replicas)
        return RedisStorage(port, expiry, where.db)
    except BaseException:
        port.close()
        raise
