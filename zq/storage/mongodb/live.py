# SPDX-License-Identifier: Apache-2.0
"""Tells a process what is published in the projects that it follows, in the order of sequence and without holes.

What follows the last batch told is told at once: to the own process by the thread that published it, to others by the
feed. Where something is missing in between, or the feed carries no more than a word of it, a thread reads the log.
"""

import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from zq.errors import Unavailable
from zq.storage.mongodb import log
from zq.storage.mongodb.feed import Feed, News
from zq.storage.mongodb.layout import Document
from zq.storage.mongodb.port import Port
from zq.storage.mongodb.reading import Reader
from zq.topics import EVERYTHING, Batch, Listener, Pattern

LOG = logging.getLogger(__name__)
LOOKS: Final = 16
"""Looks into the log that one is behind at most: further back the listener reads for itself."""
MESSAGES: Final = 10_000
"""Asked for in one look."""
RETRY: Final = 0.5
"""Seconds after which the store is asked again if it did not answer."""
ALL: Final = Pattern(EVERYTHING)


class Followed:
    """A project that is followed: the log's last sequence when that began, and the last one told."""

    def __init__(self, last: int) -> None:
        self.first = self.last = last


class Live:
    """The live end of the logs. Safe for any number of threads; a listener may be told while it calls."""

    def __init__(self, port: Port, feed: Feed) -> None:
        self._port = port
        self._reader = Reader(port)
        self._feed = feed
        self._listener: Listener | None = None
        self._followed: dict[str, Followed] = {}
        self._telling = threading.Lock()
        """Held by whoever tells, and by nobody who is called by a listener."""
        self._behind: set[str] = set()
        self._something = threading.Event()
        self._closed = threading.Event()
        self._catcher: threading.Thread | None = None

    def listen(self, listener: Listener) -> None:
        """Tell the listener from now on, and no former one."""
        self._listener = listener
        if self._catcher is None:
            self._catcher = threading.Thread(target=self._catch_up, name="zq-live", daemon=True)
            self._catcher.start()
        self._feed.follow(self)

    def follow(self, project: str) -> None:
        """Begin to tell of a project."""
        if project not in self._followed:
            self._followed[project] = Followed(self._reader.last(log.key(project)))

    def unfollow(self, project: str) -> None:
        """End it."""
        self._followed.pop(project, None)

    def published(self, project: str, documents: Sequence[Document]) -> None:
        """This process has stored these, which follow each other."""
        self._feed.publish(project, documents)
        self._pass_on(project, documents)

    def purged(self, project: str, last: int) -> None:
        """This process has removed what was purged, up to this sequence; returns when the others can read it."""
        self._lose(project, last)
        self._feed.purge(project, last)

    def heard(self, news: News) -> None:
        """Another process has published, or purged."""
        if news.documents is None:
            self._lose(news.project, news.last)
        elif news.documents:
            self._pass_on(news.project, news.documents)
        else:
            self._fall_behind(news.project)

    def broke(self) -> None:
        """The feed has told nothing for a while."""
        for project in list(self._followed):
            self._lose(project)  # there may have been a purge
            self._fall_behind(project)

    def close(self) -> None:
        """Tell nobody any more."""
        self._closed.set()
        self._something.set()

    def _pass_on(self, project: str, documents: Sequence[Document]) -> None:
        """Tell these, if all before was told; else that is to be found first."""
        followed = self._followed.get(project)
        if followed is None or self._listener is None:
            return
        with self._telling:
            fit = log.before(documents[0]) <= followed.last
            if fit and documents[-1]["k"] > followed.last:
                self._tell(project, followed, map(log.batch, documents))
        if not fit:
            self._fall_behind(project)

    def _tell(self, project: str, followed: Followed, batches: Iterator[Batch]) -> None:
        for batch in batches:
            wanted = self._followed.get(project) is followed and batch.sequence > followed.last
            if wanted and self._listener is not None:
                followed.last = batch.last
                self._listener(project, batch, batch.sequence - 1)

    def _lose(self, project: str, last: int | None = None) -> None:
        """Something may be gone, up to this sequence if it is known; no matter if that was before it was followed.

        What stands there is not told any more: it may be purged, though somebody has read it before.
        """
        followed = self._followed.get(project)
        if followed is None or self._listener is None or (last is not None and last < followed.first):
            return
        with self._telling:
            followed.last = max(followed.last, last or 0)
            self._listener(project, None, 0)

    def _fall_behind(self, project: str) -> None:
        if project in self._followed:
            self._behind.add(project)
            self._something.set()

    def _catch_up(self) -> None:
        while not self._closed.is_set():
            self._something.wait()
            self._something.clear()
            while self._behind and not self._closed.is_set():
                project = self._behind.pop()
                try:
                    self._read_on(project)
                except Unavailable as absence:
                    LOG.debug("The end of a log could not be read: %s", absence)
                    self._behind.add(project)
                    self._closed.wait(RETRY)

    def _read_on(self, project: str) -> None:
        """Tell what stands in the log behind the last batch told."""
        followed = self._followed.get(project)
        if followed is None:
            return
        for _ in range(LOOKS):
            with self._port.verb():
                reading = self._reader.read(log.key(project), followed.last, MESSAGES, ALL)
            with self._telling:
                if reading.dropped > followed.last and self._listener is not None:
                    self._listener(project, None, 0)
                self._tell(project, followed, iter(reading.batches))
                followed.last = max(followed.last, reading.position)
            if not reading.more:
                return
        self._lose(project, reading.last)
