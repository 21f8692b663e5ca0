# SPDX-License-Identifier: Apache-2.0
"""Large commits: decided atomically, then executed in slices by any server (extensions contract, section 9)."""

from functools import partial

import pytest

from zq.conformance.builders import DEADLINE, Scene, ids_of, run_together
from zq.conformance.connections import ONE_OR_TWO_CONNECTIONS
from zq.core import commit_executor
from zq.core.commit_executor import CommitExecutor
from zq.errors import (
    ClaimLapsed,
    ClaimNotFound,
    CommitRunning,
    CommitTooLarge,
    MessageClaimed,
    ProducerNotFound,
    StageDiffers,
    StageNotFound,
)
from zq.model import (
    Bounds,
    ClaimRef,
    Commit,
    CommitResult,
    Draft,
    HandleOutcome,
    MessageHandle,
    Move,
    Outcome,
    QueueRef,
    new_ids,
)

pytestmark = pytest.mark.fresh_store

SOURCE = QueueRef("acme", "in")
CLAIMS = ["etl.0", "etl.1"]
HELD = [ClaimRef(SOURCE, CLAIMS[0], 600), ClaimRef(SOURCE, CLAIMS[1])]
STAGES = ["s1", "s2"]
FIGURES = CommitResult(1, 8, 6)


class Job:
    """A commit of two claims of three messages and two stages of four messages for two queues."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.other, self.source = scene, scene.at("other"), scene.at(SOURCE.name)
        self.posted = self.source.post(7)
        for claim in CLAIMS:
            self.source.named(claim, 3, ttl=60)
        self.here = scene.stage("s1", 3) + scene.stage("s2", 1)
        self.there = self.other.stage("s1", 1) + self.other.stage("s2", 3)

    def decide(self) -> CommitResult:
        return self.scene.decide(1, STAGES, HELD)

    def finish(self, most: int = 2) -> None:
        for _ in range(50):
            if not self.scene.continue_commit(most):
                return
        raise AssertionError("The commit does not come to an end.")

    def assert_done(self) -> None:
        """Assert that the commit took effect once and in order."""
        assert (self.scene.page(), self.other.page()) == (self.here, self.there)
        assert ids_of(self.source.walk()) == self.posted[6:]
        assert sorted(self.source.finished()) == sorted((id, Outcome.DELETED) for id in self.posted[:3])
        assert self.scene.last() == FIGURES
        assert self.scene.commit(1, ["s1"]) == CommitResult(1, 8, 6, replayed=True)
        assert self.scene.storage.transactions.find_unfinished_commits(self.scene.now) == []


@pytest.fixture
def job(scene: Scene) -> Job:
    return Job(scene)


def test_a_large_commit_is_decided_and_then_carried_out(job: Job):
    """The decided commit returns its counts and is open. Slices execute it."""
    assert job.decide() == CommitResult(1, 8, 6, open=True)
    assert job.scene.last() == CommitResult(1, 8, 6, open=True)
    assert job.scene.page() == job.other.page() == []
    job.finish()
    job.assert_done()


def test_claims_of_a_decided_commit_are_not_listed(job: Job):
    """The commit has taken over two claims. The list has only the third claim of the queue."""
    other = job.source.take(1)
    job.decide()
    listed = job.scene.storage.claims.list(job.source.queue.project, "", 100, job.scene.now, job.source.queue.name)
    assert [(claim.id, claim.messages) for claim in listed.items] == [(other.id, 1)]


@pytest.mark.parametrize("most", [1, 3, 4, 100])
def test_slices_of_any_size_have_the_same_result(job: Job, most: int):
    job.decide()
    job.finish(most)
    job.assert_done()


def test_each_slice_is_bounded_and_in_order(job: Job):
    """Claimed messages are deleted first; then messages appear by stage, at most the requested number per slice."""
    job.decide()
    before, shown = 6, []
    for _ in range(50):
        left = job.scene.continue_commit(2)
        claimed = job.source.counts()[0]
        now = [len(job.scene.page()), len(job.other.page())]
        assert before - claimed + sum(now) - sum(shown or [0]) <= 2
        assert not sum(now) or not claimed
        assert job.scene.page() == job.here[: now[0]]
        assert job.other.page() == job.there[: now[1]]
        before, shown = claimed, now
        if not left:
            break
    job.assert_done()


def test_messages_of_a_decided_commit_are_in_no_claim(job: Job):
    """The claims of the commit are unknown to their holder. Their messages stay claimed and never lapse."""
    job.decide()
    source = job.source
    for seconds in (0, 61, 100):
        source.tick(seconds)
        assert source.counts() == (6, 1)
        assert source.page() == job.posted[6:]
        for claim in CLAIMS:
            with pytest.raises(ClaimNotFound):
                source.held(claim)
            with pytest.raises(ClaimNotFound):
                source.renew(claim)
            with pytest.raises(ClaimNotFound):
                source.settle(claim, rest=True)
            source.release(claim)
        for claim in ("", *CLAIMS):
            with pytest.raises(MessageClaimed):
                source.delete(job.posted[0], claim)
        with pytest.raises(MessageClaimed):
            source.storage.messages.delete(SOURCE, job.posted[:1], source.now, CLAIMS)
        for hold in (None, 60):
            handles = [MessageHandle(job.posted[0], CLAIMS[0], 1, hold)]
            assert list(source.storage.claims.handle(SOURCE, handles, source.now, accepts_expired=True)) == [
                HandleOutcome.LOST
            ]
        moves = [Move(id, "elsewhere") for id in job.posted[:6]]
        assert source.storage.messages.move(SOURCE, moves, source.now) == []
    source.post(1)
    assert source.storage.queues.ready(SOURCE, 100, source.now).count == 2
    assert len(source.claimable()) == 2
    assert ids_of(source.storage.messages.pop(SOURCE, 10, source.now)) == []
    job.finish()
    assert job.scene.last() == FIGURES


def test_the_name_of_a_settled_claim_is_free(job: Job):
    """A new claim with the same name has other messages, which the commit does not change."""
    job.decide()
    assert job.source.named(CLAIMS[0], 5) == (job.posted[6:], False)
    job.finish()
    assert job.source.held(CLAIMS[0]) == sorted(job.posted[6:])


def test_stages_of_a_decided_commit_are_safe(job: Job):
    """A drop has no effect, the stages do not expire, and no other commit can use them."""
    job.decide()
    for stage in STAGES:
        job.scene.drop_stage(stage)
    job.scene.tick(4000)
    job.scene.reclaimed()
    with pytest.raises((StageNotFound, CommitRunning)):
        job.scene.decide(9, STAGES, producer="rival")
    job.finish()
    assert (job.scene.page(), job.other.page()) == (job.here, job.there)


def test_the_ttl_of_published_messages_starts_at_their_publication(job: Job):
    job.decide()
    while job.scene.continue_commit(1) and not job.scene.page():
        pass
    job.scene.tick(50)
    first = job.scene.now - 50
    job.finish()
    created = [message.created for message in job.scene.walk()]
    assert created[0] == pytest.approx(first, abs=0.001)
    assert created[-1] == pytest.approx(job.scene.now, abs=0.001)
    assert [message.available for message in job.scene.walk()] == pytest.approx(created, abs=0.001)


def test_a_repeated_commit_finishes_the_open_one(job: Job):
    """The repeat returns the counts of the open commit and drops its own stages."""
    job.decide()
    job.scene.continue_commit()
    job.scene.stage("again", 1)
    assert job.scene.commit(1, ["again"], HELD) == CommitResult(1, 8, 6, replayed=True)
    job.assert_done()
    with pytest.raises(StageNotFound):
        job.scene.commit(2, ["again"])


def test_the_next_batch_finishes_the_previous_commit(job: Job):
    """An attempt of the next batch finishes the open batch first, so a producer's batches take effect in order."""
    job.decide()
    more = job.scene.stage("next", 2)
    assert job.scene.commit(2, ["next"]) == CommitResult(2, 2, 0)
    assert job.scene.page() == job.here + more
    assert job.other.page() == job.there


def test_open_commits_are_listed_with_their_progress(job: Job):
    """The listing covers all projects, shows progress after each slice, and is empty in the end."""
    transactions = job.scene.storage.transactions
    assert transactions.find_unfinished_commits(job.scene.now) == []
    job.decide()
    seen = set()
    while True:
        found = transactions.find_unfinished_commits(job.scene.now)
        assert [(one.project, one.producer) for one in found] in ([("acme", "etl")], [])
        assert transactions.find_unfinished_commits(job.scene.now) == found
        assert not seen.intersection(found)
        seen.update(found)
        if not job.scene.continue_commit():
            break
    assert transactions.find_unfinished_commits(job.scene.now) == []
    assert len(seen) >= 5
    assert not job.scene.continue_commit()


def test_open_commits_of_one_project_are_listed(scene: Scene):
    """The names of the other projects begin with the project's name, or with a part of it."""
    expected = {"acme": ["a", "b"], "acme2": ["a"], "acm": ["b"], "": ["c"], "none": []}
    for project, producers in expected.items():
        one = Scene(scene.storage, scene.clock, QueueRef(project, "jobs"))
        for producer in producers:
            one.stage(producer, 2)
            one.decide(1, [producer], producer=producer)
    for project, producers in expected.items():
        found = scene.storage.transactions.find_unfinished_commits(scene.now, project)
        assert sorted((one.project, one.producer) for one in found) == [(project, name) for name in producers]


def test_a_project_is_idle_without_stages_and_incomplete_commits(scene: Scene):
    """Stages and commits of other projects do not count. A commit may also have claims only."""
    work, project = scene.storage.transactions, scene.queue.project
    other = Scene(scene.storage, scene.clock, QueueRef(project + "2", "jobs"))
    other.stage("s", 2)
    other.stage("decided", 2)
    other.decide(1, ["decided"])
    scene.post(2)
    scene.take(2, name="etl.0")

    def finish() -> list[bool]:
        """Return, before each slice and after the last one, whether the project is idle."""
        found = [work.is_idle(project, scene.now)]
        while scene.continue_commit(1):
            found.append(work.is_idle(project, scene.now))
        return [*found, work.is_idle(project, scene.now)]

    assert work.is_idle(project, scene.now)
    scene.stage("s", 2)
    assert not work.is_idle(project, scene.now)
    for publish, settle in ((["s"], []), ([], [ClaimRef(scene.queue, "etl.0")])):
        assert scene.decide(1 + len(settle), publish, settle).open
        *during, after = finish()
        assert not any(during)
        assert after
    scene.stage("short", lives=60)
    assert not work.is_idle(project, scene.now)
    scene.tick(60)
    assert work.is_idle(project, scene.now)
    assert not work.is_idle(other.queue.project, scene.now)


@ONE_OR_TWO_CONNECTIONS
def test_concurrent_slices_of_a_commit_publish_each_message_once(job: Job):
    job.decide()
    run_together(*[partial(job.finish, 1)] * 4)
    job.assert_done()


def test_posts_and_claims_run_between_slices(job: Job):
    """No message is lost or duplicated."""
    job.decide()
    mine, taken = [], []
    while job.scene.continue_commit(1):
        mine += job.scene.post(1)
        taken += job.scene.claimable(1)
    taken += job.scene.claimable()
    assert sorted(taken) == sorted(mine + job.here)
    assert [id for id in ids_of(job.scene.walk()) if id in job.here] == job.here


def test_purge_and_deletion_during_an_open_commit_keep_its_result(job: Job):
    """A purge deletes the claimed messages; after the deletion of a target queue, later slices create it again."""
    job.decide()
    job.source.storage.queues.purge(SOURCE)
    assert job.source.counts() == (0, 0)
    fresh = job.source.post(2)
    job.scene.continue_commit(1)
    job.other.storage.queues.delete(job.other.queue)
    job.finish()
    assert job.source.claimable() == fresh
    assert (job.scene.page(), job.other.page()) == (job.here, job.there)
    assert job.scene.last() == FIGURES


def test_messages_deleted_during_an_open_commit_do_not_block_it(job: Job):
    """Bulk deletion ignores claims."""
    job.decide()
    job.source.delete_many(job.posted[1:5])
    job.finish()
    assert ids_of(job.source.walk()) == job.posted[6:]
    assert job.scene.last() == FIGURES


def test_a_commit_beyond_its_limits_is_refused_without_changes(job: Job):
    """The error has the limit and the actual number. Claims, stages and producer are unchanged."""
    with pytest.raises(CommitTooLarge, match="13 messages in total, not 14"):
        job.scene.commit(1, STAGES, HELD, bounds=Bounds(2, 13))
    with pytest.raises(ProducerNotFound):
        job.scene.last()
    assert job.source.held(CLAIMS[0]) == sorted(job.posted[:3])
    assert job.scene.commit(1, STAGES, HELD, bounds=Bounds(2, 14)) == FIGURES
    job.assert_done()


@pytest.mark.parametrize("step", [1, 1000])
def test_a_commit_with_another_staged_count_is_refused(job: Job, step: int):
    """The commit changes nothing and can be repeated with the right number (A.9)."""
    bounds = Bounds(step, 1000)
    for expected in ({"s1": 3}, {"s1": 4, "s2": 5}):
        with pytest.raises(StageDiffers, match="has 4 messages"):
            job.scene.commit(1, STAGES, HELD, expected=expected, bounds=bounds)
    with pytest.raises(ProducerNotFound):
        job.scene.last()
    assert job.source.held(CLAIMS[1]) == sorted(job.posted[3:6])
    assert job.scene.commit(1, STAGES, HELD, expected={"s2": 4}, bounds=bounds) == FIGURES
    job.assert_done()


def test_a_large_commit_with_a_lapsed_claim_is_refused(job: Job):
    """Nothing changes: the other claim is still held, and the stages can be published."""
    job.source.renew(CLAIMS[0], ttl=600)
    job.scene.tick(61)
    with pytest.raises(ClaimLapsed):
        job.scene.commit(1, STAGES, HELD, bounds=Bounds(2, 1000))
    assert job.source.held(CLAIMS[0]) == sorted(job.posted[:3])
    assert job.source.claimable() == job.posted[6:] + job.posted[3:6]
    assert job.scene.commit(1, STAGES, HELD[:1], bounds=Bounds(2, 1000)) == CommitResult(1, 8, 3)


def test_a_large_commit_of_large_messages_is_carried_out(scene: Scene):
    new = [Draft(id, b'"%b"' % (b"x" * 200_000), 600, 0, "alice") for id in new_ids(30, scene.now)]
    for first in range(0, 30, 10):
        scene.storage.transactions.stage("acme", "s1", scene.queue, new[first : first + 10], scene.now, 600, 1 << 28)
    assert scene.storage.transactions.commit(Commit("acme", "etl", 1, ["s1"], [], 3600), scene.now).open
    slices = 1
    while scene.continue_commit(2000):
        slices += 1
    assert slices > 1
    assert scene.page(limit=50) == ids_of(new)


def test_an_abandoned_commit_is_finished_by_the_second_round(job: Job):
    """A round skips a commit that has progressed since the last round, and continues a commit that has not."""
    looking = CommitExecutor(job.scene.storage.transactions, job.scene.clock, Bounds(2, 1000), DEADLINE)
    job.decide()
    for _ in range(3):
        looking.resume()
        assert job.scene.continue_commit(1)
    assert job.scene.last().open
    looking.resume()
    for _ in range(100):  # Each round continues where the last one ran out of time.
        looking.resume()
        if not job.scene.last().open:
            break
    job.assert_done()


def test_a_round_does_not_wait_for_its_own_progress(job: Job, monkeypatch: pytest.MonkeyPatch):
    """The round's own progress does not count, so every round after the second continues the commit."""
    monkeypatch.setattr(commit_executor, "MAINTENANCE_SECONDS", 0.0)  # one slice per round
    looking = CommitExecutor(job.scene.storage.transactions, job.scene.clock, Bounds(2, 1000), DEADLINE)
    job.decide()
    looking.resume()
    looks = 0
    while job.scene.last().open:
        before = job.scene.storage.transactions.find_unfinished_commits(job.scene.now)
        looking.resume()
        assert job.scene.storage.transactions.find_unfinished_commits(job.scene.now) != before
        looks += 1
    assert looks > 2
    job.assert_done()
