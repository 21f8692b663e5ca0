# SPDX-License-Identifier: Apache-2.0
"""Servers that take over a store in an object store at the same time: one serves, and none deposes it."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.dictionary import Dictionary
from tests.servers import wait_for
from zq.conformance.builders import drafts
from zq.errors import Deposed
from zq.model import QueueRef
from zq.storage import object as object_store
from zq.storage.api import Storage
from zq.storage.object.epochs import Head, Opening, newest_opened, read
from zq.storage.object.owner import Owner
from zq.storage.object.store import ShippedStore
from zq.storage.ordered.storage import OrderedStorage

pytestmark = pytest.mark.slow

WITHIN = 60
JOBS = QueueRef("acme", "jobs")
# Seconds for which an owner may be silent, or an elected server may take to begin.
PATIENCE = 2.0
# The module: its name in the package is that of a function.
owning = import_module("zq.storage.object.owner")


class Gate:
    """A gate that stops each thread until the test lets it through."""

    def __init__(self) -> None:
        self.stopped: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def __call__(self, name: str) -> None:
        with self._lock:
            event = self.stopped.setdefault(name, threading.Event())
        event.wait(WITHIN)


class Candidates:
    """Servers that start in threads, each on its own disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._threads: list[threading.Thread] = []
        self._opened: list[Storage] = []

    def start(self, name: str, **options: Any) -> "Future[Storage]":
        found: Future[Storage] = Future()
        options = {"lease": 0.2, "owner_timeout": PATIENCE, "max_clock_jump": 0, **options}

        def run() -> None:
            try:
                storage = object_store.connect("s3://bucket/x", cache=str(self._folder / name), **options)
                self._opened.append(storage)
                found.set_result(storage)
            except BaseException as error:  # noqa: BLE001  # raised where the result is read
                found.set_exception(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()
        return found

    def close(self) -> None:
        for storage in self._opened:
            storage.close()


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Dictionary:
    objects = Dictionary()
    monkeypatch.setattr("zq.storage.object.objects_of", lambda uri: objects)
    monkeypatch.setattr(owning, "CHECK_INTERVAL", 0.05)
    return objects


@pytest.fixture
def candidates(tmp_path: Path, bucket: Dictionary) -> Iterator[Candidates]:
    made = Candidates(tmp_path)
    yield made
    made.close()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Return a gate between a candidate's wait for its turn and its election."""
    stop, win = Gate(), owning.win_election

    def won(objects: Any) -> int:
        stop(threading.current_thread().name)
        return win(objects)

    monkeypatch.setattr(owning, "win_election", won)
    return stop


def let_through(gate: Gate, *names: str) -> None:
    for name in names:
        wait_for(lambda name=name: name in gate.stopped, WITHIN, f"{name} comes to its election")
    for name in names:
        gate.stopped.pop(name).set()


def post(storage: Storage) -> None:
    storage.messages.post(JOBS, drafts(1, storage.now()), storage.now())


def count(storage: Storage) -> int:
    return storage.queues.stats(JOBS, storage.now()).entered


@pytest.mark.parametrize("fencing", ["look", "position"])
def test_one_of_two_candidates_serves_and_the_other_waits(
    candidates: Candidates, bucket: Dictionary, gate: Gate, fencing: str
) -> None:
    """Both find the owner gone before either is elected. The second one takes over once the first has stopped."""
    first = candidates.start("first", fencing=fencing)
    let_through(gate, "first")
    post(first.result(WITHIN))
    seconds = {name: candidates.start(name, fencing=fencing) for name in ("second", "third")}
    first.result().close()
    let_through(gate, "second", "third")
    wait_for(lambda: any(each.done() for each in seconds.values()), WITHIN, "one of them serves")
    (served,) = (name for name, each in seconds.items() if each.done())
    (waits,) = seconds.keys() - {served}
    owner = seconds[served].result()
    began = time.monotonic()
    while time.monotonic() < began + 1.5 * PATIENCE:
        post(owner)
        time.sleep(0.05)
        assert not seconds[waits].done(), seconds[waits].exception()
    total = count(owner)
    owner.close()
    let_through(gate, waits)
    assert count(seconds[waits].result(WITHIN)) == total


def test_two_servers_that_start_on_an_empty_bucket_do_not_end(candidates: Candidates, gate: Gate) -> None:
    """The first server to be elected serves, and the other is a standby."""
    started = {name: candidates.start(name) for name in ("first", "second")}
    let_through(gate, *started)
    wait_for(lambda: any(each.done() for each in started.values()), WITHIN, "one of them serves")
    time.sleep(1.5 * PATIENCE)
    (served,) = (each for each in started.values() if each.done())
    post(served.result())
    served.result().close()
    (name,) = (name for name, each in started.items() if each is not served)
    let_through(gate, name)
    assert count(started[name].result(WITHIN)) == 1


def test_a_candidate_that_never_begins_is_passed_over(candidates: Candidates, bucket: Dictionary, gate: Gate) -> None:
    """The elected server's machine failed; the next candidate waits for it as long as for a silent owner."""
    bucket.elect(1)
    began = time.monotonic()
    storage = candidates.start("second")
    let_through(gate, "second")
    post(storage.result(WITHIN))
    assert time.monotonic() - began >= PATIENCE
    assert newest_opened(bucket)[0] == 2


def test_a_candidate_that_was_passed_over_waits_on(
    candidates: Candidates, bucket: Dictionary, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its restore took longer than the other candidate waited: it finds itself deposed and becomes a standby."""
    slow, replayed = threading.Event(), Owner._replay

    def replay(owner: Owner, *arguments: Any) -> Any:
        if threading.current_thread().name == "slow":
            slow.wait(WITHIN)
        return replayed(owner, *arguments)

    monkeypatch.setattr(Owner, "_replay", replay)
    late = candidates.start("slow")
    wait_for(lambda: bucket.has_election(1), WITHIN, "the slow one is elected")
    quick = candidates.start("quick").result(WITHIN)
    post(quick)
    slow.set()
    time.sleep(1.5 * PATIENCE)
    assert not late.done(), late.exception()
    post(quick)
    quick.close()
    assert count(late.result(WITHIN)) == 2


@pytest.mark.parametrize("takeover", ["refuse", "now"])
def test_a_candidate_that_may_not_wait_ends_as_one_that_was_deposed(
    candidates: Candidates, bucket: Dictionary, monkeypatch: pytest.MonkeyPatch, takeover: str
) -> None:
    """The candidate's supervisor may start it again (exit code 75)."""
    slow, replayed = threading.Event(), Owner._replay

    def replay(owner: Owner, *arguments: Any) -> Any:
        if threading.current_thread().name == "slow":
            slow.wait(WITHIN)
        return replayed(owner, *arguments)

    monkeypatch.setattr(Owner, "_replay", replay)
    late = candidates.start("slow", takeover=takeover)
    wait_for(lambda: bucket.has_election(1), WITHIN, "the slow one is elected")
    post(candidates.start("quick", takeover="now").result(WITHIN))
    slow.set()
    assert isinstance(late.exception(WITHIN), Deposed)


def test_many_candidates_serve_in_turn(candidates: Candidates, bucket: Dictionary) -> None:
    """No server is deposed while it serves; each is the owner once."""
    waiting = {f"machine {number}": candidates.start(f"machine {number}") for number in range(3)}
    posted = 0
    while waiting:
        wait_for(lambda: any(each.done() for each in waiting.values()), WITHIN, "one of them serves")
        time.sleep(1.5 * PATIENCE)
        (name,) = (name for name, each in waiting.items() if each.done())
        storage = waiting.pop(name).result()
        post(storage)
        posted += 1
        assert count(storage) == posted
        storage.close()
    epoch, opening = newest_opened(bucket)
    assert opening is not None
    head = read(bucket, f"head/{epoch}", Head)
    assert head is not None
    assert head.released >= 0
    opened = [name for name in bucket._values if name.startswith("open/")]
    assert len(opened) == 3
    assert all(isinstance(read(bucket, name, Opening), Opening) for name in opened)


def test_an_owner_that_reopens_its_store_does_not_wait_for_its_successor(
    candidates: Candidates, bucket: Dictionary
) -> None:
    """The owner's write failed, and another server has taken over the store: its requests fail and it ends."""
    first = candidates.start("first", lease=600.0).result(WITHIN)
    post(first)
    post(candidates.start("second", takeover="now", lease=0.2).result(WITHIN))
    assert isinstance(first, OrderedStorage)
    with first._handle as (store, _):
        assert isinstance(store, ShippedStore)
        store._proof.fenced = False  # it has not checked since
        store.failure = OSError("no space")
    began = time.monotonic()
    with pytest.raises(Deposed):
        post(first)
    assert time.monotonic() - began < WITHIN / 2
