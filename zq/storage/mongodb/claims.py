# SPDX-License-Identifier: Apache-2.0
"""Claims in MongoDB, and their settlement.

A claim has no document. Each claimed message stores the id and the terms of its claim.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final

from bson.datetime_ms import DatetimeMS
from msgspec import Struct

from zq.errors import ClaimNotFound, Fenced, ZqError
from zq.model import (
    Claim,
    ClaimRequest,
    ClaimResult,
    ClaimSummary,
    Fence,
    Grip,
    HandleOutcome,
    IdempotencyKey,
    Lease,
    Outcome,
    Page,
    QueueRef,
    Release,
    Seconds,
    Settlement,
    SettleResult,
)
from zq.storage.mongodb import layout, lines, observing
from zq.storage.mongodb.changes import (
    FinishTerms,
    check_fence,
    counter_ids,
    finish,
    held_filter,
    move,
    update_held,
    update_in_transaction,
)
from zq.storage.mongodb.claim_attempt import ClaimAttempt
from zq.storage.mongodb.client import Aborted, Session, StoreClient
from zq.storage.mongodb.commands import RemovalPending
from zq.storage.mongodb.exclusive_claim import ExclusiveClaim
from zq.storage.mongodb.floors import find_visible, guarded_delete, guarded_update
from zq.storage.mongodb.group_commit import (
    ShardGroups,
    find_refusal,
    key_ids,
    merge_results,
    recall,
    remember,
    select_admitted,
)
from zq.storage.mongodb.handling import Handler, HandleRequest
from zq.storage.mongodb.layout import IN_NO_LINE, BsonDocument, QueueKey
from zq.storage.mongodb.queue_claimer import Announce, QueueClaimers
from zq.storage.mongodb.reservations import find_visible_held

# Maximum number of messages that one transaction settles.
CAPACITY: Final = 256
# Minimum weight of a settlement in messages. A settlement with ``rest`` may settle messages that it does not name.
MIN_WEIGHT: Final = 10


class SettleRequest(Struct, frozen=True):
    """A request to settle one claim at the time ``now``, in milliseconds."""

    key: QueueKey
    claim: str
    settlement: Settlement
    now: int
    idempotency_key: IdempotencyKey | None
    fence: Fence | None

    @property
    def is_plain(self) -> bool:
        """Whether the settlement only deletes and releases messages, without history, idempotency key or fence.

        The counts in MongoDB's replies are then sufficient to build the result. This excludes a settlement that names
        some messages and also deletes the rest.
        """
        settlement = self.settlement
        return not (
            settlement.move
            or settlement.history
            or self.idempotency_key
            or self.fence
            or (settlement.rest and self.names)
        )

    @property
    def names(self) -> Sequence[str]:
        settlement = self.settlement
        return [*settlement.delete, *(one.id for one in settlement.release), *(one.id for one in settlement.move)]

    def doc_id(self, message: str) -> str:
        return self.key.project + layout.encode_text(message)


class Resolution:
    """The messages of a claim, divided into those that a settlement deletes, releases and moves.

    ``held`` has the documents of all messages of the claim. Messages that the claim does not hold are reported as lost.
    """

    def __init__(self, request: SettleRequest, held: Sequence[BsonDocument]) -> None:
        settlement, doc_id = request.settlement, request.doc_id
        found = {one["_id"]: one for one in held}
        named = {doc_id(one) for one in request.names}
        self.request = request
        self.held = held
        self.deleted = [doc_id(one) for one in settlement.delete if doc_id(one) in found]
        if settlement.rest:
            self.deleted += [one for one in found if one not in named]
        self.released = [one for one in settlement.release if doc_id(one.id) in found]
        self.moved = [(found[doc_id(one.id)], one) for one in settlement.move if doc_id(one.id) in found]
        buried = sum(bool(one_move.reason) for _, one_move in self.moved)
        lost = [one for one in request.names if doc_id(one) not in found]
        self.settled = SettleResult(len(self.deleted), len(self.released), len(self.moved) - buried, buried, lost)

    @property
    def answer(self) -> SettleResult | ZqError:
        return self.settled if self.held else ClaimNotFound()

    @property
    def last(self) -> int:
        """The highest sequence of the claim's messages."""
        return max(int(one["k"]) for one in self.held)


class Settler:
    """The settlements of one process. Each settlement is atomic. Safe for any number of threads.

    A plain settlement only deletes and releases messages. The settler first assumes that the claim holds the named
    messages, and compares the counts in MongoDB's replies with the expected counts. If they differ, or if the
    settlement is not plain, a group commit settles the claim. Without a group commit, concurrent settlements would
    conflict, because history entries and moves write counters.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._groups = ShardGroups[SettleRequest, SettleResult](
            client, self._execute, _weight, CAPACITY, _exclusive_keys
        )

    def settle(self, request: SettleRequest, is_grouped: bool) -> SettleResult:
        """Settle a claim. Raises the errors of ``ClaimController.settle``.

        If ``is_grouped``, the queue probably has message groups, and the settlement always uses a group commit.
        """
        if request.is_plain and not is_grouped:
            try:
                return self._client.transaction(partial(self._presume, request))
            except (Aborted, RemovalPending):
                pass
        return self._groups.submit(request)

    def _presume(self, request: SettleRequest, session: Session) -> SettleResult:
        """Settle the named messages, assuming that the claim holds all of them and that the queue is not grouped.

        Raises ``Aborted`` if the assumption is wrong, and ``RemovalPending`` if a purge or deletion of the queue is
        pending.
        """
        settlement = request.settlement
        held = held_filter(self._client, request.key, request.claim, request.now) | IN_NO_LINE
        if settlement.rest:
            gone = self._client.delete(guarded_delete(request.key, held, layout.HELD), session)
            if not gone:
                raise Aborted
            return SettleResult(gone)
        named = held | {"_id": {"$in": [request.doc_id(one) for one in settlement.delete]}}
        if settlement.delete and self._client.delete(guarded_delete(request.key, named), session) != len(
            settlement.delete
        ):
            raise Aborted
        releases = self._release_statements(request.key, settlement.release, request.now, held)
        if releases and self._client.update([guarded_update(request.key), *releases], session) != len(
            settlement.release
        ):
            raise Aborted
        return SettleResult(deleted=len(settlement.delete), released=len(settlement.release))

    def _execute(self, requests: Sequence[SettleRequest]) -> Sequence[SettleResult | Exception]:
        written = [
            counter_ids(request.key, request.settlement.move, request.settlement.history) for request in requests
        ]
        with self._client.locks.locked(*set().union(*written)):
            return self._client.transaction(partial(self._settle, requests))

    def _settle(self, requests: Sequence[SettleRequest], session: Session) -> Sequence[SettleResult | Exception]:
        now = max(request.now for request in requests)  # the requests of a group share one time
        known = recall(self._client, session, requests, SettleResult)
        refusals = [find_refusal(request, known) or self._fence_refusal(request, session) for request in requests]
        resolutions = self._resolutions(select_admitted(requests, refusals), now, session)
        holding = [resolution for resolution in resolutions if resolution.held]
        self._carry_out(holding, now, session)
        remember(
            self._client, session, [(resolution.request, resolution.settled, resolution.last) for resolution in holding]
        )
        return merge_results(refusals, [resolution.answer for resolution in resolutions])

    def _fence_refusal(self, request: SettleRequest, session: Session) -> Fenced | None:
        if request.fence:
            try:
                check_fence(self._client, session, request.key.ref.project, request.fence)
            except Fenced as fenced:
                return fenced
        return None

    def _resolutions(self, requests: Sequence[SettleRequest], now: int, session: Session) -> Sequence[Resolution]:
        if not requests:
            return []
        keys = list(dict.fromkeys(request.key for request in requests))
        conditions: BsonDocument = {
            "q": {"$in": [key.messages for key in keys]},
            "c.i": {"$in": [layout.encode_text(request.claim) for request in requests]},
            "c.e": {"$gt": now},
            "e": {"$gt": DatetimeMS(now)},
            **self._client.shards(key.shard for key in keys),
        }
        fields = None if any(request.settlement.move for request in requests) else {"c.i": 1, "h1": 1}
        found = find_visible(self._client, keys, conditions, fields=fields, hint=layout.HELD, session=session)
        by_claim: defaultdict[tuple[str, str], list[BsonDocument]] = defaultdict(list)
        for one in sorted(found, key=lambda one: int(one["k"])):
            by_claim[one["q"], one["c"]["i"]].append(one)
        return [
            Resolution(request, by_claim[request.key.messages, layout.encode_text(request.claim)])
            for request in requests
        ]

    def _carry_out(self, resolutions: Sequence[Resolution], now: int, session: Session) -> None:
        """Release, finish and move messages, queue by queue.

        The statements need no conditions, because the same transaction has read the messages.
        """
        by_queue: defaultdict[tuple[QueueKey, int], list[Resolution]] = defaultdict(list)
        for resolution in resolutions:
            by_queue[resolution.request.key, resolution.request.settlement.history].append(resolution)
        releases = [
            self._release_statements(resolution.request.key, resolution.released, now)
            for resolution in resolutions
            if resolution.released
        ]
        if releases:
            self._client.update([statement for some in releases for statement in some], session)
        for (key, history), its in sorted(by_queue.items(), key=lambda item: item[0][0].shard):
            deleted = [doc_id for resolution in its for doc_id in resolution.deleted]
            finish(self._client, session, key, deleted, FinishTerms(Outcome.DELETED, now, history))
            move(self._client, session, key, [one for resolution in its for one in resolution.moved], now, history)
            lines.update_entries(
                self._client, session, key, [one for resolution in its for one in resolution.held], now
            )

    def _release_statements(
        self, key: QueueKey, releases: Sequence[Release], now: int, conditions: BsonDocument | None = None
    ) -> Sequence[BsonDocument]:
        by_delay: defaultdict[int | None, list[str]] = defaultdict(list)
        for release in releases:
            by_delay[release.delay].append(key.project + layout.encode_text(release.id))
        return [
            {
                "q": self._client.where(key, _id={"$in": doc_ids}, **(conditions or {})),
                "u": layout.release_update(now, delay),
                "multi": True,
                "hint": "_id_",
            }
            for delay, doc_ids in by_delay.items()
        ]


def _weight(request: SettleRequest) -> int:
    return max(MIN_WEIGHT, len(request.names))


def _exclusive_keys(request: SettleRequest) -> Sequence[str]:
    return [request.key.named("n", request.claim), *key_ids(request)]


class ClaimController:
    """The MongoDB implementation of ``zq.storage.api.ClaimController``."""

    def __init__(self, client: StoreClient, claimers: QueueClaimers, announce: Announce) -> None:
        self._client = client
        self._claimers = claimers
        self._announce = announce
        self._settler = Settler(client)
        self._handler = Handler(client)

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> ClaimResult:
        key = layout.key(queue)
        attempt = ClaimAttempt(request.limit, layout.ms(now), request, request.most_bytes, expected=request.expected)
        with self._client.verb():
            claimer = self._claimers.get(key)
            if request.named or request.fence:
                return ExclusiveClaim(self._client, claimer, key, request, attempt).create()
            outcome = claimer.submit(attempt)
        return outcome.claimed(key, request)

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        moment, key = layout.ms(now), layout.key(queue)
        with self._client.verb():
            found = find_visible_held(self._client, key, claim, moment)
        if not found:
            raise ClaimNotFound
        return layout.to_claim(key, found, moment)

    def list(self, project: str, after: str, limit: int, now: Seconds, queue: str = "") -> Page[ClaimSummary]:
        with self._client.verb():
            return observing.list_claims(self._client, project, after, limit, layout.ms(now), queue)

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, fence: Fence | None = None) -> None:
        moment, key = layout.ms(now), layout.key(queue)
        step, until = layout.renewal_update(lease, moment), moment + (lease.ttl + lease.grace) * 1000

        with self._client.verb():
            renewed = fence is None and update_held(self._client, key, lease.claim, moment, step)
            if not (renewed or update_in_transaction(self._client, key, lease.claim, moment, step, until, fence)):
                raise ClaimNotFound

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        moment, key = layout.ms(now), layout.key(queue)
        step = layout.release_update(moment, delay)
        with self._client.verb():
            released = update_held(self._client, key, claim, moment, step)
            if released or update_in_transaction(self._client, key, claim, moment, step):
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
    ) -> SettleResult:
        key = layout.key(queue)
        request = SettleRequest(key, claim, settlement, layout.ms(now), idempotency_key, fence)
        with self._client.verb():
            is_grouped = self._claimers.is_grouped(key)
            settled = self._settler.settle(request, is_grouped)
        if settled.released:
            self._claimers.invalidate(key)
        for name in {*([queue.name] if settled.released else []), *(one.to for one in settlement.move)}:
            self._announce(queue._replace(name=name))
        return settled

    def handle(
        self, queue: QueueRef, grips: Sequence[Grip], now: Seconds, late: bool = False, history: int = 0
    ) -> Sequence[HandleOutcome]:
        key = layout.key(queue)
        with self._client.verb():
            handled, is_earlier = self._handler.handle(HandleRequest(key, grips, layout.ms(now), late, history))
        if is_earlier:
            self._claimers.invalidate(key)
            self._announce(queue)
        return handled
