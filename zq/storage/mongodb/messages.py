# SPDX-License-Identifier: Apache-2.0
"""Messages in MongoDB. Concurrent posts to any queues share a group commit."""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from functools import partial
from typing import Final, NamedTuple

from bson.datetime_ms import DatetimeMS

from zq.errors import DraftsRepeated, KeyReused, QueueNotFound, Repeated
from zq.model import (
    UNBOUNDED,
    BrowsePage,
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
    take_portion,
)
from zq.model.quotas import OVERHEAD
from zq.storage.mongodb import groups, layout, observing
from zq.storage.mongodb.changes import counter_ids, move
from zq.storage.mongodb.claim_attempt import ClaimAttempt
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.counter_cache import SequenceRange
from zq.storage.mongodb.counters import NO_METADATA, Arrivals, StaleCounter
from zq.storage.mongodb.deletions import Deletion, Deletions
from zq.storage.mongodb.floors import counters_of, find_visible, search
from zq.storage.mongodb.group_commit import (
    MIN_WEIGHT,
    KeyedRequest,
    ShardGroups,
    find_refusal,
    key_ids,
    merge_results,
    recall,
    remember,
    select_admitted,
)
from zq.storage.mongodb.lanes import Lane, SequencesNotReserved
from zq.storage.mongodb.layout import BsonDocument, QueueKey
from zq.storage.mongodb.numbering import DrawnNumbering, Numbering, TransactionNumbering
from zq.storage.mongodb.open_posts import Found, OpenPosts, PageLimits
from zq.storage.mongodb.queue_claimer import Announce, QueueClaimers


class Post(NamedTuple):
    """A request to post messages to a queue. ``now`` is in milliseconds.

    ``copies`` is a second queue and the messages to post to it in the same transaction.
    """

    key: QueueKey
    drafts: Sequence[Draft]
    now: int
    expected: bytes | None
    idempotency_key: IdempotencyKey | None = None
    copies: tuple[QueueKey, Sequence[Draft]] | None = None
    create: bool = True

    def accepts(self, metadata: bytes) -> bool:
        return self.expected in (None, metadata)

    @property
    def parts(self) -> Sequence[tuple[QueueKey, Sequence[Draft]]]:
        """The messages for each queue; the post's own queue comes first."""
        own = (self.key, self.drafts)
        return (own,) if self.copies is None else (own, self.copies)

    @property
    def draft_keys(self) -> Sequence["DraftKey"]:
        """The idempotency keys of individual messages of the post."""
        return [DraftKey(self.key, self.now, draft.once, draft.id) for draft in self.drafts if draft.once is not None]

    @property
    def keyed_requests(self) -> Sequence[KeyedRequest]:
        """The post itself, and the ``DraftKey`` of each draft that has an idempotency key."""
        return [self, *self.draft_keys]


class DraftKey(NamedTuple):
    """The idempotency key of a single message of a post; a ``KeyedRequest``."""

    key: QueueKey
    now: int
    idempotency_key: IdempotencyKey
    draft: str


# The result of a post: None if its messages are stored, else the queue's metadata, which differ from ``expected``.
Metadata = bytes | None


class PostResult(NamedTuple):
    """The result of one transaction that stores posts.

    ``answers`` has one item for each post:

    - None if the post was stored;
    - the queue's metadata if it differs from the expected value;
    - an error if the post was rejected for another reason.
    """

    answers: Sequence[Metadata | Exception]
    ranges: Mapping[QueueKey, SequenceRange]
    documents: Sequence[BsonDocument]

    def trace(self) -> BsonDocument:
        """Return a filter that matches the first stored message, or an empty filter if no messages were stored."""
        return {field: one[field] for one in self.documents[:1] for field in ("_id", "s")}


class Poster:
    """The component that stores the posts of all threads of a process."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._lane = Lane(client)  # if the process can draw, all its posts are in one group commit
        self._groups = ShardGroups[Post, Metadata](client, self._post, _weight, keys=_key_ids)

    def post(self, post: Post) -> Metadata:
        """Store the messages of a post, and return None after they are durable.

        If the queue's metadata differs from the expected metadata, store no messages and return the metadata.
        """
        return self._groups.submit(post)

    def _post(self, posts: Sequence[Post]) -> Sequence[Metadata | Exception]:
        queues = list({key for post in posts for key, _ in post.parts})
        stored = None
        if not self._can_draw(queues):
            cached = self._client.counters.get(queues)
            try:
                stored = self._run(posts, TransactionNumbering(self._client, cached, gives_way=self._client.can_draw))
            except StaleCounter:
                self._record_counters(queues)
        if stored is None and self._can_draw(queues):
            stored = self._draw(posts)
        if stored is None:
            stored = self._run(posts, TransactionNumbering(self._client, {}, gives_way=False))
        self._client.counters.store(stored.ranges)
        return stored.answers

    def _can_draw(self, queues: Sequence[QueueKey]) -> bool:
        return self._client.can_draw and self._client.counters.is_shared(queues)

    def _record_counters(self, queues: Sequence[QueueKey]) -> None:
        """Read the counters of the queues, and record which of them another process has advanced."""
        self._client.counters.drop(queues)
        for counter in self._client.find(counters_of(self._client, queues), fields={"k1": 1}):
            last = int(counter.get("k1", 0))
            self._client.counters.record(counter["_id"], last, last)

    def _draw(self, posts: Sequence[Post]) -> PostResult | None:
        """Store posts in a transaction, and reserve their sequences outside this transaction.

        Return None if the sequences cannot be reserved. In this case, nothing is stored.
        """
        try:
            stored = self._run(posts, DrawnNumbering(self._client, self._lane))
        except SequencesNotReserved:
            return None
        self._lane.finish_group()
        return stored

    def _run(self, posts: Sequence[Post], numbering: Numbering) -> PostResult:
        return self._client.transaction(partial(self._store, posts, numbering), PostResult.trace)

    def _store(self, posts: Sequence[Post], numbering: Numbering, session: Session) -> PostResult:
        client = self._client
        numbering.begin(session)
        known = recall(client, session, [request for post in posts for request in post.keyed_requests], list[str])
        refusals = [_refusal(post, known) for post in posts]

        demanded = {post.key for post in select_admitted(posts, refusals) if not post.create}
        absent = numbering.find_missing(session, demanded)
        refusals = [
            refusal or (QueueNotFound() if not post.create and post.key in absent else None)
            for post, refusal in zip(posts, refusals, strict=True)
        ]

        fresh = select_admitted(posts, refusals)
        if not fresh:
            return PostResult(merge_results(refusals, ()), {}, [])
        by_queue = _group_by_queue(fresh)
        ranges = numbering.assign(session, {key: _arrivals(key, its) for key, its in by_queue.items()})

        documents, key_answers = _documents(by_queue, ranges)
        remember(client, session, key_answers)
        if documents:
            groups.add_to_entries(client, session, documents, {key.shard: one.floor for key, one in ranges.items()})
            client.insert(documents, session)
        found = [ranges[post.key].metadata for post in fresh]
        answers = [None if post.accepts(metadata) else metadata for post, metadata in zip(fresh, found, strict=True)]
        return PostResult(merge_results(refusals, answers), ranges, documents)


# Posts, each with its drafts for one queue.
Parts = Sequence[tuple[Post, Sequence[Draft]]]


def _group_by_queue(posts: Sequence[Post]) -> Mapping[QueueKey, Parts]:
    by_queue: defaultdict[QueueKey, list[tuple[Post, Sequence[Draft]]]] = defaultdict(list)
    for post in posts:
        for key, drafts in post.parts:
            by_queue[key].append((post, drafts))
    return by_queue


def _arrivals(key: QueueKey, parts: Parts) -> Arrivals:
    fresh = [post.now for post, drafts in parts if any(not draft.delay for draft in drafts)]
    number = sum(len(drafts) for _, drafts in parts)
    size = sum([draft.size for _, drafts in parts for draft in drafts]) + OVERHEAD * number
    may_create = any(post.create or key != post.key for post, _ in parts)
    return Arrivals(number, max(fresh, default=None), number, size, may_create)


def _documents(
    by_queue: Mapping[QueueKey, Parts], ranges: Mapping[QueueKey, SequenceRange]
) -> tuple[list[BsonDocument], list[tuple[KeyedRequest, Sequence[str], int]]]:
    """Return the message documents to store, and the results to store for the idempotency keys.

    Each result is a tuple of the request, the message ids and the last sequence.
    """
    documents: list[BsonDocument] = []
    key_answers: list[tuple[KeyedRequest, Sequence[str], int]] = []
    for key, parts in by_queue.items():
        sequence, available, grouping = ranges[key].sequence, ranges[key].available, ranges[key].grouping
        for post, drafts in parts:
            if not post.accepts(ranges[post.key].metadata):
                continue
            if key == post.key and (draft_keys := post.draft_keys):
                sequences = {draft.id: at for at, draft in enumerate(drafts, sequence)}
                key_answers += [(one, [one.draft], sequences[one.draft]) for one in draft_keys]
            for draft in drafts:
                moment = post.now + draft.delay * 1000 if draft.delay else available
                documents.append(layout.new_document(key, draft, sequence, moment, post.now, grouping))
                sequence += 1
            if post.idempotency_key and key == post.key:
                key_answers.append((post, [draft.id for draft in drafts], sequence - 1))
    return documents, key_answers


def _refusal(post: Post, known: Mapping[str, Repeated | KeyReused]) -> Exception | None:
    if not known:
        return None
    if refusal := find_refusal(post, known):
        return refusal
    repeated: dict[str, Repeated] = {}
    for one in post.draft_keys:
        refusal = find_refusal(one, known)
        if isinstance(refusal, KeyReused):
            return refusal
        if refusal:
            repeated[one.draft] = refusal
    return DraftsRepeated(repeated) if repeated else None


def _key_ids(post: Post) -> Sequence[str]:
    return [key_id for request in post.keyed_requests for key_id in key_ids(request)]


def _weight(post: Post) -> int:
    return sum(max(MIN_WEIGHT, draft.size) for _, drafts in post.parts for draft in drafts)


# Maximum number of messages that one transaction moves. The transaction reads their bodies.
MAX_MOVES: Final = 64


class MessageController:
    """The MongoDB implementation of ``zq.storage.api.MessageController``."""

    def __init__(self, client: StoreClient, claimers: QueueClaimers, announce: Announce, open_posts: OpenPosts) -> None:
        self._client = client
        self._open_posts = open_posts
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
            there = find_visible(self._client, [key], living, hint="_id_")
        found = {document["_id"]: document for document in there}
        return [layout.to_message(key, found[doc_id], moment) for doc_id in doc_ids if doc_id in found]

    def list(
        self,
        queue: QueueRef,
        marker: int,
        limit: int,
        list_filter: ListFilter,
        now: Seconds,
        max_bytes: int = UNBOUNDED,
        expected: bytes | None = None,
    ) -> Page[Message]:
        moment, key = layout.ms(now), layout.key(queue)
        shown = observing.filter_conditions(list_filter, moment)
        where = self._client.where(key, k={"$gt": min(marker, layout.LARGEST_MARKER)}, e={"$gt": DatetimeMS(moment)})
        with self._client.verb():
            find = partial(self._list, key, {**where, **shown}, limit, max_bytes)
            found, counter = self._open_posts.read_page(key, find)
        if expected is not None and (metadata := counter.get("b", NO_METADATA)) != expected:
            return Page([], None, metadata)
        messages = [
            layout.to_message(key, document, moment) for document in take_portion(found, max_bytes, layout.size_of)
        ]
        return Page(messages, str(messages[-1].sequence) if messages else None)

    def _list(self, key: QueueKey, conditions: BsonDocument, limit: int, max_bytes: int, limits: PageLimits) -> Found:
        return search(
            self._client,
            key,
            {**conditions, "k": {**conditions["k"], **limits.bound}},
            limit=limit,
            sort={"k": 1},
            hint=layout.OBSERVERS,
            committed=limits.committed,
            max_bytes=max_bytes,
        )

    def browse(
        self, queue: QueueRef, state: State, after: Position, limit: int, now: Seconds, max_bytes: int = UNBOUNDED
    ) -> BrowsePage:
        with self._client.verb():
            return observing.browse(
                self._client, self._open_posts, layout.key(queue), state, after, limit, layout.ms(now), max_bytes
            )

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
        max_bytes: int = UNBOUNDED,
        expected: bytes | None = None,
    ) -> Messages:
        moment, key = layout.ms(now), layout.key(queue)
        with self._client.verb():
            popped = self._claimers.pop(key, ClaimAttempt(limit, moment, None, max_bytes, history, expected))
        return [layout.to_message(key, document, moment) for document in popped]

    def move(self, queue: QueueRef, moves: Sequence[Move], now: Seconds, history: int = 0) -> Sequence[str]:
        moment, key = layout.ms(now), layout.key(queue)
        wanted = list({layout.doc_id(key, one.id): one for one in moves}.items())
        moved: list[Move] = []
        if len(wanted) > MAX_MOVES:  # a missing target of a later transaction must not end the call halfway
            self._check_targets({layout.key(queue._replace(name=one.to)) for one in moves if not one.may_create})
        for start in range(0, len(wanted), MAX_MOVES):
            some = dict(wanted[start : start + MAX_MOVES])
            with self._client.verb(), self._client.locks.locked(*counter_ids(key, some.values(), history)):
                done = self._client.transaction(partial(self._move, key, some, moment, history))
            for name in {one.to for one in done}:
                self._announce(queue._replace(name=name))
            moved += done
        return [one.id for one in moved]

    def _check_targets(self, targets: Set[QueueKey]) -> None:
        """Raise ``QueueNotFound`` if a target queue does not exist."""
        with self._client.verb():
            found = self._client.find(counters_of(self._client, targets), fields={"_id": 1}) if targets else []
        if len(list(found)) < len(targets):
            raise QueueNotFound

    def _move(
        self, key: QueueKey, moves: Mapping[str, Move], now: int, history: int, session: Session
    ) -> Sequence[Move]:
        named = {"_id": {"$in": list(moves)}}
        ready = self._client.where(key, **named, d={"$lte": now}, e={"$gt": DatetimeMS(now)})
        there = find_visible(self._client, [key], ready, hint="_id_", session=session)
        found = {one["_id"]: one for one in there}
        moving = [(found[doc_id], one) for doc_id, one in moves.items() if doc_id in found]
        move(self._client, session, key, moving, now, history)
        return [one for _, one in moving]
