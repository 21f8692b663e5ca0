# SPDX-License-Identifier: Apache-2.0
"""The feed: a capped collection with which server processes notify each other of ready messages and topic batches.

Layout of an entry: ``{w: writer, q: [[project, queue] ...], t: [[project, last sequence, documents, or null for a
purge] ...]}``.

**Queues.** An operation only adds its queue to a set in memory. A writer thread writes the set in one entry, at most
200 times a second. The feed therefore adds no latency to operations, and a busy queue causes few writes. Entries are
hints, so they are neither journaled nor retried.

**Topics.** The writer thread writes published batches without a pause. An entry contains small batches, and only the
last sequence of large ones. The purge of a topic waits until its notice is written.

**Delivery.** The publishing thread notifies the topic listeners of its own process. The reader thread notifies them of
the batches of other processes. Batches may therefore arrive out of order or without their messages. A listener reads
missing batches from the log.
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
from zq.storage.mongodb.layout import FEED, BsonDocument, decode_text, encode_text

LOG = logging.getLogger(__name__)
QueueListener = Callable[[QueueRef], None]

# Seconds between two writes of queues. One entry contains all queues that were announced in this time.
WRITE_INTERVAL: Final = 0.005
# Maximum duration of the last write of ``close``, in seconds.
LAST_WRITE: Final = 0.5
# Maximum number of queues in one entry.
MAX_QUEUES: Final = 1000
# Maximum size of the batches in one entry, in bytes. For further batches, it contains only the last sequence.
MAX_BATCH_BYTES: Final = 64 << 10
# The fields of a batch in an entry.
BATCH_FIELDS: Final = ("k", "d", "a", "b", "t")
# Milliseconds for which MongoDB waits for new entries before it returns an empty reply.
AWAIT_MS: Final = 1000
# Seconds between the first failure to read the feed and the next attempt.
FIRST_PAUSE: Final = 0.05
# Maximum seconds between repeated attempts to read the feed.
LONGEST_PAUSE: Final = 2.0


class Notice(NamedTuple):
    """A notice about a topic log: new batches, or the purge of a topic.

    ``documents`` is empty if the batches are too large for the notice, and None for a purge.
    """

    project: str
    last: int
    documents: Sequence[BsonDocument] | None


class Subscription:
    """The subscription of one listener to the topics of a project.

    Batches up to the sequence ``floor`` are ignored. A purge raises ``floor``: notices of batches that were published
    before the purge may arrive after it.
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
        """Pass the batches above ``floor``, or the purge, to the listener, unless the subscription has ended."""
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
                    self._listener(topic_log.to_batch(document), topic_log.previous_sequence(document))

    def notify_loss(self) -> None:
        """Notify the listener that notices, including purges, may have been missed."""
        with self._lock:
            if not self._ended:
                self._listener(None, 0)


class Feed:
    """The writer and reader of the feed in one process. Thread-safe."""

    def __init__(self, client: StoreClient) -> None:
        collection = client.database[FEED]
        self._collection = collection.with_options(write_concern=WriteConcern(w=1, j=False))
        self._own = uuid.uuid4().hex
        self._listener: QueueListener | None = None
        self._subscriptions: dict[str, tuple[Subscription, ...]] = {}
        self._noted: dict[QueueRef, None] = {}
        self._notices: list[Notice] = []
        self._lock = threading.Lock()
        self._has_work = threading.Event()
        self._is_urgent = threading.Event()
        """Set if batches must be written without a pause, or if the feed is closed."""
        self._closed = threading.Event()
        self._writer: threading.Thread | None = None
        self._reader: threading.Thread | None = None

    def announce(self, queue: QueueRef) -> None:
        """Announce that a message of the queue is ready, or may become ready earlier than waiting consumers expect."""
        if self._listener is not None:
            self._listener(queue)
        with self._lock:
            self._noted[queue] = None
            self._begin_to_write()
        self._has_work.set()

    def publish(self, project: str, documents: Sequence[BsonDocument]) -> None:
        """Notify listeners of batches that this process has stored in the project's topic log, in log order."""
        notice = Notice(project, documents[-1]["k"], documents)
        with self._lock:
            self._notices.append(notice)
            self._begin_to_write()
        self._is_urgent.set()
        self._has_work.set()
        self._notify(notice)

    def purge(self, project: str, last: int) -> None:
        """Notify listeners of the purge of a topic in the project, and return after the notice is written.

        If a failover loses the notice, the other processes also lose their position in the feed. They then notify their
        listeners of missed notices. Raises ``PyMongoError`` if the write fails.
        """
        notice = Notice(project, last, None)
        self._notify(notice)
        self._collection.insert_one(self._entry((), [notice]))

    def listen(self, listener: QueueListener) -> None:
        """Set the function to call for queues with ready messages, and start reading the feed."""
        self._listener = listener
        self._begin_to_read()

    def subscribe(self, project: str, listener: Listener, last: int) -> Callable[[], None]:
        """Subscribe a listener to the batches after ``last``, and return a function that ends the subscription."""
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
        """Write pending notices, for at most ``LAST_WRITE`` seconds, and close the feed."""
        self._closed.set()
        self._has_work.set()
        self._is_urgent.set()
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
            self._has_work.wait()
            self._has_work.clear()
            self._is_urgent.clear()
            self._write_noted()
            self._is_urgent.wait(WRITE_INTERVAL)
        self._write_noted()

    def _write_noted(self) -> None:
        with self._lock:
            queues = list(islice(self._noted, MAX_QUEUES))
            for queue in queues:
                del self._noted[queue]
            if self._noted:
                self._has_work.set()
            notices, self._notices = self._notices, []
        if queues or notices:
            self._insert(queues, notices)

    def _insert(self, queues: Sequence[QueueRef], notices: Sequence[Notice] = ()) -> None:
        try:
            self._collection.insert_one(self._entry(queues, notices))
        except PyMongoError as error:
            LOG.debug("Cannot write to the notification feed: %s", error)

    def _entry(self, queues: Sequence[QueueRef], notices: Sequence[Notice]) -> BsonDocument:
        entry: BsonDocument = {
            "w": self._own,
            "q": [[encode_text(queue.project), encode_text(queue.name)] for queue in queues],
        }
        if notices:
            entry["t"] = encode(notices)
        return entry

    def _follow(self) -> None:
        """Read the feed until it is closed, and notify the listeners of each entry.

        - A cursor starts with the existing entries, because the reader may have missed some of them.
        - After a failure, all subscriptions are notified of possibly missed notices.
        - Before opening a cursor, the reader inserts an empty entry and waits for the reply. MongoDB closes a tailable
          cursor on an empty feed. A cursor that is opened during the first insert never returns an entry.
        """
        by_others = {"w": {"$ne": self._own}}  # MongoDB filters out the entries of this process, so they wake no thread
        pause = FIRST_PAUSE
        begun = False
        while not self._closed.is_set():
            self._insert([])
            try:
                found = self._collection.find(by_others, cursor_type=CursorType.TAILABLE_AWAIT)
                with found.max_await_time_ms(AWAIT_MS) as cursor:
                    while cursor.alive and not self._closed.is_set():
                        for entry in cursor:
                            self._pass_on(entry)
                        pause, begun = FIRST_PAUSE, True
            except PyMongoError as error:
                LOG.debug("Lost the notification feed, retrying: %s", error)
            if self._closed.is_set():
                return
            for subscription in self._all_subscriptions() if begun else ():
                subscription.notify_loss()
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _pass_on(self, entry: Mapping[str, Any]) -> None:
        if entry.get("w") == self._own:
            return
        # The collection may contain invalid entries of other clients.
        with contextlib.suppress(KeyError, TypeError, ValueError, MsgspecError):
            if self._listener is not None:
                for project, name in entry["q"]:
                    self._listener(QueueRef(decode_text(project), decode_text(name)))
            for project, last, documents in entry.get("t", ()):
                self._notify(Notice(decode_text(project), last, documents))

    def _all_subscriptions(self) -> list[Subscription]:
        with self._lock:
            return [one for some in self._subscriptions.values() for one in some]


def encode(notices: Sequence[Notice]) -> list[list[Any]]:
    """Encode topic notices for a feed entry.

    The notices include published batches, up to a total size of ``MAX_BATCH_BYTES``. Further notices have only the last
    sequence.
    """
    left = MAX_BATCH_BYTES
    encoded: list[list[Any]] = []
    for one in notices:
        documents = None
        if one.documents is not None:
            left -= sum(len(document["b"]) for document in one.documents)
            documents = [{field: each[field] for field in BATCH_FIELDS} for each in one.documents if left >= 0]
        encoded.append([encode_text(one.project), one.last, documents])
    return encoded
