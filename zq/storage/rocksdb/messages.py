# SPDX-License-Identifier: Apache-2.0
"""Messages of the embedded store."""

from collections.abc import Sequence

from zq.errors import ClaimNotHeld, MessageClaimed
from zq.model import UNBOUNDED, Draft, Message, Messages, Move, Once, Outcome, Page, QueueRef, Seconds, View
from zq.storage.rocksdb import layout, listing
from zq.storage.rocksdb.change import Change, End
from zq.storage.rocksdb.keeper import Keeper
from zq.storage.rocksdb.layout import Record
from zq.storage.rocksdb.moves import Routes, by_name, targets
from zq.storage.rocksdb.once import check_key, remember_key
from zq.storage.rocksdb.port import Store
from zq.storage.rocksdb.ready import take
from zq.storage.rocksdb.registry import NO_METADATA, PINNED, QueueState


class MessageController:
    """``zq.storage.api.MessageController`` on RocksDB."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper

    def post(
        self,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        expected: bytes | None = None,
        once: Once | None = None,
    ) -> bytes | None:
        moment = layout.ms(now)
        with self._keeper as (store, registry):
            posted = False
            while not posted:
                with registry.held(queue) as (state,):
                    check_key(store, state or registry.hidden(queue), once, list[str], moment)
                    metadata = NO_METADATA if state is None else state.metadata
                    if expected not in (None, metadata):
                        return metadata
                    if state is not None:
                        change = Change(store)
                        for draft in drafts:
                            change.post(state, draft, moment)
                        if once is not None:
                            remember_key(change, state, once, [draft.id for draft in drafts], moment)
                        change.commit()
                        posted = True
                if not posted:
                    registry.ensure(queue)
            store.settle()
        return None

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Messages:
        moment = layout.ms(now)
        with self._keeper as (store, registry):
            state = registry.find(queue)
            if state is None:
                return []
            found = _locate(store, state, ids, moment)
            keys = [layout.pair.pack(state.number, sequence) for sequence, _ in found]
            bodies = store.get_many("bodies", keys)
        return [
            layout.message(sequence, record, layout.unsealed(body), moment)
            for (sequence, record), body in zip(found, bodies, strict=True)
            if body is not None
        ]

    def list(
        self, queue: QueueRef, marker: int, limit: int, view: View, now: Seconds, most_bytes: int = UNBOUNDED
    ) -> Page[Message]:
        with self._keeper as (store, registry):
            state = registry.find(queue)
            if state is None:
                return Page([], None)
            messages = listing.page(store, state, marker, limit, view, layout.ms(now), most_bytes)
        return Page(messages, str(messages[-1].sequence) if messages else None)

    def delete(self, queue: QueueRef, message: str, now: Seconds, claim: str = "", history: int = 0) -> None:
        moment = layout.ms(now)
        with self._keeper as (store, registry):
            with registry.held(queue) as (state,):
                found = _locate(store, state, [message], moment) if state is not None else []
                if state is None or not found:
                    return
                sequence, record = found[0]
                _check_holder(record, "" if sequence in state.pinned else claim, moment)
                change = Change(store)
                change.finish(state, sequence, record, End(Outcome.DELETED, history, moment))
                change.commit()
            store.settle()

    def delete_many(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, history: int = 0
    ) -> None:
        moment = layout.ms(now)
        with self._keeper as (store, registry):
            with registry.held(queue) as (state,):
                found = _locate(store, state, ids, moment) if state is not None else []
                if state is None or not found:
                    return
                if claims is not None and any(
                    not r.held(moment) or r.claim not in claims or at in state.pinned for at, r in found
                ):
                    raise ClaimNotHeld("Every message must be held by one of the given claims; nothing was deleted.")
                change = Change(store)
                for sequence, record in found:
                    change.finish(state, sequence, record, End(Outcome.DELETED, history, moment))
                change.commit()
            store.settle()

    def pop(self, queue: QueueRef, limit: int, now: Seconds, history: int = 0, most_bytes: int = UNBOUNDED) -> Messages:
        moment = layout.ms(now)
        with self._keeper as (store, registry):
            with registry.held(queue) as (state,):
                if state is None:
                    return []
                change = Change(store)
                taken = take(store, state, limit, moment, change, most_bytes)
                for sequence, record, _ in taken:
                    change.finish(state, sequence, record, End(Outcome.POPPED, history, moment))
                change.commit()
            if taken:
                store.settle()
        return [layout.message(sequence, record, body, moment) for sequence, record, body in taken]

    def move(self, queue: QueueRef, moves: Sequence[Move], now: Seconds, history: int = 0) -> Sequence[str]:
        moment = layout.ms(now)
        refs = targets(queue, moves)
        with self._keeper as (store, registry):
            while True:
                with registry.held(queue, *refs) as (state, *others):
                    found = _locate(store, state, [move.id for move in moves], moment) if state is not None else []
                    ready = {f[1].id: f for f in found if not f[1].held(moment) and f[1].available <= moment}
                    if state is None or not ready:
                        return []
                    chosen = list({move.id: move for move in moves if move.id in ready}.values())
                    routes = Routes(state, by_name(refs, others), history, moment)
                    missing = routes.missing(chosen)
                    if not missing:
                        change = Change(store)
                        chosen = routes.carry_all(store, change, ready, chosen)
                        change.commit()
                        break
                for ref in missing:
                    registry.ensure(ref)
            store.settle()
        return [move.id for move in chosen]


def _locate(store: Store, state: QueueState, ids: Sequence[str], now: int) -> list[tuple[int, Record]]:
    """(sequence, record) of those ids that live in this queue, in the order asked for, each once."""
    places = store.get_many("ids", [layout.id_key(state.project, message) for message in dict.fromkeys(ids)])
    number = layout.number.pack(state.number)
    keys = [place for place in places if place is not None and place[:8] == number]
    found = []
    for key, value in zip(keys, store.get_many("messages", keys), strict=True):
        if value is not None:
            record, sequence = layout.decode_record(value), layout.pair.unpack(key)[1]
            if sequence in state.pinned:
                record.ends = PINNED
            if record.expires > now:
                found.append((sequence, record))
            else:
                state.around.leftovers.meet([key], now)
    return found


def _check_holder(record: Record, claim: str, now: int) -> None:
    """The rules of contract 7.6."""
    held = record.held(now)
    if held and record.claim != claim:
        raise MessageClaimed("The message is held by a claim that was not given as claim_id.")
    if claim and not held:
        raise ClaimNotHeld("The claim given as claim_id does not hold the message.")
