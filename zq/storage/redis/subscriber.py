# SPDX-License-Identifier: Apache-2.0
"""A thread that reads published messages on its own redis-py connection.

Two threads must not use a TLS connection concurrently, so this thread also sends all commands on the connection. Other
threads cannot wake the thread. Every ``patience`` seconds, it checks for pending commands and for a call of ``close``.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, Final

from redis.exceptions import ConnectionError

from zq.storage.redis.connections import RETIRED, VENDOR, Pool

LOG = logging.getLogger(__name__)
LOST: Final = "%s: connection to the store's notices lost, retrying: %s"
UNEXPECTED: Final = "%s: unexpected error, reconnecting."
FOUND: Final = "%s: connected to the store's notices again."
# Seconds without input after which the server is pinged, and then seconds without a reply after which the connection is
# closed.
IDLE_SECONDS: Final = 5.0
# Seconds before the second attempt to connect; doubled for each further attempt.
FIRST_DELAY: Final = 0.05
# Maximum seconds between attempts to connect.
MAX_DELAY: Final = 2.0
# Maximum number of notices handled together.
MAX_NOTICE_BATCH: Final = 1000

Notice = list[Any]
"""A notice as sent by the server: kind; pattern of a ``pmessage``; channel; data or number of subscriptions."""
Connection = Any
"""A connection of redis-py."""


class Subscriber(ABC):
    """A thread that reads published messages and reconnects after failures, until ``close`` is called.

    ``patience`` is the maximum number of seconds between two calls of ``send`` while no messages arrive. ``pause`` is
    the number of seconds that the thread sleeps after each read of messages, to read more messages at once.
    """

    def __init__(self, name: str, patience: float, pause: float) -> None:
        self._patience, self._pause = patience, pause
        self._is_lost = False
        self._wait = FIRST_DELAY
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def pool(self) -> Pool | None:
        """Return the connection pool for the next connection attempt, or ``None`` to end the thread."""

    @abstractmethod
    def subscribe(self, connection: Connection) -> None:
        """Subscribe on a new connection."""

    def send(self, connection: Connection) -> bool:
        """Send pending commands. Return ``False`` to close the connection."""
        return True

    @abstractmethod
    def on_notices(self, notices: list[Notice]) -> None:
        """Handle published messages and confirmations of subscriptions, in the order of their arrival."""

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join(1)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                pool = self.pool()
                if pool is None:
                    return
                connection = pool.get_connection()
                try:
                    self._follow(pool, connection)
                finally:
                    connection.disconnect()
                    pool.release(connection)
            except VENDOR as error:
                self._log_loss(error)
            except Exception:  # the thread must survive any failure
                LOG.critical(UNEXPECTED, self._thread.name, exc_info=True)
            self._closed.wait(self._wait)
            self._wait = min(2 * self._wait, MAX_DELAY)

    def _log_loss(self, error: BaseException) -> None:
        if not self._is_lost and not self._closed.is_set():
            self._is_lost = True
            LOG.warning(LOST, self._thread.name, error)

    def _log_recovery(self) -> None:
        self._wait = FIRST_DELAY
        if self._is_lost:
            self._is_lost = False
            LOG.warning(FOUND, self._thread.name)

    def _follow(self, pool: Pool, connection: Connection) -> None:
        self.subscribe(connection)
        last, asked = time.monotonic(), False
        while not self._closed.is_set() and self.send(connection):
            if pool.retired:
                raise ConnectionError(RETIRED)
            notices = self._read(connection)
            if notices:
                self.on_notices(notices)
                self._log_recovery()
                last, asked = time.monotonic(), False
                self._closed.wait(self._pause)
            elif time.monotonic() - last > IDLE_SECONDS:
                if asked:
                    raise ConnectionError("The server does not answer.")
                last, asked = time.monotonic(), True
                connection.send_command("PING", check_health=False)

    # A direct read takes 2.4 µs per notice, redis-py's ``PubSub`` 10 µs. A timeout argument of ``read_response`` would
    # cost two system calls per read.
    def _read(self, connection: Connection) -> list[Notice]:
        found: list[Notice] = []
        patience = self._patience
        while len(found) < MAX_NOTICE_BATCH and connection.can_read(patience):
            found.append(connection.read_response(disable_decoding=True))
            patience = 0
        return found
