# SPDX-License-Identifier: Apache-2.0
"""Claims in Redis. A message stores its claim, and a claim stores the sequence numbers of its messages."""

from collections.abc import Sequence
from itertools import repeat
from struct import Struct as Packing
from typing import Final

from msgspec import structs

from zq.model import (
    MAX_CLAIM_ATTEMPTS,
    Claim,
    ClaimRequest,
    ClaimResult,
    ClaimSummary,
    Fence,
    HandleOutcome,
    Holder,
    IdempotencyKey,
    Lease,
    MessageHandle,
    Page,
    QueueRef,
    Seconds,
    Settlement,
    SettleResult,
)
from zq.storage.redis import layout, replies, scripts
from zq.storage.redis.client import ReadRequest
from zq.storage.redis.store import Store, checked, decode_settled, plan_moves, schedule_arrivals

# Outcomes of the claim script.
CLAIMED, AGAIN, EXISTING, OTHER = range(4)
# Header of a claim reply: outcome, number of lapsed messages, number of expired messages, length of the spent ids.
REPLY_HEADER: Final = Packing(">BIII")
NO_FENCE: Final = Fence("", 0)
# Outcomes of the ``handle`` script by reply byte.
HANDLE_OUTCOMES: Final = (
    HandleOutcome.DONE,
    HandleOutcome.GONE,
    HandleOutcome.LOST,
    HandleOutcome.EXPIRED,
    HandleOutcome.TOO_LONG,
)
# Maximum number of queues per page of a project's claims.
QUEUES: Final = 1000
# Maximum number of queues per page whose claims are read. In some of them, all claims have expired.
MAX_READ_QUEUES: Final = 100


class ClaimController:
    """The Redis implementation of ``zq.storage.api.ClaimController``."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> ClaimResult:
        moment, keys = layout.ms(now), layout.keys(queue)
        terms = _request_terms(request, keys.full_name, moment)
        for _ in range(MAX_CLAIM_ATTEMPTS):
            blob = checked(self._store.run(scripts.CLAIM, queue, *terms, more=[keys.fences]))
            if blob[0] == OTHER:
                return ClaimResult(metadata=blob[1:])
            outcome, lapsed, expired, size = REPLY_HEADER.unpack_from(blob)
            self._store.removals.add("read", expired)
            if outcome != AGAIN:
                break
        spent = layout.decode_ids(blob[REPLY_HEADER.size : REPLY_HEADER.size + size])
        messages = blob[REPLY_HEADER.size + size :]
        claim = _read(messages, request.lease.claim, moment, lapsed) if messages else None
        return ClaimResult(claim, outcome == EXISTING, spent or [])

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        moment = layout.ms(now)
        blob = checked(
            self._store.run(scripts.CLAIM_GET, queue, b"%d" % moment, layout.encode_text(claim)) or [b"unclaimed"]
        )
        begin = layout.MESSAGE_HEADER.size + layout.MESSAGE_HEADER.unpack_from(blob)[0]
        holder = _read_holder(blob[layout.MESSAGE_HEADER.size : begin])
        return structs.replace(_read(blob[begin:], claim, moment), holder=holder)

    def list(self, project: str, after: str, limit: int, now: Seconds, queue: str = "") -> Page[ClaimSummary]:
        """Return a page of live claims, ordered by queue name and claim id.

        A marker has the form ``queue/id``. If the id is empty, the page starts at the first claim of the queue, or of
        the next queue if the queue does not exist.
        """
        first, _, claim = after.rpartition("/")
        names, last = ([queue], None) if queue else self._names(project, first)
        found: list[ClaimSummary] = []
        for asked, name in enumerate(self._claimed(project, names)):
            if len(found) == limit or asked == MAX_READ_QUEUES:
                return Page(found, f"{name}/")
            terms = (
                b"%d" % layout.ms(now),
                layout.encode_text(claim if name == first else ""),
                b"%d" % (limit - len(found)),
            )
            more, *parts = self._store.run(scripts.CLAIM_LIST, QueueRef(project, name), *terms)
            found += map(_summary, repeat(name), parts[::3], parts[1::3], parts[2::3])
            if more:
                return Page(found, f"{name}/{layout.decode_text(more)}")
        return Page(found, last)

    def _names(self, project: str, first: str) -> tuple[Sequence[str], str | None]:
        keys = layout.keys(QueueRef(project, ""))
        start = b"[" + layout.encode_text(first)
        limit = b"BYLEX", b"LIMIT", b"0", b"%d" % QUEUES
        found = self._store.client.command(keys.names, b"ZRANGE", keys.names, start, b"+", *limit)
        names = [layout.decode_text(name) for name in found]
        return names, f"{names[-1]}\0/" if len(names) == QUEUES else None

    def _claimed(self, project: str, names: Sequence[str]) -> Sequence[str]:
        keys = [layout.keys(QueueRef(project, name)).claims for name in names]
        counts = self._store.client.read_pipelined([ReadRequest(key, (b"EXISTS", key)) for key in keys])
        return [name for name, count in zip(names, counts, strict=True) if count]

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, fence: Fence | None = None) -> None:
        terms = b"%d" % layout.ms(now), layout.encode_text(lease.claim), b"%d" % lease.ttl, _grace(lease)
        more = [layout.keys(queue).fences] if fence else []
        checked(self._store.run(scripts.RENEW, queue, *terms, *_fence(fence or NO_FENCE), more=more))

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        terms = b"%d" % layout.ms(now), layout.encode_text(claim), layout.keys(queue).full_name, _delay(delay)
        self._store.run(scripts.RELEASE, queue, *terms)

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        idempotency_key: IdempotencyKey | None = None,
        fence: Fence | None = None,
    ) -> SettleResult:
        moment, keys = layout.ms(now), layout.keys(queue)
        plan = plan_moves(self._store, queue.project, settlement.move, moment)
        terms = [b"%d" % moment, layout.encode_text(claim), keys.full_name, *_fence(fence or NO_FENCE)]
        terms += (
            self._store.schedule_idempotency_key(queue, idempotency_key, moment)[1]
            if idempotency_key
            else [b"", b"", b"0"]
        )
        history = self._store.schedule_history(queue, settlement.history, moment)
        more = [keys.fences, keys.answers, *history, *plan.blocks]
        terms += _named(settlement, len(plan.targets)) + plan.terms
        reply = checked(self._store.run(scripts.SETTLE, queue, *terms, more=more), idempotency_key, decode_settled)
        return decode_settled(schedule_arrivals(self._store, plan.targets, reply, moment))

    def handle(
        self,
        queue: QueueRef,
        handles: Sequence[MessageHandle],
        now: Seconds,
        accepts_expired: bool = False,
        history: int = 0,
    ) -> Sequence[HandleOutcome]:
        moment = layout.ms(now)
        terms = [b"%d" % moment, layout.keys(queue).full_name, b"%d" % accepts_expired, b"%d" % history]
        for handle in handles:
            hold = -1 if handle.hold is None else handle.hold
            numbers = (handle.count, hold, handle.max_hold)
            terms += [
                layout.pack_id(handle.id),
                layout.encode_text(handle.claim),
                *(b"%d" % number for number in numbers),
            ]
        blocks = self._store.schedule_history(queue, history, moment)
        return [HANDLE_OUTCOMES[byte] for byte in self._store.run(scripts.HANDLE, queue, *terms, more=blocks)]


def _request_terms(request: ClaimRequest, queue: bytes, moment: int) -> list[bytes]:
    lease, max_claims = request.lease, -1 if request.max_claims is None else request.max_claims
    numbers = request.limit, request.max_bytes, lease.ttl
    terms = [b"%d" % moment, layout.encode_text(lease.claim), *(b"%d" % number for number in numbers)]
    terms += [_grace(lease), b"%d" % request.named]
    terms += [
        *_fence(request.fence or NO_FENCE),
        queue,
        request.expected or b"",
        _holder(request.holder),
        b"%d" % max_claims,
    ]
    return terms + [b"%d" % wait for wait in request.redelivery_delays or (0,)]


def _grace(lease: Lease) -> bytes:
    return b"%d" % lease.grace if lease.prolong else b"-1"


def _holder(holder: Holder) -> bytes:
    return layout.encode_text(f"{holder.client}\n{holder.agent}") if holder.is_known else b""


def _read_holder(stored: bytes) -> Holder:
    client, _, agent = layout.decode_text(stored).partition("\n")
    return Holder(client, agent)


def _summary(queue: str, claim: bytes, holder: bytes, terms: bytes) -> ClaimSummary:
    began, ends, messages = layout.SUMMARY.unpack(terms)
    return ClaimSummary(layout.decode_text(claim), queue, _read_holder(holder), began / 1000, ends / 1000, messages)


def _fence(fence: Fence) -> tuple[bytes, bytes]:
    return layout.encode_text(fence.name), b"%d" % fence.epoch


def _delay(delay: int | None) -> bytes:
    return b"-1" if delay is None else b"%d" % delay


def _named(settlement: Settlement, targets: int) -> list[bytes]:
    counts = len(settlement.delete), len(settlement.release), targets
    terms = [b"%d" % number for number in (settlement.history, settlement.rest, *counts)]
    terms += [layout.pack_id(id) for id in settlement.delete]
    return terms + [
        part for release in settlement.release for part in (layout.pack_id(release.id), _delay(release.delay))
    ]


def _read(blob: bytes, claim: str, moment: int, lapsed: int = 0) -> Claim:
    _, lease, start, _ = replies.message(blob, 0, moment)
    return Claim(claim, lease, start / 1000, replies.messages(blob, 0, moment), lapsed)
