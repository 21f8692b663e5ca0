# SPDX-License-Identifier: Apache-2.0
"""Timeouts for replies of Redis, on a stub connection."""

from types import SimpleNamespace
from typing import Any

import pytest
from redis.exceptions import ConnectionError, ResponseError, TimeoutError

from zq.errors import Unavailable
from zq.storage.redis import client
from zq.storage.redis.client import Client

TIMEOUT = 0.2
NOW = [7.0]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clock by one that only waiting for a reply advances."""
    monkeypatch.setattr(client, "time", SimpleNamespace(monotonic=lambda: NOW[0]))


class Slow:
    """A connection whose reply arrives after ``delay`` seconds, and is raised if it is an exception."""

    def __init__(self, answer: Any, delay: float = 0.0) -> None:
        self.answer, self.due = answer, NOW[0] + delay
        self.is_connected = True

    def send_packed_command(self, packed: list[bytes], check_health: bool) -> None: ...

    def disconnect(self) -> None:
        self.is_connected = False

    def read_response(
        self, *, disable_decoding: bool, timeout: float = TIMEOUT / 4, disconnect_on_error: bool = True
    ) -> Any:
        left = self.due - NOW[0]
        NOW[0] += max(0.0, min(left, timeout))
        if left > timeout:
            self.is_connected = not disconnect_on_error
            raise TimeoutError
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class OneConnection:
    """A network with a single pool."""

    def __init__(self, connection: Slow) -> None:
        self.connection = connection

    def pool(self, key: bytes) -> "OneConnection":
        return self

    def get_connection(self) -> Slow:
        return self.connection

    def release(self, connection: Slow) -> None: ...

    def relearn_later(self) -> None: ...


def ask(connection: Slow) -> Any:
    network: Any = OneConnection(connection)
    return Client(network, TIMEOUT).command(b"key", b"GET", b"key")


@pytest.mark.parametrize("delay", [0.0, TIMEOUT / 3])
def test_an_answer_is_read_until_the_timeout_of_the_verb(delay: float):
    """The reply may take longer than the connection's own timeout, which is a quarter of the verb's."""
    connection = Slow(b"value", delay)
    assert ask(connection) == b"value"
    assert connection.is_connected


def test_a_connection_without_an_answer_is_closed_at_the_timeout():
    """Its reply must not be read as that of the next command."""
    connection, began = Slow(b"value", 2 * TIMEOUT), NOW[0]
    with pytest.raises(Unavailable):
        ask(connection)
    assert NOW[0] - began == pytest.approx(TIMEOUT)
    assert not connection.is_connected


@pytest.mark.parametrize(("answer", "stands"), [(ResponseError("ERR"), True), (ConnectionError("reset"), False)])
def test_a_connection_stays_open_after_an_error_reply_but_not_after_a_failure(answer: Exception, stands: bool):
    """An error reply is complete, so the connection can be used again."""
    connection = Slow(answer)
    with pytest.raises(Unavailable):
        ask(connection)
    assert connection.is_connected is stands
