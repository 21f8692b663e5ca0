# SPDX-License-Identifier: Apache-2.0
"""The feed that wakes other processes: verbs never wait for it, and what comes in quick succession goes together."""

import threading
from typing import Any

import pytest
from pymongo.errors import AutoReconnect

from tests.servers import wait_for
from zq.model import QueueRef
from zq.storage.mongodb.feed import Feed

PATIENCE = 10.0
JOBS = QueueRef("acme", "jobs")
OTHER = QueueRef("\ud800", "other")


class Capped:
    """A collection that notes what is inserted, and can be held up or fail."""

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


class Port:
    """As much of a port as the feed needs."""

    def __init__(self, capped: Capped) -> None:
        self.database = {"feed": capped}


@pytest.fixture
def capped() -> Capped:
    return Capped()


@pytest.fixture
def feed(capped: Capped) -> Feed:
    return Feed(Port(capped))  # type: ignore[arg-type]


def names(capped: Capped) -> list[list[list[str]]]:
    return [document["q"] for document in capped.documents]


def test_what_is_noted_during_a_write_goes_with_the_next_one(feed: Feed, capped: Capped):
    """Each queue once, and nobody has waited; texts go as BSON can hold them."""
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
    """It is a hint: the next one is written all the same."""
    capped.failures = 1
    capped.open.set()
    feed.announce(JOBS)
    wait_for(lambda: capped.failures == 0, PATIENCE, "the first write has failed")
    feed.announce(OTHER)
    wait_for(lambda: len(capped.documents) == 1, PATIENCE, "the second is written")
    feed.close()


def test_closing_writes_what_was_noted(feed: Feed, capped: Capped):
    """So that a process that posts and ends wakes those who wait."""
    capped.open.set()
    for number in range(50):
        feed.announce(QueueRef("acme", str(number)))
    feed.close()
    assert sum(len(some) for some in names(capped)) == 50


def test_the_own_listener_is_told_at_once(feed: Feed, capped: Capped, monkeypatch: pytest.MonkeyPatch):
    """Before anything is written, and not again by the feed."""
    monkeypatch.setattr(feed, "_follow", lambda: None)
    heard: list[QueueRef] = []
    feed.listen(heard.append)
    feed.announce(JOBS)
    assert heard == [JOBS]
    capped.open.set()
    feed.close()
    for note in [*capped.documents, {"w": "another", "q": [["acme", "theirs"], ["\xed\xa0\x80", "other"]]}]:
        feed._pass_on(note)
    assert heard == [JOBS, QueueRef("acme", "theirs"), OTHER]


def test_a_purge_that_cannot_be_written_is_not_forgotten(feed: Feed, capped: Capped):
    """Who purges waits until it is written and is told if that fails."""
    capped.failures = 1
    capped.open.set()
    with pytest.raises(AutoReconnect):
        feed.purge("acme", 7)
    feed.purge("acme", 7)
    [written] = capped.documents
    assert (written["q"], written["t"]) == ([], [["acme", 7, None]])
