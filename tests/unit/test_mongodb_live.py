# SPDX-License-Identifier: Apache-2.0
"""What listeners on MongoDB are told of topics: every batch in order, whoever published it, and holes are filled."""

from collections.abc import Sequence

import pytest

from tests.servers import wait_for
from zq.storage.mongodb import log
from zq.storage.mongodb.feed import CARRIED, News, noted
from zq.storage.mongodb.layout import Document
from zq.storage.mongodb.live import Live
from zq.topics import Batch, Entry, Reading

PATIENCE = 10.0


class Feed:
    """Remembers what the others are to be told."""

    def __init__(self) -> None:
        self.news: list[News] = []

    def follow(self, follower: Live) -> None:
        self.follower = follower

    def publish(self, project: str, documents: Sequence[Document]) -> None:
        self.news.append(News(project, documents[-1]["k"], documents))

    def purge(self, project: str, last: int) -> None:
        self.news.append(News(project, last, None))


class Reader:
    """A log in memory, and how often it was read."""

    def __init__(self) -> None:
        self.stored: list[Document] = []
        self.dropped = 0
        self.reads = 0

    def last(self, _: object) -> int:
        return int(self.stored[-1]["k"]) if self.stored else 0

    def read(self, _: object, after: int, *__: object) -> Reading:
        self.reads += 1
        found = [log.batch(one) for one in self.stored if one["k"] > max(after, self.dropped)]
        return Reading(found, max(after, self.last(_)), False, self.last(_), self.dropped)


class Scene:
    """The live end of a log that others publish to as well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.feed, self.reader = Feed(), Reader()
        self.live = Live(Port(), self.feed)  # type: ignore[arg-type]
        monkeypatch.setattr(self.live, "_reader", self.reader)
        self.told: list[int | None] = []
        self.live.listen(lambda _, batch, before: self.told.append(batch and batch.sequence))

    def store(self, count: int = 1) -> list[Document]:
        """Somebody publishes a batch."""
        place = log.Place(self.reader.last(None) + 1, 0, "")
        made = list(log.documents(log.key("acme"), "news", [Entry(b"1", 60)] * count, 0, place))
        self.reader.stored += made
        return made

    def hears(self, told: list[int | None]) -> None:
        wait_for(lambda: self.told == told, PATIENCE, f"{told} is told, not {self.told}")


class Port:
    """As much of a port as the live end needs."""

    def verb(self) -> "Port":
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch):
    made = Scene(monkeypatch)
    yield made
    made.live.close()


def test_what_follows_is_told_without_reading(scene: Scene):
    """From this process and from another one; what was before, and what comes again, is not told."""
    before = scene.store(3)
    scene.live.follow("acme")
    scene.live.heard(News("acme", 3, before))
    own, theirs = scene.store(2), scene.store()
    scene.live.published("acme", own)
    scene.live.heard(News("acme", 6, theirs))
    scene.live.heard(News("acme", 6, theirs))
    assert (scene.told, scene.reader.reads) == ([4, 6], 0)
    assert scene.feed.news == [News("acme", 5, own)]


def test_a_hole_is_filled_from_the_log(scene: Scene):
    """The batch behind it waits; the news of the one in it comes too late and is not told again."""
    scene.live.follow("acme")
    theirs, own = scene.store(2), scene.store()
    scene.live.published("acme", own)
    scene.hears([1, 3])
    scene.live.heard(News("acme", 2, theirs))
    scene.live.published("acme", scene.store())
    scene.hears([1, 3, 4])


def test_batches_that_are_not_carried_are_read(scene: Scene):
    """The feed says no more than that there are some."""
    scene.live.follow("acme")
    scene.store(2)
    scene.live.heard(News("acme", 2, []))
    scene.hears([1])


def test_purges_and_what_fell_off_are_losses(scene: Scene):
    """A purge of before the project was followed is none."""
    scene.store(2)
    scene.live.follow("acme")
    scene.live.heard(News("acme", 1, None))
    assert scene.told == []
    scene.live.heard(News("acme", 2, None))
    assert scene.told == [None]
    scene.store()
    scene.store()
    scene.reader.dropped = 3
    scene.live.heard(News("acme", 4, []))
    scene.hears([None, None, 4])


def test_nothing_of_before_a_purge_is_told_after_it(scene: Scene):
    """Its news may come late; the listener reads again what of it is left."""
    scene.live.follow("acme")
    early, late = scene.store(), scene.store()
    scene.live.heard(News("acme", 1, None))
    scene.live.heard(News("acme", 1, early))
    scene.live.heard(News("acme", 2, late))
    assert scene.told == [None, 2]


def test_a_broken_feed_is_a_loss_and_made_up_for(scene: Scene):
    """Nobody knows what it would have told; what is in the log is told all the same."""
    scene.live.follow("acme")
    scene.store()
    scene.live.broke()
    scene.hears([None, 1])


def test_who_is_not_followed_is_not_told(scene: Scene):
    """Neither of batches nor of losses."""
    scene.live.follow("acme")
    scene.live.unfollow("acme")
    scene.live.published("acme", scene.store())
    scene.live.purged("acme", 1)
    scene.live.broke()
    assert (scene.told, scene.reader.reads) == ([], 0)


def test_what_is_read_for_one_who_follows_no_more_is_not_told(scene: Scene, monkeypatch: pytest.MonkeyPatch):
    """It ended while the log was read; and who begins anew is not told of what was before."""
    scene.live.follow("acme")
    scene.store()
    read = scene.reader.read

    def slow_read(*arguments: int) -> Reading:
        reading = read(*arguments)
        scene.live.unfollow("acme")
        scene.live.follow("acme")
        return reading

    monkeypatch.setattr(scene.reader, "read", slow_read)
    scene.live.heard(News("acme", 1, []))
    wait_for(lambda: scene.reader.reads == 1, PATIENCE, "the log is read")
    scene.live.published("acme", scene.store())
    scene.hears([2])


def test_the_feed_carries_small_batches_and_names_the_log_of_others():
    """All that fits, in the order of publishing; the first that does not fit and all behind it are left to the log."""
    entries = [Entry(b"1" * (CARRIED // 2 - 100), 60)]
    documents = [one for at in (1, 2, 3) for one in log.documents(log.key("a"), "t", entries, 0, log.Place(at, 0, ""))]
    news = [News("a", at, [document]) for at, document in enumerate(documents, 1)]
    written = noted([*news, News("\ud800", 9, None)])
    assert [(project, last, done and len(done)) for project, last, done in written] == [
        ("a", 1, 1),
        ("a", 2, 1),
        ("a", 3, []),
        ("\xed\xa0\x80", 9, None),
    ]
    assert [log.batch(one) for one in written[0][2]] == [Batch("t", 1, 0, entries)]
