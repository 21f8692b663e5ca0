# SPDX-License-Identifier: Apache-2.0
"""Who waits for messages hears of them: a small capped collection that every process writes and, to listen, follows.

A verb only notes its queue. One thread writes what was noted since its last write, all of it in one document, so verbs
pay nothing and a busy queue costs a few writes for each of a hundred turns a second. What is written is no more than a
hint, so it is neither journalled nor repeated. What is published to topics is noted likewise and written without delay,
the batches themselves if they are small; who purges a topic waits until that is written:
``{w: who writes, q: [[project, queue] ...], t: [[project, last sequence, documents, or null for a purge] ...]}``.
"""

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple, Protocol

from msgspec import MsgspecError
from pymongo import CursorType
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from zq.model import QueueRef
from zq.storage.mongodb.layout import FEED, Document, original, text
from zq.storage.mongodb.port import Port

LOG = logging.getLogger(__name__)
Listener = Callable[[QueueRef], None]

PAUSE: Final = 0.005
"""Seconds between two writes, so that queues that are noted in quick succession go together."""
LAST_WRITE: Final = 0.5
"""Seconds that closing waits for."""
MANY: Final = 1000
"""Queues in one document."""
CARRIED: Final = 64 << 10
"""Bytes of batches in one document; of others it names the log only."""
CARRIES: Final = ("k", "d", "a", "b", "t")
"""What it has of a batch."""
AWAIT_MS: Final = 1000
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds before the feed is followed again after it broke."""


class News(NamedTuple):
    """What a process has published to a log: up to which sequence, and the batches as they are stored, none if they are
    not carried. With None in their place it has purged a topic, up to there."""

    project: str
    last: int
    documents: Sequence[Document] | None


class Follower(Protocol):
    """Who hears of topics."""

    def heard(self, news: News) -> None:
        """In the order in which it was written."""
        ...

    def broke(self) -> None:
        """The feed broke, so that news may be lost."""
        ...


class Feed:
    """What one process tells the others and hears from them. Safe for any number of threads."""

    def __init__(self, port: Port) -> None:
        collection = port.database[FEED]
        self._collection = collection.with_options(write_concern=WriteConcern(w=1, j=False))
        self._own = uuid.uuid4().hex
        self._listener: Listener | None = None
        self._follower: Follower | None = None
        self._noted: dict[QueueRef, None] = {}
        self._news: list[News] = []
        self._lock = threading.Lock()
        self._something = threading.Event()
        self._urgent = threading.Event()
        """There is news, or nothing more to come."""
        self._closed = threading.Event()
        self._writer: threading.Thread | None = None
        self._reader: threading.Thread | None = None

    def announce(self, queue: QueueRef) -> None:
        """A message of the queue has become ready, or may become so earlier than those who wait believe."""
        if self._listener is not None:
            self._listener(queue)
        with self._lock:
            self._noted[queue] = None
            self._begin_to_write()
        self._something.set()

    def publish(self, project: str, documents: Sequence[Document]) -> None:
        """These were stored in the project's log, one behind the other."""
        self._note(News(project, documents[-1]["k"], documents))

    def purge(self, project: str, last: int) -> None:
        """A topic of the project was purged, up to this sequence. Returns when it is written; raises ``PyMongoError``.

        Should it be lost with the primary, then so is the others' place in the feed, and they hear that it broke.
        """
        self._collection.insert_one(self._note_of((), [News(project, last, None)]))

    def listen(self, listener: Listener) -> None:
        """Tell the listener from now on, and no former one."""
        self._listener = listener
        self._begin_to_read()

    def follow(self, follower: Follower) -> None:
        """Tell the follower of topics from now on."""
        self._follower = follower
        self._begin_to_read()

    def close(self) -> None:
        """Write what is left to tell, if that is possible soon; the reader ends in its own time."""
        self._closed.set()
        self._something.set()
        self._urgent.set()
        if self._writer is not None:
            self._writer.join(LAST_WRITE)

    def _note(self, news: News) -> None:
        with self._lock:
            self._news.append(news)
            self._begin_to_write()
        self._urgent.set()
        self._something.set()

    def _begin_to_write(self) -> None:
        if self._writer is None and not self._closed.is_set():
            self._writer = threading.Thread(target=self._write, name="zq-feed-writer", daemon=True)
            self._writer.start()

    def _begin_to_read(self) -> None:
        with self._lock:
            if self._reader is None:
                self._reader = threading.Thread(target=self._follow, name="zq-feed-reader", daemon=True)
                self._reader.start()

    def _write(self) -> None:
        while not self._closed.is_set():
            self._something.wait()
            self._something.clear()
            self._urgent.clear()
            self._tell_noted()
            self._urgent.wait(PAUSE)
        self._tell_noted()

    def _tell_noted(self) -> None:
        with self._lock:
            queues = list(islice(self._noted, MANY))
            for queue in queues:
                del self._noted[queue]
            if self._noted:
                self._something.set()
            news, self._news = self._news, []
        if queues or news:
            self._tell(queues, news)

    def _tell(self, queues: Sequence[QueueRef], news: Sequence[News] = ()) -> None:
        try:
            self._collection.insert_one(self._note_of(queues, news))
        except PyMongoError as error:
            LOG.debug("The feed could not be written: %s", error)

    def _note_of(self, queues: Sequence[QueueRef], news: Sequence[News]) -> Document:
        note: Document = {"w": self._own, "q": [[text(queue.project), text(queue.name)] for queue in queues]}
        if news:
            note["t"] = noted(news)
        return note

    def _follow(self) -> None:
        """Read the feed until the end. What has stood there before is told too: nobody knows what was missed."""
        pause = FIRST_PAUSE
        begun = False
        while not self._closed.is_set():
            try:
                with self._collection.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(AWAIT_MS) as cursor:
                    while cursor.alive and not self._closed.is_set():
                        for note in cursor:
                            self._pass_on(note)
                            pause, begun = FIRST_PAUSE, True
            except PyMongoError as error:
                LOG.debug("The feed broke: %s", error)
            if self._closed.is_set():
                return
            if begun and self._follower is not None:
                self._follower.broke()
            self._tell([])  # there must be a document for a cursor to wait behind
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _pass_on(self, note: Mapping[str, Any]) -> None:
        if note.get("w") == self._own:
            return
        # What others write here need not be a note.
        with contextlib.suppress(KeyError, TypeError, ValueError, MsgspecError):
            if self._listener is not None:
                for project, name in note["q"]:
                    self._listener(QueueRef(original(project), original(name)))
            if self._follower is not None:
                for project, last, documents in note.get("t", ()):
                    self._follower.heard(News(original(project), last, documents))


def noted(news: Sequence[News]) -> list[list[Any]]:
    """As it is written, with the first batches as far as they fit."""
    left = CARRIED
    noted: list[list[Any]] = []
    for one in news:
        documents = None
        if one.documents is not None:
            left -= sum(len(document["b"]) for document in one.documents)
            documents = [{field: each[field] for field in CARRIES} for each in one.documents if left >= 0]
        noted.append([text(one.project), one.last, documents])
    return noted
