# SPDX-License-Identifier: Apache-2.0
"""Threads of the gunicorn engine on a machine that has no more of them."""

import threading
from queue import SimpleQueue
from typing import Any

import pytest

from zq.engines.gthread.pool import Pool


def test_threads_that_run_serve_all_when_no_more_can_be_started(monkeypatch: pytest.MonkeyPatch):
    served: SimpleQueue[Any] = SimpleQueue()
    held = threading.Event()

    def serve(connection: Any) -> None:
        held.wait(30)
        served.put(connection)

    pool = Pool("test", 4, serve)
    pool.submit("first")  # type: ignore[arg-type]

    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    for name in ("second", "third"):
        pool.submit(name)  # type: ignore[arg-type]
    held.set()
    assert [served.get(timeout=30) for _ in range(3)] == ["first", "second", "third"]
    pool.close(30)


def test_a_pool_without_any_thread_says_so(monkeypatch: pytest.MonkeyPatch):
    """The request is not left waiting for nobody: its connection is ended by whoever asked."""

    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", full)
    pool = Pool("test", 4, lambda _: None)
    with pytest.raises(RuntimeError):
        pool.submit("first")  # type: ignore[arg-type]
    pool.close(0)
