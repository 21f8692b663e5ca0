# SPDX-License-Identifier: Apache-2.0
"""Posts: one transaction for all that wait in this process, whatever their queues.

A transaction is three or four round trips and one wait for the journal, however many messages and queues it holds, and
two that meet in a queue cost a repetition. So a process has one under way at a time. On a sharded cluster, where many
queues would mean many shards, it is one for each queue.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

from bson.errors import BSONError
from pymongo.errors import OperationFailure, PyMongoError

from zq.model import Draft, Once
from zq.storage.mongodb import layout
from zq.storage.mongodb.combine import LINGER, Combiner
from zq.storage.mongodb.counting import Entry, advance
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.once import Attempt, recall, remember
from zq.storage.mongodb.port import Port, Session

CAPACITY: Final = 4 << 20
"""Bytes of bodies in one group."""
AT_LEAST: Final = 8 << 10
"""Bytes that a message weighs at least, so that a group is no more than 512 of them."""


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
        self._combiners: defaultdict[str, Combiner[Post, Metadata]] = defaultdict(self._combiner)

    def post(self, post: Post) -> Metadata:
        """Return when the messages are stored, as durably as the write concern says."""
        return self._combiners[post.key.shard if self._port.sharded else ""].ask(post)

    def _combiner(self) -> Combiner[Post, Metadata]:
        return Combiner(self._serve, _weight, CAPACITY, self._port.timeout, LINGER)

    def _serve(self, posts: Sequence[Post]) -> Sequence[Metadata | Exception]:
        if _meet(posts):  # the first of them has to be stored before the next one is judged
            return [self._alone(post) for post in posts]
        try:
            return self._store(posts)
        except (OperationFailure, BSONError, OverflowError) as failure:
            if len(posts) == 1:
                return [failure]
            return [self._alone(post) for post in posts]

    def _alone(self, post: Post) -> Metadata | Exception:
        """A group failed, maybe by one member's fault: try each by itself."""
        try:
            return self._store([post])[0]
        except (PyMongoError, BSONError, OverflowError) as failure:
            return failure

    def _store(self, posts: Sequence[Post]) -> Sequence[Metadata | Exception]:
        documents: list[Document] = []

        def work(session: Session) -> Sequence[Metadata | Exception]:
            known = recall(self._port, session, [one for post in posts for one in post.attempts], list[str])
            refused = [next((known[one.place] for one in post.attempts if one.place in known), None) for post in posts]
            fresh = [post for post, refusal in zip(posts, refused, strict=True) if refusal is None]
            documents[:], told = self._documents(session, fresh)
            if documents:
                self._port.insert(documents, session)
            answers = iter(told)
            return [next(answers) if refusal is None else refusal for refusal in refused]

        def happened() -> bool:
            first = {field: documents[0][field] for field in ("_id", "s")} if documents else {"_id": ""}
            return bool(self._port.find(first, fields={"_id": 1}, committed=True))

        return self._port.transaction(work, happened)

    def _documents(self, session: Session, posts: Sequence[Post]) -> tuple[list[Document], Sequence[Metadata]]:
        """The documents of the posts that met the metadata they expect, and the answer to each post."""
        by_queue: defaultdict[QueueKey, list[Post]] = defaultdict(list)
        for post in posts:
            by_queue[post.key].append(post)
        places = advance(self._port, session, {key: _entry(its) for key, its in by_queue.items()}) if posts else {}
        documents: list[Document] = []
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
        found = [places[post.key].metadata for post in posts]
        return documents, [None if post.fits(data) else data for post, data in zip(posts, found, strict=True)]


def _entry(posts: Sequence[Post]) -> Entry:
    """Posts side by side are as if the one with the latest clock came first."""
    fresh = [post.now for post in posts if any(not draft.delay for draft in post.drafts)]
    return Entry(sum(len(post.drafts) for post in posts), max(fresh, default=None))


def _meet(posts: Sequence[Post]) -> bool:
    """Whether two of the posts have the same key."""
    keyed = [one.place for post in posts for one in post.attempts]
    return len(set(keyed)) < len(keyed)


def _weight(post: Post) -> int:
    return sum(max(AT_LEAST, len(draft.body)) for draft in post.drafts)
