# SPDX-License-Identifier: Apache-2.0
"""Topics on MongoDB at the level of the database: the stored documents and their removal."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import AutoReconnect, PyMongoError

from zq.clock import ManualClock
from zq.conformance.builders import run_together
from zq.conformance.topic_builders import Follower, Log
from zq.errors import Invalid, Unavailable
from zq.model.documents import DocumentRef
from zq.model.topics import Entry, Retention
from zq.storage.mongodb import connect, feed, startup, topic_log
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.topic_log import Floors, Reader


@pytest.fixture
def uri(stores, tmp_path) -> str:
    return stores.empty("mongodb", tmp_path, "a")


@pytest.fixture
def here(uri: str) -> Iterator[Log]:
    storage = connect(uri)
    yield Log(storage, ManualClock(storage.now()))
    storage.close()


@pytest.fixture
def there(uri: str, here: Log) -> Iterator[Log]:
    """Return the log of another process."""
    storage = connect(uri)
    yield Log(storage, here.clock)
    storage.close()


@pytest.fixture
def documents(uri: str) -> Iterator[Collection]:
    with MongoClient(uri) as client:
        yield client.get_default_database()["messages"]


def batches(documents: Collection) -> list[int]:
    """Return the last sequences of the stored batches."""
    return [one["k"] for one in documents.find({"q": topic_log.key("acme").messages}).sort("k", 1)]


def test_a_batch_larger_than_a_document_is_published_in_one_step(here: Log, documents: Collection):
    """The batch is stored in parts, which are read in order, trimmed together, and removed."""
    entries = [Entry(b"1" * (3 << 20), 3600)] * 6
    with_room = here.put("news", entries)
    assert with_room == 1
    assert len(batches(documents)) == 3
    assert here.sequences("news") == list(range(1, 7))
    keep = Retention(1 << 20, 1000)
    assert here.put("news", entries, keep) == 7
    assert (here.sequences(), here.read().dropped) == (list(range(7, 13)), 6)
    here.publish(keep=keep)
    assert (here.sequences(), here.read().dropped) == ([13], 12)
    here.storage.maintain(here.now)
    assert batches(documents) == [13]


def test_trimmed_batches_are_removed_by_maintenance(here: Log, documents: Collection):
    """The note of the trimming is removed too. The counter stays, whatever expires."""
    for _ in range(40):
        here.publish("news", 2, keep=Retention(10**9, 16), ttl=60)
    kept = [batch.last for batch in here.walk()]
    assert len(batches(documents)) > len(kept)
    here.storage.maintain(here.now)
    assert batches(documents) == kept
    here.clock.advance(60)
    here.storage.maintain(here.now)
    [counter] = documents.find({})
    assert (counter["k1"], counter["x"]) == (80, kept[0] - 2)
    assert "g" not in counter


def test_a_purge_is_carried_out_by_maintenance(here: Log, documents: Collection):
    """Messages published after the purge and other topics stay."""
    for _ in range(5):
        here.publish("news")
        here.publish("other")
    here.purge()
    assert len(batches(documents)) == 10
    after = here.publish("news")
    here.storage.maintain(here.now)
    assert here.sequences("news") == after
    assert here.figures("other")[0] == 5
    assert documents.count_documents({"g": {"$exists": True}}) == 0
    assert batches(documents) == [2, 4, 6, 8, 10, 11]


def test_all_listeners_are_notified_of_a_purge_whose_server_died(
    here: Log, there: Log, documents: Collection, monkeypatch: pytest.MonkeyPatch
):
    """If the notification was not written, maintenance writes it after it has removed the messages."""
    here.publish("news")
    followers = [Follower(log.storage, "acme") for log in (here, there)]
    last = here.publish("news")[0]
    assert all(follower.receives(last) for follower in followers)

    def cut(*_: object) -> None:
        raise AutoReconnect("cut")

    with monkeypatch.context() as broken:
        broken.setattr(feed.Feed, "purge", cut)
        with pytest.raises(Unavailable):
            here.purge()
    assert documents.count_documents({"g": {"$exists": True}}) == 1, "it is not yet done"
    assert not any(("acme", None) in follower.told for follower in followers[1:])
    here.storage.maintain(here.now)
    assert all(follower.receives_loss() for follower in followers)
    assert documents.count_documents({"g": {"$exists": True}}) == 0


def test_batches_trimmed_while_they_are_read_are_no_silent_gap(
    uri: str, here: Log, documents: Collection, monkeypatch: pytest.MonkeyPatch
):
    """Without a majority write concern, reads have no snapshot.

    Then ``dropped`` counts all possibly missing messages.
    """
    storage = connect(uri, write_concern="1")
    weak = Log(storage, here.clock)
    for _ in range(30):
        weak.publish()
    span = Reader._span

    def trim_before(*arguments: object) -> object:
        monkeypatch.setattr(Reader, "_span", span)
        weak.publish(keep=Retention(10**9, 10))
        storage.maintain(weak.now)
        return span(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Reader, "_span", trim_before)
    reading = weak.read(after=10, limit=5)
    assert (reading.batches[0].sequence, reading.dropped) == (22, 21)
    monkeypatch.setattr(Reader, "_span", trim_before)
    monkeypatch.setattr(Reader, "_floors", lambda *_: Floors(0, 26, {}))
    reading = weak.read(after=21, limit=3)
    assert (reading.batches, reading.position, reading.more, reading.dropped) == ([], 26, True, 26)
    storage.close()


def test_a_purge_that_is_carried_out_while_it_is_read_is_not_forgotten(
    uri: str, here: Log, monkeypatch: pytest.MonkeyPatch
):
    """Without a majority the floors are read twice; a note that is removed before the second read still counts."""
    storage = connect(uri, write_concern="1")
    weak = Log(storage, here.clock)
    for _ in range(3):
        weak.publish()
    other = weak.publish("other")
    weak.purge()
    floors = Reader._floors

    def carry_out_before(self: Reader, *arguments: Any) -> object:
        monkeypatch.setattr(Reader, "_floors", floors)
        here.storage.maintain(here.now)
        return floors(self, *arguments)

    monkeypatch.setattr(Reader, "_floors", carry_out_before)
    assert [batch.sequence for batch in weak.read().batches] == other
    storage.close()


def lost(self: StoreClient, session: object, commit=StoreClient._commit) -> None:
    """Replace a commit: execute it without an acknowledgement, after which the server no longer knows it."""
    commit(self, session)
    error = PyMongoError("planted")
    error._add_error_label("TransientTransactionError")
    raise error


def test_a_commit_that_is_on_the_primary_only_is_not_repeated(here: Log, monkeypatch: pytest.MonkeyPatch):
    """The latest majority read may not find the commit yet, so the driver reads at the time of a durable write."""
    find = StoreClient.find

    def later(self: StoreClient, *arguments, committed: bool | Timestamp = False, **options) -> list:
        return [] if committed is True else find(self, *arguments, committed=committed, **options)

    with monkeypatch.context() as broken:
        broken.setattr(StoreClient, "find", later)
        broken.setattr(StoreClient, "_commit", lost)
        published = here.publish(count=2)
    assert here.sequences() == published == [1, 2]


def test_a_commit_that_is_there_but_not_durable_is_not_acknowledged(here: Log, monkeypatch: pytest.MonkeyPatch):
    """The commit is not repeated either."""
    write = StoreClient._write

    def refuse(self: StoreClient, command, session=None, durable=True) -> dict:
        if session is None and "update" in command:
            raise AutoReconnect("planted")
        return write(self, command, session, durable)

    with monkeypatch.context() as broken:
        broken.setattr(StoreClient, "_write", refuse)
        broken.setattr(StoreClient, "_commit", lost)
        with pytest.raises(Unavailable):
            here.publish()
    assert here.sequences() == [1]


def test_what_is_too_large_for_a_document_is_refused_as_such(here: Log):
    """A retry would not help."""
    large = b"1" * (17 << 20)
    with pytest.raises(Invalid):
        here.put("news", [Entry(large, 3600)])
    with pytest.raises(Invalid):
        here.storage.documents.put(DocumentRef("acme", "topic", "news"), large, here.now)
    assert here.publish() == [1]


@pytest.mark.parametrize("carried", [0, feed.MAX_BATCH_BYTES])
def test_processes_hear_of_each_other_with_and_without_bodies_in_the_feed(
    here: Log, there: Log, carried: int, monkeypatch: pytest.MonkeyPatch
):
    """Each process gets all messages that both publish concurrently, in order and without a gap."""
    monkeypatch.setattr(feed, "MAX_BATCH_BYTES", carried)
    follower = Follower(here.storage, "acme")

    def publish(log: Log) -> None:
        for _ in range(20):
            log.publish("news", 3)

    run_together(partial(publish, here), partial(publish, there))
    assert follower.receives(118)
    assert [batch.sequence for batch in follower.batches()] == list(range(1, 121, 3))
    assert follower.batches() == here.walk()


def test_a_feed_that_broke_is_made_up_for(here: Log, there: Log, documents: Collection):
    """The feed's cursor dies: the listener gets a loss notification, and then everything in the log."""
    follower = Follower(here.storage, "acme")
    first = there.publish()[0]
    assert follower.receives(first)
    cursors = documents.database.command({"killCursors": "feed", "cursors": feed_cursors(documents)})
    assert cursors["cursorsKilled"]
    last = there.publish()[0]
    assert follower.receives_loss()
    assert follower.receives(last)


def feed_cursors(documents: Collection) -> list[int]:
    """Return the ids of the cursors that follow the feed of this database."""
    place = f"{documents.database.name}.feed"
    pipeline = [{"$currentOp": {"idleCursors": True}}, {"$match": {"ns": place}}]
    found = documents.database.client.admin.aggregate(pipeline)
    return [one["cursor"]["cursorId"] for one in found if "cursor" in one]


def test_the_feed_of_an_earlier_version_grows(documents: Collection):
    """A starting server enlarges it; a feed of full size is left unchanged."""
    database = documents.database.client["zq_test_small"]
    database.drop_collection("feed")
    database.create_collection("feed", capped=True, size=1 << 20)
    for _ in range(2):
        startup.ensure_feed(documents.database.client, database.name)
        assert database["feed"].options()["size"] == startup.FEED_BYTES
    documents.database.client.drop_database(database.name)


def test_a_read_by_name_or_glob_touches_only_what_it_returns(here: Log, documents: Collection):
    """Queries use the indexes: a topic does not pay for others, and a glob reads topic names from the index only."""
    for at in range(60):
        here.publish("mine" if at % 20 == 0 else "others")
    database = documents.database
    database.command("profile", 2)
    try:
        here.read("mine")
        here.read("m*")
    finally:
        database.command("profile", 0)
    looks = list(database["system.profile"].find({"command.find": "messages"}))
    database.drop_collection("system.profile")
    assert sum(look["docsExamined"] for look in looks) == 2 * (1 + 3)
    assert sorted(look["keysExamined"] for look in looks)[-1] == 60
