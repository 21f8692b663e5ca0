# SPDX-License-Identifier: Apache-2.0
"""What is to be delivered of topics: the log of a project is read from a cursor on, a document, for its subscriptions.

Whoever moves the cursor has stored before what is to be delivered of the messages that it goes past, and has read the
subscriptions after the cursor. Whoever changes subscriptions stores the cursor anew afterwards, so that a move that did
not know of the change fails, and the same messages are looked at again.
"""

import logging
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from zq.broker.subscriptions import BATCH, KIND, MOST_HOPS, Subscribing, cursor_of
from zq.broker.tails import ALL
from zq.clock import Clock
from zq.model import QueueRef, Seconds
from zq.model.subscriptions import Notice, Source, Subscriptions
from zq.model.topics import Batch, Pattern
from zq.storage.api import Storage

LOG = logging.getLogger(__name__)
# What the names of topics' subscriptions begin with, among their documents.
TOPICS: Final = "topic/"


class Followed(Struct, frozen=True):
    """``told``: the queues that got something; ``more``: whether the log goes on."""

    told: Sequence[QueueRef]
    more: bool


class Following:
    """What a worker does with topics."""

    def __init__(self, storage: Storage, clock: Clock, subscriptions: Subscribing) -> None:
        self._storage = storage
        self._clock = clock
        self._subscriptions = subscriptions

    def is_followed(self, project: str) -> bool:
        """Whether topics of the project have, or had, subscriptions."""
        return self._storage.documents.get(cursor_of(project), self._clock.now()) is not None

    def follow(self, project: str) -> Followed | None:
        """Give each subscription what is for it of the next messages; None = nobody has subscribed."""
        now, ref = self._clock.now(), cursor_of(project)
        cursor = self._storage.documents.get(ref, now)
        if cursor is None:
            return None
        topics = self._subscribed(project)
        if not topics:
            gone = self._storage.documents.delete(ref, now, expected=cursor.version)
            return None if gone else Followed([], True)
        position = int(cursor.value)
        pattern = Pattern(next(iter(topics))) if len(topics) == 1 else ALL
        read = self._storage.topics.read(project, position, BATCH, pattern)
        if read.dropped > position:
            LOG.warning("Messages of topics of project %s were trimmed before their delivery.", project)
        told: dict[QueueRef, list[Notice]] = {}
        for batch in read.batches:
            self._tell(project, batch, position, topics.get(batch.topic, Subscriptions()), told, now)
        for queue, its in told.items():
            self._storage.messages.post(queue, self._subscriptions.drafts(its, now), now)
        if read.position == position:
            return Followed(list(told), read.more)
        moved = self._storage.documents.put(ref, b"%d" % read.position, now, expected=cursor.version)
        return Followed(list(told), read.more or not moved)

    def _tell(
        self,
        project: str,
        batch: Batch,
        after: int,
        all: Subscriptions,
        told: dict[QueueRef, list[Notice]],
        now: Seconds,
    ) -> None:
        source = Source(project, "topic", batch.topic)
        for message in batch.messages(after, now) if all.deliverable else ():
            entry, sequence = message.entry, message.sequence
            id = f"{sequence}-{int(message.created * 1000):x}"  # the same, should it be told twice
            notice = Notice(id, "topic", batch.topic, entry.body, entry.ttl, generation=sequence, hops=entry.hops)
            for each in all.items if entry.hops < MOST_HOPS else ():
                if each.gets(notice):
                    told.setdefault(source.pending(each.id), []).append(notice)

    def _subscribed(self, project: str) -> dict[str, Subscriptions]:
        """The subscriptions of each topic that has some."""
        found: dict[str, Subscriptions] = {}
        after = ""
        while True:
            page = self._storage.documents.list(project, KIND, TOPICS, after, BATCH, self._clock.now())
            for document in page.items:
                name = document.ref.name.removeprefix(TOPICS)
                if (all := self._subscriptions.of(Source(project, "topic", name))).items:
                    found[name] = all
            if page.next is None or len(page.items) < BATCH:
                return found
            after = page.next
