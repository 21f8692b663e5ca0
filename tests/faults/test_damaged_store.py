# SPDX-License-Identifier: Apache-2.0
"""A server on an embedded store with a corrupt block: it reports the damage and serves all other data."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.damaged import flip, flushed, table_of
from tests.servers import ZqServer, ask, wait_for
from zq.errors import StoreDamaged, Unavailable
from zq.model import ClaimRequest, Commit, Draft, Lease, ListFilter, QueueRef, Settlement, Span, new_ids
from zq.model.documents import DocumentRef
from zq.storage.ordered import layout
from zq.storage.rocksdb import connect
from zq.storage.rocksdb.files import damage_location, is_damage
from zq.storage.rocksdb.store import Store

MESSAGES = 1000
JOBS, OTHER = QueueRef("acme", "jobs"), QueueRef("acme", "other")


def fill(path: Path) -> None:
    """Create a long queue whose bodies take many blocks, and a short queue."""
    storage, now = connect(f"rocksdb://{path}", sync="never"), time.time()
    for queue, count in ((JOBS, MESSAGES), (OTHER, 20)):
        drafts = [Draft(id, b'"' + os.urandom(300).hex().encode() + b'"', 3600, 0, "a") for id in new_ids(count, now)]
        for begin in range(0, count, 100):
            storage.messages.post(queue, drafts[begin : begin + 100], now)
    storage.close()
    flushed(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return a store with a corrupt block of bodies in the first third of ``jobs``."""
    path = tmp_path / "store"
    fill(path)
    flip(table_of(path, "bodies"))
    return path


@pytest.fixture
def server(path: Path) -> Iterator[ZqServer]:
    with ZqServer(f"rocksdb://{path}") as server:
        yield server


def popped(server: ZqServer, queue: str) -> int:
    """Pop all messages and return their number; each response is 200."""
    count = 0
    while True:
        answer = ask(server.url, "DELETE", f"/v2/queues/{queue}/messages?pop=20")
        assert answer.status == 200, answer
        if not answer.document["messages"]:
            return count
        count += len(answer.document["messages"])


def metric(server: ZqServer, name: str) -> float:
    lines = ask(server.url, "GET", "/metrics").body.decode().splitlines()
    return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")))


def test_a_corrupt_block_is_told_as_corruption_and_the_server_is_not_ready_any_more(server: ZqServer) -> None:
    """A listing that reads the block gets an error of its own class and title, not "try again later".

    Afterwards /readyz states the reason, the metric counts, and the log names file and family.
    """
    assert ask(server.url, "GET", "/readyz").status == 200
    assert metric(server, "zq_store_corruptions_total") == 0
    path, pages = "/v2/queues/jobs/messages?limit=20&echo=true", 0
    while (answer := ask(server.url, "GET", path)).status == 200:
        path, pages = answer.document["links"][0]["href"], pages + 1
        assert pages <= MESSAGES / 20, "the listing never met the damage"
    assert answer.status == 503
    assert answer.headers["x-zq-error"] == "StoreDamaged"
    assert answer.document["title"] == "Store damaged"
    assert "damaged" in answer.document["description"]
    assert "again later" not in answer.document["description"]
    ready = ask(server.url, "GET", "/readyz")
    assert ready.status == 503
    assert "salvage" in ready.document["description"]
    assert ".sst" not in ready.document["description"], "no file names leave the server"
    wait_for(
        lambda: metric(server, "zq_store_corruptions_total") >= 1, 60, "the metric, which is asked for now and then"
    )
    assert "damaged in family bodies" in server.output
    assert ".sst" in server.output


@pytest.mark.parametrize("claimed", [False, True], ids=["fresh", "lapsed"])
def test_records_that_cannot_be_read_are_stepped_over(tmp_path: Path, claimed: bool) -> None:
    """Pops and claims skip them, with and without the index; counts include the messages behind them."""
    fill(tmp_path / "store")
    now = time.time()
    if claimed:
        with contextlib.closing(connect(f"rocksdb://{tmp_path}/store", sync="never")) as storage:
            storage.claims.create(JOBS, ClaimRequest(Lease("a.a", 60, 60), MESSAGES), now)
        flushed(tmp_path / "store")
    flip(table_of(tmp_path / "store", "messages"))
    with contextlib.closing(connect(f"rocksdb://{tmp_path}/store", sync="never")) as storage:
        assert storage.queues.ready(JOBS, 2 * MESSAGES, now + 61).count >= MESSAGES - 100
        found = [message.sequence for message in storage.messages.pop(JOBS, 20, now + 61)]
        while (claim := storage.claims.create(JOBS, ClaimRequest(Lease("a.b", 60, 0), 20), now + 61).claim) is not None:
            found += [message.sequence for message in claim.messages]
            storage.claims.settle(JOBS, "a.b", Settlement(rest=True), now + 61)
        assert MESSAGES - 100 <= len(found) < MESSAGES
        assert found == sorted(found)
        with pytest.raises(StoreDamaged):
            storage.ping()


def test_pops_step_over_what_cannot_be_read(server: ZqServer) -> None:
    """All messages behind the corrupt block are delivered; a block has a dozen messages."""
    assert MESSAGES - 40 <= popped(server, "jobs") < MESSAGES
    assert ask(server.url, "GET", "/readyz").status == 503


def test_claims_step_over_what_cannot_be_read(server: ZqServer) -> None:
    count = 0
    while (answer := ask(server.url, "POST", "/v2/queues/jobs/claims", {"ttl": 600, "grace": 60})).status == 201:
        count += len(answer.document["messages"])
    assert answer.status == 204
    assert MESSAGES - 40 <= count < MESSAGES


def test_posts_and_other_queues_are_served_beside_a_corrupt_block(server: ZqServer) -> None:
    """This holds before the block is read and after."""
    popped(server, "jobs")
    assert ask(server.url, "GET", "/readyz").status == 503
    post = {"messages": [{"body": 1, "ttl": 600}]}
    assert ask(server.url, "POST", "/v2/queues/jobs/messages", post).status == 201
    assert popped(server, "jobs") == 1
    assert ask(server.url, "POST", "/v2/queues/other/messages", post).status == 201
    assert popped(server, "other") == 21


def test_a_sweep_steps_over_what_cannot_be_read(tmp_path: Path) -> None:
    """All expired messages except those in the corrupt block are removed.

    Each round also removes other expired data.
    """
    fill(tmp_path / "store")
    flip(table_of(tmp_path / "store", "messages"))
    storage = connect(f"rocksdb://{tmp_path}/store", sync="never", max_clock_jump=0)
    try:
        later = time.time() + 7200
        removed = storage.maintain(later)
        assert MESSAGES + 20 - 300 <= removed < MESSAGES + 20
        storage.documents.put(DocumentRef("acme", "kind", "name"), b"{}", later, expires=later + 1)
        storage.maintain(later + 2)
        with storage._handle as (store, _):
            assert not list(store.scan("due", b"", b"\xff" * 64))
        measures = {measure.name: measure.value for measure in storage.measures(later)}
        assert measures["store_corruptions_total"] >= 1
    finally:
        storage.close()


@pytest.mark.parametrize(
    ("text", "damage"),
    [
        ("Corruption: block checksum mismatch: stored = 1, computed = 2 in /s/000016.sst offset 4 size 9", (16, 4)),
        ("IO error: While pread offset 77 len 9: /s/000016.sst: Input/output error", (16, 77)),
        ("IO error: No such file or directory: While open a file for random read: /s/000016.sst", (16, -1)),
        ("IO error: No space left on device: While appending to file: /s/000016.sst", None),
        ("IO error: While lock file: /s/LOCK: Resource temporarily unavailable", None),
        ("Result incomplete: Write stall", None),
    ],
)
def test_damage_is_distinguished_from_transient_errors(text: str, damage: tuple[int, int] | None) -> None:
    """RocksDB's message shows the damage and its location."""
    assert is_damage(Exception(text)) is (damage is not None)
    if damage is not None:
        assert damage_location(Exception(text)) == damage


def test_a_compaction_that_meets_a_corrupt_block_does_not_stop_writes_for_good(path: Path) -> None:
    """RocksDB refuses all writes after that. The driver reopens the store and compacts the family no more."""
    storage, now = connect(f"rocksdb://{path}", sync="never"), time.time()
    try:
        with storage._handle as (store, _), contextlib.suppress(Exception):  # it fails now or in a later write
            store.compact("bodies")

        def posted() -> bool:
            try:
                storage.messages.post(OTHER, [Draft(new_ids(1, now)[0], b"1", 600, 0, "a")], now)
            except Unavailable:
                return False
            return True

        wait_for(lambda: not posted(), 60, "a write that RocksDB refuses")
        wait_for(posted, 60, "a post")
        with storage._handle as (store, _):
            assert not store.may_compact("bodies")
        storage.maintain(now)
        assert posted()
        assert len(storage.messages.list(OTHER, 0, 100, ListFilter(), now).items) >= 22
        with pytest.raises(StoreDamaged):
            storage.ping()
    finally:
        storage.close()


@pytest.fixture(scope="module")
def holed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Return a store with a hundred staged entries of 600 bytes and a corrupt block in the middle."""
    path = tmp_path_factory.mktemp("holed") / "store"
    store = Store(path, layout.FAMILIES, "never", 0)
    store.write([("staged", layout.number.pack(at), os.urandom(600)) for at in range(100)])
    store.close()
    flip(table_of(flushed(path), "staged"), 0.5)
    store = Store(path, layout.FAMILIES, "never", 0)
    yield store
    store.close()


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
def test_a_scan_that_meets_damage_does_not_end_as_if_nothing_were_behind_it(holed: Store, backwards: bool) -> None:
    """RocksDB's binding reports no error, wherever the scan begins.

    A stage would be published without its second half.
    """
    end = layout.number.pack(100)
    hidden = [at for at in range(100) if not _readable(holed, at)]
    assert 0 < len(hidden) < 10
    for begin in (0, hidden[0] - 1, hidden[0], hidden[-1]):
        with pytest.raises(StoreDamaged):
            list(holed.scan("staged", layout.number.pack(begin), end, backwards))
        assert not list(holed.scan("staged", layout.number.pack(hidden[0]), layout.number.pack(hidden[-1]), spare=True))
    behind = list(holed.scan("staged", layout.number.pack(hidden[-1] + 1), end, backwards))
    # Backwards, RocksDB needs the entry before the one it returns, so the scan does not reach the entry next to the
    # damage.
    assert len(behind) == 99 - hidden[-1] - backwards
    assert not list(holed.scan("staged", end, layout.number.pack(200), backwards))


def _readable(store: Store, at: int) -> bool:
    try:
        return store.get("staged", layout.number.pack(at)) is not None
    except StoreDamaged:
        return False


def test_a_commit_does_not_publish_the_readable_part_of_a_damaged_stage(tmp_path: Path) -> None:
    """The commit is refused and changes nothing."""
    now, path = time.time(), tmp_path / "store"
    drafts = [Draft(id, b'"' + os.urandom(300).hex().encode() + b'"', 3600, 0, "a") for id in new_ids(90, now)]
    with contextlib.closing(connect(f"rocksdb://{path}", sync="never")) as storage:
        storage.transactions.stage("acme", "s1", OTHER, drafts, now, 3600, 1 << 20)
    flip(table_of(flushed(path), "staged"), 0.5)
    with contextlib.closing(connect(f"rocksdb://{path}", sync="never")) as storage:
        with pytest.raises(StoreDamaged):
            storage.transactions.commit(Commit("acme", "etl", 1, ["s1"], [], 3600), now)
        assert not storage.messages.list(OTHER, 0, 10, ListFilter(), now).items


def test_a_listing_of_history_stops_at_damage(tmp_path: Path) -> None:
    """A reader would conclude that the missing records never existed."""
    now, path = time.time(), tmp_path / "store"
    drafts = [Draft(id, b'"' + os.urandom(300).hex().encode() + b'"', 3600, 0, "a") for id in new_ids(90, now)]
    with contextlib.closing(connect(f"rocksdb://{path}", sync="never")) as storage:
        storage.messages.post(JOBS, drafts, now)
        storage.messages.pop(JOBS, 90, now, history=3600)
    flip(table_of(flushed(path), "history"), 0.5)
    with contextlib.closing(connect(f"rocksdb://{path}", sync="never")) as storage, pytest.raises(StoreDamaged):
        storage.history.list(JOBS, 0, 100, Span(0, now + 1), now)
