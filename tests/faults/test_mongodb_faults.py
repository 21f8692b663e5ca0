# SPDX-License-Identifier: Apache-2.0
"""A MongoDB store that fails while it serves: single commands fail, the server dies or hangs, the primary changes.

Single commands fail by mongod's own fail points, so the driver sees real failures.
"""

import contextlib
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from bson.datetime_ms import DatetimeMS
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from tests.servers import soon, wait_for
from tests.stores import MongoServer
from zq.clock import ManualClock
from zq.conformance.builders import Scene, drafts, ids_of, run_together
from zq.conformance.topic_builders import Log
from zq.errors import ClaimNotFound, Unavailable
from zq.model import QueueRef
from zq.model.documents import DocumentRef
from zq.storage.mongodb import connect
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.queue_claimer import QueueClaimer

UNREACHABLE = 6
NOT_PRIMARY = 91
NOT_REPLICATED = 64
UNAUTHORIZED = 13
UNSATISFIABLE = 100
WRITE_CONFLICT = 112
TIMEOUT = 2.5


@pytest.fixture(scope="module")
def server() -> Iterator[MongoServer]:
    with MongoServer("--setParameter", "enableTestCommands=1") as started:
        yield started


@pytest.fixture
def scene(server: MongoServer, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with server.client() as client:
        client["faults"]["messages"].delete_many({})
    storage = connect(server.uri_of("faults"), timeout=TIMEOUT)
    yield Scene(storage, ManualClock(storage.now()), QueueRef("acme", request.node.name[:64]))
    storage.close()


@contextlib.contextmanager
def failing(server: MongoServer, command: str, times: int | str = 1, **how: object) -> Iterator[None]:
    """Let the command fail in the given way, ``times`` times or ("alwaysOn") until the end."""
    mode = {"times": times} if isinstance(times, int) else times
    data = {"failCommands": [command], "appName": "zq", **how}
    with server.client() as client:
        client.admin.command({"configureFailPoint": "failCommand", "mode": mode, "data": data})
        try:
            yield
        finally:
            client.admin.command({"configureFailPoint": "failCommand", "mode": "off"})


def commands_of(client: MongoClient, name: str) -> int:
    """Return the number of commands with this name that the server has executed."""
    return int(client.admin.command("serverStatus")["metrics"]["commands"][name]["total"])


def test_a_post_whose_commit_was_carried_out_and_not_acknowledged_is_stored_once(server: MongoServer, scene: Scene):
    """The driver repeats the commit until its outcome is known."""
    with failing(server, "commitTransaction", 3, writeConcernError={"code": NOT_REPLICATED, "errmsg": "planted"}):
        posted = scene.post(3)
    assert ids_of(scene.walk()) == posted


@pytest.mark.parametrize("command", ["findAndModify", "insert", "commitTransaction"])
def test_a_post_whose_connection_breaks_is_stored_once(server: MongoServer, scene: Scene, command: str):
    """Any of its commands may be lost."""
    with failing(server, command, 2, closeConnection=True):
        posted = scene.post(3)
    assert ids_of(scene.walk()) == posted


def test_a_post_that_meets_conflicts_goes_through(server: MongoServer, scene: Scene):
    """The driver repeats the post after a pause, as often as necessary."""
    labels = ["TransientTransactionError"]
    with failing(server, "insert", 5, errorCode=WRITE_CONFLICT, errorLabels=labels):
        posted = scene.post(2)
    assert ids_of(scene.walk()) == posted


def test_a_post_whose_outcome_stays_unknown_is_unavailable_and_there_once_at_most(server: MongoServer, scene: Scene):
    """The driver does not repeat the post without the caller's knowledge."""
    with failing(
        server, "commitTransaction", "alwaysOn", writeConcernError={"code": NOT_REPLICATED, "errmsg": "planted"}
    ):
        began = time.monotonic()
        with pytest.raises(Unavailable):
            scene.post(2)
        assert time.monotonic() - began < 10 * TIMEOUT
    assert len(scene.walk()) in (0, 2)


def test_a_lost_commit_that_the_server_has_forgotten_is_found_by_its_ids(
    server: MongoServer, scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    """If the response was lost and the server no longer knows the transaction, the stored messages show the outcome."""
    port = scene.storage.messages._poster._client
    commit, lost = type(port)._commit, [True]

    def lose(self, session) -> None:
        commit(self, session)
        if lost.pop() if lost else False:
            error = PyMongoError("planted")
            error._add_error_label("TransientTransactionError")
            raise error

    monkeypatch.setattr(type(port), "_commit", lose)
    posted = scene.post(3)
    assert ids_of(scene.walk()) == posted
    assert scene.post(1) == ids_of(scene.walk())[3:]


def test_a_commit_that_is_there_though_the_server_complains_is_not_repeated(server: MongoServer, scene: Scene):
    """This holds for a group and for its single members: each post and each published batch is stored once."""
    log = Log(scene.storage, scene.clock)
    complaint = {"code": UNSATISFIABLE, "errmsg": "planted"}
    with failing(server, "commitTransaction", 3, writeConcernError=complaint):
        published = run_together(*[log.publish] * 6)
    assert log.sequences() == sorted(sequence for some in published for sequence in some) == list(range(1, 7))
    with failing(server, "commitTransaction", 3, writeConcernError=complaint):
        posted = run_together(*[partial(scene.post, 2)] * 6)
    assert sorted(ids_of(scene.walk())) == sorted(id for some in posted for id in some)


@pytest.mark.parametrize(("command", "code"), [("delete", NOT_PRIMARY), ("findAndModify", UNREACHABLE)])
def test_a_document_whose_deletion_was_not_acknowledged_was_deleted(
    server: MongoServer, scene: Scene, command: str, code: int
):
    """The repetition does not mistake the work of the first attempt for another caller's."""
    ref, records = DocumentRef("acme", "topic", "news"), scene.storage.documents
    records.put(ref, b"1", scene.now)
    with failing(server, command, 1, writeConcernError={"code": code, "errmsg": "planted"}):
        assert records.delete(ref, scene.now)
    assert records.get(ref, scene.now) is None


@pytest.mark.parametrize("command", ["find", "update"])
def test_a_claim_whose_connection_breaks_is_whole(server: MongoServer, scene: Scene, command: str):
    """The claim holds the messages that it returned, and no unknown claim holds any."""
    posted = scene.post(5)
    with failing(server, command, 1, closeConnection=True):
        claim = scene.take(3)
    assert scene.held(claim.id) == sorted(ids_of(claim.messages)) == sorted(posted[:3])
    assert scene.counts() == (3, 2)


def test_a_claim_whose_answer_is_lost_still_tells_what_it_holds(server: MongoServer, scene: Scene):
    """The update is executed and its response is lost; the repetition finds no more messages to update."""
    posted = scene.post(5)
    with failing(server, "update", 1, writeConcernError={"code": NOT_PRIMARY, "errmsg": "planted"}):
        claim = scene.take(3)
    assert ids_of(claim.messages) == posted[:3]
    assert scene.held(claim.id) == sorted(posted[:3])


@pytest.mark.parametrize("command", ["find", "delete", "commitTransaction"])
def test_a_pop_whose_connection_breaks_takes_each_message_once(server: MongoServer, scene: Scene, command: str):
    """Exactly the returned messages are removed."""
    posted = scene.post(5)
    with failing(server, command, 1, closeConnection=True):
        popped = scene.pop(3)
    assert popped == posted[:3]
    assert ids_of(scene.walk()) == posted[3:]


def test_one_failing_post_fails_none_of_its_neighbours(server: MongoServer, scene: Scene):
    """Other posts of the same transaction are stored; only the invalid post is refused, as a whole."""
    [taken] = drafts(1, scene.now)
    scene.storage.messages.post(scene.queue, [taken], scene.now)
    bad = [*drafts(2, scene.now), taken]

    def refused() -> list[str]:
        with pytest.raises(Unavailable):
            scene.storage.messages.post(scene.queue, bad, scene.now)
        return []

    with failing(server, "commitTransaction", 1, blockConnection=True, blockTimeMS=300):
        works = [partial(scene.post, 2)] * 6
        results = run_together(*works[:3], refused, *works[3:])
    posted = [id for some in results for id in some]
    assert sorted(ids_of(scene.walk())) == sorted([*posted, taken.id])


def test_posts_of_one_process_share_transactions(server: MongoServer, scene: Scene):
    """Posts wait for the transaction in progress and share the next one, so commits are far fewer than posts."""
    with server.client() as client, failing(server, "commitTransaction", 1, blockConnection=True, blockTimeMS=300):
        before = client.admin.command("serverStatus")["transactions"]["totalCommitted"]
        rooms = [scene.at(f"shared{at % 4}") for at in range(12)]
        run_together(*(partial(room.post, 2) for room in rooms))
        committed = client.admin.command("serverStatus")["transactions"]["totalCommitted"] - before
    assert committed < 8
    assert [room.counts()[1] for room in rooms[:4]] == [6] * 4


@pytest.mark.parametrize(("verb", "command"), [("take", "update"), ("pop", "commitTransaction"), ("delete", "delete")])
def test_requests_to_different_queues_share_commands(server: MongoServer, scene: Scene, verb: str, command: str):
    """Two commands are in progress; the others wait and share the next ones."""
    rooms = [scene.at(f"shared{at}") for at in range(12)]
    posted = [room.post(2) for room in rooms]
    works = [
        partial(room.storage.messages.delete, room.queue, ids, room.now)
        if verb == "delete"
        else partial(getattr(room, verb), 2)
        for room, ids in zip(rooms, posted, strict=True)
    ]
    with server.client() as client, failing(server, command, 2, blockConnection=True, blockTimeMS=300):
        before = commands_of(client, command)
        run_together(*works)
        sent = commands_of(client, command) - before
    assert sent < 8
    assert [room.counts()[1] for room in rooms] == [0] * 12


def test_a_pop_that_collides_fails_none_of_its_neighbours(
    server: MongoServer, scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    """Another server changes the messages of one pop; each pop of the shared transaction gets its own messages."""
    rooms = [scene.at(f"beside{at}") for at in range(6)]
    posted = [room.post(2) for room in rooms]
    search = QueueClaimer.search_messages
    changed = []

    def interrupted(self: QueueClaimer, *arguments: Any) -> object:
        found = search(self, *arguments)
        if self._key.ref == there.queue and not changed:
            changed.append(there.queue)
            there.take(2, name="other")
            there.release("other")
        return found

    with closing(connect(server.uri_of("faults"), timeout=TIMEOUT)) as other:
        there = Scene(other, scene.clock, rooms[-1].queue)
        monkeypatch.setattr(QueueClaimer, "search_messages", interrupted)
        with failing(server, "commitTransaction", 2, blockConnection=True, blockTimeMS=300):
            popped = run_together(*(partial(room.pop, 2) for room in rooms))
    assert changed
    assert popped == posted


def test_a_write_that_is_executed_again_later_changes_nothing(
    server: MongoServer, scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    """The first copy of a command arrives after the response to the second; it claims and deletes no more messages."""
    sent: list[dict[str, Any]] = []
    write = StoreClient._write

    def recorded(self: StoreClient, command: dict[str, Any], session: Any, durable: bool = True) -> object:
        sent.extend([] if session else [command])
        return write(self, command, session, durable)

    monkeypatch.setattr(StoreClient, "_write", recorded)
    posted = scene.post(4)
    claim = scene.take(2, name="mine")
    scene.storage.messages.delete(scene.queue, posted[3:], scene.now)
    monkeypatch.undo()
    scene.release(claim.id)
    scene.post(2)
    stored = scene.walk()
    assert {next(iter(command)) for command in sent} == {"update", "delete"}
    with server.client() as client:
        assert [client["faults"].command(command)["n"] for command in sent] == [0] * len(sent)
    assert scene.walk() == stored


@pytest.mark.parametrize("way", ["purge", "delete"])
def test_a_removal_is_carried_out_by_maintenance_of_any_server(server: MongoServer, scene: Scene, way: str):
    """The response waits for no deletion. Maintenance deletes the removed messages and no later ones."""
    old = scene.post(7)
    scene.take(2)
    getattr(scene.storage.queues, way)(scene.queue)
    new = scene.post(2)
    messages = {"q": {"$gte": "m", "$lt": "n"}}
    with closing(connect(server.uri_of("faults"))) as other, server.client() as client:
        assert client["faults"]["messages"].count_documents(messages) == len(old + new)
        assert other.maintain(scene.now) == 0, "what was purged has not expired"
        assert client["faults"]["messages"].count_documents(messages) == len(new)
        assert client["faults"]["messages"].count_documents({"g": {"$exists": True}}) == 0
    assert ids_of(scene.walk()) == new
    assert scene.exists()


@pytest.mark.parametrize("way", ["purge", "delete"])
def test_a_removal_that_version_0_1_0_has_noted_hides_its_messages(server: MongoServer, scene: Scene, way: str):
    """Version 0.1.0 stores only the last sequence. If it died before it deleted the messages, they are removed."""
    old = scene.post(7)
    held = scene.take(2)
    getattr(scene.storage.queues, way)(scene.queue)
    with server.client() as client:
        note = {"$unset": {"m0": "", "h0": ""}}
        assert client["faults"]["messages"].update_one({"g": {"$exists": True}}, note).modified_count == 1
    assert scene.is_empty()
    assert scene.get(old) == []
    with pytest.raises(ClaimNotFound):
        scene.renew(held.id)
    new = scene.post(2)
    assert scene.claimable() == new
    scene.storage.maintain(scene.now)
    assert scene.counts() == (2, 0)


def test_the_counter_of_a_deleted_queue_is_forgotten_some_day(server: MongoServer, scene: Scene):
    """The counter has a distant expiry, which a new post removes."""
    with server.client() as client:
        messages = client["faults"]["messages"]
        scene.post(1)
        counter = {"_id": {"$regex": scene.queue.name.replace("[", ".").replace("]", ".") + "$"}, "k1": {"$gt": 0}}
        assert "e" not in messages.find_one(counter)
        scene.storage.queues.delete(scene.queue)
        forgotten = messages.find_one(counter, {"e": {"$toLong": "$e"}})["e"]
        assert forgotten > (scene.now + 30 * 86400) * 1000
        scene.post(1)
        assert "e" not in messages.find_one(counter)


def test_a_user_who_must_not_ask_for_sizes_gets_the_other_figures(server: MongoServer, scene: Scene):
    """Without the right to collStats, only the measures of sizes are omitted."""
    with failing(server, "collStats", "alwaysOn", errorCode=UNAUTHORIZED):
        names = {measure.name for measure in scene.storage.measures(scene.now)}
    assert names == {"expired_removed_total", "expired_waiting", "sweep_lag_seconds", "store_transactions_total"}
    assert {measure.name for measure in scene.storage.measures(scene.now)} - names == {"store_bytes", "store_messages"}


def verbs(scene: Scene, known: str) -> list:
    """Return one call of each verb that uses the store."""
    storage = scene.storage
    return [
        storage.now,
        storage.ping,
        lambda: storage.maintain(scene.now),
        lambda: storage.depths(scene.now, 10, 10),
        lambda: storage.measures(scene.now),
        lambda: scene.post(1),
        lambda: scene.get([known]),
        scene.page,
        lambda: scene.delete(known),
        lambda: scene.delete_many([known]),
        lambda: scene.delete_many([known], ["c"]),
        scene.pop,
        scene.claim,
        lambda: scene.held("c"),
        lambda: scene.renew("c"),
        lambda: scene.release("c"),
        lambda: storage.queues.create(scene.queue, b"{}"),
        lambda: storage.queues.get(scene.queue),
        lambda: storage.queues.update(scene.queue, b"{}", b"{}"),
        lambda: storage.queues.list("acme", "", 10),
        lambda: storage.queues.count("acme"),
        lambda: storage.queues.delete(scene.queue),
        lambda: storage.queues.purge(scene.queue),
        scene.stats,
    ]


def all_unavailable(scene: Scene, known: str) -> None:
    """Assert that all verbs, called at once, fail in time with an error message of their own."""

    def fails(verb) -> None:
        with pytest.raises(Unavailable) as caught:
            verb()
        assert str(caught.value).endswith("Try again later.")

    run_together(*(partial(soon, TIMEOUT + 2, partial(fails, verb)) for verb in verbs(scene, known)))


@pytest.mark.parametrize("loss", ["killed", "frozen"])
def test_every_verb_ends_in_time_when_the_store_is_lost_and_works_when_it_is_back(loss: str):
    """The driver needs no restart, and acknowledged messages exist (L1)."""
    with MongoServer() as server:
        storage = connect(server.uri, timeout=TIMEOUT)
        scene = Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs"))
        posted = scene.post(5)
        if loss == "killed":
            server.kill()
            all_unavailable(scene, posted[0])
            server.start()
        else:
            with server.frozen():
                all_unavailable(scene, posted[0])

        def back() -> bool:
            with contextlib.suppress(Unavailable):
                storage.ping()
                return True
            return False

        wait_for(back, 60, "the store serves again")
        if loss == "killed":
            assert ids_of(scene.walk()) == posted
            assert scene.claimable() == posted
        scene.post(1)
        assert scene.exists()
        storage.close()


def test_a_message_that_a_claim_saved_is_not_removed_by_a_slower_sweeper(server: MongoServer, scene: Scene):
    """Between search and removal, a claim may have extended the message's life, so the removal checks again."""
    posted = scene.post(1, ttl=1)
    with server.client() as client:
        due = {"_id": {"$regex": posted[0]}, "e": {"$lte": DatetimeMS(round((scene.now + 2) * 1000))}}
        scene.take(1, ttl=600)
        assert client["faults"]["messages"].delete_many(due).deleted_count == 0
    scene.tick(2)
    assert scene.reclaimed() == 0
    assert ids_of(scene.walk()) == posted


@contextlib.contextmanager
def orphan(server: MongoServer, change: dict[str, object], of: dict[str, object]) -> Iterator[None]:
    """Keep open a transaction of a server that died within it."""
    with MongoClient(server.address, directConnection=True, appName="zq") as dead:
        session = dead.start_session()
        session.start_transaction()
        assert dead["faults"]["messages"].update_one(of, change, session=session).modified_count == 1
        yield


def test_a_post_does_not_wait_for_the_transaction_of_a_dead_server(server: MongoServer, scene: Scene):
    """MongoDB would keep the queue's counter locked for a minute."""
    scene.post()
    storage = connect(server.uri_of("faults"))
    with orphan(server, {"$inc": {"k1": 1}}, {"k1": {"$exists": True}}):
        started = time.monotonic()
        storage.messages.post(scene.queue, drafts(1, scene.now), scene.now)
        assert time.monotonic() - started < 30
    storage.close()
    assert [message.sequence for message in scene.walk()] == [1, 2]


def test_maintenance_ends_the_transactions_of_dead_servers(server: MongoServer, scene: Scene):
    """Messages at the head of a queue can be claimed again; transactions of live servers are left open."""
    posted = scene.post(1)
    with orphan(server, {"$set": {"x": 1}}, {"k": 1}):
        scene.storage.maintain(scene.now)
        with pytest.raises(Unavailable):
            scene.claimable()

        def freed() -> list[str]:
            scene.storage.maintain(scene.now)
            with contextlib.suppress(Unavailable):
                return scene.claimable()
            return []

        assert wait_for(freed, 60, "the messages can be claimed") == posted
