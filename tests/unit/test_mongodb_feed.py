# SPDX-License-Identifier: Apache-2.0
"""The feed that wakes other processes: verbs do not wait for it, and notices in quick succession are coalesced."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from tests.servers import wait_for
from zq.model import QueueRef
from zq.model.topics import Batch, Entry
from zq.storage.mongodb import topic_log
from zq.storage.mongodb.feed import MAX_BATCH_BYTES, Feed, Notice, encode

PATIENCE = 60.0
JOBS = QueueRef("acme", "jobs")
OTHER = QueueRef("\ud800", "other")


class Capped:
    """A collection that records inserted documents and can block or fail."""

    def __init__(self) -> None:
        self.documents: list[dict[str, Any]] = []
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.failures = 0

    def with_options(self, **_: object) -> "Capped":
        return self

    def insert_one(self, document: dict[str, Any]) -> None:
        self.entered.release()
        assert self.open.wait(PATIENCE)
        if self.failures:
            self.failures -= 1
            raise AutoReconnect("gone")
        self.documents.append(document)


class StoreClient:
    """The part of the client that the feed uses."""

    def __init__(self, capped: Capped) -> None:
        self.database = {"feed": capped}


@pytest.fixture
def capped() -> Capped:
    return Capped()


@pytest.fixture
def feed(capped: Capped) -> Feed:
    return Feed(StoreClient(capped))  # type: ignore[arg-type]


def names(capped: Capped) -> list[list[list[str]]]:
    return [document["q"] for document in capped.documents]


def test_notices_during_a_write_are_part_of_the_next_one(feed: Feed, capped: Capped):
    """Each queue is written once and no verb waits; names are written in a form that BSON can represent."""
    feed.announce(JOBS)
    assert capped.entered.acquire(timeout=PATIENCE)
    for _ in range(100):
        feed.announce(JOBS)
        feed.announce(OTHER)
    capped.open.set()
    wait_for(lambda: len(capped.documents) == 2, PATIENCE, "both are written")
    feed.close()
    [[first], second] = names(capped)
    assert first == ["acme", "jobs"]
    assert second == [["acme", "jobs"], ["\xed\xa0\x80", "other"]]


def test_a_write_that_fails_is_forgotten(feed: Feed, capped: Capped):
    """A notice is only a hint: after a failed write, the next notice is written as usual."""
    capped.failures = 1
    capped.open.set()
    feed.announce(JOBS)
    wait_for(lambda: capped.failures == 0, PATIENCE, "the first write has failed")
    feed.announce(OTHER)
    wait_for(lambda: len(capped.documents) == 1, PATIENCE, "the second is written")
    feed.close()


def test_closing_writes_pending_notices(feed: Feed, capped: Capped):
    """A process that posts and exits still wakes waiting listeners."""
    capped.open.set()
    for number in range(50):
        feed.announce(QueueRef("acme", str(number)))
    feed.close()
    assert sum(len(some) for some in names(capped)) == 50


def test_an_entry_is_written_before_the_feed_is_read(feed: Feed, capped: Capped, monkeypatch: pytest.MonkeyPatch):
    """A cursor on an empty collection never returns a document, so each cursor is opened after a write."""
    found: list[int] = []

    def find(*_: object, **__: object) -> None:
        found.append(len(capped.documents))
        raise AutoReconnect("gone")

    monkeypatch.setattr(capped, "find", find, raising=False)
    capped.open.set()
    feed.listen(lambda queue: None)
    wait_for(lambda: len(found) >= 3, PATIENCE, "it has begun again and again")
    feed.close()
    assert found[:3] == [1, 2, 3]


def test_the_own_listener_is_notified_at_once(feed: Feed, capped: Capped, monkeypatch: pytest.MonkeyPatch):
    """The listener is notified before the notice is written, and not again by the feed."""
    monkeypatch.setattr(feed, "_follow", lambda: None)
    received: list[QueueRef] = []
    feed.listen(received.append)
    feed.announce(JOBS)
    assert received == [JOBS]
    capped.open.set()
    feed.close()
    for note in [*capped.documents, {"w": "another", "q": [["acme", "theirs"], ["\xed\xa0\x80", "other"]]}]:
        feed._pass_on(note)
    assert received == [JOBS, QueueRef("acme", "theirs"), OTHER]


def test_a_purge_that_cannot_be_written_is_not_forgotten(feed: Feed, capped: Capped):
    """A purge waits until its notice is written, and raises if that fails."""
    capped.failures = 1
    capped.open.set()
    with pytest.raises(AutoReconnect):
        feed.purge("acme", 7)
    feed.purge("acme", 7)
    [written] = capped.documents
    assert (written["q"], written["t"]) == ([], [["acme", 7, None]])


class Heard:
    """A listener of a project, and the batches that other processes publish there."""

    def __init__(self, feed: Feed, floor: int = 0) -> None:
        self.told: list[tuple[int | None, int]] = []
        self.end = feed.subscribe("acme", lambda batch, before: self.told.append((batch and batch.last, before)), floor)


def batch(sequence: int, count: int = 1) -> list[dict[str, Any]]:
    """Return the stored documents of a batch."""
    place = topic_log.LogPosition(sequence, 0, "")
    return list(topic_log.documents(topic_log.key("acme"), "news", [Entry(b"1", 60)] * count, 0, place))


@pytest.fixture
def quiet(feed: Feed, capped: Capped, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    """Return a feed that does not read notices of other processes."""
    monkeypatch.setattr(feed, "_follow", lambda: None)
    capped.open.set()
    yield feed
    feed.close()


def others(feed: Feed, *notices: Notice) -> None:
    """Pass on the notices of another process."""
    feed._pass_on({"w": "another", "q": [], "t": encode(notices)})


def test_listeners_of_topics_are_notified_of_batches(quiet: Feed):
    """Each notification has the previous sequence; batches from before the subscription are not passed on."""
    heard = Heard(quiet, floor=3)
    others(quiet, Notice("acme", 3, batch(1, 3)), Notice("other", 9, batch(9)))
    quiet.publish("acme", batch(4, 2))
    others(quiet, Notice("acme", 6, batch(6)))
    assert heard.told == [(5, 3), (6, 5)]


def test_batches_that_are_not_carried_are_hints(quiet: Feed):
    """A notice without a batch notifies the listener up to which sequence to read."""
    heard = Heard(quiet)
    quiet._pass_on({"w": "another", "q": [], "t": [["acme", 2, []]]})
    assert heard.told == [(None, 2)]


def test_purges_and_breaks_of_the_feed_are_losses(quiet: Feed):
    """A purge from before the subscription is not a loss."""
    heard = Heard(quiet, floor=2)
    others(quiet, Notice("acme", 1, None))
    assert heard.told == []
    others(quiet, Notice("acme", 2, None))
    quiet.purge("acme", 3)
    for subscription in quiet._all_subscriptions():
        subscription.notify_loss()
    assert heard.told == [(None, 0)] * 3


def test_no_batch_of_before_a_purge_is_passed_on_after_it(quiet: Feed):
    """The notice of an older batch may be late; the listener reads the remaining batches again."""
    heard = Heard(quiet)
    others(quiet, Notice("acme", 1, None), Notice("acme", 1, batch(1)), Notice("acme", 2, batch(2)))
    assert heard.told == [(None, 0), (2, 1)]


def test_a_subscription_that_has_ended_is_not_notified(quiet: Feed):
    """An ended subscription is notified neither of batches nor of losses; other subscriptions still are."""
    ended, other = Heard(quiet), Heard(quiet)
    for _ in range(2):
        ended.end()
    quiet.publish("acme", batch(1))
    quiet.purge("acme", 1)
    assert (ended.told, other.told) == ([], [(1, 0), (None, 0)])


def test_the_feed_carries_small_batches_and_names_the_log_of_others():
    """The feed carries the first batches that fit, in order of publishing; the rest is read from the log."""
    entries = [Entry(b"1" * (MAX_BATCH_BYTES // 2 - 100), 60)]
    documents = [
        one
        for at in (1, 2, 3)
        for one in topic_log.documents(topic_log.key("a"), "t", entries, 0, topic_log.LogPosition(at, 0, ""))
    ]
    notices = [Notice("a", at, [document]) for at, document in enumerate(documents, 1)]
    written = encode([*notices, Notice("\ud800", 9, None)])
    assert [(project, last, done and len(done)) for project, last, done in written] == [
        ("a", 1, 1),
        ("a", 2, 1),
        ("a", 3, []),
        ("\xed\xa0\x80", 9, None),
    ]
    assert [topic_log.to_batch(one) for one in written[0][2]] == [Batch("t", 1, 0, entries)]
