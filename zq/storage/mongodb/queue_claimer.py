# SPDX-License-Identifier: Apache-2.0
"""Claims and pops of ready messages from the head of a queue.

Concurrent requests of this process for one queue share one search, bodies included, one update for the claims, and one
transaction for the pops. Every write repeats the conditions of the search, so if two processes have found the same
message, one of them gets it, and the other one searches again, further back.

A message says itself whether it is in a line of a grouped queue, where ``line_claimer`` makes the claims. A claimer
remembers whether the last message was, but only to look there first, since a queue may be deleted and made anew.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from bson.datetime_ms import DatetimeMS
from cachetools import LRUCache
from msgspec.structs import replace

from zq.errors import OtherMetadata
from zq.model import ClaimRequest, Outcome, QueueRef
from zq.storage.concurrency import GroupCommit
from zq.storage.mongodb import layout
from zq.storage.mongodb.changes import Ending, finish
from zq.storage.mongodb.claim_attempt import Choice, ClaimAttempt, ClaimOutcome
from zq.storage.mongodb.client import Aborted, Session, StoreClient
from zq.storage.mongodb.counters import NO_METADATA
from zq.storage.mongodb.floors import counters_of, floor_of, search
from zq.storage.mongodb.head_hint import HeadHint
from zq.storage.mongodb.layout import CLAIM_ORDER, IN_NO_LINE, BsonDocument, QueueKey, body_of
from zq.storage.mongodb.line_claimer import LineClaimer
from zq.storage.mongodb.unions import FLOORS

# Messages that one search finds at most for all requests of a group.
CAPACITY: Final = 256
# Index entries that the removal of expired messages reads for each wanted message ...
STEPS_PER_MESSAGE: Final = 4
# ... and in addition.
EXTRA_STEPS: Final = 1024
# Searches of one group at most: another process may take the messages between a search and the write.
MAX_ATTEMPTS: Final = 64
# Claimers that a process keeps; they hold hints only.
MOST_CLAIMERS: Final = 10_000
Announce = Callable[[QueueRef], None]


class Found(NamedTuple):
    """The result of a search: ready messages, or lines that may have some, and the queue's metadata."""

    ready: list[BsonDocument]
    metadata: bytes = NO_METADATA
    lines: Sequence[str] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.ready or self.lines)


class QueueClaimer:
    """Claims and pops messages of one queue, for all threads of this process."""

    def __init__(self, client: StoreClient, key: QueueKey) -> None:
        self._client = client
        self._key = key
        self.lines = LineClaimer(client, key)
        self.is_grouped = False
        """Set if the last found messages were in lines."""
        self._head_hint = HeadHint()
        # Set if the last search found messages. The next search then reads the queue's document in the same command, so
        # that fewer other processes interfere between a search and its update.
        self._had_ready = False
        self._group_commit = GroupCommit[ClaimAttempt, ClaimOutcome](
            self._serve, weigh=lambda attempt: attempt.limit, capacity=CAPACITY, timeout=client.timeout
        )

    def submit(self, attempt: ClaimAttempt) -> ClaimOutcome:
        """Claim or pop up to ``limit`` messages in the order of (available, sequence)."""
        return self._group_commit.submit(attempt)

    def invalidate(self) -> None:
        """Search from the beginning: a message was given an earlier moment."""
        self._head_hint.invalidate()
        self.lines.head_hint.invalidate()

    def collided(self, found: Found) -> None:
        """Search further back: another process took what was found."""
        (self.lines.head_hint if found.lines else self._head_hint).collided()

    def look(self, want: int, now: int, most_bytes: int) -> Found:
        """Search as ``search`` does, or return lines to look at; other processes may have emptied these since."""
        for _ in range(2):
            if self.is_grouped:
                names, metadata = self.lines.due(want, now)
                if names:
                    return Found([], metadata, names)
            found = self.search(1 if self.is_grouped else want, now, most_bytes)
            met_line = bool(found.ready) and "h1" in found.ready[0]
            if found.ready and not met_line and not self.is_grouped:  # others are of a deleted queue of the name
                return found._replace(ready=[one for one in found.ready if "h1" not in one])
            if not found.ready or met_line == self.is_grouped:
                break
            self.is_grouped = met_line
        return Found([])

    def search(self, want: int, now: int, most_bytes: int) -> Found:
        """Return up to ``want`` living messages from the head, or as many as have ``most_bytes`` of bodies together.

        Delete expired messages that the search encounters.
        """
        head, skip, token = self._head_hint.start(want)
        ready, metadata = self._ready(head, now, want, most_bytes, skip)
        if (head or skip) and len(ready) < want and sum(map(len, map(body_of, ready))) < most_bytes:
            head, skip, token = 0, 0, self._head_hint.invalidate()
            ready, metadata = self._ready(head, now, want, most_bytes)
        if any(int(found["e"]) <= now for found in ready):
            self._remove_expired(head, now, want)
            met, metadata = self._ready(head, now, want, most_bytes)
            ready = [found for found in met if int(found["e"]) > now]
            skip = 0
        if ready and not skip:
            self._head_hint.found(ready[0]["d"], token, searched_all=not head)
        return Found(ready, metadata)

    def claiming(self, request: ClaimRequest, candidates: Sequence[BsonDocument], now: int) -> BsonDocument:
        """Return the statement that puts the candidates that are still as they were found under a claim."""
        ids = [found["_id"] for found in candidates]
        unchanged = self._client.where(self._key, _id={"$in": ids}, **_unchanged(candidates, now))
        return {"q": unchanged, "u": layout.claiming(request, now), "multi": True, "hint": "_id_"}

    def _serve(self, attempts: Sequence[ClaimAttempt]) -> Sequence[ClaimOutcome]:
        """Serve a group of attempts; repeat while other processes take messages that were found for them."""
        now = max(attempt.now for attempt in attempts)
        attempts = [replace(attempt, now=now) for attempt in attempts]  # as if all had read the latest clock
        outcomes = [ClaimOutcome(now)] * len(attempts)
        waiting = list(range(len(attempts)))
        for _ in range(MAX_ATTEMPTS):
            unserved = [attempts[at] for at in waiting]
            found = self.look(
                sum(attempt.limit for attempt in unserved), now, sum(attempt.most_bytes for attempt in unserved)
            )
            self._had_ready = not found.is_empty
            if found.is_empty:
                break
            for at, outcome in zip(waiting, self._distribute(unserved, found), strict=True):
                outcomes[at] = outcome
            waiting = [at for at in waiting if not outcomes[at].is_answered]
            if not waiting:
                break
        return outcomes

    def _distribute(self, attempts: Sequence[ClaimAttempt], found: Found) -> list[ClaimOutcome]:
        """Distribute the found messages in order of arrival, except to attempts that expect other metadata."""
        fitting = [attempt for attempt in attempts if attempt.fits(found.metadata)]
        if fitting and found.lines:
            served = iter(self.lines.serve(fitting, found.lines))
        else:
            served = iter(self._take(fitting, found.ready))
        return [
            next(served) if attempt.fits(found.metadata) else ClaimOutcome(attempt.now, metadata=found.metadata)
            for attempt in attempts
        ]

    def _take(self, attempts: Sequence[ClaimAttempt], ready: Sequence[BsonDocument]) -> list[ClaimOutcome]:
        """Claim and pop ready messages for the attempts: one update for the claims, one transaction for the pops."""
        choices = []
        for attempt in attempts:
            choices.append(attempt.choose(ready))
            ready = ready[len(choices[-1].candidates) :]
        chosen = [(attempt, choice) for attempt, choice in zip(attempts, choices, strict=True) if choice.eligible]
        claims = [(attempt, attempt.request, choice) for attempt, choice in chosen if attempt.request]
        pops = [(attempt, choice) for attempt, choice in chosen if not attempt.request]
        taken = self._claim(claims) | self._pop(pops)
        return [attempt.outcome(choice, taken) for attempt, choice in zip(attempts, choices, strict=True)]

    def _ready(
        self, head: int, now: int, want: int, most_bytes: int, skip: int = 0
    ) -> tuple[list[BsonDocument], bytes]:
        found, counter = search(
            self._client,
            self._key,
            self._client.where(self._key, d={"$gte": head, "$lte": now}),
            limit=want,
            sort=CLAIM_ORDER,
            hint=layout.CLAIMS,
            skip=skip,
            most_bytes=most_bytes,
            beside=self._had_ready,
        )
        return found, counter.get("b", NO_METADATA)

    def _remove_expired(self, head: int, now: int, want: int) -> None:
        """Remove the expired messages among a bounded number of entries; the next call goes on behind them."""
        where = self._client.where(self._key, d={"$gte": head, "$lte": now})
        steps = STEPS_PER_MESSAGE * want + EXTRA_STEPS
        fields = {"_id": 0, "k": 1, "d": 1, "e": 1}
        met = self._client.find(where, limit=steps, sort=CLAIM_ORDER, hint=layout.CLAIMS, fields=fields)
        gone = [entry["k"] for entry in met if int(entry["e"]) <= now]
        expired = self._client.where(self._key, k={"$in": gone}, e={"$lte": DatetimeMS(now)})
        self._client.removals.add("read", self._client.delete_all(expired, hint=layout.OBSERVERS, durable=False))

    def _claim(self, claims: Sequence[tuple[ClaimAttempt, ClaimRequest, Choice]]) -> set[str]:
        """Put the chosen messages of each claim under it, in one update.

        Return ``_id`` of the messages that the claims got; another process may have been quicker.
        """
        if not claims:
            return set()
        updates = [self.claiming(request, choice.eligible, attempt.now) for attempt, request, choice in claims]
        if self._client.update(updates) == sum(len(choice.eligible) for *_, choice in claims):
            return {doc_id for *_, choice in claims for doc_id in choice.doc_ids}
        self._head_hint.collided()
        got: set[str] = set()
        for attempt, request, choice in claims:
            ends = attempt.now + request.lease.ttl * 1000
            mine = {"_id": {"$in": choice.doc_ids}, "c.i": layout.text(request.lease.claim), "c.e": ends}
            got |= {one["_id"] for one in self._client.find(self._client.where(self._key, **mine), fields={"_id": 1})}
        return got

    def _pop(self, pops: Sequence[tuple[ClaimAttempt, Choice]]) -> set[str]:
        """Remove the chosen messages of all pops, or none if another process has touched one of them.

        Return ``_id`` of the removed messages.
        """
        if not pops:
            return set()
        finishing = [self._key.finishing] if any(attempt.history for attempt, _ in pops) else []
        try:
            with self._client.locks.locked(*finishing):
                self._client.transaction(partial(self._remove, pops), retry_conflicts=False)
        except Aborted:
            self._head_hint.collided()
            return set()
        return {doc_id for _, choice in pops for doc_id in choice.doc_ids}

    def _remove(self, pops: Sequence[tuple[ClaimAttempt, Choice]], session: Session) -> None:
        """Remove the chosen messages in the session's transaction. Raise ``Aborted`` if they have changed."""
        for history in {attempt.history for attempt, _ in pops}:
            popped = [found for attempt, choice in pops if attempt.history == history for found in choice.eligible]
            now = pops[0][0].now
            doc_ids, unchanged = [found["_id"] for found in popped], _unchanged(popped, now)
            finish(self._client, session, self._key, doc_ids, Ending(Outcome.POPPED, now, history), unchanged)
            if history:  # a purge since the search must not be followed by entries
                counters = self._client.find(counters_of(self._client, [self._key]), fields=FLOORS, session=session)
                if any(found["k"] <= floor_of(counter) for counter in counters for found in popped):
                    raise Aborted


class QueueClaimers:
    """The claimers of one process, one for each queue in use. Safe for any number of threads."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._claimers = LRUCache[str, QueueClaimer](MOST_CLAIMERS)

    def of(self, key: QueueKey) -> QueueClaimer:
        """Return the queue's claimer."""
        with self._lock:
            claimer = self._claimers.get(key.shard)
            if claimer is None:
                claimer = self._claimers[key.shard] = QueueClaimer(self._client, key)
        return claimer

    def pop(self, key: QueueKey, attempt: ClaimAttempt) -> Sequence[BsonDocument]:
        """Pop messages. Raise ``OtherMetadata`` if the queue's metadata is not the expected one."""
        outcome = self.of(key).submit(attempt)
        if outcome.metadata is not None:
            raise OtherMetadata(outcome.metadata)
        return outcome.messages

    def invalidate(self, key: QueueKey) -> None:
        """Search the queue from the beginning: one of its messages was given an earlier moment."""
        with self._lock:
            claimer = self._claimers.get(key.shard)
        if claimer is not None:
            claimer.invalidate()

    def is_grouped(self, key: QueueKey) -> bool:
        """Return whether the messages that were found last in the queue are in lines."""
        with self._lock:
            claimer = self._claimers.get(key.shard)
        return claimer is not None and claimer.is_grouped


def _unchanged(candidates: Sequence[BsonDocument], now: int) -> BsonDocument:
    """Return the condition that found messages are ready and as they were found.

    Another process may have claimed and released one since, which raises its claim count, or moved it within its queue
    with another body, which gives it another sequence.
    """
    by_count: defaultdict[int | None, list[str]] = defaultdict(list)
    for found in candidates:
        by_count[found["c"]["n"] if "c" in found else None].append(found["_id"])
    sequences: BsonDocument = {"k": {"$in": [found["k"] for found in candidates]}, **_ready(now)}
    if len(by_count) == 1:
        return {**sequences, "c.n": next(iter(by_count))}
    return {**sequences, "$or": [{"_id": {"$in": ids}, "c.n": count} for count, ids in by_count.items()]}


def _ready(now: int) -> BsonDocument:
    """Return the condition that a message in no line is ready."""
    return {"d": {"$lte": now}, "e": {"$gt": DatetimeMS(now)}, **IN_NO_LINE}
