# SPDX-License-Identifier: Apache-2.0
"""Messages in Redis."""

from collections.abc import Sequence
from struct import Struct as Packing
from typing import Final

from zq.errors import OtherMetadata
from zq.model import (
    MAX_CLAIM_ATTEMPTS,
    UNBOUNDED,
    BrowsePage,
    Copies,
    Draft,
    HistoryEntry,
    IdempotencyKey,
    ListFilter,
    LocatedMessage,
    Message,
    Messages,
    Move,
    Page,
    Position,
    QueueRef,
    Seconds,
    State,
    take_portion,
)
from zq.storage import browsing
from zq.storage.redis import layout, replies, scripts
from zq.storage.redis.store import Store, checked, encode_posted, plan_moves, raise_repeated, schedule_arrivals

# Header of a pop reply: whether to call the script again, and the number of removed expired messages.
POPPED: Final = Packing(">BI")
# Header of a page of one state: whether to call the script again, and the position after which to continue.
BROWSED: Final = Packing(">BQQQ")


class MessageController:
    """The Redis implementation of ``zq.storage.api.MessageController``."""

    def __init__(self, store: Store) -> None:
        self._store = store

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
        self._expire(queue, drafts, moment)
        terms, more = [b"%d" % moment, layout.keys(queue).full_name, expected or b"", b"1" if create else b"0"], []
        if copies is None:
            terms.append(b"0")
        else:
            self._expire(copies.queue, copies.drafts, moment)
            more.append(layout.keys(copies.queue).queue)
            terms += [b"%d" % len(copies.drafts), layout.keys(copies.queue).full_name]
        onces = _keys(drafts, idempotency_key)
        if onces:
            more.append(layout.keys(queue).answers)
            terms.append(b"%d" % len(onces))
        for of, key, some in onces:
            _, remembered = self._store.schedule_idempotency_key(queue, key, moment)
            terms += [b"%d" % of, *remembered, encode_posted(some)]
        every = (*(copies.drafts if copies else ()), *drafts)
        packed = [layout.encode_draft(draft, moment) for draft in every]
        reply = self._store.run(scripts.POST, queue, *terms, *packed, more=more)
        raise_repeated(reply, drafts)
        metadata: bytes = checked(reply, idempotency_key)
        return metadata or None

    def _expire(self, queue: QueueRef, drafts: Sequence[Draft], moment: int) -> None:
        self._store.schedule_expiry(queue, moment + min(draft.ttl for draft in drafts) * 1000, moment)

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Messages:
        moment = layout.ms(now)
        wanted = [layout.pack_id(id) for id in dict.fromkeys(ids)]
        if not wanted:
            return []
        return replies.messages(self._store.run(scripts.GET, queue, b"%d" % moment, *wanted), 0, moment)

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
        moment, position = layout.ms(now), min(marker, layout.MAX_SEQUENCE)
        without = layout.pack_id(list_filter.without) if list_filter.without else b""
        shown = b"%d" % list_filter.claimed, b"%d" % list_filter.delayed
        terms = without, *shown, layout.keys(queue).name, expected or b""
        found: list[Message] = []
        while True:
            left = max_bytes - sum(message.size for message in found)
            bounds = b"%d" % moment, b"%d" % position, b"%d" % (limit - len(found)), b"%d" % left
            blob = self._store.run(scripts.LIST, queue, *bounds, *terms)
            if isinstance(blob, list):
                return Page([], None, blob[0])
            read = found + replies.messages(blob, 8, moment)
            found = list(take_portion(read, max_bytes, lambda message: message.size))
            position = int.from_bytes(blob[:8])
            if not position or len(found) < len(read):
                return Page(found, str(found[-1].sequence) if found else None)

    def browse(
        self, queue: QueueRef, state: State, after: Position, limit: int, now: Seconds, max_bytes: int = UNBOUNDED
    ) -> BrowsePage:
        moment, again, position = layout.ms(now), 1, _within(after)
        terms = b"%d" % moment, state.encode()
        messages: Messages = []
        while again:
            numbers = [b"%d" % number for number in (*position, limit, max_bytes)]
            blob = self._store.run(scripts.BROWSE, queue, *terms, *numbers)
            if not blob:
                return browsing.browse(self, queue, state, after, limit, now, max_bytes)
            again, *position = BROWSED.unpack_from(blob)
            messages = replies.messages(blob, BROWSED.size, moment)
        return BrowsePage(messages, Position(*position) if messages else None)

    def delete(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, history: int = 0
    ) -> None:
        moment = layout.ms(now)
        holders = [layout.encode_text(claim) for claim in claims or ()]
        count = -1 if claims is None else len(holders)
        gone = [layout.pack_id(id) for id in dict.fromkeys(ids)]
        terms = b"%d" % moment, layout.keys(queue).full_name, b"%d" % history, b"%d" % count
        more = self._store.schedule_history(queue, history, moment)
        checked(self._store.run(scripts.DELETE, queue, *terms, *holders, *gone, more=more))

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
        more = self._store.schedule_history(queue, history, moment)
        numbers = b"%d" % moment, b"%d" % limit, b"%d" % max_bytes, b"%d" % history
        terms = *numbers, layout.keys(queue).full_name, expected or b""
        for _ in range(MAX_CLAIM_ATTEMPTS):
            blob = self._store.run(scripts.POP, queue, *terms, more=more)
            if isinstance(blob, list):
                raise OtherMetadata(blob[0])
            again, expired = POPPED.unpack_from(blob)
            self._store.removals.add("read", expired)
            if len(blob) > POPPED.size or not again:
                break
        return replies.messages(blob, POPPED.size, moment)

    def move(self, queue: QueueRef, moves: Sequence[Move], now: Seconds, history: int = 0) -> Sequence[str]:
        moment = layout.ms(now)
        plan = plan_moves(self._store, queue.project, list({move.id: move for move in moves}.values()), moment)
        more = self._store.schedule_history(queue, history, moment) + plan.blocks
        terms = b"%d" % moment, layout.keys(queue).full_name, b"%d" % history, b"%d" % len(plan.targets)
        blob = checked(self._store.run(scripts.MOVE, queue, *terms, *plan.terms, more=more))
        return layout.decode_ids(schedule_arrivals(self._store, plan.targets, blob, moment))


def _keys(
    drafts: Sequence[Draft], idempotency_key: IdempotencyKey | None
) -> Sequence[tuple[int, IdempotencyKey, Sequence[Draft]]]:
    """List the idempotency keys of a post. Each item has a number, a key, and the messages that the key covers.

    The number is 0 for the key of the whole request. For the key of a single message, it is the position of the
    message, counted from 1.
    """
    own = [(at, draft.once, [draft]) for at, draft in enumerate(drafts, 1) if draft.once is not None]
    return own if idempotency_key is None else [(0, idempotency_key, drafts), *own]


def _within(position: Position) -> Sequence[int]:
    return [min(number, layout.LATEST_SCORE) for number in position]


def locate(store: Store, queues: Sequence[QueueRef], message: str, now: int) -> LocatedMessage | None:
    """Find a live message in one of several queues, or return ``None``."""
    requests = [store.read_request(scripts.GET, queue, b"%d" % now, layout.pack_id(message)) for queue in queues]
    for queue, blob in zip(queues, store.client.read_pipelined(requests), strict=True):
        for found in replies.messages(blob, 0, now):
            return LocatedMessage(queue, HistoryEntry(found))
    return None
