# SPDX-License-Identifier: Apache-2.0
"""The embedded driver: a RocksDB directory, owned by one process with many threads. The default store of zq.

``port`` is the key-value store, ``layout`` what lies in it, ``change`` how messages are written, ``ready`` and
``listing`` how they are found, ``registry`` the queues in memory, ``log`` the logs of topics, ``keeper`` the way in for
every verb. Locks are taken in the order stripes, queues, registry; a log's lock alone.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from msgspec import structs

from zq.errors import StartRefused, StoreDamaged, Unavailable
from zq.expiry import Expiry, Pace, Steps
from zq.measures import Depth, Measure, Report, Salvaged
from zq.model import QueueRef, Seconds
from zq.storage.rocksdb import guard, layout
from zq.storage.rocksdb import salvage as salvaging
from zq.storage.rocksdb.claims import ClaimController
from zq.storage.rocksdb.figures import Figures
from zq.storage.rocksdb.guard import StorageClock
from zq.storage.rocksdb.history import HistoryController
from zq.storage.rocksdb.integrity import Integrity
from zq.storage.rocksdb.keeper import Keeper
from zq.storage.rocksdb.messages import MessageController
from zq.storage.rocksdb.opening import refusal, warn_of_others
from zq.storage.rocksdb.port import SYNC_MODES, Store
from zq.storage.rocksdb.queues import QueueController
from zq.storage.rocksdb.records import RecordController
from zq.storage.rocksdb.registry import Around
from zq.storage.rocksdb.remover import Remover
from zq.storage.rocksdb.stripes import Stripes
from zq.storage.rocksdb.survey import Survey
from zq.storage.rocksdb.sweeper import Sweeper
from zq.storage.rocksdb.topics import TopicController
from zq.storage.rocksdb.transactions import TransactionController

FILTERED: Final = "bodies"
"""The family that the compaction filter works on."""
NUDGE: Final = 60.0
"""Seconds."""
COMPACTING: Final = 1.0
"""Seconds after which no further log is compacted at once."""


class RocksStorage:
    """``zq.storage.api.Storage`` on RocksDB."""

    def __init__(self, keeper: Keeper, max_clock_jump: int) -> None:
        self._keeper = keeper
        stripes = Stripes()
        self._sweeper = Sweeper(keeper, stripes)
        self._remover = Remover(keeper)
        self._figures = Figures(keeper, self._sweeper, self._remover)
        self._configuring = threading.Lock()
        self._compacted = -math.inf
        self._clock = StorageClock()
        with keeper as (store, _):
            guard.check_version(store)
            guard.check_clock(store, self._clock, max_clock_jump)
        self._held = self._clock.doubted > 0
        keeper.hold_filter(self._held)
        keeper.trust()
        self.queues = QueueController(keeper)
        self.messages = MessageController(keeper)
        self.claims = ClaimController(keeper, stripes)
        self.history = HistoryController(keeper)
        self.transactions = TransactionController(keeper, stripes)
        self.topics = TopicController(keeper)
        self.records = RecordController(keeper, stripes)
        self._remover.start()

    def now(self) -> Seconds:
        moment = self._clock.now()
        if self._held != (self._clock.doubted > 0):
            self._hold_filter()
        return moment

    def doubted(self) -> Seconds:
        return self._clock.doubted

    def ping(self) -> None:
        self._record_clock()
        self._keeper.around.damage.check()

    def configure(self, expiry: Expiry) -> None:
        with self._configuring:
            filtered = self._keeper.around.expiry.compaction_filter
            self._keeper.around.configure(expiry)
            if filtered != expiry.compaction_filter:
                self._keeper.reopen()
            self._compacted = -math.inf

    def maintain(self, now: Seconds, pace: Pace | None = None) -> int:
        self._record_clock()
        self._compact()
        return self._sweeper.sweep(layout.ms(now), pace or Steps())

    def depths(self, now: Seconds, queues: int, most: int) -> Sequence[tuple[QueueRef, Depth]]:
        return self._figures.depths(layout.ms(now), queues, most)

    def measures(self, now: Seconds) -> Sequence[Measure]:
        return self._figures.measures(layout.ms(now))

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        self._keeper.around.listener = listener

    def close(self) -> None:
        self._remover.close()
        self._keeper.close()

    def _record_clock(self) -> None:
        self.now()
        with self._keeper as (store, _):
            guard.record_clock(store, self._clock)
            store.settle()

    def _hold_filter(self) -> None:
        """The filter goes by the machine's clock, whatever is thought of it here."""
        with self._configuring:
            held = self._clock.doubted > 0
            with suppress(Unavailable):  # tried again at the next reading
                self._keeper.hold_filter(held)
                self._held = held

    def _compact(self) -> None:
        """Once a minute, have the bodies compacted that the filter has not seen for long (see ``compaction``), and the
        batches of topics that were removed, which are few and large: no file is full of them soon. What fell off goes
        log by log, as far as one gets in a second."""
        moment = time.monotonic()
        if moment - self._compacted >= NUDGE:
            self._compacted = moment
            with self._keeper as (store, registry):
                if store.filtering and store.may_compact(FILTERED):
                    store.compact_after(FILTERED, self._keeper.around.expiry.compaction_interval)
                store.flush_removals("batches")
                for gone in registry.logs.wastes() if store.may_compact("batches") else ():
                    store.compact_range(gone)
                    if time.monotonic() > moment + COMPACTING:
                        break


def connect(
    uri: str,
    sync: str = "always",
    sync_interval: float = 1.0,
    max_clock_jump: int = 172800,
    expiry: Expiry | None = None,
) -> RocksStorage:
    """Open ``rocksdb:///absolute/path`` or ``rocksdb:relative/path``. Raises ``StartRefused`` with a sentence.

    ``sync``: see ``port.Store``. ``max_clock_jump``: seconds that the clock may be ahead of the store's last use.
    """
    if sync not in SYNC_MODES:
        raise StartRefused(f"[storage:rocksdb] sync must be one of {', '.join(SYNC_MODES)}; it is {sync!r}.")
    path = _path(uri)
    warn_of_others(path)
    around = Around(expiry or Expiry())

    def open_store() -> Store:
        filtered = FILTERED if around.expiry.compaction_filter else ""
        return Store(path, layout.FAMILIES, sync, sync_interval, filtered, around.damage)

    try:
        keeper = Keeper(open_store, around)
        try:
            return RocksStorage(keeper, max_clock_jump)
        except (StartRefused, Unavailable):
            keeper.close()
            raise
    except StoreDamaged as damage:
        raise refusal(path, damage.__cause__ or damage) from damage


def check(uri: str) -> Report:
    """Compare all parts of a store with each other. Raises ``StartRefused`` if it is in use, or not there."""
    path = _path(uri)
    if not (path / "CURRENT").exists():
        raise StartRefused(f"There is no store in {path}.")
    try:
        survey = Survey(path)
    except StartRefused:
        raise
    except Exception as error:
        raise refusal(path, error) from error
    try:
        guard.check_readable(survey)
        report = Integrity(survey, layout.ms(StorageClock().now())).report()
        return structs.replace(report, damage=[*survey.notes, *map(str, survey.gaps())])
    finally:
        survey.close()


def salvage(uri: str, to: str) -> Salvaged:
    """Write what can be read of a store into a new one, a path or a URI. Raises ``StartRefused``."""
    return salvaging.salvage(_path(uri), _path(to) if ":" in to else Path(to), layout.ms(StorageClock().now()))


def _path(uri: str) -> Path:
    """The directory that a URI names."""
    parts = urlsplit(uri)
    path = Path(unquote(parts.path))
    if parts.netloc or not parts.path or path == Path("/"):
        raise StartRefused(f"A RocksDB store is rocksdb:///absolute/path or rocksdb:relative/path; it is {uri!r}.")
    return path
