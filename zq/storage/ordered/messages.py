# SPDX-License-Identifier: Apache-2.0
"""Messages in an ordered store."""

from collections.abc import Sequence

from zq.errors import ClaimNotHeld, MessageClaimed, OtherMetadata, QueueNotFound
from zq.model import (
    UNBOUNDED,
    BrowsePage,
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
)
from zq.storage import browsing as inherited
from zq.storage.ordered import browsing, layout, scans
from zq.storage.ordered.changes import Change, Completion, Routes, map_states, read_bodies, target_queues
from zq.storage.ordered.handle import StoreHandle
from zq.storage.ordered.idempotency import check_keys
from zq.storage.ordered.layout import Found
from zq.storage.ordered.ready import take
from zq.storage.ordered.registry import NO_METADATA, QueueState
from zq.storage.ordered.scans import locate


class MessageController:
    """The implementation of ``zq.storage.api.MessageController`` over an ordered store."""

    def __init__(self, handle: StoreHandle) -> None:
        self._handle = handle

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
        moment = layout.ms(now)
        queues = (queue,) if copies is None else (queue, copies.queue)
        with self._handle as (store, registry):
            posted = False
            while not posted:
                with registry.locked(*queues) as states:
                    state = states[0]
                    check_keys(store, state or registry.find_hidden(queue), idempotency_key, drafts, moment)
                    if state is None and not create:
                        raise QueueNotFound
                    metadata = NO_METADATA if state is None else state.metadata
                    if expected not in (None, metadata):
                        return metadata
                    if state is not None and states[-1] is not None:
                        change = Change(store, moment)
                        for draft in drafts:
                            change.post(state, draft, moment)
                        if copies is not None:
                            for draft in copies.drafts:
                                change.post(states[-1], draft, moment)
                        change.remember(state, idempotency_key, [draft.id for draft in drafts], moment, posted=True)
                        change.commit()
                        posted = True
                if not posted:
                    for ref in queues if create else queues[1:]:
                        registry.ensure(ref)
            store.wait_durable()
        return None

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Messages:
        moment = layout.ms(now)
        with self._handle as (store, registry):
            state = registry.find(queue)
            if state is None:
                return []
            found = locate(store, state, ids, moment)
            texts = read_bodies(store, state.number, found)
        return [
            layout.build_message(sequence, record, body, moment)
            for (sequence, record), body in zip(found, texts, strict=True)
            if body is not None
        ]

    def list(
        self,
        queue: QueueRef,
        marker: int,
        limit: int,
        list_filter: ListFilter,
        now: Seconds,
        max_bytes: int = UNBOUNDED,
        expected: bytes | None = None,
    ) -> Page[Message]:
        with self._handle as (store, registry):
            state = registry.find(queue)
            metadata = NO_METADATA if state is None else state.metadata
            if expected not in (None, metadata):
                return Page([], None, metadata)
            if state is None:
                return Page([], None)
            messages = scans.page(store, state, marker, limit, list_filter, layout.ms(now), max_bytes)
        return Page(messages, str(messages[-1].sequence) if messages else None)

    def browse(
        self, queue: QueueRef, state: State, after: Position, limit: int, now: Seconds, max_bytes: int = UNBOUNDED
    ) -> BrowsePage:
        with self._handle as (store, registry):
            found = registry.find(queue)
            if found is None:
                return BrowsePage([], None)
            if found.grouping:  # in a grouped queue, ``available`` has one entry per group, not per message
                return inherited.browse(self, queue, state, after, limit, now, max_bytes)
            return browsing.page(store, found, state, after, limit, layout.ms(now), max_bytes)

    def delete(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, history: int = 0
    ) -> None:
        moment = layout.ms(now)
        with self._handle as (store, registry):
            with registry.locked(queue) as (state,):
                found = locate(store, state, ids, moment) if state is not None else []
                if state is None or not found:
                    return
                if claims is not None:
                    _check_holders(state, found, claims, moment)
                change, end = Change(store, moment), Completion(Outcome.DELETED, history, moment)
                for sequence, record in found:
                    change.finish(state, sequence, record, end)
                change.commit()
            store.wait_durable()

    def pop(
        self,
        queue: QueueRef,
        limit: int,
        now: Seconds,
        history: int = 0,
        max_bytes: int = UNBOUNDED,
        expected: bytes | None = None,
    ) -> Messages:
        moment = layout.ms(now)
        with self._handle as (store, registry):
            with registry.locked(queue) as (state,):
                if state is None:
                    return []
                if expected not in (None, state.metadata):
                    raise OtherMetadata(state.metadata)
                change, end = Change(store, moment), Completion(Outcome.POPPED, history, moment)
                taken = take(store, state, limit, moment, change, max_bytes)
                for sequence, record, _ in taken:
                    change.finish(state, sequence, record, end)
                change.commit()
            if taken:
                store.wait_durable()
        return [layout.build_message(sequence, record, body, moment) for sequence, record, body in taken]

    def move(self, queue: QueueRef, moves: Sequence[Move], now: Seconds, history: int = 0) -> Sequence[str]:
        moment = layout.ms(now)
        refs = target_queues(queue, moves)
        with self._handle as (store, registry):
            while True:
                with registry.locked(queue, *refs) as (state, *others):
                    found = locate(store, state, [move.id for move in moves], moment) if state is not None else []
                    ready = {f[1].id: f for f in found if not f[1].is_held(moment) and f[1].available <= moment}
                    if state is None or not ready:
                        return []
                    chosen = list({move.id: move for move in moves if move.id in ready}.values())
                    routes = Routes(state, map_states(refs, others), history, moment)
                    missing = routes.missing(chosen)
                    if not missing:
                        change = Change(store, moment)
                        chosen = routes.move_all(store, change, ready, chosen)
                        change.commit()
                        break
                for ref in missing:
                    registry.ensure(ref)
            store.wait_durable()
        return [move.id for move in chosen]


def _check_holders(state: QueueState, found: Sequence[Found], claims: Sequence[str], now: int) -> None:
    """Raise the same errors as ``MessageController.delete`` if there is a message that the caller may not delete.

    If a transaction commit in progress will delete a message, the message counts as claimed by another consumer.
    """
    for sequence, record in found:
        if not record.is_held(now):
            if claims:
                raise ClaimNotHeld
        elif record.claim not in claims or sequence in state.reserved:
            raise MessageClaimed
