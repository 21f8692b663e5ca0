# SPDX-License-Identifier: Apache-2.0
"""Claims of the MongoDB store, and their settlement. A claim is nothing but what its messages say of it.

A claim under a name that the caller chose is made once, however many callers and processes want to make it: all of them
write the name's document, in the transaction that claims the messages; so the second one finds what the first one got.
"""

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final

from bson.datetime_ms import DatetimeMS
from msgspec import Struct

from zq.errors import ClaimNotFound, Fenced, Unavailable, ZqError
from zq.model import (
    Claim,
    Claimed,
    ClaimRequest,
    ClaimSummary,
    Fence,
    Grip,
    Handled,
    IdempotencyKey,
    Lease,
    Outcome,
    Page,
    QueueRef,
    Release,
    Seconds,
    Settled,
    Settlement,
)
from zq.storage.mongodb import layout, observing
from zq.storage.mongodb.changes import Ending, check_fence, counters, finish, held_by, held_filter, move, update_held
from zq.storage.mongodb.client import LONGEST_PAUSE, Aborted, Session, StoreClient
from zq.storage.mongodb.group_commit import ShardGroups, key_ids, remember, unless_known
from zq.storage.mongodb.handling import Handler, HandleRequest
from zq.storage.mongodb.layout import BsonDocument, QueueKey
from zq.storage.mongodb.queue_claimer import MAX_ATTEMPTS, Announce, ClaimAttempt, QueueClaimer, QueueClaimers
from zq.storage.mongodb.reservations import visible_held

# Milliseconds after its last use for which a name's document is kept; nothing rests on it.
NAME_TTL: Final = 3_600_000
# Messages that one transaction settles.
CAPACITY: Final = 256
# Messages for which a settlement counts at least: it may not name what it settles.
AT_LEAST: Final = 10


class SettleRequest(Struct, frozen=True):
    """A settlement of one claim at its moment, and on what conditions."""

    key: QueueKey
    claim: str
    settlement: Settlement
    now: int
    idempotency_key: IdempotencyKey | None
    fence: Fence | None

    @property
    def is_plain(self) -> bool:
        """Whether the counts of the replies say everything."""
        asked = self.settlement
        return not (asked.move or asked.history or self.idempotency_key or self.fence or (asked.rest and self.names))

    @property
    def names(self) -> Sequence[str]:
        """The messages that are named, in order."""
        asked = self.settlement
        return [*asked.delete, *(one.id for one in asked.release), *(one.id for one in asked.move)]

    def doc_id(self, message: str) -> str:
        """The message's ``_id``."""
        return self.key.project + layout.text(message)


class Resolution:
    """What an order means for what its claim holds."""

    def __init__(self, request: SettleRequest, held: Sequence[BsonDocument]) -> None:
        asked, doc_id = request.settlement, request.doc_id
        found = {one["_id"]: one for one in held}
        named = {doc_id(one) for one in request.names}
        self.request = request
        self.held = held
        self.deleted = [doc_id(one) for one in asked.delete if doc_id(one) in found]
        if asked.rest:
            self.deleted += [one for one in found if one not in named]
        self.released = [one for one in asked.release if doc_id(one.id) in found]
        self.moved = [(found[doc_id(one.id)], one) for one in asked.move if doc_id(one.id) in found]
        buried = sum(bool(way.reason) for _, way in self.moved)
        lost = [one for one in request.names if doc_id(one) not in found]
        self.settled = Settled(len(self.deleted), len(self.released), len(self.moved) - buried, buried, lost)

    @property
    def answer(self) -> Settled | ZqError:
        return self.settled if self.held else ClaimNotFound()

    @property
    def last(self) -> int:
        """The highest sequence that the claim held."""
        return max(int(one["k"]) for one in self.held)


class Settler:
    """Settles claims, for all threads of a process: one transaction for all that becomes of the messages.

    Where messages are only deleted and released, the claim is first believed to hold what was named; then the counts of
    the replies say whether it does. Every other settlement, and one that was wrong, shares a group commit: two that
    leave history entries in one queue, or move messages into one, would write the same counter.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._groups = ShardGroups[SettleRequest, Settled](client, self._together, _weight, CAPACITY, _exclusive)

    def settle(self, request: SettleRequest) -> Settled:
        """Return when it is done. Raises as the verb does."""
        if request.is_plain:
            try:
                return self._client.transaction(partial(self._presume, request))
            except Aborted:
                pass
        return self._groups.submit(request)

    def _presume(self, request: SettleRequest, session: Session) -> Settled:
        """Settle what was named; raises ``Aborted`` if the claim does not hold all of it."""
        asked = request.settlement
        if asked.rest:
            everything = held_filter(self._client, request.key, request.claim, request.now)
            gone = self._client.delete_all(everything, hint=layout.HELD, session=session)
            if not gone:
                raise ClaimNotFound
            return Settled(gone)
        holding = {**held_by(request.claim, request.now), "e": {"$gt": DatetimeMS(request.now)}}
        doc_ids = [request.doc_id(one) for one in asked.delete]
        finish(self._client, session, request.key, doc_ids, Ending(Outcome.DELETED, request.now, 0), holding)
        releases = self._releasing(request.key, asked.release, request.now, holding)
        if releases and self._client.update(releases, session) != len(asked.release):
            raise Aborted
        return Settled(deleted=len(asked.delete), released=len(asked.release))

    def _together(self, requests: Sequence[SettleRequest]) -> Sequence[Settled | Exception]:
        met = [counters(request.key, request.settlement.move, request.settlement.history) for request in requests]
        with self._client.locks.locked(*set().union(*met)):
            return self._client.transaction(partial(self._settle, requests))

    def _settle(self, requests: Sequence[SettleRequest], session: Session) -> Sequence[Settled | Exception]:
        return unless_known(self._client, session, requests, Settled, partial(self._settle_new, session))

    def _settle_new(self, session: Session, requests: Sequence[SettleRequest]) -> Sequence[Settled | Exception]:
        """Settle what each claim holds of what was named."""
        now = max(request.now for request in requests)  # side by side is as if all had read the latest clock
        refusals = [self._fenced(request, session) for request in requests]
        admitted = [request for request, refusal in zip(requests, refusals, strict=True) if refusal is None]
        resolutions = self._resolutions(admitted, now, session)
        holding = [resolution for resolution in resolutions if resolution.held]
        self._carry_out(holding, now, session)
        remember(
            self._client, session, [(resolution.request, resolution.settled, resolution.last) for resolution in holding]
        )
        done = iter(resolutions)
        return [next(done).answer if refusal is None else refusal for refusal in refusals]

    def _fenced(self, request: SettleRequest, session: Session) -> Fenced | None:
        if request.fence:
            try:
                check_fence(self._client, session, request.key.ref.project, request.fence)
            except Fenced as fenced:
                return fenced
        return None

    def _resolutions(self, requests: Sequence[SettleRequest], now: int, session: Session) -> Sequence[Resolution]:
        """What each claim holds, in sequence; whole documents if some are to move."""
        if not requests:
            return []
        conditions: BsonDocument = {
            "q": {"$in": [request.key.messages for request in requests]},
            "c.i": {"$in": [layout.text(request.claim) for request in requests]},
            "c.e": {"$gt": now},
            "e": {"$gt": DatetimeMS(now)},
            **self._client.shards(request.key.shard for request in requests),
        }
        fields = None if any(request.settlement.move for request in requests) else {"q": 1, "k": 1, "c.i": 1}
        found = self._client.find(conditions, fields=fields, hint=layout.HELD, session=session)
        by_claim: defaultdict[tuple[str, str], list[BsonDocument]] = defaultdict(list)
        for one in sorted(found, key=lambda one: int(one["k"])):
            by_claim[one["q"], one["c"]["i"]].append(one)
        return [Resolution(request, by_claim[request.key.messages, layout.text(request.claim)]) for request in requests]

    def _carry_out(self, resolutions: Sequence[Resolution], now: int, session: Session) -> None:
        """Do what is to be done, queue by queue; after the search in this transaction no conditions are needed."""
        by_queue: defaultdict[tuple[QueueKey, int], list[Resolution]] = defaultdict(list)
        for resolution in resolutions:
            by_queue[resolution.request.key, resolution.request.settlement.history].append(resolution)
        releases = [
            self._releasing(resolution.request.key, resolution.released, now)
            for resolution in resolutions
            if resolution.released
        ]
        if releases:
            self._client.update([statement for some in releases for statement in some], session)
        for (key, history), its in sorted(by_queue.items(), key=lambda item: item[0][0].shard):
            deleted = [doc_id for resolution in its for doc_id in resolution.deleted]
            finish(self._client, session, key, deleted, Ending(Outcome.DELETED, now, history))
            move(self._client, session, key, [one for resolution in its for one in resolution.moved], now, history)

    def _releasing(
        self, key: QueueKey, releases: Sequence[Release], now: int, conditions: BsonDocument | None = None
    ) -> Sequence[BsonDocument]:
        """The statements that give these back, one for each delay."""
        by_delay: defaultdict[int | None, list[str]] = defaultdict(list)
        for release in releases:
            by_delay[release.delay].append(key.project + layout.text(release.id))
        return [
            {
                "q": self._client.where(key, _id={"$in": doc_ids}, **(conditions or {})),
                "u": layout.releasing(now, delay),
                "multi": True,
                "hint": "_id_",
            }
            for delay, doc_ids in by_delay.items()
        ]


def _weight(request: SettleRequest) -> int:
    return max(AT_LEAST, len(request.names))


def _exclusive(request: SettleRequest) -> Sequence[str]:
    """What no two orders of a transaction may have in common: the claim and the idempotency key."""
    return [request.key.named("n", request.claim), *key_ids(request)]


class ClaimController:
    """``zq.storage.api.ClaimController`` on MongoDB."""

    def __init__(self, client: StoreClient, claimers: QueueClaimers, announce: Announce) -> None:
        self._client = client
        self._claimers = claimers
        self._announce = announce
        self._settler = Settler(client)
        self._handler = Handler(client)

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> Claimed:
        key = layout.key(queue)
        attempt = ClaimAttempt(request.limit, layout.ms(now), request, request.most_bytes, expected=request.expected)
        with self._client.verb():
            claimer = self._claimers.of(key)
            if request.named or request.fence:
                return ExclusiveClaim(self._client, claimer, key, request, attempt).create()
            claimer.submit(attempt)
        return _claimed(key, request, attempt)

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        moment, key = layout.ms(now), layout.key(queue)
        with self._client.verb():
            found = visible_held(self._client, key, claim, moment)
        if not found:
            raise ClaimNotFound
        return layout.claim(key, found, moment)

    def list(self, project: str, after: str, limit: int, now: Seconds, queue: str = "") -> Page[ClaimSummary]:
        with self._client.verb():
            return observing.claims(self._client, project, after, limit, layout.ms(now), queue)

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, fence: Fence | None = None) -> None:
        moment, key = layout.ms(now), layout.key(queue)
        statement = update_held(self._client, key, lease.claim, moment, layout.renewing(lease, moment))

        def work(session: Session | None = None) -> int:
            if fence is not None and session is not None:
                check_fence(self._client, session, queue.project, fence)
            return self._client.update([statement], session)

        with self._client.verb():
            if not (work() if fence is None else self._client.transaction(work)):
                raise ClaimNotFound

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        moment, key = layout.ms(now), layout.key(queue)
        statement = update_held(self._client, key, claim, moment, layout.releasing(moment, delay))
        with self._client.verb():
            if self._client.update([statement]):
                self._claimers.invalidate(key)
                self._announce(queue)

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        idempotency_key: IdempotencyKey | None = None,
        fence: Fence | None = None,
    ) -> Settled:
        key = layout.key(queue)
        request = SettleRequest(key, claim, settlement, layout.ms(now), idempotency_key, fence)
        with self._client.verb():
            settled = self._settler.settle(request)
        if settled.released:
            self._claimers.invalidate(key)
        for name in {*([queue.name] if settled.released else []), *(one.to for one in settlement.move)}:
            self._announce(queue._replace(name=name))
        return settled

    def handle(
        self, queue: QueueRef, grips: Sequence[Grip], now: Seconds, late: bool = False, history: int = 0
    ) -> Sequence[Handled]:
        key = layout.key(queue)
        with self._client.verb():
            handled, sooner = self._handler.handle(HandleRequest(key, grips, layout.ms(now), late, history))
        if sooner:
            self._claimers.invalidate(key)
            self._announce(queue)
        return handled


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

    def create(self) -> Claimed:
        """The claim, made or found. Raises ``Fenced``, ``Unavailable``."""
        attempt = self._attempt
        for _ in range(MAX_ATTEMPTS):
            found = self._claimer.search(attempt.limit, attempt.now, attempt.most_bytes).ready
            if found and not self._claimer.check_metadata([attempt]):
                return Claimed(metadata=attempt.metadata)
            ready = attempt.living(attempt.candidates(found))
            try:
                existing = self._claim_or_find(ready)
            except Aborted:  # another process was at the messages, or at the name
                self._claimer.head_hint.collided()
                time.sleep(random.uniform(0, LONGEST_PAUSE))
                continue
            if existing:
                return Claimed(layout.claim(self._key, existing, attempt.now), existing=True)
            return _claimed(self._key, self._request, attempt)
        raise Unavailable

    def _claim_or_find(self, ready: Sequence[BsonDocument]) -> Sequence[BsonDocument]:
        """What a living claim of the name holds; none if there is none, and then the ready messages are claimed."""
        if not ready and not self._request.fence:  # nothing to write: whoever waits asks again and again
            return self._living_claim()
        return self._client.transaction(partial(self._claim, ready), retry_conflicts=False)

    def _claim(self, ready: Sequence[BsonDocument], session: Session) -> Sequence[BsonDocument]:
        request, now = self._request, self._attempt.now
        if request.fence:
            check_fence(self._client, session, self._key.ref.project, request.fence)
        if request.named:
            self._write_name(session)
        existing = self._living_claim(session)
        self._attempt.messages = []
        if existing or not ready:
            return existing
        if self._client.update([self._claimer.claiming(request, ready, now)], session) != len(ready):
            raise Aborted
        messages = [dict(one) for one in ready]  # the transaction may be run again with what was found
        for one in messages:
            layout.put_under(one, request, now)
        self._attempt.messages = messages
        self._attempt.lapsed = sum(map(layout.names_claim, ready))
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


def _claimed(key: QueueKey, request: ClaimRequest, attempt: ClaimAttempt) -> Claimed:
    """What became of an attempt."""
    spent = [layout.message_id(key, found) for found in attempt.spent]
    if not attempt.messages:
        return Claimed(spent=spent, metadata=attempt.metadata)
    messages = [layout.message(key, found, attempt.now) for found in attempt.messages]
    lease = request.lease
    return Claimed(Claim(lease.claim, lease.ttl, attempt.now / 1000, messages, attempt.lapsed), spent=spent)
