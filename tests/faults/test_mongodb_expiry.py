# SPDX-License-Identifier: Apache-2.0
"""S-A1: MongoDB's own TTL monitor removes expired documents without help, and no others."""

import pytest
from pymongo.collection import Collection

from tests.servers import wait_for
from tests.stores import MongoServer
from zq.clock import ManualClock
from zq.conformance.builders import Scene, drafts, ids_of, make_key
from zq.model import QueueRef
from zq.model.documents import DocumentRef
from zq.model.topics import Entry, Retention, TopicRef
from zq.storage.mongodb import connect


@pytest.mark.timeout(600)
def test_the_ttl_monitor_removes_what_has_expired():
    """Documents of every kind are removed within two rounds; live and claimed messages stay (L9).

    MongoDB's default of one round a minute would make this the longest of all tests.
    """
    within = 60.0
    with MongoServer(ttl_seconds=2) as server, server.client() as client:
        storage = connect(server.uri)
        scene = Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs"))
        extended = scene.post(1, ttl=5)
        scene.take(1, ttl=600)
        scene.post(20, ttl=5)
        kept = scene.post(3, ttl=600)
        leave_everything(Scene(storage, ManualClock(scene.now - 3595), QueueRef("old", "jobs")))
        messages = client["zq"]["messages"]
        assert kinds(messages) == EVERY_KIND
        wait_for(lambda: messages.count_documents({"k": {"$gt": 0}}) == 4, within, "expired documents are gone")
        wait_for(lambda: kinds(messages) == {"m", "q", "c", "f", "l"}, within, "so are all that have an end")
        assert messages.count_documents({"_id": {"$regex": "^m"}}) == 4
        scene.tick(5)  # a listing shows majority-committed data, which may lag
        assert ids_of(scene.walk()) == extended + kept
        assert scene.exists()
        storage.close()


# First letters of ``_id``. Counters of queues (``q``, ``c``) and fences (``f``) do not expire while their queues
# exist; the counter of a log (``l``) never expires.
EVERY_KIND = {"m", "q", "c", "f", "h", "o", "n", "s", "d", "p", "l", "r"}


def kinds(messages: Collection) -> set[str]:
    return {document["_id"][0] for document in messages.find({}, {"_id": 1})}


def leave_everything(past: Scene) -> None:
    """Create one document of each kind that expires in five seconds, with a clock that is an hour and 5 s behind."""
    transactions = past.storage.transactions
    moved, _, _ = past.post(3, ttl=3600, once=make_key(window=3600))
    past.move([moved], "next", history=3600)
    past.pop(1, history=3600)
    past.named("job", ttl=60)
    transactions.advance_fence(past.queue.project, "fence", past.now)
    for stage, ttl in (("stays", 3540), ("goes", 3540)):
        transactions.stage(past.queue.project, stage, past.queue, drafts(2, past.now, ttl=3600), past.now, ttl, 1000)
    past.commit(1, publish=["goes"], ttl=3600)
    past.storage.topics.publish(TopicRef("old", "news"), [Entry(b"1", 3600)], past.now, Retention(1000, 1000))
    past.storage.documents.put(DocumentRef("old", "topic", "news"), b"{}", past.now, expires=past.now + 3600)


def test_the_expiry_index_is_what_the_monitor_needs(mongodb: MongoServer):
    """The index needs a date in ``e`` and ``expireAfterSeconds`` 0."""
    with mongodb.client() as client:
        storage = connect(mongodb.uri_of("expiry"))
        Scene(storage, ManualClock(storage.now()), QueueRef("acme", "jobs")).post(1)
        storage.close()
        index = client["expiry"]["messages"].index_information()["expiry"]
        assert (index["key"], index["expireAfterSeconds"]) == ([("e", 1)], 0)
        document = client["expiry"]["messages"].find_one({"k": 1})
        assert document is not None
        assert document["e"].timestamp() * 1000 == pytest.approx(document["a"] + 3600_000, abs=1)
