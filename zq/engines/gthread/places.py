# SPDX-License-Identifier: Apache-2.0
"""The connections of a process: how many there may be, of one address and together, and who goes for whom."""

import socket
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Final

from zq import strain
from zq.engines.gthread import answers, listeners
from zq.engines.gthread.connections import READING, Connection, State
from zq.settings import Settings
from zq.strain import Reason

SETTLED: Final = 1.0
"""Seconds after which a connection that waits for its client may be closed in favour of a new one."""
SHARE: Final = 16
"""One in so many of those is closed at a time: a flood of new ones must not look for one each."""
MAX_BUFFERED: Final = 256 << 20
"""Bytes of requests that are not whole and of answers that are not taken, of all connections."""
FULL: Final = "The server has too many connections. Try again later."


class Places:
    """Who is here, by descriptor; used by the loop only, but that others may look on."""

    def __init__(self, chosen: Settings) -> None:
        self.taken: dict[int, Connection] = {}
        self._most = listeners.room_for(chosen.max_connections)
        self._most_of_address = chosen.max_connections_per_address
        self._counts_addresses = not chosen.behind_proxy
        self._addresses: Counter[bytes] = Counter()

    def take(self, connection: Connection) -> bool:
        """A place for a new connection; False if there is none, and it has been told so."""
        connection.address = listeners.address(connection.peer)
        crowded = self._counts_addresses and self._addresses[connection.address] >= self._most_of_address
        full = crowded or len(self.taken) >= self._most
        if full and not self.make_room(connection.address if crowded else None):
            _turn_away(connection)
            return False
        self._addresses[connection.address] += 1
        self.taken[connection.fd] = connection
        return True

    def has(self, connection: Connection) -> bool:
        """Whether it has not been closed. Its descriptor may be that of another by now."""
        return self.taken.get(connection.fd) is connection

    def close(self, connection: Connection) -> None:
        """Its place is free again. May be called twice."""
        if not self.has(connection):
            return
        del self.taken[connection.fd]
        self._addresses[connection.address] -= 1
        if self._addresses[connection.address] <= 0:
            del self._addresses[connection.address]
        connection.sock.close()  # epoll forgets it

    def make_room(self, address: bytes | None = None) -> bool:
        """Close some connections, of an address if one is given, that have waited longest for their clients."""
        before = time.monotonic() - SETTLED
        waiting = [
            each
            for each in list(self.taken.values())
            if each.state in READING and each.moved < before and address in (None, each.address)
        ]
        waiting.sort(key=lambda each: each.moved)
        for connection in waiting[: 1 + len(waiting) // SHARE]:
            strain.note(Reason.CONNECTIONS)
            self.close(connection)
        return bool(waiting)

    def bound_memory(self) -> None:
        """Close connections that hold too much together, those first whose clients have done nothing for longest."""
        connections = list(self.taken.values())
        excess = sum(each.buffered for each in connections) - MAX_BUFFERED
        if excess > 0:
            for connection in _longest_still(connections):
                if excess > 0 and connection.buffered and connection.state is not State.WORK:
                    excess -= connection.buffered
                    strain.note(Reason.MEMORY)
                    self.close(connection)


def _longest_still(connections: Iterable[Connection]) -> list[Connection]:
    return sorted(connections, key=lambda each: each.moved)


def _turn_away(connection: Connection) -> None:
    strain.note(Reason.CONNECTIONS)
    connection.receive()  # what is unread when a connection is closed takes the answer with it
    with suppress(OSError):
        answers.send(connection.sock, answers.refusal(HTTPStatus.SERVICE_UNAVAILABLE, FULL, retry=True))
        connection.sock.shutdown(socket.SHUT_WR)
    connection.sock.close()
