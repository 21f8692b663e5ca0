# SPDX-License-Identifier: Apache-2.0
"""Open commits in a damaged store: a salvage keeps them, the new store completes them, and losses are reported."""

import json
import os
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from tests.damaged import flip, flushed, table_of
from tests.faults.test_salvage import BLOCK_OF_FEW, differing, dumped, salvaged
from tests.rotation import rotated
from zq.clock import ManualClock
from zq.core.commit_executor import CommitExecutor
from zq.errors import StoreDamaged
from zq.model import (
    Bounds,
    ClaimRef,
    ClaimRequest,
    Commit,
    CommitResult,
    Draft,
    IdempotencyKey,
    Lease,
    ListFilter,
    Outcome,
    QueueRef,
    Span,
    new_ids,
)
from zq.storage import check
from zq.storage.ordered import layout
from zq.storage.ordered.storage import OrderedStorage
from zq.storage.rocksdb import connect
from zq.storage.rocksdb.store import Store
from zq.storage.rocksdb.survey import Survey

NOW = time.time()
DAY = 86_400
# A time at which every claim would have expired.
LATE = NOW + 3 * 3600
IN, OUT, OTHER = (QueueRef("acme", name) for name in ("in", "out", "other"))
CLAIMS = [ClaimRef(IN, "a.a", DAY), ClaimRef(IN, "a.b")]
COMMIT = Commit("acme", "etl", 1, ["s1", "s2"], CLAIMS, 30 * DAY)
STAGED = 40
FIGURES = CommitResult(1, 2 * STAGED, 6)
LARGE = Bounds(1, 1000)
ENTRY = layout.COMMIT + layout.name_prefix(layout.project_prefix("acme"), "etl")


def drafts(count: int, size: int = 4) -> list[Draft]:
    """Return drafts with incompressible bodies, so that a few fill a block."""
    bodies = (json.dumps(os.urandom(size).hex()).encode() for _ in range(count))
    return [Draft(id, body, DAY, 0, "alice") for id, body in zip(new_ids(count, NOW), bodies, strict=True)]


def ids(given: Sequence[Draft]) -> list[str]:
    return [draft.id for draft in given]


def opened(path: Path) -> OrderedStorage:
    return connect(f"rocksdb://{path}", sync="never", max_clock_jump=0)


class Job:
    """A decided commit of two claims on six of ten messages, and of two stages for two queues."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "old"
        self.held, self.rest = ids(drafts(6)), ids(drafts(4))
        body = layout.SHORT * b"1" + b"1"  # stored separately from its message's record
        posted = [Draft(id, body, DAY, 0, "alice") for id in self.held + self.rest]
        self.out = {queue: drafts(STAGED, 300) for queue in (OUT, OTHER)}
        with closing(opened(self.path)) as storage:
            storage.messages.post(IN, posted, NOW)
            for claim in CLAIMS:
                storage.claims.create(IN, ClaimRequest(Lease(claim.claim, 3600, 60), 3), NOW)
            for stage, queue in zip(COMMIT.publish, (OUT, OTHER), strict=True):
                storage.transactions.stage("acme", stage, queue, self.out[queue], NOW, DAY, 1 << 20)
            storage.transactions.stage("acme", "mine", OUT, drafts(3), NOW, DAY, 1 << 20)
            assert storage.transactions.commit(COMMIT, NOW, LARGE).open

    def continue_commit(self, slices: int, max_messages: int = 5) -> None:
        with closing(opened(self.path)) as storage:
            for _ in range(slices):
                assert storage.transactions.continue_commit("acme", "etl", max_messages, NOW)

    def finished(self) -> dict[QueueRef, list[str]]:
        """Complete the commit in the new store and return the ids in each queue.

        Assert that no message was delivered before.
        """
        with closing(opened(self.path.with_name("new"))) as storage:
            self._check_pins(storage)
            while storage.transactions.continue_commit("acme", "etl", 7, LATE):
                pass
            assert storage.transactions.find_unfinished_commits(LATE) == []
            assert storage.transactions.last("acme", "etl", LATE) == FIGURES
            assert storage.transactions.commit(COMMIT, LATE) == CommitResult(1, 2 * STAGED, 6, replayed=True)
            view = ListFilter(claimed=True, delayed=True)
            found = {queue: storage.messages.list(queue, 0, 1000, view, LATE).items for queue in (IN, *self.out)}
            past = storage.history.list(IN, 0, 1000, Span(0, LATE + 1), LATE).items
            assert {one.message.id for one in past} <= set(self.held[:3])
            assert {one.outcome for one in past} <= {Outcome.DELETED}
        report = check(f"rocksdb://{self.path.with_name('new')}")
        assert report is not None
        assert report.contradictions == 0, report.examples
        return {queue: [message.id for message in items] for queue, items in found.items()}

    def _check_pins(self, storage: OrderedStorage) -> None:
        """Assert that messages to be deleted stay claimed at any time and for any claim request."""
        claim = storage.claims.create(IN, ClaimRequest(Lease("a.z", 60, 60), 100), LATE).claim
        assert claim is not None
        assert [message.id for message in claim.messages] == self.rest
        storage.claims.release(IN, "a.z", LATE)

    def whole(self) -> dict[QueueRef, list[str]]:
        """Return the final ids in the queues if nothing is lost."""
        return {IN: self.rest} | {queue: ids(given) for queue, given in self.out.items()}


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def entry(path: Path) -> bytes | None:
    """Return the stored entry of the open commit."""
    survey = Survey(path)
    try:
        return survey.get("default", ENTRY)
    finally:
        survey.close()


@pytest.mark.parametrize("slices", rotated([0, 1, 2, 5, 13], 2), ids=lambda slices: f"after {slices} slices")
def test_an_open_commit_is_carried_over_and_the_new_store_finishes_it(job: Job, slices: int) -> None:
    """This holds between any two slices. The copy is equal; no message is lost, duplicated or delivered again."""
    job.continue_commit(slices)
    flushed(job.path)
    before, old = entry(job.path), dumped(job.path)
    told, new = salvaged(job.path)
    assert told.lost == told.damage == []
    assert told.saved["open commits"] == 1
    assert differing(old, new) == set()
    assert before is not None
    assert entry(job.path.with_name("new")) == before
    assert job.finished() == job.whole()


@pytest.mark.parametrize("slices", rotated([0, 6], 1))
def test_of_what_was_to_be_published_the_readable_part_is_and_the_rest_is_told(job: Job, slices: int) -> None:
    """A block of ``staged`` is damaged. The producer knows that the batch is decided and cannot stage it again."""
    job.continue_commit(slices)
    flip(table_of(flushed(job.path), "staged"))
    told, _ = salvaged(job.path)
    found, whole = job.finished(), job.whole()
    assert found[IN] == whole[IN]
    gone = sum(len(whole[queue]) - len(found[queue]) for queue in job.out)
    assert 0 < gone < STAGED
    for queue in job.out:
        assert [id for id in whole[queue] if id in found[queue]] == found[queue], "in order, each once"
    sentences = [sentence for sentence in told.lost if "producer etl of project 'acme' committed" in sentence]
    assert sum(int(sentence.split()[0]) for sentence in sentences) == gone
    assert len(told.lost) == len(sentences)


def test_a_stage_of_which_nothing_can_be_read_does_not_hinder_the_rest(job: Job) -> None:
    """The claims' messages are deleted, published messages stay, and the commit ends."""
    job.continue_commit(6)
    file = table_of(flushed(job.path), "staged")
    file.unlink()
    told, _ = salvaged(job.path)
    found = job.finished()
    assert found[IN] == job.rest
    assert found[OUT] + found[OTHER] == ids(job.out[OUT])[: len(found[OUT])]
    assert f"0-{STAGED - 1} of the {STAGED} messages in a stage, counted from 0" in "\n".join(told.lost)


@pytest.mark.parametrize("family", rotated(["messages", "claims", "available", "queues"], 1))
def test_pinned_messages_stay_pinned_whatever_is_lost_of_them(job: Job, family: str) -> None:
    """Their records, index entries or their queue's entry are lost; none is delivered, and all are deleted."""
    job.continue_commit(1, max_messages=2)
    flip(table_of(flushed(job.path), family), BLOCK_OF_FEW)
    salvaged(job.path)
    assert job.finished() == job.whole()


def test_pinned_messages_whose_bodies_are_lost_are_told_as_what_they_were(job: Job) -> None:
    """The messages were to be deleted, so no work needs to be repeated."""
    table_of(flushed(job.path), "bodies").unlink()
    told, _ = salvaged(job.path)
    doomed = [
        sentence
        for sentence in told.lost
        if sentence.endswith("its body is unreadable (a commit was deleting the message)")
    ]
    assert sorted(sentence.split()[1] for sentence in doomed) == sorted(job.held)
    assert len(told.lost) == len(job.held + job.rest)


@pytest.mark.parametrize("families", [["producers"], ["producers", "due"]], ids=" and ".join)
def test_the_batch_of_an_open_commit_is_known_though_its_producer_is_lost(job: Job, families: list[str]) -> None:
    """The commit's own entry has the counts: a repetition has no effect."""
    flushed(job.path)
    for family in families:
        flip(table_of(job.path, family), BLOCK_OF_FEW)
    told, _ = salvaged(job.path)
    assert told.lost == []
    assert job.finished() == job.whole()


def test_a_commit_whose_entry_is_lost_is_told_with_what_it_was_to_publish(job: Job) -> None:
    """The commit cannot be kept, and no other record describes it; stages still in use are not affected."""
    flip(table_of(flushed(job.path), "default"), BLOCK_OF_FEW)
    told, new = salvaged(job.path)
    assert "open commits" not in told.saved
    assert any(sentence.startswith("Unfinished commits, if there were any") for sentence in told.lost)
    orphans = [sentence for sentence in told.lost if "their commit or stage is unknown" in sentence]
    assert [sentence.split(" messages for queues ")[0] for sentence in orphans] == [f"{STAGED} staged"] * 2
    assert len(new["staged"]) == 3, "the stage that is open"


def test_pins_of_a_purged_queue_are_not_carried_over(job: Job) -> None:
    """The new store has nothing of these messages, but the rest of the commit."""
    with closing(opened(job.path)) as storage:
        storage.queues.purge(IN)
    told, new = salvaged(job.path)
    assert told.lost == []
    assert all(layout.decode_tally(value).count == 0 for value in new["tallies"].values())
    with closing(opened(job.path.with_name("new"))) as storage:
        while storage.transactions.continue_commit("acme", "etl", 100, LATE):
            pass
        assert storage.messages.list(OUT, 0, 1000, ListFilter(), LATE).items


def test_a_stage_that_an_open_commit_has_taken_is_not_a_stage_too(job: Job) -> None:
    """If a damaged log lost the removal of its entry, the stage would be published twice."""
    store = Store(job.path, layout.FAMILIES, "never", 0)
    [(key, value)] = store.scan("stages", b"", b"\xff" * 64)
    number = min(layout.number.unpack_from(key)[0] for key, _ in store.scan("staged", b"", b"\xff" * 16))
    taken = key.replace(b"mine", b"s1")
    store.write([("stages", taken, layout.encode(layout.Stage(number, STAGED, layout.decode_stage(value).size)))])
    store.close()
    told, new = salvaged(job.path)
    assert told.lost == []
    assert list(new["stages"]) == [key]
    assert job.finished() == job.whole()


@pytest.mark.parametrize("family", rotated(["staged", "default"], 1))
def test_a_check_tells_damage_of_an_open_commit_as_damage(job: Job, family: str) -> None:
    """A contradiction would mean a defect of zq."""
    flip(table_of(flushed(job.path), family), 0.3 if family == "staged" else BLOCK_OF_FEW)
    report = check(f"rocksdb://{job.path}")
    assert report is not None
    assert any(f"family {family}," in sentence for sentence in report.damage)
    assert not [example for example in report.examples if "staged" in example or "publish" in example]
    assert report.counted["comparisons that are impossible because of damage"] > 0


@pytest.mark.parametrize("family", rotated(["staged", "messages"], 1))
def test_an_open_commit_that_meets_damage_stands_still_and_others_are_finished(job: Job, family: str) -> None:
    """Its step is refused as damaged and changes nothing: reserved messages stay reserved until a salvage."""
    flip(table_of(flushed(job.path), family), BLOCK_OF_FEW)
    with closing(opened(job.path)) as storage:
        verbs = storage.transactions
        verbs.stage(
            "rival", "s1", QueueRef("rival", "out"), drafts(20), NOW, DAY, 1 << 20, IdempotencyKey("stage", b"", DAY)
        )
        assert verbs.commit(Commit("rival", "etl", 1, ["s1"], [], DAY), NOW, LARGE).open
        looking = CommitExecutor(verbs, ManualClock(NOW), Bounds(100, 1000), 10.0)
        looking.resume()
        looking.resume()
        assert [one.project for one in verbs.find_unfinished_commits(NOW)] == ["acme"]
        assert len(storage.messages.list(QueueRef("rival", "out"), 0, 100, ListFilter(), NOW).items) == 20
        for _ in range(2):
            with pytest.raises(StoreDamaged):
                verbs.continue_commit("acme", "etl", 5, NOW)
        assert storage.queues.stats(IN, LATE).claimed == (0 if family == "staged" else 6)
        looking.resume()
