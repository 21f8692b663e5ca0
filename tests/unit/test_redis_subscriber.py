# SPDX-License-Identifier: Apache-2.0
"""The thread that reads notices from Redis, on a stub connection."""

import logging
import threading
import time
from typing import Any

import pytest
from redis.exceptions import ConnectionError

from tests.servers import wait_for
from zq.storage.redis import notices, subscriber
from zq.storage.redis.subscriber import Notice, Subscriber

PIECES = 300
SOON = 60


class Said:
    """A stub connection. ``notices``: messages to receive, exceptions being raised."""

    def __init__(self, notices: list[Any]) -> None:
        self.notices = notices
        self.pings = 0

    def disconnect(self) -> None: ...

    def can_read(self, timeout: float) -> bool:
        if not self.notices:
            time.sleep(timeout)
        return bool(self.notices) and not (timeout == 0 and isinstance(self.notices[0], Exception))

    def read_response(self, *, disable_decoding: bool) -> Notice:
        notice = self.notices.pop(0)
        if isinstance(notice, Exception):
            raise notice
        return [b"message", b"channel", notice]

    def send_command(self, name: str, *, check_health: bool) -> None:
        self.pings += name == "PING"


class Pool:
    """A pool of one connection."""

    retired = False

    def __init__(self, said: Said) -> None:
        self.said = said

    def get_connection(self) -> Said:
        return self.said

    def release(self, connection: Said) -> None: ...


class Ear(Subscriber):
    """A subscriber that records notices. ``errors``: exceptions that reading the next ones raises."""

    def __init__(self, notices: list[Any], pause: float = 0, *errors: Exception):
        super().__init__("zq-ear", 0.001, pause)
        self.said, self.errors, self.read = Said(notices), list(errors), []
        self.server = Pool(self.said)

    def pool(self) -> Any:
        return self.server

    def subscribe(self, connection: Any) -> None: ...

    def on_notices(self, notices: list[Notice]) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.read += notices


def test_the_subscriber_pauses_only_without_pending_notices():
    """Pending notices are read without a pause."""
    ear = Ear([b"x"] * PIECES, 0.2)
    ear.start()
    wait_for(lambda: len(ear.read) == PIECES, 0.1 * PIECES, "all is heard")
    ear.close()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the log messages of the subscriber; threads of an earlier test may log too."""
    return [record.msg for record in caplog.records if record.name == subscriber.__name__]


def test_the_first_failure_is_logged_and_the_end_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Each is logged once, however often the connection fails."""
    caplog.set_level(logging.WARNING, subscriber.__name__)
    ear = Ear([*(ConnectionError("-NOPERM") for _ in range(3)), b"x"])
    ear.start()
    wait_for(lambda: ear.read and len(said(caplog)) == 2, SOON, "it hears")
    ear.close()
    assert said(caplog) == [subscriber.LOST, subscriber.FOUND]
    assert "-NOPERM" in caplog.text


def test_no_error_ends_the_subscriber(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    """After a listener's error or an invalid reply, the thread connects again."""
    ear = Ear([b"x"] * 3, 0, KeyError("listener"), ValueError("said"))
    monkeypatch.setattr(subscriber, "MAX_NOTICE_BATCH", 1)
    ear.start()
    wait_for(lambda: ear.read, SOON, "it hears")
    ear.close()
    assert said(caplog) == [subscriber.UNEXPECTED] * 2


def test_a_silent_server_is_pinged_and_then_disconnected(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """The machine may have disappeared, which the connection does not show."""
    monkeypatch.setattr(subscriber, "IDLE_SECONDS", 0.02)
    ear = Ear([])
    ear.start()
    wait_for(lambda: "does not answer" in caplog.text, SOON, "it is given up")
    ear.close()
    assert ear.said.pings >= 1


def test_a_retired_pool_is_left(caplog: pytest.LogCaptureFixture):
    """The server is not the master any more, so that no notices are published there."""
    ear = Ear([b"x"])
    ear.start()
    wait_for(lambda: ear.read, SOON, "it hears")
    ear.server.retired = True
    wait_for(lambda: "master" in caplog.text, SOON, "it connects again")
    ear.close()


def test_a_reader_whose_thread_cannot_start_is_not_kept(monkeypatch: pytest.MonkeyPatch):
    """The next subscription starts the thread again."""
    told = notices.LogSubscriber(None, 0)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError):
            told.reader(object())
    assert told._readers == {}
