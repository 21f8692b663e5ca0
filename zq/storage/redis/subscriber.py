# SPDX-License-Identifier: Apache-2.0
"""A thread that hears what a server publishes, on a connection of redis-py of its own.

Whatever is to be sent on that connection goes through the thread too, since no two may use a connection with TLS at
once. So nobody can wake it: it looks every ``patience`` seconds whether there is anything to be sent, or whether it is
closed.

It reads the connection itself: redis-py's ``PubSub`` takes 10 microseconds for a notice, this way it is 2.4. And it
names no timeout to a read, which would take two system calls each: each of them costs the verbs beside it.
"""

import logging
import threading
import time
from abc import ABC, abstractmethod
from typing import Any, Final

from redis.exceptions import ConnectionError

from zq.storage.redis.connections import RETIRED, VENDOR, Pool

LOG = logging.getLogger(__name__)
LOST: Final = "%s: nothing that the store tells is heard, it is tried again: %s"
UNFORESEEN: Final = "%s: failed for a reason that nobody foresaw, it connects again."
FOUND: Final = "%s: what the store tells is heard again."
# Seconds of silence after which the server is asked whether it is there, and again until it is given up.
QUIET: Final = 5.0
# Seconds before the second attempt to connect; they double.
FIRST_WAIT: Final = 0.05
# Seconds between attempts to connect at the most.
LONGEST_WAIT: Final = 2.0
# Notices that are taken together at the most.
TOGETHER: Final = 1000

Notice = list[Any]
"""As the server sends it: kind; pattern if it is a ``pmessage``; channel; data, or how many channels there are."""
Connection = Any
"""One of redis-py."""


class Subscriber(ABC):
    """Connects, and connects again when the connection is lost, until it is closed.

    ``pause``: seconds in which nothing is read, once there was nothing more to be read.
    """

    def __init__(self, name: str, patience: float, pause: float) -> None:
        self._patience, self._pause = patience, pause
        self._deaf = False
        self._wait = FIRST_WAIT
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @abstractmethod
    def pool(self) -> Pool | None:
        """Connections to the server; None: nothing is to be heard any more, and the thread ends."""

    @abstractmethod
    def subscribe(self, connection: Connection) -> None:
        """Subscribe on a new connection."""

    def send(self, connection: Connection) -> bool:
        """Send what else is to be sent now. False: there is nothing to be heard on this connection any more."""
        return True

    @abstractmethod
    def on_notices(self, notices: list[Notice]) -> None:
        """Take what was published or confirmed, in this order."""

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
                self._lost(error)
            except Exception:  # the edge of this thread, which must outlive any one failure
                LOG.critical(UNFORESEEN, self._thread.name, exc_info=True)
            self._closed.wait(self._wait)
            self._wait = min(2 * self._wait, LONGEST_WAIT)

    def _lost(self, error: BaseException) -> None:
        """Said once, until it hears again."""
        if not self._deaf and not self._closed.is_set():
            self._deaf = True
            LOG.warning(LOST, self._thread.name, error)

    def _found(self) -> None:
        self._wait = FIRST_WAIT
        if self._deaf:
            self._deaf = False
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
                self._found()
                last, asked = time.monotonic(), False
                self._closed.wait(self._pause)
            elif time.monotonic() - last > QUIET:
                if asked:
                    raise ConnectionError("The server does not answer.")
                last, asked = time.monotonic(), True
                connection.send_command("PING", check_health=False)

    def _read(self, connection: Connection) -> list[Notice]:
        """All notices that are there, once one is; none after ``patience``."""
        found: list[Notice] = []
        patience = self._patience
        while len(found) < TOGETHER and connection.can_read(patience):
            found.append(connection.read_response(disable_decoding=True))
            patience = 0
        return found
