# SPDX-License-Identifier: Apache-2.0
"""Messages of the MongoDB store. Concurrent posts share a group
commit, whatever their queues."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from bson.datetime_ms import DatetimeMS

from zq.errors import DraftsRepeated, KeyReused, Repeated
from zq.model import (
    UNBOUNDED,
    Browsed,
    Copies,
    Draft,
    IdempotencyKey,
    ListFilter,
    Message,
    Messages,
    Move,
    Page,
    Position,
    QueueRef,
    Seconds,
    State,
    portion,
)
from zq.model.quotas import OVERHEAD
from zq.storage.mongodb import layout, lines, observing
from zq.storage.mongodb.changes import counters, move
from zq.storage.mongodb.claim_attempt import ClaimAttempt
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.counters import (
    NO_METADATA,
    Arrivals,
    CounterMemory,
    Remembered,
    SequenceRange,
    Stale,
    advance_remembered,
    unless_missing,
)
from zq.storage.mongodb.deletions import Deletion, Deletions
from zq.storage.mongodb.floors import find_there, search
from zq.storage.mongodb.group_commit import AT_LEAST, Keyed, ShardGroups, key_ids, recall, remember, unless_known
from zq.storage.mongodb.layout import BsonDocument, QueueKey
from zq.storage.mongodb.queue_claimer import Announce, QueueClaimers


class Post(NamedTuple):
    """One caller's messages for one queue, at its moment, and the metadata that it expects there (None: any)."""

    key: QueueKey
    drafts: Sequence[Draft]
    now: int
    expected: bytes | None
    idempotency_key: IdempotencyKey | None = None
    copies: tuple[QueueKey, Sequence[Draft]] | None = None
    create: bool = True

    def fits(self, metadata: bytes) -> bool:
        """Whether it may be stored in a queue with these."""
        return self.expected in (None, metadata)

    @property
    def parts(self) -> Sequence[tuple[QueueKey, Sequence[Draft]]]:
        """What comes to each queue; the first is its own."""
        own = (self.key, self.drafts)
        return (own,) if self.copies is None else (own, self.copies)


class DraftKey(NamedTuple):
    """The key of a draft, as that of a request."""

    key: QueueKey
    now: int
    idempotency_key: IdempotencyKey
    draft: str


def _draft_keys(post: Post) -> Sequence[DraftKey]:
    return [DraftKey(post.key, post.now, draft.once, draft.id) for draft in post.drafts if draft.once is not None]


def _all_key_ids(post: Post) -> Sequence[str]:
    """``_id`` of every key, of the post and of its drafts."""
    requests: list[Keyed] = [post, *_draft_keys(post)]
    return [id for request in requests for id in key_ids(request)]


# The answer to a post: None when it is stored; else the metadata that were not the expected ones.
Metadata = bytes | None


class Poster:
    """Posts of one process."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._memory = CounterMemory()
        self._groups = ShardGroups[Post, Metadata](client, self._store, _weight, keys=_all_key_ids)

    def post(self, post: Post) -> Metadata:
        """Return when the messages are stored, as durably as the write concern says."""
        return self._groups.submit(post)

    def _store(self, posts: Sequence[Post]) -> Sequence[Metadata | Exception]:
        keys = list({key for post in posts for key, _ in post.parts})
        try:
            return self._store_believing(posts, self._memory.of(keys))
        except Stale:
            self._memory.forget(keys)
            return self._store_believing(posts, {})

    def _store_believing(
        self, posts: Sequence[Post], remembered: Mapping[QueueKey, Remembered]
    ) -> Sequence[Metadata | Exception]:
        """Store them, if the counters that are remembered stand so. Raises ``Stale``."""
        group = _Group()

        def work(session: Session) -> Sequence[Metadata | Exception]:
            group.clear()
            insert = partial(self._insert, session, group, remembered)
            effect = partial(unless_missing, self._client, session, remembered, insert)
            fresh = partial(self._unless_repeated, session, effect)
            return unless_known(self._client, session, posts, list[str], fresh)

        answers = self._client.transaction(work, group.first)
        self._memory.learn(group.ranges, group.numbers)
        return answers

    def _unless_repeated(
        self,
        session: Session,
        effect: Callable[[Sequence[Post]], Sequence[Metadata | Exception]],
        posts: Sequence[Post],
    ) -> Sequence[Metadata | Exception]:
        """Do ``effect`` for the posts of which no draft's key is known, if there are any; the answer to each."""
        known = recall(self._client, session, [key for post in posts for key in _draft_keys(post)], list[str])
        if not known:
            return effect(posts)
        refusals = [_refusal(post, known) for post in posts]
        fresh = [post for post, refusal in zip(posts, refusals, strict=True) if refusal is None]
        answers = iter(effect(fresh) if fresh else ())
        return [next(answers) if refusal is None else refusal for refusal in refusals]

    def _insert(
        self, session: Session, group: "_Group", remembered: Mapping[QueueKey, Remembered], posts: Sequence[Post]
    ) -> Sequence[Metadata | Exception]:
        """Insert, and note, the documents of the posts that met the metadata they expect; the answer to each post."""
        by_queue: defaultdict[QueueKey, list[tuple[Post, Sequence[Draft]]]] = defaultdict(list)
        for post in posts:
            for key, drafts in post.parts:
                by_queue[key].append((post, drafts))
        arrivals = {key: _arrivals(its) for key, its in by_queue.items()}
        known = {key: one for key, one in remembered.items() if key in arrivals}
        ranges = advance_remembered(self._client, session, arrivals, known)
        group.ranges, group.numbers = ranges, {key: arrival.number for key, arrival in arrivals.items()}
        documents = group.documents
        answered: list[tuple[Keyed, Sequence[str], int]] = []
        for key, its in by_queue.items():
            sequence, available, _, grouping, _ = ranges[key]
            for post, drafts in its:
                if not post.fits(ranges[post.key].metadata):
                    continue
                if key == post.key:
                    at = {draft.id: place for place, draft in enumerate(drafts, sequence)}
                    answered += [(one, [one.draft], at[one.draft]) for one in _draft_keys(post)]
                for draft in drafts:
                    moment = post.now + draft.delay * 1000 if draft.delay else available
                    documents.append(layout.document(key, draft, sequence, moment, post.now, grouping))
                    sequence += 1
                if post.idempotency_key and key == post.key:
                    answered.append((post, [draft.id for draft in drafts], sequence - 1))
        remember(self._client, session, answered)
        if documents:
            lines.join(self._client, session, documents, {key.shard: one.floor for key, one in ranges.items()})
            self._client.insert(documents, session)
        found = [ranges[post.key].metadata for post in posts]
        return [None if post.fits(data) else data for post, data in zip(posts, found, strict=True)]


def _refusal(post: Post, known: Mapping[str, Repeated | KeyReused]) -> DraftsRepeated | KeyReused | None:
    """What a post is told of those of its drafts' keys that are known."""
    first: dict[str, Repeated] = {}
    for one in _draft_keys(post):
        for told in [known[id] for id in key_ids(one) if id in known]:
            if isinstance(told, KeyReused):
                return told
            first[one.draft] = told
    return DraftsRepeated(first) if first else None


class _Group:
    """What one run of a group's transaction stores."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.documents: list[BsonDocument] = []
        self.ranges: Mapping[QueueKey, SequenceRange] = {}
        self.numbers: Mapping[QueueKey, int] = {}

    def first(self) -> BsonDocument:
        """By what it is found whether the transaction was committed."""
        return {field: one[field] for one in self.documents[:1] for field in ("_id", "s")}


def _arrivals(parts: Sequence[tuple[Post, Sequence[Draft]]]) -> Arrivals:
    """Posts side by side are as if the one with the latest clock came first."""
    fresh = [post.now for post, drafts in parts if any(not draft.delay for draft in drafts)]
    number = sum(len(drafts) for _, drafts in parts)
    size = sum([draft.size for _, drafts in parts for draft in drafts]) + OVERHEAD * number
    return Arrivals(number, max(fresh, default=None), number, size)


def _weight(post: Post) -> int:
    return sum(max(AT_LEAST, draft.size) for _, drafts in post.parts for draft in drafts)


# Messages in one transaction, bodies included.
MOVED_AT_ONCE: Final = 64


class MessageController:
    """``zq.storage.api.MessageController`` on MongoDB."""

    def __init__(self, client: StoreClient, claimers: QueueClaimers, announce: Announce) -> None:
        self._client = client
        self._deletions = Deletions(client)
        self._claimers = claimers
        self._poster = Poster(client)
        self._announce = announce

    def post(
        self,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        expected: bytes | None = None,
        idempotency_key: IdempotencyKey | None = None,
        copies: Copies | None = None,
        create: bool = True,
    ) -> bytes | None:
        beside = None if copies is None else (layout.key(copies.queue), copies.drafts)
        with self._client.verb():
            post = Post(layout.key(queue), drafts, layout.ms(now), expected, idempotency_key, beside, create)
            unexpected = self._poster.post(post)
        if unexpected is None:
            self._announce(queue)
            if copies is not None:
                self._announce(copies.queue)
        return unexpected

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Messages:
        moment, key = layout.ms(now), layout.key(queue)
        doc_ids = layout.doc_ids(key, ids)
        living = self._client.where(key, _id={"$in": doc_ids}, e={"$gt": DatetimeMS(moment)})
        with self._client.verb():
            there = find_there(self._client, [key], living, hint="_id_")
        found = {document["_id"]: document for document in there}
        return [layout.message(key, found[doc_id], moment) for doc_id in doc_ids if doc_id in found]

    def list(
        self,
        queue: QueueRef,
        marker: int,
        limit: int,
        list_filter: ListFilter,
        now: Seconds,
        most_bytes: int = UNBOUNDED,
        expected: bytes | None = None,
    ) -> Page[Message]:
        moment, key = layout.ms(now), layout.key(queue)
        shown = observing.shown(list_filter, moment)
        where = self._client.where(key, k={"$gt": min(marker, layout.LARGEST_MARKER)}, e={"$gt": DatetimeMS(moment)})
        with self._client.verb():
            found, counter = search(
                self._client,
                key,
                {**where, **shown},
                limit=limit,
                sort={"k": 1},
                hint=layout.OBSERVERS,
                committed=True,
                most_bytes=most_bytes,
            )
        if expected is not None and (metadata := counter.get("b", NO_METADATA)) != expected:
            return Page([], None, metadata)
        messages = [layout.message(key, document, moment) for document in portion(found, most_bytes, layout.body_of)]
        return Page(messages, str(messages[-1].sequence) if messages else None)

    def browse(
        self, queue: QueueRef, state: State, after: Position, limit: int, now: Seconds, most_bytes: int = UNBOUNDED
    ) -> Browsed:
        with self._client.verb():
            return observing.page(self._client, layout.key(queue), state, after, limit, layout.ms(now), most_bytes)

    def delete(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, history: int = 0
    ) -> None:
        key = layout.key(queue)
        is_grouped = self._claimers.is_grouped(key)
        deletion = Deletion(key, layout.doc_ids(key, ids), layout.ms(now), claims, history)
        with self._client.verb():
            self._deletions.delete(deletion, is_grouped)

    def pop(
        self,
        queue: QueueRef,
        limit: int,
        now: Seconds,
        history: int = 0,
        most_bytes: int = UNBOUNDED,
        expected: bytes | None = None,
    ) -> Messages:
        moment, key = layout.ms(now), layout.key(queue)
        with self._client.verb():
            popped = self._claimers.pop(key, ClaimAttempt(limit, moment, None, most_bytes, history, expected))
        return [layout.message(key, document, moment) for document in popped]

    def move(self, queue: QueueRef, moves: Sequence[Move], now: Seconds, history: int = 0) -> Sequence[str]:
        moment, key = layout.ms(now), layout.key(queue)
        wanted = list({key.project + layout.text(one.id): one for one in moves}.items())

        def work(some: Sequence[tuple[str, Move]], session: Session) -> Sequence[Move]:
            named = {"_id": {"$in": [doc_id for doc_id, _ in some]}}
            ready = self._client.where(key, **named, d={"$lte": moment}, e={"$gt": DatetimeMS(moment)})
            there = find_there(self._client, [key], ready, hint="_id_", session=session)
            found = {one["_id"]: one for one in there}
            moving = [(found[doc_id], one) for doc_id, one in some if doc_id in found]
            move(self._client, session, key, moving, moment, history)
            return [one for _, one in moving]

        moved: list[Move] = []
        for start in range(0, len(wanted), MOVED_AT_ONCE):
            some = wanted[start : start + MOVED_AT_ONCE]
            with self._client.verb(), self._client.locks.locked(*counters(key, (one for _, one in some), history)):
                done = self._client.transaction(partial(work, some))
            for name in {one.to for one in done}:
                self._announce(queue._replace(name=name))
            moved += done
        return [one.id for one in moved]
