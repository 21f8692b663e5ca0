# SPDX-License-Identifier: Apache-2.0
"""Claims in an ordered store.

A claim has no record of its own: it is stored in the records of its messages and in the family ``claims``.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Final

from zq.errors import ClaimNotFound
from zq.model import (
    Claim,
    ClaimRequest,
    ClaimResult,
    ClaimSummary,
    Fence,
    HandleOutcome,
    Holder,
    IdempotencyKey,
    Lease,
    Message,
    MessageHandle,
    Outcome,
    Page,
    QueueRef,
    Seconds,
    Settlement,
    SettleResult,
)
from zq.model.claims import DONE, split_into_runs
from zq.storage import inline
from zq.storage.concurrency import StripedLocks
from zq.storage.inline import LongScan
from zq.storage.ordered import layout, stages
from zq.storage.ordered.changes import Change, Completion, ReadyMessage, Routes, map_states, read_bodies, target_queues
from zq.storage.ordered.handle import Session, StoreHandle
from zq.storage.ordered.idempotency import check_key
from zq.storage.ordered.layout import Found
from zq.storage.ordered.ready import take
from zq.storage.ordered.registry import NO_METADATA, QueueState, Registry
from zq.storage.ordered.scans import locate
from zq.storage.ordered.store import Store

# Maximum number of claim groups and queues that are read for one page of claims.
MAX_STEPS: Final = 1000
# Maximum size of a claim, in messages, that is processed on the event loop's thread.
MAX_INLINE: Final = 100
# Size in bytes of the group number, which follows the claim's prefix in a group's key.
SUFFIX: Final = layout.number.size


class ClaimController:
    """The implementation of ``zq.storage.api.ClaimController`` over an ordered store."""

    def __init__(self, handle: StoreHandle, stripes: StripedLocks) -> None:
        self._handle = handle
        self._stripes = stripes

    def create(self, queue: QueueRef, request: ClaimRequest, now: Seconds) -> ClaimResult:
        with self._handle as session:
            attempt = ClaimAttempt(session, queue, request, layout.ms(now))
            with self._stripes.locked(*stages.fence_locks(queue.project, request.fence)):
                stages.check_fence(session.store, queue.project, request.fence)
                claimed = attempt.run()
            if claimed.claim is not None:
                session.store.wait_durable()
        return claimed

    def get(self, queue: QueueRef, claim: str, now: Seconds) -> Claim:
        with self._handle as (store, registry), registry.locked(queue) as (state,):
            found = find_claim(store, state, claim, layout.ms(now))
        if found is None:
            raise ClaimNotFound
        return found

    def list(self, project: str, after: str, limit: int, now: Seconds, queue: str = "") -> Page[ClaimSummary]:
        with self._handle as (store, registry):
            return ClaimPage(store, registry, limit, layout.ms(now)).read(project, after, queue)

    def renew(self, queue: QueueRef, lease: Lease, now: Seconds, fence: Fence | None = None) -> None:
        moment = layout.ms(now)
        with self._handle as (store, registry):
            with self._stripes.locked(*stages.fence_locks(queue.project, fence)), registry.locked(queue) as (state,):
                stages.check_fence(store, queue.project, fence)
                held = find_held(store, state, lease.claim, moment)
                if state is None or not held:
                    raise ClaimNotFound
                change = Change(store, moment)
                for found in held:
                    claim_message(change, state, found, lease, found[1].available - found[1].ends, moment)
                change.commit()
            store.wait_durable()

    def release(self, queue: QueueRef, claim: str, now: Seconds, delay: int | None = None) -> None:
        moment = layout.ms(now)
        with self._handle as (store, registry):
            with registry.locked(queue) as (state,):
                held = find_held(store, state, claim, moment)
                if state is None or not held:
                    return
                change = Change(store, moment)
                for found in held:
                    release_message(change, state, found, delay, moment)
                change.commit()
            store.wait_durable()

    def settle(
        self,
        queue: QueueRef,
        claim: str,
        settlement: Settlement,
        now: Seconds,
        idempotency_key: IdempotencyKey | None = None,
        fence: Fence | None = None,
    ) -> SettleResult:
        moment = layout.ms(now)
        refs = target_queues(queue, settlement.move)
        with self._handle as (store, registry):
            settled = None
            with self._stripes.locked(*stages.fence_locks(queue.project, fence)):
                while settled is None:
                    with registry.locked(queue, *refs) as (state, *others):
                        check_key(store, state, idempotency_key, SettleResult, moment)
                        stages.check_fence(store, queue.project, fence)
                        held = {found[1].id: found for found in find_held(store, state, claim, moment)}
                        if state is None or not held:
                            raise ClaimNotFound
                        routes = Routes(state, map_states(refs, others), settlement.history, moment)
                        missing = routes.missing(move for move in settlement.move if move.id in held)
                        if not missing:
                            change = Change(store, moment)
                            settled = settle_messages(store, change, routes, held, settlement)
                            change.remember(state, idempotency_key, settled, moment, posted=False)
                            change.commit()
                    for ref in missing:
                        registry.ensure(ref)
            store.wait_durable()
        return settled

    def handle(
        self,
        queue: QueueRef,
        handles: Sequence[MessageHandle],
        now: Seconds,
        accepts_expired: bool = False,
        history: int = 0,
    ) -> Sequence[HandleOutcome]:
        end = Completion(Outcome.DELETED, history, layout.ms(now))
        handled: list[HandleOutcome] = []
        with self._handle as (store, registry):
            for some in split_into_runs(handles):
                with registry.locked(queue) as (state,):
                    handled += (
                        [HandleOutcome.GONE] * len(some)
                        if state is None
                        else handle(store, state, some, accepts_expired, end)
                    )
            if HandleOutcome.DONE in handled:
                store.wait_durable()
        return handled


class ClaimAttempt:
    def __init__(self, session: Session, queue: QueueRef, request: ClaimRequest, now: int) -> None:
        self._session = session
        self._queue = queue
        self._request = request
        self._now = now
        self._messages: list[Message] = []
        self._spent: list[str] = []
        self._lapsed = 0

    def run(self) -> ClaimResult:
        """Create the claim in one change and return it. The result has no claim if no message is ready.

        If ``request.expected`` is set and differs from the queue's metadata, nothing is claimed. If ``request.named``
        is true and a live claim with the requested id exists, that claim is returned.
        """
        store, registry = self._session
        request, now = self._request, self._now
        with registry.locked(self._queue) as (state,):
            metadata = NO_METADATA if state is None else state.metadata
            if request.expected not in (None, metadata):
                return ClaimResult(metadata=metadata)
            if state is None:
                return ClaimResult()
            found = find_claim(store, state, request.lease.claim, now) if request.named else None
            if found is not None:
                return ClaimResult(found, existing=True)
            change = Change(store, now)
            change.holders[layout.claim_prefix(state.number, request.lease.claim)] = _encode_holder(request.holder)
            for item in take(store, state, request.limit, now, change, request.max_bytes):
                self._claim_or_skip(change, state, item)
            if self._spent:
                change.keep_ready_cursor(state)
            change.commit()
        if not self._messages:
            return ClaimResult(spent=self._spent)
        claim = Claim(request.lease.claim, request.lease.ttl, now / 1000, self._messages, self._lapsed)
        return ClaimResult(claim, spent=self._spent)

    def _claim_or_skip(self, change: Change, state: QueueState, item: ReadyMessage) -> None:
        sequence, record, body = item
        request, now = self._request, self._now
        if request.max_claims is not None and record.count >= request.max_claims:
            self._spent.append(record.id)
            if not record.indexed and not state.grouping:  # index the message, because the fresh cursor skips it
                change.rewrite(state, sequence, record.index_fields(), record)
            return
        self._lapsed += record.claim != ""
        record.former = record.available
        record.first = record.first or now
        record.count += 1
        wait = request.redelivery_delay(record.count) * 1000 if request.redelivery_delays else 0
        claim_message(change, state, (sequence, record), request.lease, wait, now, body)
        self._messages.append(layout.build_message(sequence, record, body, now))


def claim_message(
    change: Change, state: QueueState, found: Found, lease: Lease, wait: int, now: int, body: bytes | None = None
) -> None:
    """Claim a message, or renew its claim, for ``lease.ttl`` seconds.

    ``wait`` is the redelivery delay in milliseconds. ``body`` is None if the caller has not read it.
    """
    sequence, record = found
    place = record.index_fields()
    record.claim = lease.claim
    record.claimed = now
    record.lease = lease.ttl
    record.ends = ends = now + lease.ttl * 1000
    record.available = ends + wait
    if record.expires < ends:
        record.ttl, record.expires = lease.extend(record.ttl, record.expires, ends, 1000)
    change.rewrite(state, sequence, place, record, body)


def release_message(change: Change, state: QueueState, found: Found, delay: int | None, now: int) -> None:
    """Release a message from its claim. It becomes available ``delay`` seconds after ``now``.

    If ``delay`` is None, the redelivery delay of the claim applies. If this redelivery delay is 0, the message gets
    back the available-at that it had before the claim.
    """
    sequence, record = found
    place = record.index_fields()
    wait = record.available - record.ends
    if delay is not None:
        record.available = now + delay * 1000
    else:
        record.available = now + wait if wait else record.former
    record.claim, record.ends = "", 0
    change.rewrite(state, sequence, place, record)


def find_claim(store: Store, state: QueueState | None, claim: str, now: int) -> Claim | None:
    """Return the live claim with this id and all its messages, or None if it does not exist or holds no messages."""
    held = find_held(store, state, claim, now)
    if state is None or not held:
        return None
    messages = [
        layout.build_message(sequence, record, body, now)
        for (sequence, record), body in zip(held, read_bodies(store, state.number, held), strict=True)
        if body is not None
    ]
    terms = held[0][1]
    group = store.get("claims", layout.claim_key(state.number, claim, terms.group))
    return Claim(claim, terms.lease, terms.claimed / 1000, messages, holder=_decode_holder(group or b""))


def _encode_holder(holder: Holder) -> bytes:
    return layout.encode((holder.client, holder.agent)) if holder.is_known else b""


def _decode_holder(group: bytes) -> Holder:
    known = layout.decode_group_holder(group) if group else b""
    return Holder(*layout.decode_holder(known)) if known else Holder()


class ClaimPage:
    """A page of live claims, ordered by queue name and claim id.

    The marker of the next page is ``queue/id`` of the last claim. If the page ends with the last claim of a queue, the
    marker is instead the name of this queue, a zero byte and a slash. The next page then begins with the next queue.
    """

    def __init__(self, store: Store, registry: Registry, limit: int, now: int) -> None:
        self._store = store
        self._registry = registry
        self._limit = limit
        self._now = now
        self._found: list[ClaimSummary] = []
        self._steps = 0

    def read(self, project: str, after: str, queue: str) -> Page[ClaimSummary]:
        """Return the next page of claims in a queue, or in the whole project if ``queue`` is "".

        The page begins after the marker ``after``. To limit the work, the page ends early after about ``MAX_STEPS``
        reads.
        """
        name, _, claim = after.rpartition("/")
        names = [queue] if queue else self._names(project, name)
        for each in names:
            self._steps += 1
            with self._registry.locked(QueueRef(project, each)) as (state,):
                last = None if state is None else self._add(state, claim if each == name else "")
            if last is not None:
                return Page(self._found, f"{each}/{last}")
            if self._is_over and not queue:
                return Page(self._found, f"{each}\0/")
        return Page(self._found, None)

    @property
    def _is_over(self) -> bool:
        return len(self._found) == self._limit or self._steps >= MAX_STEPS

    def _names(self, project: str, first: str) -> Iterator[str]:
        prefix = layout.project_prefix(project)
        for key, _ in self._store.scan("queues", layout.queue_key(QueueRef(project, first)), layout.prefix_end(prefix)):
            yield key[len(prefix) :].decode("utf-8", "surrogatepass")

    def _add(self, state: QueueState, after: str) -> str | None:
        """Add claims of the queue to this page, in the order of their ids. The ids are greater than ``after``.

        If the page becomes full before all claims of the queue are added, return the id of the last added claim.
        Otherwise, return None.
        """
        lower, upper = state.bounds()
        if after:
            lower = layout.prefix_end(layout.claim_prefix(state.number, after))
        groups = groupby(self._store.scan("claims", lower, upper, spare=True), lambda entry: entry[0][:-SUFFIX])
        last = ""
        for prefix, entries in groups:
            if self._is_over:
                return last
            last = prefix[layout.number.size : -1].decode("utf-8", "surrogatepass")
            values = [value for _, value in entries]
            self._steps += len(values)
            self._found += self._summary(state, last, values)
        return None

    def _summary(self, state: QueueState, claim: str, values: Sequence[bytes]) -> list[ClaimSummary]:
        live = [value for value in values if layout.decode_group(value)[0] > self._now]
        held = [one for value in live for one in layout.decode_group(value)[1] if one not in state.reserved]
        [stored] = self._store.get_many("messages", [layout.pair.pack(state.number, held[0])]) if held else [None]
        if stored is None:
            return []
        record = layout.decode_record(stored)
        created, ends, holder = record.claimed / 1000, record.ends / 1000, _decode_holder(live[-1])
        return [ClaimSummary(claim, state.ref.name, holder, created, ends, len(held))]


def find_held(store: Store, state: QueueState | None, claim: str, now: int) -> list[Found]:
    """Return (sequence, record) of each message that a live claim holds, in order of sequence.

    The result does not include messages that a transaction commit in progress will delete.

    Raises ``LongScan`` if the claim has more than ``MAX_INLINE`` messages and the caller runs on the event loop's
    thread. The HTTP server then repeats the operation on a worker thread.
    """
    if state is None:
        return []
    sequences = find_sequences(store, state, claim, now)
    if len(sequences) > MAX_INLINE and inline.current() is not None:
        raise LongScan
    keys = [layout.pair.pack(state.number, sequence) for sequence in sequences]
    held = []
    for sequence, value in zip(sequences, store.get_many("messages", keys), strict=True):
        if value is not None:
            record = layout.decode_record(value)
            if record.claim == claim and record.is_held(now):
                held.append((sequence, record))
    return held


def find_sequences(store: Store, state: QueueState | None, claim: str, now: int) -> list[int]:
    """Return the sequences of the messages that a live claim holds, in order, without reading the records."""
    if state is None:
        return []
    prefix = layout.claim_prefix(state.number, claim)
    groups = (layout.decode_group(value) for _, value in store.scan("claims", prefix, layout.prefix_end(prefix)))
    live = chain.from_iterable(sequences for ends, sequences in groups if ends > now)
    return sorted(sequence for sequence in live if sequence not in state.reserved)


def settle_messages(
    store: Store, change: Change, routes: Routes, held: dict[str, Found], settlement: Settlement
) -> SettleResult:
    """Settle messages of a claim as part of ``change``. ``held`` maps message ids to (sequence, record)."""
    named = [*settlement.delete, *(r.id for r in settlement.release), *(move.id for move in settlement.move)]
    deleted = [message for message in settlement.delete if message in held]
    if settlement.rest:
        spared = set(named)
        deleted += [message for message in held if message not in spared]
    end = Completion(Outcome.DELETED, settlement.history, routes.now)
    for message in deleted:
        change.finish(routes.source, *held[message], end)
    released = [release for release in settlement.release if release.id in held]
    for release in released:
        release_message(change, routes.source, held[release.id], release.delay, routes.now)
    moves = routes.move_all(store, change, held, [move for move in settlement.move if move.id in held])
    buried = sum(1 for move in moves if move.reason)
    kept = held.keys() - {move.id for move in settlement.move} | {move.id for move in moves}
    lost = [message for message in named if message not in kept]
    return SettleResult(len(deleted), len(released), len(moves) - buried, buried, lost)


def handle(
    store: Store, state: QueueState, handles: Sequence[MessageHandle], accepts_expired: bool, end: Completion
) -> list[HandleOutcome]:
    """Apply operations to claimed messages in one change, and return their outcomes in the same order.

    If ``accepts_expired`` is true, an operation is accepted after the claim has expired, unless the message has been
    claimed since.
    """
    ids = [message_handle.id for message_handle in handles]
    found = {record.id: (at, record) for at, record in locate(store, state, ids, end.now)}
    change, handled = Change(store, end.now), []
    for message_handle in handles:
        if message_handle.id not in found:
            handled.append(HandleOutcome.GONE)
            continue
        sequence, record = found[message_handle.id]
        if sequence in state.reserved:
            handled.append(HandleOutcome.LOST)
            continue
        age = (end.now - record.claimed) // 1000
        judged = message_handle.decide(record.claim, record.count, accepts_expired or record.is_held(end.now), age)
        handled.append(judged)
        if judged is DONE:
            if message_handle.hold is None:
                change.finish(state, sequence, record, end)
            else:
                _hold(change, state, (sequence, record), message_handle.hold, end.now)
    change.commit()
    return handled


def _hold(change: Change, state: QueueState, found: Found, seconds: int, now: int) -> None:
    sequence, record = found
    place = record.index_fields()
    wait = record.available - record.ends
    if not record.is_held(now):  # the claim has expired and the message is claimed again during its redelivery delay
        change.invalidate_visibility(state, sequence)
    record.ends = now + seconds * 1000
    record.available = record.ends + wait
    change.rewrite(state, sequence, place, record)
