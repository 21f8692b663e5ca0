# SPDX-License-Identifier: Apache-2.0
"""Messages of the MongoDB store.

Concurrent posts, and concurrent deletions, share a group commit, whatever their queues. A command waits for the journal
once, which costs more than a handful of deletions; its reply tells only how many went, so if they are fewer than asked,
each caller has to look for itself. Deletions that leave a history entry go together in a transaction, since any two of
one queue would write its counter of finishing.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from bson.datetime_ms import DatetimeMS

from zq.errors import ClaimNotHeld, MessageClaimed
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
    Outcome,
    Page,
    Position,
    QueueRef,
    Seconds,
    State,
    portion,
)
from zq.model.quotas import OVERHEAD
from zq.storage.concurrency import GroupCommit
from zq.storage.mongodb import layout, observing
from zq.storage.mongodb.changes import Ending, counters, finish, held_by, move
from zq.storage.mongodb.client import Session, StoreClient
from zq.storage.mongodb.counters import (
    NO_METADATA,
    Arrivals,
    CounterMemory,
    MetadataLookup,
    Remembered,
    SequenceRange,
    Stale,
    advance_remembered,
    unless_missing,
)
from zq.storage.mongodb.group_commit import AT_LEAST, ShardGroups, remember, unless_known
from zq.storage.mongodb.layout import BsonDocument, QueueKey
from zq.storage.mongodb.queue_claimer import Announce, ClaimAttempt, QueueClaimers


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


# The answer to a post: None when it is stored; else the metadata that were not the expected ones.
Metadata = bytes | None


class Poster:
    """Posts of one process."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._memory = CounterMemory()
        self._groups = ShardGroups[Post, Metadata](client, self._store, _weight)

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
            return unless_known(self._client, session, posts, list[str], effect)

        answers = self._client.transaction(work, group.first)
        self._memory.learn(group.ranges, group.numbers)
        return answers

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
        answered: list[tuple[Post, Sequence[str], int]] = []
        for key, its in by_queue.items():
            sequence, available, _ = ranges[key]
            for post, drafts in its:
                if not post.fits(ranges[post.key].metadata):
                    continue
                for draft in drafts:
                    moment = post.now + draft.delay * 1000 if draft.delay else available
                    documents.append(layout.document(key, draft, sequence, moment, post.now))
                    sequence += 1
                if post.idempotency_key and key == post.key:
                    answered.append((post, [draft.id for draft in drafts], sequence - 1))
        remember(self._client, session, answered)
        if documents:
            self._client.insert(documents, session)
        found = [ranges[post.key].metadata for post in posts]
        return [None if post.fits(data) else data for post, data in zip(posts, found, strict=True)]


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
    size = sum([len(draft.body) + len(draft.extra) for _, drafts in parts for draft in drafts]) + OVERHEAD * number
    return Arrivals(number, max(fresh, default=None), number, size)


def _weight(post: Post) -> int:
    return sum(max(AT_LEAST, len(draft.body) + len(draft.extra)) for _, drafts in post.parts for draft in drafts)


# Deletions in one group.
CAPACITY: Final = 256


class Deletion(NamedTuple):
    """One caller's messages (each ``_id``), the claims that it names (None: any), how long history entries are kept."""

    key: QueueKey
    doc_ids: Sequence[str]
    now: int
    claims: Sequence[str] | None
    history: int
    idempotency_key: None = None


class Deletions:
    """Deletions of one process."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._group_commit = GroupCommit[BsonDocument, bool](self._delete, capacity=CAPACITY, timeout=client.timeout)
        self._finish_groups = ShardGroups[Deletion, None](client, self._finish, lambda one: len(one.doc_ids), CAPACITY)

    def delete(self, conditions: BsonDocument) -> bool:
        """Delete the one document that fits; False = perhaps there was none."""
        return self._group_commit.submit(conditions)

    def _delete(self, deletions: Sequence[BsonDocument]) -> Sequence[bool]:
        statements = [{"q": conditions, "limit": 1, "hint": "_id_"} for conditions in deletions]
        return [self._client.delete(statements) == len(deletions)] * len(deletions)

    def finish(self, deletion: Deletion) -> None:
        """Finish the messages that are there, all or, if it raises ``MessageClaimed`` or ``ClaimNotHeld``, none."""
        self._finish_groups.submit(deletion)

    def _finish(self, deletions: Sequence[Deletion]) -> Sequence[Exception | None]:
        with self._client.locks.locked(*{one.key.finishing for one in deletions if one.history}):
            return self._client.transaction(partial(self._finish_all, deletions))

    def _finish_all(self, deletions: Sequence[Deletion], session: Session) -> Sequence[Exception | None]:
        now = max(deletion.now for deletion in deletions)  # as if all had read the latest clock
        shards = self._client.shards(one.key.shard for one in deletions)
        named = {"_id": {"$in": [doc_id for one in deletions for doc_id in one.doc_ids]}, **shards}
        met = self._client.find(named, fields={"q": 1, "e": 1, "c": 1}, session=session)
        found = {message["_id"]: message for message in met if int(message["e"]) > now}
        answers: list[Exception | None] = []
        ending: defaultdict[tuple[QueueKey, int], list[str]] = defaultdict(list)
        for one in deletions:
            there = [found[doc_id] for doc_id in one.doc_ids if doc_id in found]
            mine = [message for message in there if message["q"] == one.key.messages]
            refusals = (refusal_of(message.get("c", {}), one.claims, now) for message in mine)
            answers.append(next((refusal for refusal in refusals if refusal), None))
            if answers[-1] is None:
                ending[one.key, one.history] += [found.pop(message["_id"])["_id"] for message in mine]
        for (key, history), doc_ids in sorted(ending.items(), key=lambda item: item[0][0].shard):
            finish(self._client, session, key, doc_ids, Ending(Outcome.DELETED, now, history))
        return answers


def refusal_of(claim: BsonDocument, claims: Sequence[str] | None, now: int) -> MessageClaimed | ClaimNotHeld | None:
    """Why a caller of these claims, or of none, may not delete what is, or was, under a claim; None if it may."""
    if claims is None:
        return None
    held = claim.get("e", 0) > now
    if held and claim["i"] not in [layout.text(one) for one in claims]:
        return MessageClaimed()
    if claims and not held:
        return ClaimNotHeld()
    return None


# Messages in one transaction, bodies included.
MOVED_AT_ONCE: Final = 64


class MessageController:
    """``zq.storage.api.MessageController`` on MongoDB."""

    def __init__(
        self, client: StoreClient, lookup: MetadataLookup, claimers: QueueClaimers, announce: Announce
    ) -> None:
        self._client = client
        self._lookup = lookup
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
            found = {document["_id"]: document for document in self._client.find(living, hint="_id_")}
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
        counter = {"_id": key.counter, "s": key.shard}
        with self._client.verb():
            found, told = self._client.find_with(
                counter,
                {**where, **shown},
                limit=limit,
                sort={"k": 1},
                hint=layout.OBSERVERS,
                committed=True,
                most_bytes=most_bytes,
            )
        if expected is not None and (metadata := told or NO_METADATA) != expected:
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
        moment, key = layout.ms(now), layout.key(queue)
        doc_ids = layout.doc_ids(key, ids)
        living = self._client.where(key, _id={"$in": doc_ids}, e={"$gt": DatetimeMS(moment)})
        with self._client.verb():
            if claims is None and not history:
                self._client.delete_all(living)
            elif history or len(doc_ids) != 1 or claims is None or len(claims) > 1:
                self._deletions.finish(Deletion(key, doc_ids, moment, claims, history))
            else:
                self._delete_one(living, claims, moment)

    def _delete_one(self, living: BsonDocument, claims: Sequence[str], now: int) -> None:
        """Delete one message in a command for many callers, and look at it if there are fewer than all."""
        while not self._deletions.delete({**living, **_holder(claims, now)}):
            found = self._client.find(living, fields={"c": 1})
            refusal = refusal_of(found[0].get("c", {}), claims, now) if found else None
            if refusal:
                raise refusal
            if not found:
                return

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
            found = {one["_id"]: one for one in self._client.find(ready, hint="_id_", session=session)}
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


def _holder(claims: Sequence[str], now: int) -> BsonDocument:
    """The condition under which a caller of this claim, or of none, may delete (contract 7.6)."""
    return held_by(claims[0], now) if claims else {"c.e": {"$not": {"$gt": now}}}
