# SPDX-License-Identifier: Apache-2.0
"""Claims that a transaction makes for one caller: under a name, or under a fence.

A claim under a name that the caller chose is made once, however many callers and processes want to make it: all of them
write the name's document, in the transaction that claims the messages; so the second one finds what the first one got.
"""

import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Final

from bson.datetime_ms import DatetimeMS

from zq.errors import Unavailable
from zq.model import Claim, Claimed, ClaimRequest
from zq.storage.mongodb import layout
from zq.storage.mongodb.changes import check_fence
from zq.storage.mongodb.claim_attempt import ClaimAttempt
from zq.storage.mongodb.client import LONGEST_PAUSE, Aborted, Session, StoreClient
from zq.storage.mongodb.layout import BsonDocument, QueueKey
from zq.storage.mongodb.queue_claimer import MAX_ATTEMPTS, QueueClaimer
from zq.storage.mongodb.reservations import visible_held

# Milliseconds after its last use for which a name's document is kept; nothing rests on it.
NAME_TTL: Final = 3_600_000


class ExclusiveClaim:
    """One caller's claim that a transaction makes: under a name, or under a fence."""

    def __init__(
        self, client: StoreClient, claimer: QueueClaimer, key: QueueKey, request: ClaimRequest, attempt: ClaimAttempt
    ) -> None:
        self._client = client
        self._claimer = claimer
        self._key = key
        self._request = request
        self._attempt = attempt
        self._expired: Sequence[str] = []
        """Lines in which messages have expired."""

    def create(self) -> Claimed:
        """The claim, made or found. Raises ``Fenced``, ``Unavailable``."""
        attempt = self._attempt
        for _ in range(MAX_ATTEMPTS):
            found = self._claimer.look(attempt.limit, attempt.now, attempt.most_bytes)
            if not found.is_empty and not self._claimer.check_metadata([attempt], found.metadata):
                return Claimed(metadata=attempt.metadata)
            ready = attempt.living(attempt.candidates(found.ready))
            try:
                existing = self._claim_or_find(ready, found.lines)
            except Aborted:  # another process was at the messages, or at the name
                (self._claimer.lines if found.lines else self._claimer).head_hint.collided()
                time.sleep(random.uniform(0, LONGEST_PAUSE))
                continue
            if existing:
                return Claimed(layout.claim(self._key, existing, attempt.now), existing=True)
            self._claimer.lines.remove_expired(self._expired, attempt.now)
            if not found.lines or attempt.is_answered:
                return claimed(self._key, self._request, attempt)
        raise Unavailable

    def _claim_or_find(self, ready: Sequence[BsonDocument], names: Sequence[str]) -> Sequence[BsonDocument]:
        """What a living claim of the name holds; none if there is none, and then the messages that are ready, maybe in
        these lines, are claimed."""
        if not (ready or names or self._request.fence):  # nothing to write: whoever waits asks again and again
            return self._living_claim()
        return self._client.transaction(partial(self._claim, ready, names), retry_conflicts=False)

    def _claim(self, ready: Sequence[BsonDocument], names: Sequence[str], session: Session) -> Sequence[BsonDocument]:
        request, now = self._request, self._attempt.now
        if request.fence:
            check_fence(self._client, session, self._key.ref.project, request.fence)
        if request.named:
            self._write_name(session)
        existing = self._living_claim(session)
        self._attempt.messages, self._expired = [], []
        if names and not existing:
            self._expired = self._claimer.lines.take([self._attempt], names, session)
        if existing or not ready:
            return existing
        if self._client.update([self._claimer.claiming(request, ready, now)], session) != len(ready):
            raise Aborted
        self._attempt.take(ready)
        return existing

    def _living_claim(self, session: Session | None = None) -> Sequence[BsonDocument]:
        if not self._request.named:
            return []
        return visible_held(self._client, self._key, self._request.lease.claim, self._attempt.now, session)

    def _write_name(self, session: Session) -> None:
        """Conflict with every other transaction that makes a claim of this name."""
        name = {"_id": self._key.named("n", self._request.lease.claim), "s": self._key.shard}
        expiry = {"$set": {"e": DatetimeMS(self._attempt.now + NAME_TTL)}, "$inc": {"v": 1}}
        self._client.update([{"q": name, "u": expiry, "upsert": True}], session)


def claimed(key: QueueKey, request: ClaimRequest, attempt: ClaimAttempt) -> Claimed:
    """What became of an attempt."""
    spent = [layout.message_id(key, found) for found in attempt.spent]
    if not attempt.messages:
        return Claimed(spent=spent, metadata=attempt.metadata)
    messages = [layout.message(key, found, attempt.now) for found in attempt.messages]
    lease = request.lease
    return Claimed(Claim(lease.claim, lease.ttl, attempt.now / 1000, messages, attempt.lapsed), spent=spent)
