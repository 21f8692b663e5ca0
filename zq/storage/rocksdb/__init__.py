# SPDX-License-Identifier: Apache-2.0
"""The embedded driver: a RocksDB directory, owned by one process with many threads. The default store of zq.

``port`` is the key-value store, ``layout`` what lies in it, ``change`` how messages are written, ``ready`` and
``listing`` how they are found, ``registry`` the queues in memory, ``keeper`` the way in for every verb. Locks are taken
in the order stripes, queues, registry.
"""

import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

from zq.errors import StartRefused
from zq.model import QueueRef, Seconds
from zq.storage.rocksdb import guard, layout
from zq.storage.rocksdb.claims import ClaimController
from zq.storage.rocksdb.history import HistoryController
from zq.storage.rocksdb.keeper import Keeper
from zq.storage.rocksdb.messages import MessageController
from zq.storage.rocksdb.port import SYNC_MODES, Store
from zq.storage.rocksdb.queues import QueueController
from zq.storage.rocksdb.stripes import Stripes
from zq.storage.rocksdb.sweeper import Sweeper
from zq.storage.rocksdb.transactions import TransactionController


class RocksStorage:
    """``zq.storage.api.Storage`` on RocksDB."""

    def __init__(self, keeper: Keeper, max_clock_jump: int) -> None:
        self._keeper = keeper
        stripes = Stripes()
        self._sweeper = Sweeper(keeper, stripes)
        self._seen = 0.0
        with keeper as (store, _):
            guard.check_version(store)
            self._seen = guard.check_clock(store, layout.ms(self.now()), max_clock_jump) / 1000
        self.queues = QueueController(keeper)
        self.messages = MessageController(keeper)
        self.claims = ClaimController(keeper, stripes)
        self.history = HistoryController(keeper)
        self.transactions = TransactionController(keeper, stripes)

    def now(self) -> Seconds:
        self._seen = max(self._seen, time.time())
        return self._seen

    def ping(self) -> None:
        self._record_clock()

    def maintain(self, now: Seconds) -> int:
        self._record_clock()
        return self._sweeper.sweep(layout.ms(now))

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        self._keeper.bell.listener = listener

    def close(self) -> None:
        self._keeper.close()

    def _record_clock(self) -> None:
        with self._keeper as (store, _):
            guard.record_clock(store, layout.ms(self.now()))
            store.settle()


def connect(uri: str, sync: str = "always", sync_interval: float = 1.0, max_clock_jump: int = 172800) -> RocksStorage:
    """Open ``rocksdb:///absolute/path`` or ``rocksdb:relative/path``. Raises ``StartRefused`` with a sentence.

    ``sync``: see ``port.Store``. ``max_clock_jump``: seconds that the clock may be ahead of the store's last use.
    """
    if sync not in SYNC_MODES:
        raise StartRefused(f"[storage:rocksdb] sync must be one of {', '.join(SYNC_MODES)}; it is {sync!r}.")
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    if parts.netloc or not parts.path or path == Path("/"):
        raise StartRefused(f"A RocksDB store is rocksdb:///absolute/path or rocksdb:relative/path; it is {uri!r}.")
    keeper = Keeper(lambda: Store(path, layout.FAMILIES, sync, sync_interval))
    try:
        return RocksStorage(keeper, max_clock_jump)
    except StartRefused:
        keeper.close()
        raise
