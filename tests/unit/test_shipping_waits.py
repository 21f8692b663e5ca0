# SPDX-License-Identifier: Apache-2.0
"""Waits for uploads and shared uploads, on an object store that the test controls."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.dictionary import Dictionary
from tests.servers import wait_for
from zq.errors import Deposed, Unavailable
from zq.storage.object import entries
from zq.storage.object.epochs import Proof, fence_name, log_name
from zq.storage.object.shipping import Shipper

WRITE = [("messages", b"key", b"value")]
Ship = Callable[..., Shipper]


class Gate(Dictionary):
    """An object store whose puts of the log block until the gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.began = 0

    def put(self, name: str, value: bytes) -> bool:
        self.began += 1
        assert self.open.wait(120)
        return super().put(name, value)


@pytest.fixture
def objects() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def ship(objects: Gate) -> Iterator[Ship]:
    """Yield a function that starts a shipper with options."""
    begun: list[Shipper] = []

    def start(**options: float) -> Shipper:
        proof = Proof(objects, 1, 60, time.monotonic)
        begun.append(Shipper(objects, proof, 0, now=time.time, **options))  # type: ignore[arg-type]
        begun[-1].start()
        return begun[-1]

    yield start
    objects.open.set()
    for shipper in begun:
        shipper.close()


def settle(shipper: Shipper) -> None:
    shipper.append(WRITE, ())
    shipper.wait()


def batches(objects: Gate, position: int) -> int:
    value = objects.get(log_name(1, position))
    return len(entries.decode(value, "a record").batches) if value else 0


def test_a_change_without_a_waiting_caller_is_uploaded_soon(ship: Ship, objects: Gate) -> None:
    """The upload does not wait for another change."""
    shipper = ship()
    settle(shipper)
    shipper.append(WRITE, ())
    wait_for(lambda: batches(objects, 2), 60, "an upload")
    wait_for(lambda: shipper.acknowledged == 2, 60, "its acknowledgement")


def test_waiting_changes_share_an_upload(ship: Ship, objects: Gate) -> None:
    """Changes that arrive during an upload are part of the next one."""
    shipper = ship(uploads=1)
    objects.open.clear()
    with ThreadPoolExecutor(9) as threads:
        first = threads.submit(settle, shipper)
        wait_for(lambda: objects.began == 1, 60, "an upload")
        others = [threads.submit(settle, shipper) for _ in range(8)]
        wait_for(lambda: shipper.waiting_bytes == 9 * len(b"keyvalue"), 60, "eight more")
        assert not first.done()
        objects.open.set()
        for other in others:
            other.result(60)
    assert (batches(objects, 1), batches(objects, 2)) == (1, 8)


def test_uploads_continue_during_a_blocked_one(ship: Ship, objects: Gate) -> None:
    """Up to the limit of uploads run in parallel; they are acknowledged in order, so none before the first."""
    shipper = ship(uploads=3)
    objects.open.clear()
    with ThreadPoolExecutor(3) as threads:
        settled = []
        for number in range(3):
            settled.append(threads.submit(settle, shipper))
            wait_for(lambda: objects.began == number + 1, 60, "an upload")  # noqa: B023
        assert not any(each.done() for each in settled)
        objects.open.set()
        for each in settled:
            each.result(60)
    assert shipper.acknowledged == 3


def test_a_wait_for_an_upload_times_out(ship: Ship, objects: Gate) -> None:
    """The caller gets an error; the records are still uploaded."""
    shipper = ship(patience=0.2)
    objects.open.clear()
    with pytest.raises(Unavailable, match="may have been stored"):
        settle(shipper)
    objects.open.set()
    shipper.append(WRITE, ())
    wait_for(lambda: shipper.acknowledged == 2, 60, "both")


def test_waiting_callers_fail_at_once_when_the_server_is_deposed(ship: Ship, objects: Gate) -> None:
    """Waiting callers fail, even if their change is in no upload yet, and so do later ones."""
    shipper = ship(patience=30, uploads=1)
    objects.open.clear()
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(settle, shipper) for _ in range(4)]
        wait_for(lambda: shipper.waiting_bytes == 4 * len(b"keyvalue") and objects.began, 60, "all four")
        Dictionary.put(objects, fence_name(1), b"")
        objects.open.set()
        for each in waiting:
            with pytest.raises(Deposed):
                each.result(60)
    with pytest.raises(Deposed):
        settle(shipper)
