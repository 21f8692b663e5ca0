# SPDX-License-Identifier: Apache-2.0
"""The compaction filter of the embedded store: that it works, what it drops, and what it must never drop.

The filter uses the machine's clock. So the tests post messages in the past: by that clock their first expiry has
passed, but at the time that the tests pass to the store nothing has expired.
"""

import logging
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from zq.conformance.builders import configure
from zq.core.redelivery import DeadLetters, claim
from zq.errors import StartRefused
from zq.model import (
    ClaimRequest,
    Draft,
    Lease,
    ListFilter,
    Move,
    QueueRef,
    Release,
    Settlement,
    SettleResult,
    Span,
    new_ids,
)
from zq.model.expiry import Expiry
from zq.storage.ordered import layout
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import connect, tuning
from zq.storage.rocksdb.store import Store

PAST = time.time() - 1000
LONG = 86_400
JOBS, DEAD = QueueRef("acme", "jobs"), QueueRef("acme", "dead")
AT_ONCE = Expiry(compaction_filter_grace=0, delete_on_read=False)


@pytest.fixture
def storage(tmp_path) -> Iterator[OrderedStorage]:
    opened = connect(f"rocksdb://{tmp_path}/store", sync="never", max_clock_jump=0, expiry=AT_ONCE)
    yield opened
    opened.close()


# A body of a length that is stored apart from its message's record: only such bodies have a stamp.
BODY = b'"%s"' % (layout.SHORT * b"x")


def post(storage: OrderedStorage, count: int, ttl: int) -> list[str]:
    ids = new_ids(count, PAST)
    storage.messages.post(JOBS, [Draft(id, BODY, ttl, 0, "alice") for id in ids], PAST)
    return ids


def compact(storage: OrderedStorage) -> None:
    with storage._handle as (store, _):
        store.compact("bodies")


def bodies(storage: OrderedStorage) -> int:
    with storage._handle as (store, _):
        return len(list(store.scan("bodies", b"", b"\xff" * 64)))


def figures(storage: OrderedStorage) -> dict[str, float]:
    """Return the store's measures by name, or by the value of their label."""
    return {(m.labels[0][1] if m.labels else m.name): m.value for m in storage.measures(PAST)}


def test_a_compaction_drops_exactly_the_bodies_of_expired_messages(storage: OrderedStorage):
    """RocksDB's own filter drops and counts the bodies; readers see the messages as expired, not as damaged."""
    gone, kept = post(storage, 30, 100), post(storage, 20, LONG)
    compact(storage)
    assert bodies(storage) == 20
    assert figures(storage)["filter"] == 30
    assert figures(storage)["compaction_filter_active"] == 1
    assert [m.id for m in storage.messages.list(JOBS, 0, 100, ListFilter(), PAST).items] == kept
    assert storage.messages.get(JOBS, gone, PAST) == []
    assert storage.messages.move(JOBS, [Move(gone[0], "dead")], PAST) == []
    assert [f.message.id for f in storage.history.list(JOBS, 0, 100, None, PAST).items] == kept
    assert [m.id for m in storage.messages.pop(JOBS, 100, PAST)] == kept
    storage.messages.delete(JOBS, gone, PAST, history=60)
    assert storage.history.list(JOBS, 0, 100, Span(0, PAST * 2), PAST).items == []


def test_the_filter_leaves_a_message_its_grace(storage: OrderedStorage):
    """The message has expired, but its grace for the filter is not over."""
    configure(storage, Expiry(compaction_filter_grace=LONG))
    post(storage, 5, 100)
    compact(storage)
    assert bodies(storage) == 5


def by_claim(storage: OrderedStorage, _: str) -> None:
    storage.claims.create(JOBS, ClaimRequest(Lease("a.a", LONG, LONG), 1), PAST)


def by_renewal(storage: OrderedStorage, _: str) -> None:
    storage.claims.create(JOBS, ClaimRequest(Lease("a.a", 60, 60), 1), PAST)
    storage.claims.renew(JOBS, Lease("a.a", LONG, LONG), PAST)


def by_claim_and_release(storage: OrderedStorage, _: str) -> None:
    by_claim(storage, "")
    storage.claims.release(JOBS, "a.a", PAST, delay=0)


def by_settlement(storage: OrderedStorage, message: str) -> None:
    by_claim(storage, "")
    storage.claims.settle(JOBS, "a.a", Settlement(release=[Release(message, 0)]), PAST)


def by_dead_letter(storage: OrderedStorage, _: str) -> None:
    storage.claims.create(JOBS, ClaimRequest(Lease("a.a", 1, 0), 1), PAST)
    request = ClaimRequest(Lease("a.b", 60, 60), 1, max_claims=1)
    claim(storage, JOBS, request, DeadLetters(DEAD, 1, LONG), PAST + 2)


def by_move(storage: OrderedStorage, message: str) -> None:
    storage.messages.move(JOBS, [Move(message, "dead", LONG)], PAST)


def by_settled_move(storage: OrderedStorage, message: str) -> None:
    storage.claims.create(JOBS, ClaimRequest(Lease("a.a", 60, 60), 1), PAST)
    storage.claims.settle(JOBS, "a.a", Settlement(move=[Move(message, "dead", LONG)]), PAST)


LENGTHENING = [by_claim, by_renewal, by_claim_and_release, by_settlement, by_dead_letter, by_move, by_settled_move]


@pytest.mark.parametrize("lengthen", LENGTHENING)
def test_no_compaction_drops_the_body_of_a_prolonged_message(
    storage: OrderedStorage, lengthen: Callable[[OrderedStorage, str], None]
):
    """The first expiry has passed; another message, whose body is dropped, shows that the filter ran."""
    [message] = post(storage, 1, 100)
    lengthen(storage, message)
    post(storage, 1, 100)
    compact(storage)
    assert bodies(storage) == 1
    found = storage.messages.get(JOBS, [message], PAST) or storage.messages.get(DEAD, [message], PAST)
    assert [m.body for m in found] == [BODY]


def test_a_settlement_reports_a_move_without_a_body_as_lost(storage: OrderedStorage):
    """The claim does not prolong the message, so the filter drops the body before the settlement moves the message."""
    [message] = post(storage, 1, 100)
    storage.claims.create(JOBS, ClaimRequest(Lease("a.a", 60, 60, prolong=False), 1), PAST)
    compact(storage)
    assert bodies(storage) == 0
    settled = storage.claims.settle(JOBS, "a.a", Settlement(move=[Move(message, "dead", LONG)]), PAST)
    assert settled == SettleResult(lost=[message])
    assert storage.messages.get(DEAD, [message], PAST) == []


def test_a_history_entry_keeps_its_body(storage: OrderedStorage):
    """The history entry has its own copy of the body, without a stamp."""
    [message] = post(storage, 1, 100)
    storage.messages.delete(JOBS, [message], PAST, history=LONG)
    compact(storage)
    assert [f.message.body for f in storage.history.get(JOBS, [message], PAST)] == [BODY]


@pytest.mark.parametrize("year", [1969, 1970, 2037, 2039, 2100, 2500])
def test_any_year_can_be_stamped(year: int):
    """An expiry out of range is stored as the largest or smallest stamp."""
    expires = (year - 1970) * 31_556_952_000
    sealed = layout.seal_body(b"{}", expires, 60)
    assert layout.unseal_body(sealed) == b"{}"
    stamp = int.from_bytes(sealed[-4:], "little")
    assert stamp == min(max(expires // 1000 + 59, 0), 2**32 - 1)


def test_a_message_that_expires_after_2038_stays(storage: OrderedStorage):
    """A stamp of more than 31 bits is not taken for a negative one."""
    post(storage, 3, 20 * 365 * LONG)
    compact(storage)
    assert bodies(storage) == 3


def test_the_filter_can_be_switched_while_the_store_is_in_use(storage: OrderedStorage):
    """The store is reopened for each change: no verb fails, no message is lost, and the option takes effect."""
    posted, stop = [], threading.Event()

    def work() -> None:
        while not stop.is_set():
            posted.extend(post(storage, 1, LONG))
            assert storage.messages.get(JOBS, posted[-1:], PAST)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for wanted in (False, True, False):
        configure(storage, Expiry(compaction_filter=wanted, compaction_filter_grace=0))
        assert figures(storage)["compaction_filter_active"] == wanted
    stop.set()
    for worker in workers:
        worker.join(30)
    post(storage, 7, 100)
    compact(storage)
    assert bodies(storage) == len(posted) + 7
    before = figures(storage)["filter"]
    configure(storage, AT_ONCE)
    compact(storage)
    assert bodies(storage) == len(posted)
    assert figures(storage)["filter"] == before + 7
    assert len(storage.messages.get(JOBS, posted, PAST)) == len(posted)


def test_a_round_makes_an_idle_store_compact(storage: OrderedStorage):
    """Without any writes, bodies are dropped once they are older than the interval."""
    configure(storage, Expiry(compaction_filter_grace=0, compaction_interval=1, sweep=False))
    post(storage, 5, 100)
    with storage._handle as (store, _):
        store._views["bodies"].flush()
    deadline = time.monotonic() + 30
    while bodies(storage):
        assert time.monotonic() < deadline
        storage._housekeeping._checked_at = -math.inf
        storage.maintain(PAST)
        time.sleep(0.2)


def test_a_missing_filter_is_reported_and_the_store_works(tmp_path, monkeypatch, caplog: pytest.LogCaptureFixture):
    """If RocksDB does not know the filter's class, the start logs a critical error, and the store works and sweeps."""
    monkeypatch.setattr(tuning, "_registered", [])
    monkeypatch.setattr(tuning, "OPTIONS", tuning.OPTIONS.replace(tuning.FACTORY, "NobodysFilterFactory"))
    with caplog.at_level(logging.CRITICAL):
        opened = connect(f"rocksdb://{tmp_path}/store", max_clock_jump=0, expiry=AT_ONCE)
    assert "NOT active" in caplog.text
    assert figures(opened)["compaction_filter_active"] == 0
    post(opened, 3, 100)
    assert opened.maintain(PAST + 100) == 3
    opened.close()


def test_only_bodies_carry_the_filter(storage: OrderedStorage, tmp_path):
    """Values of other families have no stamp."""
    carrying = [name for name in layout.FAMILIES if tuning.is_active(tmp_path / "store", name)]
    assert carrying == ["bodies"]


REFUSED = """
import os, sys, time
from pathlib import Path
from zq.storage.ordered import layout
from zq.storage.rocksdb.store import Store
version, path = sys.argv[1:]
store = Store(Path(path), layout.FAMILIES, "never", 0)
store.write([("default", b"version", version.encode())])
store.write([("default", b"clock", layout.number.pack(layout.ms(time.time() - 10 * 86400)))])
stamped = layout.seal_body(b"body", layout.ms(time.time() - 9 * 86400), 0)
for part in range(4):
    if part:
        store._views["bodies"].flush()
    store.write([("bodies", layout.pair.pack(queue, 50 * part + n), stamped) for queue in (1, 2) for n in range(50)])
os._exit(9)
"""
"""Code for a server that is killed with compactions pending; at its last use, the messages had a day to live."""


@pytest.mark.parametrize(("version", "refusal"), [("2", "layout 2"), (layout.VERSION.decode(), "10 days after")])
def test_a_store_that_is_refused_at_the_start_loses_nothing(tmp_path, version: str, refusal: str):
    """The store has an earlier layout, whose bodies have no stamps, or the machine's clock is wrong."""
    path = tmp_path / "store"
    subprocess.run([sys.executable, "-c", REFUSED, version, str(path)], check=False, timeout=60)
    for _ in range(2):
        with pytest.raises(StartRefused, match=refusal):
            connect(f"rocksdb://{path}")
    store = Store(path, layout.FAMILIES, "never", 0)
    assert len(list(store.scan("bodies", b"", b"\xff" * 64))) == 400
    store.close()
