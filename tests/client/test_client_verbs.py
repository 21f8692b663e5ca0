# SPDX-License-Identifier: Apache-2.0
"""Every method of both Python clients against a real server."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from tests.client.client_kinds import bodies, client_of
from tests.servers import ZqServer, wait_for
from zq import errors
from zq.client import BuryTerms, Draft, MoveTerms, ReleaseTerms, TypedValue


@pytest.fixture
def client(running: ZqServer, kind: str, project: str) -> Iterator[Any]:
    with client_of(kind, running.url, project) as opened:
        yield opened


def test_a_queue_lives_from_its_creation_to_its_end(client: Any) -> None:
    """A queue is created, changed, counted, purged, deleted and listed over pages with filters."""
    jobs = client.queue("jobs")
    assert not jobs.exists()
    assert jobs.create({"colour": "blue", "a/b~c": 1})
    assert not jobs.create({"colour": "red"})
    assert jobs.exists()
    assert jobs.metadata()["colour"] == "blue"
    changed = jobs.update({"_default_message_ttl": 700, "size": 3}, remove=["a/b~c"])
    assert (changed["_default_message_ttl"], changed["size"], "a/b~c" in changed) == (700, 3, False)
    for number in range(12):
        client.queue(f"q{number:02}").create()
    assert [listed.name for listed in client.queues(page=5)] == ["jobs", *(f"q{number:02}" for number in range(12))]
    assert [listed.metadata["size"] for listed in client.queues(detailed=True, name="job", size=3)] == [3]
    assert [listed.name for listed in client.queues(page=1, size=3)] == ["jobs"], "later pages have the filter too"
    jobs.post(1)
    assert (jobs.stats().free, jobs.stats().oldest.sequence) == (1, 1)
    jobs.purge()
    assert (jobs.stats().total, jobs.stats().oldest) == (0, None)
    jobs.delete()
    assert not jobs.exists()


def test_audit_is_listed_latest_first(client: Any) -> None:
    """Entries are paged, and ``since`` ends the listing. The entry of a purge has its number of messages."""
    begun = datetime.now(UTC) - timedelta(seconds=60)
    for number in range(1, 6):
        client.queue(f"q{number}").post_batch(list(range(number)))
        client.queue(f"q{number}").purge()
    entries = wait_for(lambda: [*client.audit(page=2)][4:] and [*client.audit(page=2)], 60, "five entries")
    told = [(entry.rule, entry.object, entry.messages) for entry in entries]
    assert told == [("queues:purge", f"queue q{number}", number) for number in reversed(range(1, 6))]
    assert len([*client.audit(since=begun)]) == 5
    assert [*client.audit(since=datetime.now(UTC) + timedelta(days=1))] == []
    assert [*client.audit(since=datetime.fromisoformat(entries[2].time), page=1)][:3] == entries[:3]
    with pytest.raises(errors.Invalid, match="limit"):
        [*client.audit(page=101)]


def test_a_queue_is_paused_and_resumed(client: Any) -> None:
    """Claims and pops are empty, posts raise; resuming an active queue works, and a missing queue is an error."""
    jobs = client.queue("jobs")
    jobs.post(1)
    assert jobs.pause("claims")["_paused"] == "claims"
    assert (jobs.claim(1).messages, jobs.pop(1)) == ([], [])
    jobs.post(2)
    assert jobs.pause()["_paused"] == "all"
    with pytest.raises(errors.QueuePaused, match="jobs"):
        jobs.post(3)
    for _ in range(2):
        assert "_paused" not in jobs.resume()
    assert bodies(jobs.pop(5)) == [1, 2]
    for change in (client.queue("none").pause, client.queue("none").resume):
        with pytest.raises(errors.QueueNotFound):
            change()


def test_figures_cover_the_project_a_queue_and_servers(client: Any) -> None:
    """A listing over pages has each queue once; only administrators see servers."""
    for number in range(5):
        client.queue(f"q{number}").post_batch([1] * (number + 1))
    wait_for(lambda: len([*client.queue_figures()]) == 5, 60, "all queues are counted")
    assert [row.name for row in client.queue_figures(sort="ready", page=2)] == ["q4", "q3", "q2", "q1", "q0"]
    assert [row.name for row in client.queue_figures(sort="name", order="desc", name="1")] == ["q1"]
    assert client.figures(window=10800).step == 60
    points = client.queue("q3").figures(window=300)
    assert (points.now.ready, len(points.depth.ready)) == (4, 150)
    with pytest.raises(errors.NotAuthorized):
        client.servers()


@pytest.mark.parametrize("name", ["a", "-", "..", "z" * 64])
def test_any_name_of_a_queue_is_one_path_segment(client: Any, name: str) -> None:
    """Names of dots are encoded, and ``exists`` ignores queues with similar names."""
    neighbours = [name[:-1] + "+" * 2, name[:63] + "0", name[:-1] or "y"]
    for neighbour in neighbours:
        if neighbour != name and "+" not in neighbour:
            client.queue(neighbour).create()
    assert not client.queue(name).exists()
    client.queue(name).post("here")
    assert client.queue(name).exists()
    assert bodies(client.queue(name).pop(5)) == ["here"]
    client.queue(name).delete()
    assert not client.queue(name).exists()


def test_messages_of_one_state_are_listed_and_one_is_found(client: Any) -> None:
    """Listings are paged, and can have only the start of each body, which the client does not decode."""
    jobs = client.queue("jobs")
    jobs.create({"_default_message_delay": 60, "_history_ttl": 600})
    for number in range(3):
        jobs.post(f"ready {number}", delay=0)
    jobs.post_batch(["late", "later"])
    claim = jobs.claim(limit=1)
    assert bodies(jobs.list(state="ready", page=1)) == ["ready 1", "ready 2"]
    assert bodies(jobs.list(state="delayed")) == ["late", "later"]
    assert bodies(jobs.list(state="claimed")) == ["ready 0"]
    [held] = jobs.list(state="claimed", bodies="start")
    assert (held.body_start, held.body_bytes, held.content, held.claim) == ('"ready 0"', 9, b"", claim.id)
    with pytest.raises(ValueError, match="Only the start"):
        _ = held.body
    assert "ready 0" in repr(held)
    with pytest.raises(errors.Invalid):
        list(jobs.list(state="ready", claimed=True))
    located = client.find(held.id)
    assert (located.queue, located.state, located.message.body) == ("jobs", "claimed", "ready 0")
    jobs.settle(claim.id, delete="*")
    assert [one.body_start for one in jobs.history(bodies="start")] == ['"ready 0"']
    located = client.find(held.id)
    assert (located.state, located.message.outcome, located.message.body) == ("finished", "deleted", "ready 0")
    with pytest.raises(errors.MessageNotFound):
        client.find("none")


def test_messages_are_posted_listed_got_popped_and_deleted(client: Any) -> None:
    """Messages have their own ttl and delay, raw JSON bodies, and bodies that are decoded to a type."""
    queue = client.queue("jobs")
    first = queue.post({"who": "Zoë"}, ttl=120)
    second, third = queue.post_batch([msgspec.Raw(b"[1,2]"), Draft(None, ttl=90, delay=0)], ttl=600)
    assert bodies(queue.list()) == [{"who": "Zoë"}, [1, 2], None]
    assert bodies(queue.list(own=False)) == []
    assert queue.get(first).ttl == 120
    assert [message.ttl for message in queue.get_many([second, third])] == [600, 90]
    message = queue.get(second)
    assert (message.content, message.body_as(tuple[int, ...]), message.sequence) == (b"[1,2]", (1, 2), 2)
    assert message.created is not None
    assert message.expires == message.created + timedelta(seconds=600)
    assert queue.get_many([]) == []
    queue.delete_messages([])
    for verb in (queue.get_many, queue.delete_messages):
        with pytest.raises(errors.Invalid, match="list"):
            verb(second)
    assert (
        len({msgspec.structs.replace(each, age=0) for each in [*queue.list(), message]}) == 3
    )  # the age may have changed
    queue.delete_message(first)
    queue.delete_messages([third])
    assert [message.id for message in queue.pop(3)] == [second]
    assert queue.pop() == []
    queue.post_batch(range(45))
    assert bodies(queue.list(page=10)) == list(range(45))


def test_live_claims_are_listed_with_their_holders(client: Any) -> None:
    """Claims of a queue and of the project are listed over pages; a single claim has its holder, too."""
    for name in ("jobs", "more"):
        queue = client.queue(name)
        queue.post_batch(range(6))
        for _ in range(3):
            queue.claim(2, ttl=90)
    own = list(client.queue("jobs").claims(page=2))
    assert [(one.queue, one.messages) for one in own] == [("jobs", 2)] * 3
    assert {one.id for one in own} < {one.id for one in client.claims(page=1)}
    assert sorted(one.queue for one in client.claims()) == ["jobs"] * 3 + ["more"] * 3
    assert all((one.ends - one.created).total_seconds() == 90 and one.agent for one in own)
    held = client.queue("jobs").get_claim(own[0].id)
    assert (held.client, held.agent) == (own[0].client, own[0].agent)
    client.queue("jobs").release(own[0].id)
    assert [one.id for one in client.queue("jobs").claims()] == [one.id for one in own[1:]]
    assert list(client.queue("none").claims()) == []


def test_a_claim_is_taken_renewed_settled_and_released(client: Any) -> None:
    """The claim's name is generated or given; each way to settle works, and lost messages are reported."""
    queue = client.queue("jobs")
    queue.create({"_dead_letter_queue": "dead", "_max_claim_count": 5})
    queue.post_batch(range(8))
    claim = queue.claim(5, ttl=90, grace=60, wait=1)
    assert bodies(claim.messages) == [0, 1, 2, 3, 4]
    assert {message.claim for message in claim.messages} == {claim.id}
    assert [message.claim_count for message in claim.messages] == [1] * 5
    queue.renew(claim.id, ttl=120)
    assert queue.get_claim(claim.id).ttl == 120
    ids = [message.id for message in claim.messages]
    settled = queue.settle(
        claim.id,
        delete=[ids[0], "0" * 32],
        release=[ReleaseTerms(ids[1], 30)],
        move=[MoveTerms(ids[2], "next", msgspec.Raw(b'"new"'))],
        bury=[BuryTerms(ids[3], "torn")],
    )
    assert (settled.deleted, settled.released, settled.moved, settled.buried) == (1, 1, 1, 1)
    assert settled.lost == ["0" * 32]
    assert bodies(client.queue("next").list()) == ["new"]
    (dead,) = client.queue("dead").list()
    assert (dead.reason, dead.origin, dead.origin_claim_count) == ("torn", "jobs", 1)
    assert client.queue("dead").redrive_dry_run(limit=5).would_move == 1
    assert client.queue("dead").redrive(ids=["gone"]).lost == ["gone"]
    assert client.queue("dead").redrive().moved == 1
    queue.release(claim.id)
    with pytest.raises(errors.ClaimNotFound):
        queue.renew(claim.id)
    named = queue.claim(1, name="mine.1")
    assert queue.claim(1, name="mine.1").messages[0].id == named.messages[0].id == ids[4]
    assert queue.settle("mine.1", delete="*").deleted == 1
    nothing = client.queue("none").claim()
    assert nothing.messages == []
    client.queue("none").release(nothing.id)


def test_history_is_read_by_time_and_replayed(client: Any) -> None:
    """Finished messages have an outcome, and a replay posts copies."""
    queue = client.queue("jobs")
    queue.create({"_history_ttl": 600})
    ids = queue.post_batch(range(3))
    queue.pop(2)
    assert [(message.body, message.outcome) for message in queue.history()] == [(0, "popped"), (1, "popped")]
    assert bodies(queue.history(living=True)) == [0, 1, 2]
    soon = datetime.now(UTC) + timedelta(minutes=1)
    assert list(queue.history(since=soon)) == []
    page = queue.read_history_page(0, page=1)
    assert bodies([*page.messages, *queue.read_history_page(page.end).messages]) == [0, 1]
    assert queue.read_history_page(0, living=True, page=2).end == 2
    assert queue.read_history_page(0, since=soon).end is None
    assert queue.replay_dry_run([ids[0], "gone"]).lost == ["gone"]
    assert queue.replay(ids[:1]) == 1
    assert queue.replay(until=soon, limit=1) == 1
    assert sorted(bodies(queue.list())) == [0, 0, 2]


def test_a_topic_is_published_to_and_read_by_everybody(client: Any) -> None:
    """Topics have common methods with queues and their own."""
    topic = client.topic("news.eu")
    assert topic.create({"_default_message_ttl": 600})
    first = topic.publish("Oslo")
    second, _ = topic.publish_batch(["Rome", "Bern"], ttl=120)
    assert bodies(topic.list()) == ["Oslo", "Rome", "Bern"]
    assert bodies(topic.list(after=first, page=1)) == ["Rome", "Bern"]
    page = topic.read_page(0, page=2)
    assert (bodies(page.messages), page.gap) == (["Oslo", "Rome"], None)
    assert bodies(topic.read_page(page.end).messages) == ["Bern"]
    assert topic.get(second).body == "Rome"
    assert bodies(topic.get_many([first, second])) == ["Oslo", "Rome"]
    third = topic.publish("Kyiv", attributes={"kind": "city", "raw": b"\x00"})
    assert [found.attributes for found in topic.list(after=second)][-1] == {
        "kind": "city",
        "raw": TypedValue("Binary", "AA=="),
    }
    assert topic.get(third).body == "Kyiv"
    topic.publish_batch([Draft("Riga", attributes={"n": 1})])
    assert [listed.name for listed in client.topics()] == ["news.eu"]
    assert topic.exists()
    assert topic.stats().total == 5
    topic.purge()
    assert list(topic.list()) == []
    topic.delete()


@pytest.mark.parametrize("stage", ["etl.1", ("etl.1",), ("etl.1", "2"), ("etl.1", None)])
def test_a_commit_names_the_messages_of_each_stage(client: Any, stage: Any) -> None:
    """Without the count a stage that has lost a part would be published."""
    client.queue("out").stage("etl.1", [1, 2])
    with pytest.raises(errors.Invalid, match="publish must contain pairs of a stage and its message count"):
        client.commit("etl", 1, publish=[stage])
    with pytest.raises(errors.StageDiffers):
        client.commit("etl", 1, publish=[("etl.1", 3)])
    assert client.commit("etl", 1, publish=[("etl.1", 2)]).published == 2


def test_a_batch_is_staged_and_committed_once(client: Any) -> None:
    """A fence, a named claim, a stage, a commit, its repeat, and a fenced producer behave as specified."""
    source, sink = client.queue("in"), client.queue("out")
    source.post_batch([20, 22])
    fence = client.fence("etl")
    held = source.claim(20, name="etl.17", fence=fence)
    assert sink.stage("etl.17.1", [sum(bodies(held.messages))], ttl=600) == 1
    done = client.commit("etl", 17, publish=[("etl.17.1", 1)], settle=[("in", "etl.17")], fence=fence)
    assert (done.published, done.deleted, done.replayed) == (1, 2, False)
    assert client.commit("etl", 17, publish=[("etl.17.1", 1)], fence=fence).replayed
    assert client.committed("etl").batch == 17
    assert bodies(sink.list()) == [42]
    assert sink.post_many(range(3), stage="etl.18.1") == 3
    assert bodies(sink.list()) == [42]
    client.drop_stage("etl.18.1")
    with pytest.raises(errors.StageNotFound):
        client.commit("etl", 18, publish=[("etl.18.1", 3)])
    assert client.fence("etl").epoch == fence.epoch + 1
    with pytest.raises(errors.Fenced):
        client.commit("etl", 18, fence=fence)
    with pytest.raises(errors.ProducerNotFound):
        client.committed("nobody")


def test_stages_fences_and_commits_are_listed_over_all_pages(client: Any) -> None:
    """Stages, fences and producers have counts and are sorted by name."""
    out = client.queue("out")
    named = [f"job.{number}" for number in range(5)]
    for name in named:
        out.stage(name, [1, 2])
        client.fence(name)
        client.commit(name, 7)
    assert [stage.name for stage in client.stages(page=2)] == named
    assert [fence.name for fence in client.fences(page=5)] == named
    assert [commit.producer for commit in client.commits(page=4)] == named
    [stage, *_], [fence, *_], [commit, *_] = client.stages(), client.fences(), client.commits()
    assert (stage.messages, stage.bytes, stage.expires[-1]) == (2, 2, "Z")
    assert 3590 <= stage.dropped_in <= 3600
    assert (fence.epoch, fence.advanced[-1], fence.age in range(9)) == (1, "Z", True)
    assert (commit.batch, commit.published, commit.deleted, commit.open) == (7, 0, 0, False)
    assert (commit.decided[-1], commit.age in range(9)) == ("Z", True)


def test_each_refusal_raises_the_class_that_the_server_raised(client: Any) -> None:
    """The client does not guess the class from status and title, and the message is the server's."""
    queue = client.queue("jobs")
    ids = queue.post_batch([1, 2])
    queue.claim(1)
    refusals: list[tuple[type[errors.ZqError], str, Any]] = [
        (errors.MessageNotFound, "no such message", lambda: queue.get("0" * 32)),
        (errors.ClaimNotFound, "claim", lambda: queue.get_claim("0" * 32)),
        (errors.MessageClaimed, "claim", lambda: queue.delete_message(ids[0])),
        (errors.ClaimNotHeld, "claim", lambda: queue.delete_message(ids[1], claim="0" * 32)),
        (errors.QueueNotFound, "queue", lambda: client.queue("none").update({"a": 1})),
        (errors.TopicNotFound, "topic", lambda: client.topic("none").update({"a": 1})),
        (errors.MetadataConflict, "absent", lambda: queue.update(remove=["absent"])),
        (errors.InvalidBody, "ttl", lambda: queue.create({"_default_message_ttl": "x"})),
        (errors.InvalidName, "characters", lambda: client.queue("no blank").stats()),
        (errors.InvalidName, "slash", lambda: client.queue("a/messages").delete()),
        (errors.InvalidName, "empty", lambda: client.queue("").stats()),
        (errors.InvalidTopicName, "topic", lambda: client.topic("x" * 65).stats()),
        (errors.Invalid, "pop", lambda: queue.pop(0)),
        (errors.Invalid, "limit", lambda: queue.claim(10_000)),
        (errors.InvalidBody, "JSON", lambda: queue.post(object())),
    ]
    for kind, word, refused in refusals:
        with pytest.raises(errors.ZqError, match=word) as caught:
            refused()
        assert type(caught.value) is kind, word


def test_a_wrong_client_id_raises_the_servers_error_with_its_title(running: ZqServer, kind: str) -> None:
    """``InvalidHeader`` is the only class with a title and a message."""
    with client_of(kind, running.url, client_id="nobody") as client, pytest.raises(errors.InvalidHeader) as caught:
        client.ping()
    assert caught.value.title == "Wrong UUID value"


def test_the_server_shows_its_limits_and_is_alive(client: Any, running: ZqServer, project: str) -> None:
    """A project of another tenant is empty."""
    assert client.limits()["max_messages_per_page"] == 1000
    assert client.ping() is None
    client.queue("jobs").post(1)
    with client_of("blocking", running.url, project + "-other") as stranger:
        assert list(stranger.queues()) == []


def test_a_pop_and_a_claim_wait_for_what_comes(client: Any) -> None:
    """The wait may exceed the client's timeout for a response."""
    queue = client.queue("jobs")
    queue.create({"_default_message_delay": 1})
    queue.post("late", delay=1)
    assert bodies(queue.claim(wait=10).messages) == ["late"]
    queue.post("later", delay=1)
    assert bodies(wait_for(lambda: queue.pop(wait=10), 60, "the message is popped")) == ["later"]
