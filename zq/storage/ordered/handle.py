# SPDX-License-Identifier: Apache-2.0
"""The handle through which every operation uses the open store. It reopens the store after a failed write.

After a failed write, for example on a full disk, a store may reject all writes until it is reopened. Counters in memory
may also differ from the counters on disk. New operations therefore raise ``Unavailable`` until all running operations
have ended. The next operation discards the state in memory and reopens the store. If that fails, the next attempt is
made after at least a second. If another process has opened the store meanwhile, it may, for example, have moved the
data to another store. From then on, operations raise ``Deposed``, so that a server ends.

The store is also reopened if new options require it. Meanwhile, operations wait.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from zq.errors import Deposed, StartRefused, Unavailable
from zq.storage import inline
from zq.storage.ordered import startup
from zq.storage.ordered.registry import EngineContext, Registry
from zq.storage.ordered.store import Store

LOG = logging.getLogger(__name__)
# Minimum seconds between two attempts to open a failed store.
REOPEN_INTERVAL: Final = 1.0


class Session(NamedTuple):
    """The open store and registry that an operation uses."""

    store: Store
    registry: Registry


class StoreHandle:
    """A handle that reopens the store after failures. Operations run within ``with handle as (store, registry):``."""

    def __init__(self, open_store: Callable[[], Store], context: EngineContext, admit: Callable[[Store], None]) -> None:
        """Open the store, and check it with ``admit`` before the first operation.

        ``admit`` raises ``StartRefused`` if the store must not be used.
        """
        self._open_store = open_store
        self._gate = threading.Condition(threading.Lock())
        self._active = 0
        self._reopening = False
        self._closed = False
        self._tried = 0.0
        self._id = os.urandom(16)
        self._deposed = False
        self.context = context
        self._session: Session | None = self._open(admit)

    def __enter__(self) -> Session:
        with self._gate:
            # A reopening waits for this thread's ticket, so a further operation of the request must not wait for it.
            ticket = inline.current()
            while self._reopening and not (ticket is not None and ticket.keeps_open):
                self._gate.wait()
            session = self._session
            if session is None or session.store.failure is not None:
                session = self._renew()
            self._active += 1
        if session.store.contended:
            try:
                session.store.prove()
            except Unavailable:
                self._leave()
                raise
        return session

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        session = self._session
        try:
            if kind is None and session is not None and session.store.contended:
                session.store.prove()
        finally:
            ticket = inline.current()
            if ticket is None or not ticket.keep_open(self._leave):  # otherwise the ticket calls ``_leave`` later
                self._leave()

    @property
    def is_prompt(self) -> bool:
        """Whether an operation that reads few entries may run on the event loop's thread; see ``Store.is_prompt``."""
        session = self._session
        return (
            session is not None
            and not self._reopening
            and session.store.failure is None
            and not session.store.contended
            and session.store.is_prompt
        )

    def _leave(self) -> None:
        with self._gate:
            self._active -= 1
            if self._reopening:
                self._gate.notify_all()

    def reopen(self) -> None:
        """Wait until no operation is running, then close and reopen the store. Must not be called within an operation.

        If the store cannot be reopened, the next operation tries again.
        """
        with self._gate:
            self._gate.wait_for(lambda: not self._reopening)
            self._reopening = True
            try:
                self._gate.wait_for(lambda: not self._active)
                if self._session is not None and not self._closed:
                    self._shut(self._session.store)
                    self._session = self._open_again()
            except (StartRefused, Unavailable):
                LOG.exception("The store could not be reopened.")
            finally:
                self._reopening = False
                self._gate.notify_all()

    def close(self) -> None:
        """Wait until no operation is running, then close the store. Later operations raise ``Unavailable``."""
        with self._gate:
            self._closed = True
        while self._active:
            time.sleep(0.01)
        with self._gate:
            if self._session is not None:
                self._shut(self._session.store)

    def _open(self, admit: Callable[[Store], None]) -> Session:
        store = self._open_store()
        try:
            admit(store)
            return Session(store, Registry(store, self.context, startup.count_start(store, self._id)))
        except (StartRefused, Unavailable):
            store.close()
            raise

    def _open_again(self) -> Session:
        return self._open(lambda store: startup.check_opener(store, self._id))

    def _shut(self, store: Store) -> None:
        self._session = None
        store.close()

    def _renew(self) -> Session:
        if self._deposed:
            raise Deposed(startup.OPENED_BY_OTHER)
        moment = time.monotonic()
        if self._closed or self._active or moment - self._tried < REOPEN_INTERVAL:
            raise Unavailable
        self._tried = moment
        if self._session is not None:
            LOG.error("The store failed and is being reopened.", exc_info=self._session.store.failure)
            self._shut(self._session.store)
        try:
            self._session = self._open_again()
        except Deposed:
            self._deposed = True
            raise
        except StartRefused as refusal:
            LOG.error("The store cannot be reopened: %s", refusal)
            raise Unavailable from refusal
        LOG.warning("The store was reopened.")
        return self._session
