# SPDX-License-Identifier: Apache-2.0
"""Who waits for messages hears of them: a small capped collection that every process writes and, to listen, follows.

A verb only notes its queue. One thread writes what was noted since its last write, all of it in one document, so verbs
pay nothing and a busy queue costs a few writes for each of a hundred turns a second. What is written is no more than a
hint, so it is neither journalled nor repeated.
"""

import contextlib
import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, Final

from pymongo import CursorType
from pymongo.errors import PyMongoError
from pymongo.write_concern import WriteConcern

from zq.model import QueueRef
from zq.storage.mongodb.layout import FEED, original, text
from zq.storage.mongodb.port import Port

LOG = logging.getLogger(__name__)
Listener = Callable[[QueueRef], None]

PAUSE: Final = 0.005
"""Seconds between two writes, so that queues that are noted in quick succession go together."""
LAST_WRITE: Final = 0.5
"""Seconds that closing waits for."""
MANY: Final = 1000
"""Queues in one document."""
AWAIT_MS: Final = 1000
FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds before the feed is followed again after it broke."""


class Feed:
    """What one process tells the others and hears from them. Safe for any number of threads."""

    def __init__(self, port: Port) -> None:
        collection = port.database[FEED]
        self._collection = collection.with_options(write_concern=WriteConcern(w=1, j=False))
        self._own = uuid.uuid4().hex
        self._listener: Listener | None = None
        self._noted: dict[QueueRef, None] = {}
        self._lock = threading.Lock()
        self._something = threading.Event()
        self._closed = threading.Event()
        self._writer: threading.Thread | None = None
        self._reader: threading.Thread | None = None

    def announce(self, queue: QueueRef) -> None:
        """A message of the queue has become ready, or may become so earlier than those who wait believe."""
        if self._listener is not None:
            self._listener(queue)
        with self._lock:
            self._noted[queue] = None
            if self._writer is None and not self._closed.is_set():
                self._writer = threading.Thread(target=self._write, name="zq-feed-writer", daemon=True)
                self._writer.start()
        self._something.set()

    def listen(self, listener: Listener) -> None:
        """Tell the listener from now on, and no former one."""
        self._listener = listener
        with self._lock:
            if self._reader is None:
                self._reader = threading.Thread(target=self._follow, name="zq-feed-reader", daemon=True)
                self._reader.start()

    def close(self) -> None:
        """Write what is left to tell, if that is possible soon; the reader ends in its own time."""
        self._closed.set()
        self._something.set()
        if self._writer is not None:
            self._writer.join(LAST_WRITE)

    def _write(self) -> None:
        while not self._closed.is_set():
            self._something.wait()
            self._something.clear()
            self._tell_noted()
            self._closed.wait(PAUSE)
        self._tell_noted()

    def _tell_noted(self) -> None:
        with self._lock:
            queues = list(islice(self._noted, MANY))
            for queue in queues:
                del self._noted[queue]
            if self._noted:
                self._something.set()
        if queues:
            self._tell(queues)

    def _tell(self, queues: list[QueueRef]) -> None:
        names = [[text(queue.project), text(queue.name)] for queue in queues]
        try:
            self._collection.insert_one({"w": self._own, "q": names})
        except PyMongoError as error:
            LOG.debug("The feed could not be written: %s", error)

    def _follow(self) -> None:
        """Read the feed until the end. What has stood there before is told too: nobody knows what was missed."""
        pause = FIRST_PAUSE
        while not self._closed.is_set():
            try:
                with self._collection.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(AWAIT_MS) as cursor:
                    while cursor.alive and not self._closed.is_set():
                        for note in cursor:
                            self._pass_on(note)
                            pause = FIRST_PAUSE
            except PyMongoError as error:
                LOG.debug("The feed broke: %s", error)
            if self._closed.is_set():
                return
            self._tell([])  # there must be a document for a cursor to wait behind
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _pass_on(self, note: Mapping[str, Any]) -> None:
        if note.get("w") == self._own or self._listener is None:
            return
        with contextlib.suppress(KeyError, TypeError, ValueError):  # what others write here need not be a note
            for project, name in note["q"]:
                self._listener(QueueRef(original(project), original(name)))
