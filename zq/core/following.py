# SPDX-License-Identifier: Apache-2.0
"""What is to be delivered to whom: the notices of queues are fanned out; of topics, the log of a project is read from a
cursor on, a document, for its subscriptions.

Whoever moves the cursor has stored before what is to be delivered of the messages that it goes past, and has read the
subscriptions after the cursor. Whoever changes subscriptions stores the cursor anew afterwards, so that a move that did
not know of the change fails, and the same messages are looked at again.
"""

import logging
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from zq.clock import Clock
from zq.core.cursors import Cursors
from zq.core.subscription_documents import KIND
from zq.core.subscriptions import MOST_HOPS, Subscribing
from zq.core.tails import ALL
from zq.model import Claim, QueueRef, Seconds, Settlement
from zq.model.subscriptions import HIDDEN, Notice, Source, Subscriptions, is_notices, log_of, pending_of
from zq.model.topics import Batch, Pattern
from zq.storage.api import Storage
from zq.wire.subscriptions import notice_of

LOG = logging.getLogger(__name__)
# Things that are looked at in one step.
BATCH: Final = 100
# What the names of topics' subscriptions begin with, among their documents.
TOPICS: Final = "topic/"


class Followed(Struct, frozen=True):
    """``pending``: the queues that got something; ``more``: whether the log goes on."""

    pending: Sequence[QueueRef]
    more: bool


class Following:
    """What a worker does before it delivers."""

    def __init__(self, storage: Storage, clock: Clock, subscriptions: Subscribing) -> None:
        self._storage = storage
        self._clock = clock
        self._subscriptions = subscriptions
        self._cursors = Cursors(storage, clock)

    def work_of(self, project: str) -> Sequence[QueueRef]:
        """The project's queues in which something may be to be delivered, and its log if it is followed."""
        return [*self._queues(project), *([log_of(project)] if self._cursors.get(project) else [])]

    def _queues(self, project: str) -> Sequence[QueueRef]:
        """The project's queues that deliveries go through."""
        found, after = [], HIDDEN
        while True:
            page = self._storage.queues.list(project, after, 100)
            found += [each.ref for each in page.items if is_notices(each.ref) or pending_of(each.ref)]
            if page.next is None or len(page.items) < 100:
                return found
            after = page.next

    def fan_out(self, notices: QueueRef, claim: Claim) -> Sequence[QueueRef]:
        """Give each subscription what is for it of the claimed ``notices``; the queues that got something."""
        now = self._clock.now()
        known: dict[Source, Subscriptions] = {}
        pending: dict[QueueRef, list[Notice]] = {}
        for message in claim.messages:
            notice = notice_of(message.body)
            source = Source(notices.project, notice.kind, notice.name)
            known[source] = known.get(source) or self._subscriptions.of(source)
            for each in known[source].items:
                if self._subscriptions.gets(each, notice):
                    pending.setdefault(source.outgoing(each), []).append(notice)
        for queue, its in pending.items():
            self._storage.messages.post(queue, self._subscriptions.drafts(its, now), now)
        # Who is killed before this does the same again: a subscriber gets it twice, under one id.
        self._storage.claims.settle(notices, claim.id, Settlement(rest=True), self._clock.now())
        return list(pending)

    def follow(self, project: str) -> Followed | None:
        """Give each subscription what is for it of the next messages; None = nobody has subscribed."""
        now, cursor = self._clock.now(), self._cursors.get(project)
        if cursor is None:
            return None
        topics = self._subscribed(project)
        if not topics:
            return None if self._cursors.remove(project, cursor.version) else Followed([], True)
        position = int(cursor.value)
        pattern = Pattern(next(iter(topics))) if len(topics) == 1 else ALL
        read = self._storage.topics.read(project, position, BATCH, pattern)
        if read.dropped > position:
            LOG.warning("Messages of topics of project %s were trimmed before their delivery.", project)
        pending: dict[QueueRef, list[Notice]] = {}
        for batch in read.batches:
            self._add(project, batch, position, topics.get(batch.topic, Subscriptions()), pending, now)
        for queue, its in pending.items():
            self._storage.messages.post(queue, self._subscriptions.drafts(its, now), now)
        if read.position == position:
            return Followed(list(pending), read.more)
        moved = self._cursors.move(project, read.position, cursor.version)
        return Followed(list(pending), read.more or not moved)

    def _add(
        self,
        project: str,
        batch: Batch,
        after: int,
        all: Subscriptions,
        pending: dict[QueueRef, list[Notice]],
        now: Seconds,
    ) -> None:
        source = Source(project, "topic", batch.topic)
        for message in batch.messages(after, now) if all.deliverable else ():
            entry, sequence = message.entry, message.sequence
            id = f"{sequence}-{int(message.created * 1000):x}"  # the same, should it be read twice
            notice = Notice(
                id, "topic", batch.topic, entry.body, entry.ttl, generation=sequence, hops=entry.hops, seal=entry.seal
            )
            for each in all.items if entry.hops < MOST_HOPS else ():
                if self._subscriptions.gets(each, notice):
                    pending.setdefault(source.outgoing(each), []).append(notice)

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
