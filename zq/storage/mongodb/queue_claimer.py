# SPDX-License-Identifier: Apache-2.0
"""Claims and pops of ready messages from the head of a queue.

All requests of this process for one queue are coalesced: one search for all of them, bodies included, one update for
the claims among them, one transaction for the pops. Every write repeats the conditions, so that of two processes that
found the same message one gets it; the other one searches again, further back.

What a message says of itself tells whether the queue is a grouped one, in which claims go by ``line_claimer``; that it
was so a moment ago only decides where is looked first, since a queue may be deleted and made anew.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from bson.datetime_ms import DatetimeMS
from cachetools import LRUCache

from zq.errors import OtherMetadata
from zq.model import ClaimRequest, Outcome, QueueRef
from zq.storage.concurrency import GroupCommit
from zq.storage.mongodb import layout
from zq.storage.mongodb.changes import Ending, finish
from zq.storage.mongodb.claim_attempt import ClaimAttempt
from zq.storage.mongodb.client import Aborted, Session, StoreClient
from zq.storage.mongodb.counters import NO_METADATA
from zq.storage.mongodb.floors import counters_of, floor_of, search
from zq.storage.mongodb.head_hint import HeadHint
from zq.storage.mongodb.layout import CLAIM_ORDER, IN_NO_LINE, BsonDocument, QueueKey, body_of
from zq.storage.mongodb.line_claimer import LineClaimer
from zq.storage.mongodb.unions import FLOORS

# Messages that one search is to find for all requests of a group.
CAPACITY: Final = 256
# Index entries that the removal of expired ones reads: so many for each wanted message, and so many more.
STEPS_PER_MESSAGE: Final = 4
EXTRA_STEPS: Final = 1024
# How often one group searches again because other processes took what it had found.
MAX_ATTEMPTS: Final = 64
# Claimers that are kept; they hold nothing but hints.
MOST_CLAIMERS: Final = 10_000
Announce = Callable[[QueueRef], None]


Candidates = tuple[ClaimAttempt, list[BsonDocument]]


class Found(NamedTuple):
    """What a search has found: ready messages, or lines that may have some, and the queue's metadata."""

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
        self.head_hint = HeadHint()
        self.lines = LineClaimer(client, key)
        self.is_grouped = False
        """Whether the messages that were met last stood in lines."""
        # Whether the last search found anything. Then the next one brings the queue's document along: between a search
        # and its update other processes come in between. Else it is not read in vain.
        self._had_ready = False
        self._group_commit = GroupCommit[ClaimAttempt, ClaimAttempt](
            self._serve, weigh=lambda attempt: attempt.limit, capacity=CAPACITY, timeout=client.timeout
        )

    def submit(self, attempt: ClaimAttempt) -> ClaimAttempt:
        """The attempt, with up to ``limit`` messages in the order of (available, sequence): as held, or as popped."""
        return self._group_commit.submit(attempt)

    def check_metadata(self, attempts: Sequence[ClaimAttempt], metadata: bytes) -> list[ClaimAttempt]:
        """Return the attempts that do not expect other metadata; the others get these."""
        passed = []
        for attempt in attempts:
            if attempt.expected in (None, metadata):
                passed.append(attempt)
            else:
                attempt.metadata = metadata
        return passed

    def look(self, want: int, now: int, most_bytes: int) -> Found:
        """Search as ``search`` does, or return the lines to be looked at, which other processes may have emptied."""
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
        """Return up to ``want`` living messages from the head, or so many that their bodies have ``most_bytes``, and
        delete expired ones that the search encounters."""
        head, skip, token = self.head_hint.start(want)
        ready, metadata = self._ready(head, now, want, most_bytes, skip)
        if (head or skip) and len(ready) < want and sum(map(len, map(body_of, ready))) < most_bytes:
            head, skip, token = 0, 0, self.head_hint.invalidate()
            ready, metadata = self._ready(head, now, want, most_bytes)
        if any(int(found["e"]) <= now for found in ready):
            self._remove_expired(head, now, want)
            met, metadata = self._ready(head, now, want, most_bytes)
            ready = [found for found in met if int(found["e"]) > now]
            skip = 0
        if ready and not skip:
            self.head_hint.found(ready[0]["d"], token, searched_all=not head)
        return Found(ready, metadata)

    def claiming(self, request: ClaimRequest, candidates: Sequence[BsonDocument], now: int) -> BsonDocument:
        """Return the statement that puts the candidates that are still as they were found under a claim."""
        ids = [found["_id"] for found in candidates]
        unchanged = self._client.where(self._key, _id={"$in": ids}, **_unchanged(candidates, now))
        return {"q": unchanged, "u": layout.claiming(request, now), "multi": True, "hint": "_id_"}

    def _serve(self, attempts: Sequence[ClaimAttempt]) -> Sequence[ClaimAttempt]:
        now = max(attempt.now for attempt in attempts)
        for attempt in attempts:
            attempt.now = now  # side by side is as if all had read the latest clock
        unanswered: Sequence[ClaimAttempt] = attempts
        for _ in range(MAX_ATTEMPTS):
            most_bytes = sum(attempt.most_bytes for attempt in unanswered)
            found = self.look(sum(one.limit for one in unanswered), now, most_bytes)
            self._had_ready = not found.is_empty
            if found.is_empty:
                break
            unanswered = self.check_metadata(unanswered, found.metadata)
            if unanswered and found.lines:
                self.lines.serve(unanswered, found.lines)
            else:
                self._deal(unanswered, found.ready)
            unanswered = [attempt for attempt in unanswered if not attempt.is_answered]
            if not unanswered:
                break
        return attempts

    def _deal(self, attempts: Sequence[ClaimAttempt], ready: list[BsonDocument]) -> None:
        """Try to give what was found, first come, first served."""
        claims: list[Candidates] = []
        pops: list[Candidates] = []
        for attempt in attempts:
            candidates = attempt.candidates(ready)
            ready = ready[len(candidates) :]
            if living := attempt.living(candidates):
                (claims if attempt.request else pops).append((attempt, living))
        if claims:
            self._claim(claims)
        if pops:
            self._pop(pops)

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
        """Remove the expired among a bounded number of entries; what lies behind is for the next call."""
        where = self._client.where(self._key, d={"$gte": head, "$lte": now})
        steps = STEPS_PER_MESSAGE * want + EXTRA_STEPS
        fields = {"_id": 0, "k": 1, "d": 1, "e": 1}
        met = self._client.find(where, limit=steps, sort=CLAIM_ORDER, hint=layout.CLAIMS, fields=fields)
        gone = [entry["k"] for entry in met if int(entry["e"]) <= now]
        expired = self._client.where(self._key, k={"$in": gone}, e={"$lte": DatetimeMS(now)})
        self._client.removals.add("read", self._client.delete_all(expired, hint=layout.OBSERVERS, durable=False))

    def _claim(self, claims: Sequence[Candidates]) -> None:
        """Put the candidates of each claim under it, in one update."""
        updates = [self.claiming(attempt.request, some, attempt.now) for attempt, some in claims if attempt.request]
        got_all = self._client.update(updates) == sum(len(candidates) for _, candidates in claims)
        if not got_all:
            self.head_hint.collided()
        for attempt, candidates in claims:
            assert attempt.request is not None
            lapsed = {found["_id"] for found in candidates if layout.names_claim(found)}
            for found in candidates:
                layout.put_under(found, attempt.request, attempt.now)
            attempt.messages = candidates if got_all else self._claimed_of(attempt.request, candidates)
            attempt.lapsed = sum(found["_id"] in lapsed for found in attempt.messages)

    def _claimed_of(self, request: ClaimRequest, candidates: Sequence[BsonDocument]) -> list[BsonDocument]:
        """The candidates that the claim got."""
        ids = [found["_id"] for found in candidates]
        mine = {"_id": {"$in": ids}, "c.i": layout.text(request.lease.claim), "c.e": candidates[0]["c"]["e"]}
        claimed = {one["_id"] for one in self._client.find(self._client.where(self._key, **mine), fields={"_id": 1})}
        return [found for found in candidates if found["_id"] in claimed]

    def _pop(self, pops: Sequence[Candidates]) -> None:
        """Remove all candidates, or none if another process has touched one of them."""
        finishing = [self._key.finishing] if any(attempt.history for attempt, _ in pops) else []
        try:
            with self._client.locks.locked(*finishing):
                self._client.transaction(partial(self._remove_all, pops), retry_conflicts=False)
        except Aborted:
            self.head_hint.collided()
            return
        for attempt, candidates in pops:
            attempt.messages = candidates

    def _remove_all(self, pops: Sequence[Candidates], session: Session) -> None:
        now = pops[0][0].now
        for history in {attempt.history for attempt, _ in pops}:
            popped = [found for attempt, some in pops if attempt.history == history for found in some]
            doc_ids, unchanged = [found["_id"] for found in popped], _unchanged(popped, now)
            finish(self._client, session, self._key, doc_ids, Ending(Outcome.POPPED, now, history), unchanged)
            if history:  # a purge since the search must not be followed by entries
                counters = self._client.find(counters_of(self._client, [self._key]), fields=FLOORS, session=session)
                if any(found["k"] <= floor_of(counter) for counter in counters for found in popped):
                    raise Aborted


class QueueClaimers:
    """The claimers of one process, one for each queue in use."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._claimers = LRUCache[str, QueueClaimer](MOST_CLAIMERS)

    def of(self, key: QueueKey) -> QueueClaimer:
        """The queue's claimer, made when it is first asked for."""
        with self._lock:
            claimer = self._claimers.get(key.shard)
            if claimer is None:
                claimer = self._claimers[key.shard] = QueueClaimer(self._client, key)
        return claimer

    def pop(self, key: QueueKey, attempt: ClaimAttempt) -> Sequence[BsonDocument]:
        """What was popped. Raises ``OtherMetadata``."""
        popped = self.of(key).submit(attempt)
        if popped.metadata is not None:
            raise OtherMetadata(popped.metadata)
        return popped.messages

    def invalidate(self, key: QueueKey) -> None:
        """A message of the queue was given an earlier moment."""
        with self._lock:
            claimer = self._claimers.get(key.shard)
        if claimer is not None:
            claimer.head_hint.invalidate()
            claimer.lines.head_hint.invalidate()

    def is_grouped(self, key: QueueKey) -> bool:
        """Whether the queue was a grouped one when its messages were met last: where to look first."""
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
    """What makes a message of a queue that is not grouped ready."""
    return {"d": {"$lte": now}, "e": {"$gt": DatetimeMS(now)}, **IN_NO_LINE}
