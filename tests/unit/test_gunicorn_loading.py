# SPDX-License-Identifier: Apache-2.0
"""A worker that takes long to load its application gives signs of life meanwhile."""

import threading

import pytest

from zq.engines import gunicorn
from zq.engines.gthread.worker import LoopWorker
from zq.engines.gunicorn import PatientWorker


def test_signs_of_life_are_given_until_the_application_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it cannot be loaded."""
    worker = PatientWorker.__new__(PatientWorker)
    signs = threading.Semaphore(0)

    def load(_: LoopWorker) -> None:
        for _sign in range(3):
            assert signs.acquire(timeout=60)
        raise RuntimeError("no store")

    monkeypatch.setattr(gunicorn, "BEAT", 0.01)
    monkeypatch.setattr(LoopWorker, "load_wsgi", load)
    monkeypatch.setattr(worker, "notify", signs.release)
    with pytest.raises(RuntimeError, match="no store"):
        worker.load_wsgi()
    (beating,) = [thread for thread in threading.enumerate() if thread.name == "zq-loading"] or [None]
    if beating is not None:
        beating.join(60)
        assert not beating.is_alive()
