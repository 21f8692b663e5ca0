# SPDX-License-Identifier: Apache-2.0
"""Keeps the store open: every verb passes through here, and after a failed write the store is opened anew.

A write that fails (a full disk, say) leaves RocksDB refusing all others until it is opened again, and memory may know
counters that never reached the disk. So once no verb is in flight any more, the next one closes the store, forgets the
memory and opens both afresh, at most once a second; until that succeeds every verb raises ``Unavailable``.
A store is opened anew on request too, for options that need it; then verbs wait instead.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from zq.errors import StartRefused, Unavailable
from zq.storage.rocksdb import starts
from zq.storage.rocksdb.port import Store
from zq.storage.rocksdb.registry import Around, Registry

LOG = logging.getLogger(__name__)
PAUSE = 1.0


class Opened(NamedTuple):
    """What a verb works on."""

    store: Store
    registry: Registry


class Keeper:
    """``with keeper as (store, registry):`` is one verb."""

    def __init__(self, open_store: Callable[[], Store], around: Around) -> None:
        self._open_store = open_store
        self._gate = threading.Condition(threading.Lock())
        self._active = 0
        self._reopening = False
        self._closed = False
        self._tried = 0.0
        self._past: Counter[str] = Counter()
        self._trusted = False
        self._held = False
        self.around = around
        self._opened: Opened | None = self._open()

    def __enter__(self) -> Opened:
        with self._gate:
            while self._reopening:
                self._gate.wait()
            opened = self._opened
            if opened is None or opened.store.failure is not None:
                opened = self._renew()
            self._active += 1
            return opened

    def __exit__(self, *_: object) -> None:
        with self._gate:
            self._active -= 1
            if self._reopening:
                self._gate.notify_all()

    def totals(self, store: Store) -> Counter[str]:
        """``Store.totals``, those of the stores before this one included."""
        return self._past + store.totals()

    def trust(self) -> None:
        """The store and the clock have been checked: sequences may be given out and expired bodies destroyed, in stores
        opened later too. Before this no queue is asked for."""
        with self as (store, _):
            self._opened = self._begin(store)
        self._trusted = True

    def hold_filter(self, held: bool) -> None:
        """Have no expired bodies destroyed by compactions, in stores opened later too, or have them again. The caller
        is within no verb. Raises ``Unavailable``."""
        self._held = held
        if self._trusted:
            with self as (store, _):
                store.let_filter(not held)

    def reopen(self) -> None:
        """Close the store and open it anew between verbs, which wait meanwhile. The caller is within none."""
        with self._gate:
            self._gate.wait_for(lambda: not self._reopening)
            self._reopening = True
            try:
                self._gate.wait_for(lambda: not self._active)
                if self._opened is not None and not self._closed:
                    self._shut(self._opened.store)
                    self._opened = self._open()
            except (StartRefused, Unavailable):
                LOG.exception("The store could not be opened anew; the next verb tries again.")
            finally:
                self._reopening = False
                self._gate.notify_all()

    def close(self) -> None:
        """Close the store once the verbs in flight are done; later ones raise ``Unavailable``."""
        with self._gate:
            self._closed = True
        while self._active:
            time.sleep(0.01)
        with self._gate:
            if self._opened is not None:
                self._shut(self._opened.store)

    def _open(self) -> Opened:
        store = self._open_store()
        try:
            return self._begin(store) if self._trusted else Opened(store, Registry(store, self.around))
        except Unavailable:
            store.close()
            raise

    def _begin(self, store: Store) -> Opened:
        opened = Opened(store, Registry(store, self.around, starts.count(store)))
        store.let_filter(not self._held)
        return opened

    def _shut(self, store: Store) -> None:
        self._past += store.totals()
        self._opened = None
        store.close()

    def _renew(self) -> Opened:
        moment = time.monotonic()
        if self._closed or self._active or moment - self._tried < PAUSE:
            raise Unavailable("The store cannot serve now. Try again later.")
        self._tried = moment
        if self._opened is not None:
            LOG.error("The store failed and is opened anew.", exc_info=self._opened.store.failure)
            self._shut(self._opened.store)
        try:
            self._opened = self._open()
        except StartRefused as refusal:
            LOG.error("The store cannot be opened anew: %s", refusal)
            raise Unavailable("The store cannot serve now. Try again later.") from refusal
        LOG.warning("The store is open again.")
        return self._opened
