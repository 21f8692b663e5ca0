# SPDX-License-Identifier: Apache-2.0
"""Retired connection pools, without a server."""

import threading
from typing import Any

import pytest
from redis.connection import Connection
from redis.exceptions import ConnectionError

from zq.storage.redis import connections
from zq.storage.redis.connections import Pool

SOON = 60


class Plain(Connection):
    """A connection that opens nothing."""

    is_open = False

    @property
    def is_connected(self) -> bool:
        return self.is_open

    def connect(self) -> None:
        self.is_open = True

    def disconnect(self, *args: Any, **kwargs: Any) -> None:
        self.is_open = False

    def can_read(self, timeout: float = 0) -> bool:
        return False


def pool() -> Pool:
    return Pool(connection_class=Plain, max_connections=3, timeout=0.05)


def test_a_retired_pool_closes_idle_connections_at_once_and_others_when_released():
    """A connection in use stays open until its reply has been read."""
    made = pool()
    used, idle = made.get_connection(), made.get_connection()
    made.release(idle)
    made.retire()
    assert (used.is_open, idle.is_open) == (True, False)
    made.release(used)
    assert not used.is_open


def test_a_retired_pool_gives_no_connection_out():
    """The pool returns neither an idle connection nor a new one."""
    made = pool()
    made.release(made.get_connection())
    made.retire()
    with pytest.raises(ConnectionError):
        made.get_connection()


def test_a_connection_that_is_opened_while_its_pool_is_retired_is_closed():
    """The pool may be retired during the connection's handshake."""
    made = pool()

    class Slow(Plain):
        def connect(self) -> None:
            super().connect()
            made.retire()

    made.connection_class = Slow
    with pytest.raises(ConnectionError, match="master"):
        made.get_connection()
    assert [connection.is_open for connection in made._connections] == [False]


def test_a_waiting_caller_gets_the_next_released_connection():
    """The wait ends with an error after the pool's timeout."""
    made = pool()
    taken = [made.get_connection() for _ in range(3)]
    with pytest.raises(ConnectionError):
        made.get_connection()
    made.timeout = SOON
    threading.Timer(0.05, made.release, [taken[1]]).start()
    assert made.get_connection() is taken[1]


def test_a_recently_released_connection_is_reused_without_a_check(monkeypatch: pytest.MonkeyPatch):
    """The check takes a system call. After a longer idle time it is made, because the server may have disconnected."""
    made, looks = pool(), []
    monkeypatch.setattr(connections, "FRESH_SECONDS", 1000.0)
    monkeypatch.setattr(Plain, "can_read", lambda connection, timeout=0: bool(looks.append(connection)))
    used = made.get_connection()
    looks.clear()
    made.release(used)
    assert made.get_connection() is used
    assert not looks
    monkeypatch.setattr(connections, "FRESH_SECONDS", 0.0)
    made.release(used)
    assert made.get_connection() is used
    assert looks
