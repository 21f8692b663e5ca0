# SPDX-License-Identifier: Apache-2.0
"""Posts: one transaction for all that wait in this process, whatever their queues; see ``grouping``."""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from zq.model import Draft, Once
from zq.storage.mongodb import layout
from zq.storage.mongodb.counting import Entry, advance
from zq.storage.mongodb.grouping import AT_LEAST, Groups
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.once import Attempt, remember, unless_known
from zq.storage.mongodb.port import Port, Session


class Post(NamedTuple):
    """One caller's messages for one queue, at its moment, and the metadata that it expects there (None: any)."""

    key: QueueKey
    drafts: Sequence[Draft]
    now: int
    expected: bytes | None
    once: Once | None = None

    @property
    def attempts(self) -> Sequence[Attempt]:
        """One, if it has a key."""
        return [Attempt(self.key, self.once, self.now)] if self.once else []

    def fits(self, metadata: bytes) -> bool:
        """Whether it may be stored in a queue with these."""
        return self.expected in (None, metadata)


Metadata = bytes | None
"""The answer to a post: None when it is stored; else the metadata that were not the expected ones."""


class Poster:
    """Posts of one process."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._groups = Groups[Post, Metadata](port, self._store, _weight)

    def post(self, post: Post) -> Metadata:
        """Return when the messages are stored, as durably as the write concern says."""
        return self._groups.ask(post)

    def _store(self, posts: Sequence[Post]) -> Sequence[Metadata | Exception]:
        documents: list[Document] = []

        def work(session: Session) -> Sequence[Metadata | Exception]:
            documents.clear()
            return unless_known(self._port, session, posts, list[str], partial(self._insert, session, documents))

        def first() -> Document:
            return {field: one[field] for one in documents[:1] for field in ("_id", "s")}

        return self._port.transaction(work, first)

    def _insert(self, session: Session, documents: list[Document], posts: Sequence[Post]) -> Sequence[Metadata]:
        """Insert, and note, the documents of the posts that met the metadata they expect; the answer to each post."""
        by_queue: defaultdict[QueueKey, list[Post]] = defaultdict(list)
        for post in posts:
            by_queue[post.key].append(post)
        places = advance(self._port, session, {key: _entry(its) for key, its in by_queue.items()})
        answered: list[tuple[Attempt, Sequence[str], int]] = []
        for key, its in by_queue.items():
            sequence, available, metadata = places[key]
            for post in its:
                if not post.fits(metadata):
                    continue
                for draft in post.drafts:
                    moment = post.now + draft.delay * 1000 if draft.delay else available
                    documents.append(layout.document(key, draft, sequence, moment, post.now))
                    sequence += 1
                answered += [(one, [draft.id for draft in post.drafts], sequence - 1) for one in post.attempts]
        if answered:
            remember(self._port, session, answered)
        if documents:
            self._port.insert(documents, session)
        found = [places[post.key].metadata for post in posts]
        return [None if post.fits(data) else data for post, data in zip(posts, found, strict=True)]


def _entry(posts: Sequence[Post]) -> Entry:
    """Posts side by side are as if the one with the latest clock came first."""
    fresh = [post.now for post in posts if any(not draft.delay for draft in post.drafts)]
    return Entry(sum(len(post.drafts) for post in posts), max(fresh, default=None))


def _weight(post: Post) -> int:
    return sum(max(AT_LEAST, len(draft.body)) for draft in post.drafts)
