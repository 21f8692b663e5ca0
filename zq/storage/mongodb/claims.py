# SPDX-License-Identifier: Apache-2.0
"""Claims in MongoDB, and their settlement.

A claim has no document. Each claimed message stores the id and the terms of its claim.
"""

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from bson.datetime_ms import DatetimeMS
from msgspec import Struct

from zq.errors import ClaimNotFound, Fenced, Unavailable, ZqError
from zq.model import (
    Claim,
    ClaimRequest,
    ClaimResult,
    ClaimSummary,
    Fence,
    HandleOutcome,
    IdempotencyKey,
    Lease,
    MessageHandle,
    Outcome,
    Page,
    QueueRef,
    Release,
    Seconds,
    Settlement,
    SettleResult,
)
from zq.storage.mongodb import groups, layout, observing
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
from zq.storage.mongodb.claim_attempt import Choice, ClaimAttempt, ClaimOutcome
from zq.storage.mongodb.client import LONGEST_PAUSE, Session, StoreClient, TransactionAborted
from zq.storage.mongodb.commands import RemovalPending
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
from zq.storage.mongodb.layout import UNGROUPED_FILTER, BsonDocument, QueueKey
from zq.storage.mongodb.queue_claimer import MAX_ATTEMPTS, Announce, QueueClaimer, QueueClaimers
from zq.storage.mongodb.reservations import find_visible_held

# Maximum number of messages that one transaction settles.
CAPACITY: Final = 256
# Minimum weight of a settlement in messages. A settlement with ``rest`` may settle messages that it does not name.
MIN_WEIGHT: Final = 10
# Milliseconds for which the document of a name is kept after its last use. Correctness does not depend on the value.
NAME_TTL: Final = 3_600_000


class CreationResult(NamedTuple):
    """The result of one attempt to create a claim.

    ``existing`` has the messages of the existing claim with the requested name. ``outcome`` is valid only if
    ``existing`` is empty.
    """

    existing: Sequence[BsonDocument]
    outcome: ClaimOutcome
    expired: Sequence[str] = ()


class ExclusiveClaim:
    """A request for a claim that has a caller-supplied name or is protected by a fence.

    Each request has its own transaction. If the claim has a name, the transaction also writes a document for this name.
    If several callers request a claim with the same name at the same time, their transactions therefore conflict, and
    only one claim is created.
    """

    def __init__(
        self, client: StoreClient, claimer: QueueClaimer, key: QueueKey, request: ClaimRequest, attempt: ClaimAttempt
    ) -> None:
        self._client = client
        self._claimer = claimer
        self._key = key
        self._request = request
        self._attempt = attempt

    def create(self) -> ClaimResult:
        """Create the claim, or return the existing claim with the requested name.

        If the queue's metadata differs from the expected metadata, create no claim and return the metadata. Raises
        ``Unavailable`` if all attempts conflict with other processes.
        """
        attempt = self._attempt
        for _ in range(MAX_ATTEMPTS):
            found = self._claimer.search(attempt.limit, attempt.now, attempt.max_bytes)
            if not found.is_empty and not attempt.accepts(found.metadata):
                return ClaimResult(metadata=found.metadata)
            choice = attempt.choose(found.ready)
            try:
                # Waiting callers repeat a request often. If there is nothing to claim, a request costs no transaction.
                # An existing claim is returned after a commit only, because a failover may undo a local read.
                if choice.eligible or found.groups or self._request.fence or self._existing_claim():
                    work = partial(self._make, choice, found.groups)
                    made = self._client.transaction(work, retry_conflicts=False)
                else:
                    made = CreationResult([], attempt.outcome(choice, ()))
            except TransactionAborted:  # another process has written one of the messages or the document of the name
                self._claimer.record_collision(found)
                time.sleep(random.uniform(0, LONGEST_PAUSE))
                continue
            if made.existing:
                return ClaimResult(layout.to_claim(self._key, made.existing, attempt.now), existing=True)
            self._claimer.group_claimer.remove_expired(made.expired, attempt.now)
            if not found.groups or made.outcome.is_answered:
                return made.outcome.claimed(self._key, self._request)
        raise Unavailable

    def _make(self, choice: Choice, names: Sequence[str], session: Session) -> CreationResult:
        """Create the claim in the session's transaction, or return the existing claim with the requested name."""
        request, attempt = self._request, self._attempt
        if request.fence:
            check_fence(self._client, session, self._key.ref.project, request.fence)
        if request.named:
            self._write_name(session)
        existing = self._existing_claim(session)
        if existing:
            return CreationResult(existing, ClaimOutcome(attempt.now))
        if names:
            taken = self._claimer.group_claimer.take([attempt], names, session)
            return CreationResult([], taken.outcomes[0], taken.expired)
        eligible = choice.eligible
        if eligible and self._client.update(
            [self._claimer.claim_statement(request, eligible, attempt.now)], session
        ) != len(eligible):
            raise TransactionAborted
        return CreationResult([], attempt.outcome(choice, choice.doc_ids))

    def _existing_claim(self, session: Session | None = None) -> Sequence[BsonDocument]:
        if not self._request.named:
            return []
        return find_visible_held(self._client, self._key, self._request.lease.claim, self._attempt.now, session)

    def _write_name(self, session: Session) -> None:
        """Write the document of the claim's name, so that concurrent transactions for this name conflict."""
        name = {"_id": self._key.named("n", self._request.lease.claim), "s": self._key.shard}
        expiry = {"$set": {"e": DatetimeMS(self._attempt.now + NAME_TTL)}, "$inc": {"v": 1}}
        self._client.update([{"q": name, "u": expiry, "upsert": True}], session)


class SettleRequest(Struct, frozen=True):
    """A request to settle one claim: delete, release or move the claim's messages. ``now`` is in milliseconds."""

    key: QueueKey
    claim: str
    settlement: Settlement
    now: int
    idempotency_key: IdempotencyKey | None
    fence: Fence | None

    @property
    def is_plain(self) -> bool:
        """Whether the counts in MongoDB's replies are sufficient to build the result of the settlement.

        A plain settlement only deletes and releases messages, without history, idempotency key or fence. It either
        names messages or deletes all messages of the claim (``Settlement.rest``).
        """
        settlement = self.settlement
        return not (
            settlement.move
            or settlement.history
            or self.idempotency_key
            or self.fence
            or settlement.rest == bool(self.names)
        )

    @property
    def names(self) -> Sequence[str]:
        settlement = self.settlement
        return [*settlement.delete, *(one.id for one in settlement.release), *(one.id for one in settlement.move)]

    def doc_id(self, message: str) -> str:
        return self.key.project + layout.encode_text(message)


class SettlementEffect:
    """The messages that a settlement deletes, releases and moves, computed from the messages that the claim holds."""

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
    """A thread-safe object that settles claims for all threads of a process.

    - If ``SettleRequest.is_plain`` is true, a settlement first runs in its own transaction, which does not read the
      messages. If the claim does not hold all named messages, the transaction is aborted, and a group commit follows.
    - Any other settlement runs in a group commit. Separate transactions might conflict, because history entries and
      moves write the queue's counters.
    """

    def __init__(self, client: StoreClient) -> None:
        self._client = client
        self._groups = ShardGroups[SettleRequest, SettleResult](
            client, self._execute, _weight, CAPACITY, _exclusive_keys
        )

    def settle(self, request: SettleRequest, is_grouped: bool) -> SettleResult:
        """Settle a claim atomically; see ``ClaimController.settle``."""
        if request.is_plain and not is_grouped:
            try:
                return self._client.transaction(partial(self._presume, request))
            except (TransactionAborted, RemovalPending):
                pass
        return self._groups.submit(request)

    def _presume(self, request: SettleRequest, session: Session) -> SettleResult:
        """Settle a claim without reading its messages. ``request.is_plain`` must be true.

        Raises ``TransactionAborted`` if the claim does not hold all messages that the request names.
        """
        settlement = request.settlement
        held = held_filter(self._client, request.key, request.claim, request.now) | UNGROUPED_FILTER
        if settlement.rest:
            gone = self._client.delete(guarded_delete(request.key, held, layout.HELD), session)
            if not gone:
                raise TransactionAborted
            return SettleResult(gone)
        named = held | {"_id": {"$in": [request.doc_id(one) for one in settlement.delete]}}
        if settlement.delete and self._client.delete(guarded_delete(request.key, named), session) != len(
            settlement.delete
        ):
            raise TransactionAborted
        releases = self._release_statements(request.key, settlement.release, request.now, held)
        if releases and self._client.update([guarded_update(request.key), *releases], session) != len(
            settlement.release
        ):
            raise TransactionAborted
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
        effects = self._effects(select_admitted(requests, refusals), now, session)
        holding = [effect for effect in effects if effect.held]
        self._carry_out(holding, now, session)
        remember(self._client, session, [(effect.request, effect.settled, effect.last) for effect in holding])
        return merge_results(refusals, [effect.answer for effect in effects])

    def _fence_refusal(self, request: SettleRequest, session: Session) -> Fenced | None:
        if request.fence:
            try:
                check_fence(self._client, session, request.key.ref.project, request.fence)
            except Fenced as fenced:
                return fenced
        return None

    def _effects(self, requests: Sequence[SettleRequest], now: int, session: Session) -> Sequence[SettlementEffect]:
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
            SettlementEffect(request, by_claim[request.key.messages, layout.encode_text(request.claim)])
            for request in requests
        ]

    def _carry_out(self, effects: Sequence[SettlementEffect], now: int, session: Session) -> None:
        """Release, finish and move messages that the same transaction has read."""
        by_queue: defaultdict[tuple[QueueKey, int], list[SettlementEffect]] = defaultdict(list)
        for effect in effects:
            by_queue[effect.request.key, effect.request.settlement.history].append(effect)
        releases = [
            self._release_statements(effect.request.key, effect.released, now) for effect in effects if effect.released
        ]
        if releases:
            self._client.update([statement for some in releases for statement in some], session)
        for (key, history), its in sorted(by_queue.items(), key=lambda item: item[0][0].shard):
            deleted = [doc_id for effect in its for doc_id in effect.deleted]
            finish(self._client, session, key, deleted, FinishTerms(Outcome.DELETED, now, history))
            move(self._client, session, key, [one for effect in its for one in effect.moved], now, history)
            groups.update_entries(self._client, session, key, [one for effect in its for one in effect.held], now)

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
        attempt = ClaimAttempt(request.limit, layout.ms(now), request, request.max_bytes, expected=request.expected)
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
        self,
        queue: QueueRef,
        handles: Sequence[MessageHandle],
        now: Seconds,
        accepts_expired: bool = False,
        history: int = 0,
    ) -> Sequence[HandleOutcome]:
        key = layout.key(queue)
        with self._client.verb():
            handled, is_earlier = self._handler.handle(
                HandleRequest(key, handles, layout.ms(now), accepts_expired, history)
            )
        if is_earlier:
            self._claimers.invalidate(key)
            self._announce(queue)
        return handled
