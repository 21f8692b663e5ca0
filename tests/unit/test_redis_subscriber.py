# SPDX-License-Identifier: Apache-2.0
"""The thread that hears what Redis tells, on a socket without a server behind it."""

import logging
import socket
import threading
import time

import pytest
from redis.exceptions import ConnectionError

from tests.servers import wait_for
from zq.storage.redis import follower, listener, subscriber
from zq.storage.redis.subscriber import Subscriber

PIECES = 50
SOON = 5


class Wire:
    """A connection that gives at most a record of 100 bytes at a time, as TLS gives 16 KiB."""

    def __init__(self, mine: socket.socket) -> None:
        self.mine, self._sock = mine, self

    def connect(self) -> None: ...

    def disconnect(self) -> None: ...

    def settimeout(self, seconds: float) -> None:
        self.mine.settimeout(seconds)

    def fileno(self) -> int:
        return self.mine.fileno()

    def sendall(self, content: bytes) -> None:
        self.mine.sendall(content)

    def recv(self, most: int) -> bytes:
        return self.mine.recv(min(most, 100))


class Ear(Subscriber):
    """Remembers what it hears. ``errors``: what the next hearings fail with."""

    def __init__(self, pause: float, *errors: Exception) -> None:
        super().__init__("zq-ear", pause)
        self.mine, self.other = socket.socketpair()
        self.errors = list(errors)
        self.read = b""

    def line(self) -> Wire:
        return Wire(self.mine)

    def greeting(self) -> bytes:
        return b"hello"

    def outgoing(self) -> bytes:
        return b""

    def heard(self, read: bytes) -> bytes:
        if self.errors:
            raise self.errors.pop(0)
        self.read += read
        return b""

    def ended(self) -> None:
        self.close()
        self.mine.close()
        self.other.close()


def test_it_pauses_only_when_nothing_more_is_waiting():
    """Many records that are there already are read one after the other."""
    ear = Ear(0.2)
    ear.other.sendall(b"x" * 100 * PIECES)
    began = time.monotonic()
    ear.start()
    wait_for(lambda: len(ear.read) == 100 * PIECES, 0.1 * PIECES, "all is heard")
    assert time.monotonic() - began < 0.1 * PIECES
    ear.ended()


def test_the_first_failure_is_logged_and_the_end_of_it(caplog: pytest.LogCaptureFixture):
    """Once each, however often it fails."""
    caplog.set_level(logging.WARNING, subscriber.__name__)
    ear = Ear(0, *(ConnectionError("-NOPERM") for _ in range(3)))
    ear.start()
    wait_for(lambda: ear.other.send(b"!") and ear.read, SOON, "it hears")
    ear.ended()
    assert [record.msg for record in caplog.records] == [subscriber.LOST, subscriber.FOUND]
    assert "-NOPERM" in caplog.text


def test_no_error_ends_it(caplog: pytest.LogCaptureFixture):
    """One of whoever is told, or what no server should say, is a reason to connect again."""
    ear = Ear(0, KeyError("listener"), ValueError("spoken"))
    ear.start()
    wait_for(lambda: ear.other.send(b"!") and ear.read, SOON, "it hears")
    ear.ended()
    assert [record.msg for record in caplog.records] == [subscriber.UNFORESEEN] * 2


def test_a_reader_whose_thread_cannot_start_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    """The next one who follows tries it again."""
    told = follower.Follower(None, 0)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError):
            told.reader(object())
    assert told._readers == {}


def test_a_refusal_to_wake_waiters_is_not_taken_for_hearing():
    """The right to SUBSCRIBE may be missing."""
    ear = object.__new__(listener.Listener)
    ear._hears = threading.Event()
    with pytest.raises(ConnectionError, match="NOPERM"):
        ear.heard(b"-NOPERM this user has no permissions\r\n")
    assert not ear._hears.is_set()
