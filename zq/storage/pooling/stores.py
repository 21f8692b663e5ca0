# SPDX-License-Identifier: Apache-2.0
"""The open stores of pools. A store is opened on first use, and closed after its pool is removed."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from zq.errors import StartRefused, Unavailable
from zq.model import QueueRef
from zq.model.expiry import Expiry
from zq.model.pools import DEFAULT_POOL
from zq.storage.api import Storage
from zq.storage.pooling.bindings import Bindings

LOG = logging.getLogger(__name__)
# Minimum seconds between two attempts to open a store.
RETRY_INTERVAL: Final = 2.0
# Seconds after which the store of a removed pool is closed. No request then uses it any more.
GRACE: Final = 60.0

# Opens the store with a URI and expiry options. Raises ``StartRefused`` or ``Unavailable``.
Connect = Callable[[str, Expiry | None], Storage]


class _OpenStore(Struct):
    uri: str
    storage: Storage
    gone: float | None = None
    """The time at which the pool was removed, or None if it exists."""


class Stores:
    """The stores of all pools. ``catalogue`` is the store of the default pool."""

    def __init__(
        self, catalogue: Storage, bindings: Bindings, connect: Connect, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._catalogue = catalogue
        self._bindings = bindings
        self._connect = connect
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._opening: dict[str, threading.Lock] = {}
        self._opened: dict[str, _OpenStore] = {}
        self._removed: list[_OpenStore] = []
        self._failed: dict[str, float] = {}
        self._listener: Callable[[QueueRef], None] | None = None
        self.expiry: Expiry | None = None
        """The expiry options of stores that are opened from now on, or None for their defaults."""

    def get(self, pool: str) -> Storage:
        """Return the pool's store. Raises ``Unavailable`` if the pool does not exist or its store is unavailable."""
        if pool == DEFAULT_POOL:
            return self._catalogue
        uri = self._uri(pool)
        opened = self._opened.get(pool)
        if opened is not None and opened.uri == uri:
            return opened.storage
        with self._lock:
            opening = self._opening.setdefault(pool, threading.Lock())
        with opening:
            opened = self._opened.get(pool)
            if opened is None or opened.uri != uri:
                opened = self._open(pool, uri)
            return opened.storage

    def available(self) -> Iterator[Storage]:
        """Yield the stores of all available pools, the catalogue first."""
        yield self._catalogue
        for store in self.by_name().values():
            if store is not None:
                yield store

    def opened(self) -> Sequence[Storage]:
        """Return the open stores, the catalogue first."""
        with self._lock:
            return [self._catalogue, *(each.storage for each in self._opened.values())]

    def by_name(self) -> Mapping[str, Storage | None]:
        """Return the store of each pool except the default pool, by pool name. An unavailable store is None."""
        found: dict[str, Storage | None] = {}
        for pool in self._bindings.pools():
            try:
                found[pool] = self.get(pool)
            except Unavailable as error:
                LOG.warning("The store of the pool %s cannot be used: %s", pool, error)
                found[pool] = None
        return found

    def listen(self, listener: Callable[[QueueRef], None]) -> None:
        with self._lock:
            self._listener = listener
        for storage in self.opened():
            storage.listen(listener)

    def close_removed(self) -> None:
        """Close each store that has been unused for at least ``GRACE`` seconds.

        A store becomes unused when its pool is removed or is changed to another store.
        """
        now, pools = self._monotonic(), self._bindings.pools()
        with self._lock:
            for name in [name for name in self._opened if name not in pools]:
                self._removed.append(self._opened.pop(name))
            for opened in self._removed:
                opened.gone = opened.gone or now
            late = [opened for opened in self._removed if opened.gone is not None and opened.gone + GRACE < now]
            self._removed = [opened for opened in self._removed if opened not in late]
        for opened in late:
            opened.storage.close()

    def close(self) -> None:
        with self._lock:
            opened = [*self._opened.values(), *self._removed]
            self._opened, self._removed = {}, []
        for each in opened:
            each.storage.close()
        self._catalogue.close()

    def _uri(self, pool: str) -> str:
        known = self._bindings.pools().get(pool) or self._bindings.pools(fresh=True).get(pool)
        if known is None:
            raise Unavailable(f"The pool {pool} no longer exists.")
        return known.uri

    def _open(self, pool: str, uri: str) -> _OpenStore:
        if self._failed.get(uri, 0.0) > self._monotonic():
            raise Unavailable(f"The store of the pool {pool} does not answer. Try again later.")
        try:
            storage = self._connect(uri, self.expiry)
        except (StartRefused, Unavailable) as failure:
            self._failed[uri] = self._monotonic() + RETRY_INTERVAL
            raise Unavailable(f"The store of the pool {pool} does not answer. Try again later.") from failure
        self._failed.pop(uri, None)
        with self._lock:
            if pool in self._opened:
                self._removed.append(self._opened[pool])
            opened = self._opened[pool] = _OpenStore(uri, storage)
            listener = self._listener
        if listener is not None:
            storage.listen(listener)
        return opened
