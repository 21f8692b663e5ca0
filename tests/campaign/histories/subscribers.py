# SPDX-License-Identifier: Apache-2.0
"""Publishers and readers of one project's topics over several servers, any of which may fail, and their checker.

A publisher repeats a post with its key until it is acknowledged, so that all published messages are known at the end.
Each reader must have received exactly the messages of its topics, ordered by id.
"""

import itertools
import random
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from tests.servers import Answer, Lost, ask, wait_for
from tests.sse import Stream

TOPICS = ("news.eu.fr", "news.eu.de", "news.us")
ENGLISH = TOPICS[2:]
EUROPEAN = TOPICS[:2]
END = "the end"
PUBLISHERS = 8
# Seconds between attempts.
PAUSE = 0.03
# Seconds within which publishers and readers must finish.
PATIENCE = 30.0
MOST_POSTS = 300


class Post(NamedTuple):
    """An acknowledged batch."""

    publisher: str
    topic: str
    ids: Sequence[int]
    bodies: Sequence[str]


# A topic and the bodies of a post.
Story = tuple[str, Sequence[str]]


class Sight(NamedTuple):
    """A message that a reader has received."""

    id: int
    topic: str
    body: str


class Traffic:
    """All publishers and readers of a project; a context manager that starts and joins them.

    ``live`` is the number of readers that leave a stream only when it ends. Three more streams have other readers.
    """

    def __init__(
        self, urls: Sequence[str], project: str, posts: int = MOST_POSTS, patience: float = PATIENCE, live: int = 1
    ) -> None:
        self.urls, self.project = urls, project
        self._patience = patience
        self.posts: list[Post] = []
        self.enough = threading.Event()
        self.over = threading.Event()
        self.publishers = [
            Publisher(self, f"p{number}", self._stories(f"p{number}", posts)) for number in range(PUBLISHERS)
        ]
        self.readers: list[Reader] = [
            Follower(self, "all", "/v2/stream?match=**", TOPICS, stay=25),
            Follower(self, "europe", "/v2/stream?match=news.eu.*", EUROPEAN, stay=12),
            Follower(self, "us", f"/v2/topics/{ENGLISH[0]}/stream", ENGLISH, stay=8),
            *(Follower(self, "live", "/v2/stream?match=news.**", TOPICS, stay=10**9, live=True) for _ in range(live)),
            Lister(self, "list", ENGLISH[0]),
        ]

    def __enter__(self) -> Self:
        for reader in self.readers:
            reader.start()
        wait_for(lambda: all(reader.began.is_set() for reader in self.readers), PATIENCE, "all readers have begun")
        for publisher in self.publishers:
            publisher.start()
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        self.enough.set()
        if failed:
            self.over.set()
        last = Publisher(self, "last", [(topic, [END]) for topic in TOPICS])
        self.finish()
        last.start()
        for thread in (last, *self.readers):
            thread.join(self._patience)
        self.over.set()

    def _stories(self, name: str, posts: int) -> Iterator[Story]:
        """Yield posts of one to five messages to random topics."""
        for number in range(posts):
            if self.enough.is_set():
                return
            yield random.choice(TOPICS), [f"{name}-{number}-{part}" for part in range(number % 5 + 1)]

    def finish(self) -> None:
        """Wait until each publisher has published all its stories."""
        for publisher in self.publishers:
            publisher.join(self._patience)

    def wait_for_posts(self, count: int) -> None:
        """Wait until `count` more posts are acknowledged."""
        goal = len(self.posts) + count
        wait_for(lambda: len(self.posts) >= goal, PATIENCE, f"{count} more posts")

    def violations(self) -> list[str]:
        """Return a sentence for each violation."""
        stored = {id: (post.topic, body) for post in self.posts for id, body in zip(post.ids, post.bodies, strict=True)}
        found = [sentence for post in self.posts for sentence in torn(post)]
        if len(stored) != sum(len(post.ids) for post in self.posts):
            found.append("an id was given twice")
        for publisher in self.publishers:
            ids = [post.ids[0] for post in self.posts if post.publisher == publisher.name]
            if ids != sorted(ids):
                found.append(f"posts of {publisher.name} changed places")
        for reader in self.readers:
            expected = [Sight(id, *message) for id, message in sorted(stored.items()) if message[0] in reader.topics]
            found += reader.violations(expected)
        return found


def torn(post: Post) -> list[str]:
    """Return an error if the ids of a post are not consecutive."""
    follow = [*range(post.ids[0], post.ids[0] + len(post.bodies))]
    return [] if list(post.ids) == follow else [f"a post got the ids {post.ids}"]


class Publisher(threading.Thread):
    """A publisher that posts each story to a random server until it is acknowledged."""

    def __init__(self, traffic: Traffic, name: str, stories: Iterable[Story]) -> None:
        super().__init__(daemon=True)
        self.name = name
        self._traffic, self._stories = traffic, stories
        self._keys = itertools.count()

    def run(self) -> None:
        for topic, bodies in self._stories:
            self._publish(topic, bodies)

    def _publish(self, topic: str, bodies: Sequence[str]) -> None:
        headers = {"X-Project-ID": self._traffic.project, "Idempotency-Key": f"{self.name}-{next(self._keys)}"}
        document = {"messages": [{"body": body, "ttl": 3600} for body in bodies]}
        while not self._traffic.over.is_set():
            try:
                url = random.choice(self._traffic.urls)
                answer = ask(url, "POST", f"/v2/topics/{topic}/messages", document, headers=headers)
            except Lost:
                self._traffic.over.wait(PAUSE)
                continue
            if answer.status == 201:
                ids = [int(href.rpartition("/")[2]) for href in answer.document["resources"]]
                self._traffic.posts.append(Post(self.name, topic, ids, bodies))
                return
            assert answer.status in (409, 503), answer
            self._traffic.over.wait(PAUSE)


class Reader(threading.Thread, ABC):
    """A reader of ``topics`` that runs until it has received the end of each topic."""

    def __init__(self, traffic: Traffic, name: str, topics: Sequence[str]) -> None:
        super().__init__(daemon=True)
        self.name, self.topics = name, topics
        self.seen: list[Sight] = []
        self.gaps: list[Any] = []
        self.began = threading.Event()
        self.starts = 0
        self._traffic = traffic
        self._ends = 0

    def run(self) -> None:
        while not self.done and not self._traffic.over.is_set():
            self.starts += 1
            try:
                self.look(random.choice(self._traffic.urls))
            except Lost:
                self._traffic.over.wait(PAUSE)

    @property
    def done(self) -> bool:
        return self._ends >= len(self.topics)

    @abstractmethod
    def look(self, url: str) -> None:
        """Receive some of the following messages. Raises ``Lost``."""

    def usable(self, answer: Answer) -> bool:
        """Return whether the response is a success; wait a moment after a 503."""
        if answer.status == 503:
            self._traffic.over.wait(PAUSE)
            return False
        assert answer.status == 200, answer
        return True

    def see(self, message: Any, topic: str) -> None:
        self.seen.append(Sight(int(message["id"]), topic, message["body"]))
        self._ends += message["body"] == END

    def violations(self, expected: Sequence[Sight]) -> list[str]:
        """Return the differences between received and expected messages."""
        if self.seen == expected and not self.gaps:
            return []
        told, seen = set(expected), set(self.seen)
        ids = [sight.id for sight in self.seen]
        backwards = [(one, two) for one, two in itertools.pairwise(ids) if two <= one]
        faults = {
            "missed": sorted(told - seen),
            "saw what nobody was told of:": sorted(seen - told),
            "saw again": sorted({id for id in ids if ids.count(id) > 1}) if len(set(ids)) < len(ids) else [],
            "saw in the wrong order": backwards,
            "was told of a gap:": self.gaps,
        }
        return [f"{self.name} {what} {len(some)}, first {some[0]}" for what, some in faults.items() if some]


class Follower(Reader):
    """A stream reader that disconnects after about ``stay`` messages and resumes on any server.

    If ``live``, the reader begins with messages that are published after its start.
    """

    def __init__(
        self, traffic: Traffic, name: str, path: str, topics: Sequence[str], stay: int, live: bool = False
    ) -> None:
        super().__init__(traffic, name, topics)
        self._path, self._stay = path, stay
        self._last = "" if live else "0"

    def look(self, url: str) -> None:
        # If the live reader was disconnected before its first message, it misses nothing by starting at the log's
        # beginning.
        last = self._last or ("0" if self.began.is_set() else "")
        with Stream(url, self._path, last=last, project=self._traffic.project) as stream:
            if not self.usable(stream.answer):
                return
            self.began.set()
            for leave, event in enumerate(stream.events(), -random.randint(1, 2 * self._stay)):
                self._last = stream.last
                if event.kind == "gap":
                    self.gaps.append(event.document)
                    continue
                assert event.document["id"] == event.id
                self.see(event.document, event.document["topic"])
                if self.done or leave >= 0:
                    return


class Lister(Reader):
    """A reader of one topic's pages that waits for messages."""

    def __init__(self, traffic: Traffic, name: str, topic: str) -> None:
        super().__init__(traffic, name, [topic])
        self._marker = "0"
        self._headers = {"X-Project-ID": traffic.project}

    def look(self, url: str) -> None:
        path = f"/v2/topics/{self.topics[0]}/messages?marker={self._marker}&limit=7&wait=1"
        self.began.set()
        answer = ask(url, "GET", path, headers=self._headers)
        if not self.usable(answer):
            return
        if "gap" in answer.document:
            self.gaps.append(answer.document["gap"])
        for message in answer.document["messages"]:
            self.see(message, self.topics[0])
        for link in answer.document["links"]:
            self._marker = parse_qs(urlsplit(link["href"]).query)["marker"][0]
