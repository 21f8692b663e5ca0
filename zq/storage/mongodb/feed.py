# SPDX-License-Identifier: Apache-2.0
"""Wake-ups and batches for other processes: a small capped collection that every process writes and, to listen, reads.

A verb only notes its queue. One thread writes what was noted since its last write, all of it in one document, so verbs
pay nothing and a busy queue costs few writes: at most two hundred a second. What is written is no more than a hint, so
it is neither journalled nor repeated. Batches that are published to topics are written likewise but without delay, if
they are small; a purge of a topic waits until its notice is written:
``{w: writer, q: [[project, queue] ...], t: [[project, last sequence, documents, or null for a purge] ...]}``.

Listeners of topics are notified of the own process's batches by the thread that published them, of others' by the
reading thread. So batches may come out of order, or only as a hint; who listens reads from the log what is missing.
"""

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from msgspec import MsgspecError
from pymongo import CursorType
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from zq.model import QueueRef
from zq.model.topics import Listener
from zq.storage.mongodb import topic_log
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.layout import FEED, BsonDocument, original, text

LOG = logging.getLogger(__name__)
QueueListener = Callable[[QueueRef], None]

# Seconds between two writes, so that queues that are noted in quick succession go together.
PAUSE: Final = 0.005
# Seconds that closing waits for.
LAST_WRITE: Final = 0.5
# Queues in one entry of the feed.
MANY: Final = 1000
# Bytes of batches in one entry; of larger ones it names the log only.
CARRIED: Final = 64 << 10
# The fields of a batch that an entry carries.
CARRIES: Final = ("k", "d", "a", "b", "t")
# Milliseconds for which the server waits for entries.
AWAIT_MS: Final = 1000
# Seconds before the feed is read again after it broke for the first time.
FIRST_PAUSE: Final = 0.05
# Longest seconds before the feed is read again after it broke.
LONGEST_PAUSE: Final = 2.0


class Notice(NamedTuple):
    """A published range of a log: its last sequence, and the stored batches, or none if they are not included.

    None in place of the batches is a purge of a topic up to the sequence.
    """

    project: str
    last: int
    documents: Sequence[BsonDocument] | None


class Subscription:
    """One listener of a project, without batches up to the sequence ``floor``.

    After a purge, no earlier batches may be delivered, although their notices may be written late.
    """

    def __init__(self, listener: Listener, floor: int) -> None:
        self._listener = listener
        self._floor = floor
        self._lock = threading.Lock()
        self._ended = False

    def end(self) -> None:
        with self._lock:
            self._ended = True

    def notify(self, notice: Notice) -> None:
        """Pass on what was published, or purged."""
        with self._lock:
            is_purge = notice.documents is None
            if self._ended or notice.last < self._floor or (notice.last == self._floor and not is_purge):
                return
            if is_purge:
                self._floor = notice.last
                self._listener(None, 0)
            elif not notice.documents:
                self._listener(None, notice.last)
            for document in notice.documents or ():
                if document["k"] > self._floor:
                    self._listener(topic_log.batch(document), topic_log.before(document))

    def lose(self) -> None:
        """Notices, even of a purge, may be lost."""
        with self._lock:
            if not self._ended:
                self._listener(None, 0)


class Feed:
    """Wake-ups and notices of one process, written and read. Safe for any number of threads."""

    def __init__(self, client: StoreClient) -> None:
        collection = client.database[FEED]
        self._collection = collection.with_options(write_concern=WriteConcern(w=1, j=False))
        self._own = uuid.uuid4().hex
        self._listener: QueueListener | None = None
        self._subscriptions: dict[str, tuple[Subscription, ...]] = {}
        self._noted: dict[QueueRef, None] = {}
        self._notices: list[Notice] = []
        self._lock = threading.Lock()
        self._something = threading.Event()
        self._urgent = threading.Event()
        """There is news, or nothing more to come."""
        self._closed = threading.Event()
        self._writer: threading.Thread | None = None
        self._reader: threading.Thread | None = None

    def announce(self, queue: QueueRef) -> None:
        """Announce that a message of the queue became ready, or may become ready earlier than waiters expect."""
        if self._listener is not None:
            self._listener(queue)
        with self._lock:
            self._noted[queue] = None
            self._begin_to_write()
        self._something.set()

    def publish(self, project: str, documents: Sequence[BsonDocument]) -> None:
        """Announce batches that this process has stored in the project's log, in order."""
        notice = Notice(project, documents[-1]["k"], documents)
        with self._lock:
            self._notices.append(notice)
            self._begin_to_write()
        self._urgent.set()
        self._something.set()
        self._notify(notice)

    def purge(self, project: str, last: int) -> None:
        """Announce the purge of a topic; return after the notice is written. Raises ``PyMongoError``.

        If the notice is lost in a failover, the other processes' position in the feed is lost too, and they detect the
        gap.
        """
        notice = Notice(project, last, None)
        self._notify(notice)
        self._collection.insert_one(self._entry((), [notice]))

    def listen(self, listener: QueueListener) -> None:
        """Notify the listener from now on, and no former one."""
        self._listener = listener
        self._begin_to_read()

    def subscribe(self, project: str, listener: Listener, last: int) -> Callable[[], None]:
        """Notify the listener of batches after the sequence ``last``; return a function that ends the subscription."""
        subscription = Subscription(listener, last)
        with self._lock:
            self._subscriptions[project] = (*self._subscriptions.get(project, ()), subscription)
        self._begin_to_read()

        def end() -> None:
            subscription.end()
            with self._lock:
                left = tuple(one for one in self._subscriptions.get(project, ()) if one is not subscription)
                if left:
                    self._subscriptions[project] = left
                else:
                    self._subscriptions.pop(project, None)

        return end

    def close(self) -> None:
        """Write what is noted, if that is possible soon; the reader ends in its own time."""
        self._closed.set()
        self._something.set()
        self._urgent.set()
        if self._writer is not None:
            self._writer.join(LAST_WRITE)

    def _notify(self, notice: Notice) -> None:
        for subscription in self._subscriptions.get(notice.project, ()):
            subscription.notify(notice)

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
            self._write_noted()
            self._urgent.wait(PAUSE)
        self._write_noted()

    def _write_noted(self) -> None:
        with self._lock:
            queues = list(islice(self._noted, MANY))
            for queue in queues:
                del self._noted[queue]
            if self._noted:
                self._something.set()
            notices, self._notices = self._notices, []
        if queues or notices:
            self._insert(queues, notices)

    def _insert(self, queues: Sequence[QueueRef], notices: Sequence[Notice] = ()) -> None:
        try:
            self._collection.insert_one(self._entry(queues, notices))
        except PyMongoError as error:
            LOG.debug("The feed could not be written: %s", error)

    def _entry(self, queues: Sequence[QueueRef], notices: Sequence[Notice]) -> BsonDocument:
        entry: BsonDocument = {"w": self._own, "q": [[text(queue.project), text(queue.name)] for queue in queues]}
        if notices:
            entry["t"] = encoded(notices)
        return entry

    def _follow(self) -> None:
        """Read the feed until the end, including its existing entries, because earlier notices may have been missed.

        Each cursor begins with an entry of this process. The server ends a cursor that finds nothing, and never serves
        one that finds nothing while the first entry is being written.
        """
        theirs = {"w": {"$ne": self._own}}  # MongoDB skips this process's own entries, so they wake no thread
        pause = FIRST_PAUSE
        begun = False
        while not self._closed.is_set():
            self._insert([])
            try:
                found = self._collection.find(theirs, cursor_type=CursorType.TAILABLE_AWAIT)
                with found.max_await_time_ms(AWAIT_MS) as cursor:
                    while cursor.alive and not self._closed.is_set():
                        for entry in cursor:
                            self._pass_on(entry)
                        pause, begun = FIRST_PAUSE, True
            except PyMongoError as error:
                LOG.debug("The feed broke: %s", error)
            if self._closed.is_set():
                return
            for subscription in self._all_subscriptions() if begun else ():
                subscription.lose()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _pass_on(self, entry: Mapping[str, Any]) -> None:
        if entry.get("w") == self._own:
            return
        # Other clients may write invalid entries.
        with contextlib.suppress(KeyError, TypeError, ValueError, MsgspecError):
            if self._listener is not None:
                for project, name in entry["q"]:
                    self._listener(QueueRef(original(project), original(name)))
            for project, last, documents in entry.get("t", ()):
                self._notify(Notice(original(project), last, documents))

    def _all_subscriptions(self) -> list[Subscription]:
        with self._lock:
            return [one for some in self._subscriptions.values() for one in some]


def encoded(notices: Sequence[Notice]) -> list[list[Any]]:
    """Return the notices as stored, with the first batches as far as they fit."""
    left = CARRIED
    encoded: list[list[Any]] = []
    for one in notices:
        documents = None
        if one.documents is not None:
            left -= sum(len(document["b"]) for document in one.documents)
            documents = [{field: each[field] for field in CARRIES} for each in one.documents if left >= 0]
        encoded.append([text(one.project), one.last, documents])
    return encoded
