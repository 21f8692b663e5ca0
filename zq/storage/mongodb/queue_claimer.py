# SPDX-License-Identifier: Apache-2.0
"""Claims and pops of ready messages from the head of a queue.

Concurrent requests of a process for one queue share a search, which reads the bodies. Concurrent requests for any
queues share an update command for claims and a transaction for pops. Each write repeats the conditions of the search.
If two processes find the same message, only one process gets it. The slower process searches again, further back in
the queue.

In a grouped queue, ``group_claimer`` serves the requests. Grouped messages have the field ``h1``. A claimer remembers
whether the last message that it found had this field. This is only a hint for the next search, because a queue may be
deleted and created again with another grouping.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from bson.datetime_ms import DatetimeMS
from cachetools import LRUCache
from msgspec.structs import replace

from zq.errors import OtherMetadata
from zq.model import ClaimRequest, QueueRef
from zq.storage.concurrency import GroupCommit
from zq.storage.mongodb import layout
from zq.storage.mongodb.claim_attempt import Choice, ClaimAttempt, ClaimOutcome
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.counters import NO_METADATA
from zq.storage.mongodb.floors import search
from zq.storage.mongodb.group_claimer import GroupClaimer
from zq.storage.mongodb.head_hint import HeadHint
from zq.storage.mongodb.layout import CLAIM_ORDER, UNGROUPED_FILTER, BsonDocument, QueueKey, size_of
from zq.storage.mongodb.pops import Pop, Pops
from zq.storage.mongodb.shared_commands import CAPACITY, SharedCommands

# Maximum number of index entries that a removal of expired messages reads: this number for each wanted message ...
STEPS_PER_MESSAGE: Final = 4
# ... plus this number.
EXTRA_STEPS: Final = 1024
# Maximum number of searches for one group. Another process may take the messages between a search and the write.
MAX_ATTEMPTS: Final = 64
# Maximum number of claimers in a process. They contain only hints, so any of them can be discarded.
MAX_CLAIMERS: Final = 10_000
Announce = Callable[[QueueRef], None]


class SearchResult(NamedTuple):
    """The result of a search: ready messages, or the message groups of a grouped queue that may have ready messages."""

    ready: list[BsonDocument]
    metadata: bytes = NO_METADATA
    groups: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.ready or self.groups)


class QueueClaimer:
    """The claims and pops of one queue, for all threads of this process."""

    def __init__(self, client: StoreClient, key: QueueKey, updates: SharedCommands, pops: Pops) -> None:
        self._client = client
        self._updates = updates
        self._pops = pops
        self._key = key
        self.group_claimer = GroupClaimer(client, key)
        self.is_grouped = False
        """Whether the last search found grouped messages."""
        self._head_hint = HeadHint()
        # Whether the last search found messages. The next search then reads the queue's document in the same command.
        # This shortens the time between search and update, in which other processes may take the messages.
        self._found_ready = False
        self._group_commit = GroupCommit[ClaimAttempt, ClaimOutcome](
            self._serve, weigh=lambda attempt: attempt.limit, capacity=CAPACITY, timeout=client.timeout
        )

    def submit(self, attempt: ClaimAttempt) -> ClaimOutcome:
        """Claim or pop messages in the order of available-at and sequence, and return the outcome."""
        return self._group_commit.submit(attempt)

    def invalidate(self) -> None:
        """Discard the head hint, so that the next search starts at the beginning of the queue.

        Call this method if a message becomes available earlier than before.
        """
        self._head_hint.invalidate()
        self.group_claimer.head_hint.invalidate()

    def record_collision(self, found: SearchResult) -> None:
        """Record that another process has taken the messages ``found``. The next searches then skip some messages."""
        (self.group_claimer.head_hint if found.groups else self._head_hint).record_collision()

    def search(self, want: int, now: int, max_bytes: int) -> SearchResult:
        """Search for ready messages. In a grouped queue, search for message groups that may have ready messages."""
        for _ in range(2):
            if self.is_grouped:
                names, metadata = self.group_claimer.find_due(want, now)
                if names:
                    return SearchResult([], metadata, names)
            found = self.search_messages(1 if self.is_grouped else want, now, max_bytes)
            is_group_message = bool(found.ready) and "h1" in found.ready[0]
            # If the queue is not grouped, a grouped message belongs to a deleted queue with the same name.
            if found.ready and not is_group_message and not self.is_grouped:
                return found._replace(ready=[one for one in found.ready if "h1" not in one])
            if not found.ready or is_group_message == self.is_grouped:
                break
            self.is_grouped = is_group_message
        return SearchResult([])

    def search_messages(self, want: int, now: int, max_bytes: int) -> SearchResult:
        """Return ready messages from the head of the queue, and the queue's metadata."""
        head, skip, token = self._head_hint.get_start(want)
        ready, metadata = self._ready(head, now, want, max_bytes, skip)
        if (head or skip) and len(ready) < want and sum(map(size_of, ready)) < max_bytes:
            head, skip, token = 0, 0, self._head_hint.invalidate()
            ready, metadata = self._ready(head, now, want, max_bytes)
        if any(int(found["e"]) <= now for found in ready):
            self._remove_expired(head, now, want)
            entries, metadata = self._ready(head, now, want, max_bytes)
            ready = [found for found in entries if int(found["e"]) > now]
            skip = 0
        if ready and not skip:
            self._head_hint.update(ready[0]["d"], token, searched_all=not head)
        return SearchResult(ready, metadata)

    def claim_statement(self, request: ClaimRequest, candidates: Sequence[BsonDocument], now: int) -> BsonDocument:
        """Return the update statement that claims the candidates, except those that have changed since the search."""
        ids = [found["_id"] for found in candidates]
        unchanged = self._client.where(self._key, _id={"$in": ids}, **_unchanged(candidates, now))
        return {"q": unchanged, "u": layout.claim_update(request, now), "multi": True, "hint": "_id_"}

    def _serve(self, attempts: Sequence[ClaimAttempt]) -> Sequence[ClaimOutcome]:
        now = max(attempt.now for attempt in attempts)
        attempts = [replace(attempt, now=now) for attempt in attempts]  # the attempts of a group share one time
        outcomes = [ClaimOutcome(now)] * len(attempts)
        waiting = list(range(len(attempts)))
        for _ in range(MAX_ATTEMPTS):
            unserved = [attempts[at] for at in waiting]
            found = self.search(
                sum(attempt.limit for attempt in unserved), now, sum(attempt.max_bytes for attempt in unserved)
            )
            self._found_ready = not found.is_empty
            if found.is_empty:
                break
            for at, outcome in zip(waiting, self._distribute(unserved, found), strict=True):
                outcomes[at] = outcome
            waiting = [at for at in waiting if not outcomes[at].is_answered]
            if not waiting:
                break
        return outcomes

    def _distribute(self, attempts: Sequence[ClaimAttempt], found: SearchResult) -> list[ClaimOutcome]:
        fitting = [attempt for attempt in attempts if attempt.accepts(found.metadata)]
        if fitting and found.groups:
            served = iter(self.group_claimer.serve(fitting, found.groups))
        else:
            served = iter(self._take(fitting, found.ready))
        return [
            next(served) if attempt.accepts(found.metadata) else ClaimOutcome(attempt.now, metadata=found.metadata)
            for attempt in attempts
        ]

    def _take(self, attempts: Sequence[ClaimAttempt], ready: Sequence[BsonDocument]) -> list[ClaimOutcome]:
        choices = []
        for attempt in attempts:
            choices.append(attempt.choose(ready))
            ready = ready[len(choices[-1].candidates) :]
        chosen = [(attempt, choice) for attempt, choice in zip(attempts, choices, strict=True) if choice.eligible]
        claims = [(attempt, attempt.request, choice) for attempt, choice in chosen if attempt.request]
        pops = [(attempt, choice) for attempt, choice in chosen if not attempt.request]
        taken = self._claim(claims) | self._pop(pops)
        return [attempt.outcome(choice, taken) for attempt, choice in zip(attempts, choices, strict=True)]

    def _ready(self, head: int, now: int, want: int, max_bytes: int, skip: int = 0) -> tuple[list[BsonDocument], bytes]:
        found, counter = search(
            self._client,
            self._key,
            self._client.where(self._key, d={"$gte": head, "$lte": now}),
            limit=want,
            sort=CLAIM_ORDER,
            hint=layout.CLAIMS,
            skip=skip,
            max_bytes=max_bytes,
            in_same_command=self._found_ready,
        )
        return found, counter.get("b", NO_METADATA)

    def _remove_expired(self, head: int, now: int, want: int) -> None:
        where = self._client.where(self._key, d={"$gte": head, "$lte": now})
        steps = STEPS_PER_MESSAGE * want + EXTRA_STEPS
        fields = {"_id": 0, "k": 1, "d": 1, "e": 1}
        entries = self._client.find(where, limit=steps, sort=CLAIM_ORDER, hint=layout.CLAIMS, fields=fields)
        gone = [entry["k"] for entry in entries if int(entry["e"]) <= now]
        expired = self._client.where(self._key, k={"$in": gone}, e={"$lte": DatetimeMS(now)})
        self._client.removals.add("read", self._client.delete_all(expired, hint=layout.OBSERVERS, durable=False))

    def _claim(self, claims: Sequence[tuple[ClaimAttempt, ClaimRequest, Choice]]) -> set[str]:
        if not claims:
            return set()
        updates = [self.claim_statement(request, choice.eligible, attempt.now) for attempt, request, choice in claims]
        if self._updates.submit(updates, sum(len(choice.eligible) for *_, choice in claims)):
            return {doc_id for *_, choice in claims for doc_id in choice.doc_ids}
        self._head_hint.record_collision()
        got: set[str] = set()
        for attempt, request, choice in claims:
            ends = attempt.now + request.lease.ttl * 1000
            mine = {"_id": {"$in": choice.doc_ids}, "c.i": layout.encode_text(request.lease.claim), "c.e": ends}
            got |= {one["_id"] for one in self._client.find(self._client.where(self._key, **mine), fields={"_id": 1})}
        return got

    def _pop(self, pops: Sequence[tuple[ClaimAttempt, Choice]]) -> set[str]:
        """Remove the chosen messages of all pops, and return their ``_id`` values.

        If another process has changed one of the messages, remove none.
        """
        if not pops:
            return set()
        now = pops[0][0].now
        by_history: defaultdict[int, list[BsonDocument]] = defaultdict(list)
        for attempt, choice in pops:
            by_history[attempt.history] += choice.eligible
        if self._pops.submit(
            [Pop(self._key, found, _unchanged(found, now), now, history) for history, found in by_history.items()]
        ):
            return {doc_id for _, choice in pops for doc_id in choice.doc_ids}
        self._head_hint.record_collision()
        return set()


class QueueClaimers:
    """A thread-safe collection of the ``QueueClaimer`` objects of one process, one for each queue in use."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._updates = SharedCommands(client, client.update)
        self._pops = Pops(client)
        self._lock = threading.Lock()
        self._claimers = LRUCache[str, QueueClaimer](MAX_CLAIMERS)

    def get(self, key: QueueKey) -> QueueClaimer:
        """Return the queue's claimer, and create it if it does not exist."""
        with self._lock:
            claimer = self._claimers.get(key.shard)
            if claimer is None:
                claimer = self._claimers[key.shard] = QueueClaimer(self._client, key, self._updates, self._pops)
        return claimer

    def pop(self, key: QueueKey, attempt: ClaimAttempt) -> Sequence[BsonDocument]:
        """Pop messages, and return their documents. Raises ``OtherMetadata`` if the metadata is not as expected."""
        outcome = self.get(key).submit(attempt)
        if outcome.metadata is not None:
            raise OtherMetadata(outcome.metadata)
        return outcome.messages

    def invalidate(self, key: QueueKey) -> None:
        """Discard the queue's head hint, so that the next search starts at the beginning of the queue."""
        with self._lock:
            claimer = self._claimers.get(key.shard)
        if claimer is not None:
            claimer.invalidate()

    def is_grouped(self, key: QueueKey) -> bool:
        """Return whether the last search in the queue has found grouped messages."""
        with self._lock:
            claimer = self._claimers.get(key.shard)
        return claimer is not None and claimer.is_grouped


def _unchanged(candidates: Sequence[BsonDocument], now: int) -> BsonDocument:
    """Return the condition that messages are ready and unchanged since they were found.

    If another process has claimed and released a message, its claim count is higher. If another process has moved the
    message within the queue, perhaps with another body, its sequence differs.
    """
    by_count: defaultdict[int | None, list[str]] = defaultdict(list)
    for found in candidates:
        by_count[found["c"]["n"] if "c" in found else None].append(found["_id"])
    sequences: BsonDocument = {"k": {"$in": [found["k"] for found in candidates]}, **_ready(now)}
    if len(by_count) == 1:
        return {**sequences, "c.n": next(iter(by_count))}
    return {**sequences, "$or": [{"_id": {"$in": ids}, "c.n": count} for count, ids in by_count.items()]}


def _ready(now: int) -> BsonDocument:
    return {"d": {"$lte": now}, "e": {"$gt": DatetimeMS(now)}, **UNGROUPED_FILTER}
