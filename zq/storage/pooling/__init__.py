# SPDX-License-Identifier: Apache-2.0
"""A store that consists of several stores, called pools.

Each queue is in one pool. All other data is in the first store, the catalogue, which also provides the time and is the
default pool. If a pool is unavailable, its queues are unavailable too. A queue listing fails at the page that would
contain a queue of an unavailable pool.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, cast

from zq.errors import Deposed, Unavailable
from zq.model import LocatedMessage, QueueRef, Seconds
from zq.model.expiry import Expiry, Pace
from zq.model.pools import DEFAULT_POOL
from zq.model.quotas import Usage
from zq.model.stats import Depth, Measure
from zq.storage import browsing
from zq.storage.api import ClaimController, MessageController, QueueController, Storage
from zq.storage.capabilities import HistoryController, LimitedSpace, MissingCapability, TransactionController
from zq.storage.pooling.bindings import Bindings
from zq.storage.pooling.relocation import Relocation
from zq.storage.pooling.routing import Claims, History, Messages, Queues, Transactions
from zq.storage.pooling.stores import Connect, Stores

__all__ = ["PooledStorage"]

LOG = logging.getLogger(__name__)
# Metrics whose maximum is reported, because their sum has no meaning.
MAXIMUM_METRICS: Final = frozenset(
    {"backup_age_seconds", "backup_pause_seconds", "compaction_filter_active", "sweep_lag_seconds"}
)


class PooledStorage:
    """The storage interface over several stores: the catalogue, and the stores of the pools.

    The catalogue contains all data except the queues in pools. If ``virtual`` is true and there is no suitable pool for
    a new queue, the queue is created in the catalogue. Closing the pooled store closes the catalogue.
    """

    is_prompt = False

    def __init__(
        self, catalogue: Storage, connect: Connect, virtual: bool = False, bindings: Bindings | None = None
    ) -> None:
        self.catalogue = catalogue
        self._bindings = bindings = bindings or Bindings(catalogue, virtual)
        self._stores = stores = Stores(catalogue, bindings, connect)
        self.relocation = Relocation(bindings, stores, bindings.freezes)
        parts = (catalogue, bindings, stores)
        self.queues = cast(QueueController, Queues(*parts))
        self.messages = cast(MessageController, Messages(*parts))
        self.claims = cast(ClaimController, Claims(*parts))
        history = catalogue.history if isinstance(catalogue.history, MissingCapability) else History(*parts)
        self.history = cast(HistoryController, history)
        staged = catalogue.transactions
        self.transactions = cast(
            TransactionController, staged if isinstance(staged, MissingCapability) else Transactions(*parts)
        )
        self.topics = catalogue.topics
        self.documents = catalogue.documents

    def pools(self) -> Mapping[str, Storage | None]:
        """Return the store of each pool except the default pool, by pool name. An unavailable store is None."""
        return self._stores.by_name()

    def follow_moves(self, is_shared: bool) -> None:
        """Start to follow the moves of queues between pools. Call this method before the first change of a queue.

        ``is_shared`` is whether other processes can open the catalogue, the store that contains the freezes of moving
        queues.
        """
        self._bindings.freezes.start(is_shared)

    def now(self) -> Seconds:
        return self.catalogue.now()

    def clock_lead(self) -> Seconds:
        return self.catalogue.clock_lead()

    def ping(self) -> None:
        """Check only the catalogue (the first store). An unavailable pool affects only its own queues."""
        self.catalogue.ping()

    def maintain(self, now: Seconds, expiry: Expiry | None = None, pace: Pace | None = None) -> int:
        self._stores.expiry = expiry or self._stores.expiry
        removed = 0
        for store in self._stores.available():
            try:
                removed += store.maintain(now, expiry, pace)
            except Unavailable as error:
                if store is self.catalogue or isinstance(error, Deposed):
                    raise
                LOG.warning("A pool cannot be maintained: %s", error)
        self._bindings.sweep(self._stores.get)
        self._stores.close_removed()
        return removed

    def usage(self, project: str, now: Seconds) -> Usage | None:
        usages = [store.usage(project, now) for store in self._stores.available()]
        used = [usage for usage in usages if usage is not None]
        if len(used) < len(usages):
            return None
        return Usage(
            sum(usage.messages for usage in used),
            sum(usage.bytes for usage in used),
            all(usage.exact for usage in used),
            max(usage.age for usage in used),
        )

    def depths(self, now: Seconds, queues: int, max_count: int) -> Sequence[tuple[QueueRef, Depth]]:
        found = (
            (queue, depth)
            for pool, store in self._all_stores()
            if store is not None
            for queue, depth in store.depths(now, queues, max_count)
            if not self._bindings.freezes.is_frozen(queue) or self._bindings.find(queue) == pool
        )
        return list(islice(found, queues))

    def depth(self, queue: QueueRef, now: Seconds, max_count: int) -> Depth:
        return self._stores.get(self._bindings.find(queue)).depth(queue, now, max_count)

    def locate(self, project: str, message: str, now: Seconds) -> LocatedMessage | None:
        """Find a message in all stores. Return the live message and its queue.

        If no queue contains the message, return the latest of its history entries. Return None if there is none.
        """
        found, absent = list[LocatedMessage](), False
        for pool, store in self._all_stores():
            try:
                located = None if store is None else store.locate(project, message, now)
                if located is not None and self._bindings.find(located.queue) != pool:
                    located = None  # the copy of a queue that moves to another pool
            except Unavailable:
                store = located = None
            absent |= store is None
            if located is not None and located.entry.outcome is None:
                return located
            found += [] if located is None else [located]
        if absent:
            raise Unavailable
        return browsing.select_latest(found)

    def measures(self, now: Seconds) -> Sequence[Measure]:
        """Return the metrics, summed over all stores. For the metrics in ``MAXIMUM_METRICS``, return the maximum."""
        found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        for store in self._stores.available():
            for name, value, labels in (
                (measure.name, measure.value, measure.labels) for measure in store.measures(now)
            ):
                other = found.get((name, labels), 0.0)
                found[name, labels] = max(other, value) if name in MAXIMUM_METRICS else other + value
        return [Measure(name, value, labels) for (name, labels), value in found.items()]

    def has_low_space(self) -> bool:
        """Return whether any open store has little free space. Raises ``OSError`` if every check fails."""
        low, failures = [], []
        for store in self._stores.opened():
            if isinstance(store, LimitedSpace):
                try:
                    low.append(store.has_low_space())
                except OSError as error:
                    failures.append(error)
        if failures and not low:
            raise failures[0]
        return any(low)

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        self._stores.listen(listener)

    def close(self) -> None:
        self._bindings.freezes.stop()
        self._stores.close()

    def _all_stores(self) -> Iterator[tuple[str, Storage | None]]:
        """Yield the name and the store of each pool, the catalogue first. An unavailable store is None."""
        yield DEFAULT_POOL, self.catalogue
        yield from self._stores.by_name().items()
