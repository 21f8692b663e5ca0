# SPDX-License-Identifier: Apache-2.0
"""Commits on MongoDB whose server dies or is overtaken at each step: they take effect completely or not at all."""

import contextlib
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.faults.job import ALL, HELD, PART, PATIENCE, REPLAYED, TIMEOUT, At, Dead, Job, die
from tests.faults.test_mongodb_faults import failing
from tests.rotation import rotated
from tests.stores import MongoServer
from zq.clock import ManualClock
from zq.conformance.builders import Scene, drafts, ids_of, run_together
from zq.core.commit_executor import CommitExecutor
from zq.errors import (
    ClaimLapsed,
    ClaimNotFound,
    CommitRunning,
    Fenced,
    MessageClaimed,
    MoveRefused,
    ProducerNotFound,
    StageNotFound,
)
from zq.model import Bounds, ClaimRef, Commit, CommitResult, Fence, QueueRef
from zq.model.limits import Limits
from zq.model.pools import Pool, pool_ref
from zq.model.quotas import Work
from zq.pools.moves import Moves
from zq.storage import memory
from zq.storage.mongodb import MongoStorage, commits, connect, reservations
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.layout import BsonDocument
from zq.storage.mongodb.producers import CommitEvents, Step
from zq.storage.pooling import PooledStorage


@pytest.fixture(scope="module")
def server() -> Iterator[MongoServer]:
    with MongoServer("--setParameter", "enableTestCommands=1") as started:
        yield started


@pytest.fixture(scope="module")
def store(server: MongoServer) -> Iterator[MongoStorage]:
    opened = connect(server.uri_of("commits"), timeout=TIMEOUT)
    yield opened
    opened.close()


@pytest.fixture
def job(store: MongoStorage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Job]:
    monkeypatch.setattr(reservations, "MESSAGES_AT_ONCE", PART)
    store._client.messages.delete_many({})
    made = Job(store._client)
    yield made
    made.close()


UNDECIDED = [(Step.BEGUN, 1), (Step.RESERVED, 1), (Step.RESERVED, 2), (Step.RESERVED, 3)]
DECIDED = [
    (Step.DECIDED, 1),
    (Step.SETTLED, 1),
    (Step.SETTLED, 3),
    (Step.PUBLISHED, 1),
    (Step.PUBLISHED, 2),
    (Step.PUBLISHED, 3),
    (Step.UNSTAGED, 1),
    (Step.UNSTAGED, 3),
    (Step.DONE, 1),
]


@pytest.mark.parametrize(("step", "nth"), rotated(UNDECIDED, 1))
def test_a_commit_that_dies_before_it_is_decided_never_was(job: Job, step: str, nth: int):
    """While the server may be alive, other attempts are refused; later maintenance releases all reservations."""
    job.dies(step, nth)
    with pytest.raises(CommitRunning):
        job.commit(job.input.storage)
    job.input.tick(PATIENCE)
    job.upkeep(job.server())
    job.assert_undone()


def test_the_next_attempt_gives_up_the_one_before_by_itself(job: Job):
    """The attempt needs no maintenance, and then continues."""
    job.dies(Step.RESERVED, 2)
    job.input.tick(PATIENCE)
    assert job.commit(job.server()) == ALL
    job.assert_done()


@pytest.mark.parametrize(("step", "nth"), rotated(DECIDED, 1))
def test_a_commit_that_dies_after_it_is_decided_is_carried_out_by_maintenance(job: Job, step: str, nth: int):
    """Maintenance continues at the step where the server died, and publishes each message once."""
    job.dies(step, nth)
    job.input.tick(PATIENCE)
    job.upkeep(job.server())
    job.assert_done()


def test_a_decided_commit_loses_nothing_however_late_it_is_carried_out(job: Job):
    """The stages have expired, and another server removes them first. Drafts of a decided commit have no expiry."""
    job.dies(Step.DECIDED)
    job.input.tick(1200)
    job.upkeep(job.server())
    job.assert_done()


def test_a_stage_that_the_ttl_monitor_is_at_is_not_published(job: Job):
    """The commit begins just before its stages expire and is slow: it is refused as a whole."""

    def expire() -> None:
        assert job.messages.delete_one({"_id": {"$regex": "^d"}, "e": {"$exists": True}}).deleted_count == 1

    with pytest.raises(StageNotFound):
        job.commit(job.server(At(Step.BEGUN, 1, expire)))
    assert job.published == {"left": [], "right": []}
    assert job.input.held("job.0") == sorted(job.taken[:40])


@pytest.mark.parametrize(("step", "nth"), rotated(DECIDED[::2], 1))
def test_a_commit_that_dies_after_it_is_decided_is_carried_out_by_its_repetition(job: Job, step: str, nth: int):
    """A repetition completes the commit at once, and so does a query of the last batch."""
    job.dies(step, nth)
    if nth == 1:
        assert job.commit(job.server()) == REPLAYED
    else:
        assert job.carrier(job.server()).last("acme", "etl") == ALL
    job.assert_done()


@pytest.mark.parametrize("step", rotated([Step.DECIDED, Step.PUBLISHED, Step.UNSTAGED, Step.SETTLED], 1))
def test_a_server_that_carries_a_commit_out_may_die_too(job: Job, step: str):
    """The server that continues after it may die too."""
    job.dies(Step.DECIDED)
    for nth in (1, 2):
        job.input.tick(PATIENCE)
        with contextlib.suppress(Dead):
            job.upkeep(job.server(At(step, nth, die)))
    job.input.tick(PATIENCE)
    job.upkeep(job.server())
    job.assert_done()


@pytest.mark.parametrize("step", rotated([Step.ABORTING, Step.UNRESERVED, Step.ABORTED], 1))
def test_a_server_that_aborts_a_commit_may_die_too(job: Job, step: str):
    """No reservation remains."""
    job.dies(Step.RESERVED, 3)
    job.input.tick(PATIENCE)
    with pytest.raises(Dead):
        job.upkeep(job.server(At(step, 1, die)))
    job.input.tick(PATIENCE)
    job.upkeep(job.server())
    job.assert_undone()


class Watch(CommitEvents):
    """A watcher that records at each step whether another server considers the project idle."""

    def __init__(self, other: MongoStorage, now: float) -> None:
        self._other, self._now = other, now
        self.seen: dict[str, bool] = {}

    def reached(self, step: str) -> None:
        self.seen[step] = self._other.transactions.is_idle("acme", self._now)


@pytest.mark.parametrize("aborted", [False, True])
def test_a_project_is_not_idle_at_any_step_of_a_commit(job: Job, aborted: bool):
    watch = Watch(job.server(), job.input.now)
    if aborted:
        job.dies(Step.RESERVED, 3)
        job.input.tick(PATIENCE)
        job.server(watch).maintain(job.input.now)
    else:
        job.commit(job.server(watch))
    steps = (Step.ABORTING, Step.UNRESERVED, Step.ABORTED) if aborted else {step for step, _ in UNDECIDED + DECIDED}
    assert watch.seen == {step: step == Step.DONE for step in steps}


def assert_no_move(job: Job, other: MongoStorage) -> None:
    """Assert that a target queue of the job's commit cannot move. The check uses the connection ``other``."""
    store = job.input.storage
    store.queues.create(QueueRef("acme", "left"), b"{}")
    store.documents.put(pool_ref("a"), msgspec.json.encode(Pool("memory:", 0)), job.input.now)
    catalogue: Any = SimpleNamespace(documents=store.documents, transactions=other.transactions)
    with closing(memory.connect("memory:")) as target:
        relocation = PooledStorage(store, lambda *_: target, virtual=True).relocation
        moves = Moves(relocation, catalogue, job.input.clock, Limits(), lambda: None)
        with pytest.raises(MoveRefused, match="open stages or commits"):
            moves.start("a", "acme", b'{"queue": "left"}')


@pytest.mark.parametrize("repeated", [False, True])
def test_a_queue_of_a_reserved_stage_does_not_move(
    server: MongoServer, job: Job, repeated: bool, monkeypatch: pytest.MonkeyPatch
):
    """After the first search of the check, another server aborts the commit. The producer may repeat it at once."""
    store = job.input.storage
    job.dies(Step.BEGUN)
    job.input.tick(PATIENCE)

    def abort() -> None:
        store.parcels.abort_commit("acme", "etl", job.input.now)
        assert len(store.transactions.list("acme", Work.STAGE, "", 9, job.input.now).items) == 3

    def repeat() -> None:
        job.dies(Step.BEGUN)
        assert store.parcels.find_undecided_commits("acme", job.input.now)

    actions, find = iter([abort, repeat] if repeated else [abort]), StoreClient.find

    def find_and_act(client: StoreClient, *arguments: Any, **terms: Any) -> list[BsonDocument]:
        found = find(client, *arguments, **terms)
        if client is other._client:
            next(actions, lambda: None)()
        return found

    monkeypatch.setattr(StoreClient, "find", find_and_act)
    with closing(connect(server.uri_of("commits"))) as other:
        assert_no_move(job, other)


def test_a_queue_of_a_decided_commit_does_not_move_if_many_projects_have_commits(
    job: Job, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(commits, "FOUND_AT_ONCE", 1)
    other = Scene(job.input.storage, job.input.clock, QueueRef("other", "jobs"))
    other.stage("s", 2)
    assert other.decide(1, ["s"]).open
    job.input.tick(PATIENCE)
    job.dies(Step.DECIDED)
    assert [one.project for one in other.storage.transactions.find_unfinished_commits(other.now)] == ["other"]
    assert_no_move(job, job.server())


def test_a_commit_that_was_aborted_cannot_be_decided(job: Job):
    """Its server was only slow, and continues after other servers have released everything."""

    def overtake() -> None:
        job.input.tick(PATIENCE)
        job.upkeep(job.server())

    with pytest.raises(CommitRunning):
        job.commit(job.server(At(Step.RESERVED, 3, overtake)))
    job.assert_undone()


def test_a_decided_commit_may_be_carried_out_by_two_at_once(job: Job):
    """Each message is published once and in order, whichever server does which part."""
    job.dies(Step.DECIDED)
    servers = [job.server() for _ in range(3)]
    assert set(run_together(*(lambda store=store: job.commit(store) for store in servers))) == {REPLAYED}
    job.assert_done()


@pytest.mark.parametrize("part", [PART, 1000])
def test_a_batch_that_many_commit_at_once_takes_effect_once(job: Job, part: int):
    """The commit is large or small; other servers learn that it is in progress, or its result."""
    job.step = part

    def attempt() -> CommitResult | None:
        try:
            return job.commit(job.server())
        except CommitRunning:
            return None

    answers = run_together(*[attempt] * 4)
    assert answers.count(ALL) == 1
    assert set(answers) <= {ALL, REPLAYED, None}
    job.assert_done()


@pytest.mark.parametrize(
    ("part", "command"),
    rotated(
        [(1000, "commitTransaction"), *((PART, lost) for lost in ("commitTransaction", "update", "insert", "delete"))],
        2,
    ),
)
def test_a_commit_whose_connection_breaks_takes_effect_once(server: MongoServer, job: Job, part: int, command: str):
    """Any of its commands may be lost, in a large or small commit."""
    job.step = part
    with failing(server, command, 2, closeConnection=True):
        assert job.commit(job.server()) == ALL
    job.assert_done()


def test_a_claim_that_lapses_before_it_is_reserved_aborts_the_commit(job: Job):
    """Another claim has taken over its messages, and nothing else has changed."""

    def lapse() -> None:
        other = Scene(job.server(), ManualClock(job.input.now), job.input.queue)
        other.renew("job.0", ttl=900)
        other.renew("job.2", ttl=900)
        other.tick(301)
        stolen.extend(ids_of(other.take(1, name="thief").messages))

    stolen: list[str] = []
    with pytest.raises(ClaimLapsed):
        job.commit(job.server(At(Step.BEGUN, 1, lapse)))
    assert stolen == job.taken[40:41]
    assert job.published == {"left": [], "right": []}
    assert job.input.held("job.0") == sorted(job.taken[:40])
    assert job.input.held("thief") == stolen
    with pytest.raises(ProducerNotFound):
        job.input.storage.transactions.last("acme", "etl", job.input.now)


def test_reserved_messages_cannot_be_touched(job: Job):
    """Its claims appear unchanged until the commit is decided; no claim expires, and no message is delivered."""

    def look() -> None:
        scene = Scene(job.server(), ManualClock(job.input.now), job.input.queue)
        stats = scene.storage.queues.stats(scene.queue, scene.now)
        assert (stats.claimed, stats.free) == (HELD, 0)
        assert scene.held("job.1") == sorted(job.taken[40:80])
        assert scene.named("job.1") == (job.taken[40:80], True)
        assert {message.claim for message in scene.walk()} == {"job.0", "job.1", "job.2"}
        for claim in ("", "job.0"):
            with pytest.raises(MessageClaimed):
                scene.delete(job.taken[0], claim)
        scene.release("job.0")
        with pytest.raises(ClaimNotFound):
            scene.renew("job.0")
        with pytest.raises(ClaimNotFound):
            scene.settle("job.0", rest=True)
        scene.tick(4000)
        scene.storage.messages.post(scene.queue, drafts(1, scene.now), scene.now)
        assert len(scene.claimable()) == 1
        looked.append(True)

    looked: list[bool] = []
    job.commit(job.server(At(Step.RESERVED, 3, look)))
    assert looked


def test_what_is_decided_is_never_handed_out_again(job: Job):
    """This includes the claim that held the message."""
    job.dies(Step.DECIDED)
    with pytest.raises(ClaimNotFound):
        job.input.held("job.0")
    assert job.input.named("job.0") == ([], False)
    job.input.tick(4000)
    assert job.input.claimable() == []


@pytest.mark.parametrize("step", [Step.BEGUN, Step.RESERVED])
def test_a_fence_that_advances_before_the_decision_aborts_the_commit(job: Job, step: str):
    """The commit has an outdated fencing token."""
    fences = job.input.storage.transactions
    fence = Fence("etl", fences.advance_fence("acme", "etl", job.input.now))
    with pytest.raises(Fenced):
        job.commit(
            job.server(At(step, 1, lambda: fences.advance_fence("acme", "etl", job.input.now))), job.order(fence=fence)
        )
    job.assert_undone()


@pytest.mark.parametrize("way", ["purge", "delete"])
@pytest.mark.parametrize(("step", "nth"), [(Step.BEGUN, 1), (Step.RESERVED, 3)])
def test_a_removal_before_the_decision_aborts_the_commit(job: Job, way: str, step: str, nth: int):
    """The claimed messages are gone. Nothing is published, and no reservation remains."""
    server = job.server(At(step, nth, lambda: getattr(job.input.storage.queues, way)(job.input.queue)))
    with pytest.raises(ClaimLapsed):
        job.commit(server)
    assert job.published == {"left": [], "right": []}
    assert job.input.is_empty()
    assert job.input.history() == []
    assert not [one for one in job.leftovers() if one.startswith("p")]


def test_a_stage_that_a_commit_has_is_neither_dropped_nor_filled_nor_used_by_others(job: Job):
    """The stage does not expire either."""
    job.dies(Step.DECIDED)
    stages = job.server().transactions
    stages.drop_stage("acme", "stage.1")
    with pytest.raises(CommitRunning):
        stages.stage("acme", "stage.1", job.input.queue, drafts(1, 0.0), job.input.now, 600, 1 << 20)
    with pytest.raises(CommitRunning):
        stages.commit(Commit("acme", "other", 1, ["stage.1"], [], 3600), job.input.now)
    job.input.tick(700)
    job.upkeep(job.server())
    job.assert_done()


def test_a_stage_that_has_expired_is_gone_with_its_drafts(job: Job):
    """All verbs treat it as missing at once, and maintenance removes it from the store."""
    job.input.tick(601)
    with pytest.raises(StageNotFound):
        job.commit(job.input.storage)
    job.upkeep(job.server())
    assert job.leftovers() == []


def test_thousands_of_messages_are_one_commit(store: MongoStorage):
    """The commit runs in parts of the production size."""
    store._client.messages.delete_many({})
    scene = Scene(store, ManualClock(store.now()), QueueRef("acme", "in"))
    for _ in range(5):
        scene.post(500)
    claims = [scene.take(500, name=f"big.{number}").id for number in range(5)]
    new = drafts(2500, scene.now)
    store.transactions.stage("acme", "big", QueueRef("acme", "out"), new, scene.now, 600, 1 << 20)
    began = time.monotonic()
    order = Commit("acme", "etl", 1, ["big"], [ClaimRef(scene.queue, claim) for claim in claims], 3600)
    carrier = CommitExecutor(store.transactions, scene.clock, Bounds(), 30)
    assert carrier.commit(order) == CommitResult(1, 2500, 2500)
    assert time.monotonic() - began < 60
    assert ids_of(scene.at("out").walk()) == ids_of(new)
    assert scene.walk() == []
