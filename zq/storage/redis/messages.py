# SPDX-License-Identifier: Apache-2.0
"""Messages in Redis."""

from collections.abc import Sequence
from struct import Struct as Packing
from typing import Final

import msgspec

from zq.model import UNBOUNDED, Draft, Message, Messages, Move, Once, Page, QueueRef, Seconds, View, portion
from zq.storage.redis import layout, refusals, scripts, ways
from zq.storage.redis.refusals import checked
from zq.storage.redis.store import Store

MAX_LOOKS = 64
"""How often a pop looks again because all that it met had expired."""
POPPED: Final = Packing(">BI")
"""Front of a pop's reply: whether to look again, how many expired messages went."""


class MessageController:
    """``zq.storage.api.MessageController`` on Redis."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def post(
        self,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        expected: bytes | None = None,
        once: Once | None = None,
    ) -> bytes | None:
        moment = layout.ms(now)
        self._store.expect(queue, moment + min(draft.ttl for draft in drafts) * 1000, moment)
        terms, more = [b"%d" % moment, layout.keys(queue).full, expected or b""], []
        if once is not None:
            answers, remembered = self._store.answers(queue, once, moment)
            more.append(answers)
            terms += [*remembered, refusals.ids(drafts)]
        pairs = [part for draft in drafts for part in (layout.record(draft, moment), draft.body)]
        metadata: bytes = checked(self._store.run(scripts.POST, queue, *terms, *pairs, more=more), once)
        return metadata or None

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Messages:
        moment = layout.ms(now)
        wanted = [layout.text(id) for id in dict.fromkeys(ids)]
        if not wanted:
            return []
        return layout.messages(self._store.run(scripts.GET, queue, b"%d" % moment, *wanted), 0, moment)

    def list(
        self, queue: QueueRef, marker: int, limit: int, view: View, now: Seconds, most_bytes: int = UNBOUNDED
    ) -> Page[Message]:
        moment, position = layout.ms(now), min(marker, layout.MAX_SEQUENCE)
        terms = layout.text(view.without), b"%d" % view.claimed, b"%d" % view.delayed
        found: list[Message] = []
        while True:
            left = most_bytes - sum(len(message.body) for message in found)
            bounds = b"%d" % moment, b"%d" % position, b"%d" % (limit - len(found)), b"%d" % left
            blob = self._store.run(scripts.LIST, queue, *bounds, *terms)
            told = found + layout.messages(blob, 8, moment)
            found = list(portion(told, most_bytes, lambda message: message.body))
            position = int.from_bytes(blob[:8])
            if not position or len(found) < len(told):
                return Page(found, str(found[-1].sequence) if found else None)

    def delete(self, queue: QueueRef, message: str, now: Seconds, claim: str = "", history: int = 0) -> None:
        moment = layout.ms(now)
        terms = b"%d" % moment, layout.text(message), layout.text(claim), b"%d" % history
        checked(self._store.run(scripts.DELETE, queue, *terms, more=self._store.history(queue, history, moment)))

    def delete_many(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None, history: int = 0
    ) -> None:
        moment = layout.ms(now)
        holders = [layout.text(claim) for claim in claims or ()]
        count = -1 if claims is None else len(holders)
        gone = [layout.text(id) for id in dict.fromkeys(ids)]
        terms = b"%d" % moment, b"%d" % history, b"%d" % count
        more = self._store.history(queue, history, moment)
        checked(self._store.run(scripts.DELETE_MANY, queue, *terms, *holders, *gone, more=more))

    def pop(self, queue: QueueRef, limit: int, now: Seconds, history: int = 0, most_bytes: int = UNBOUNDED) -> Messages:
        moment = layout.ms(now)
        more = self._store.history(queue, history, moment)
        for _ in range(MAX_LOOKS):
            terms = b"%d" % moment, b"%d" % limit, b"%d" % most_bytes, b"%d" % history
            blob = self._store.run(scripts.POP, queue, *terms, more=more)
            again, expired = POPPED.unpack_from(blob)
            self._store.removals.add("read", expired)
            if len(blob) > POPPED.size or not again:
                break
        return layout.messages(blob, POPPED.size, moment)

    def move(self, queue: QueueRef, moves: Sequence[Move], now: Seconds, history: int = 0) -> Sequence[str]:
        moment = layout.ms(now)
        known = ways.announced(self._store, queue.project, list({move.id: move for move in moves}.values()), moment)
        more = self._store.history(queue, history, moment) + known.blocks
        terms = b"%d" % moment, layout.keys(queue).full, b"%d" % history, b"%d" % len(known.targets)
        blob = self._store.run(scripts.MOVE, queue, *terms, *known.terms, more=more)
        moved: list[str] = msgspec.msgpack.decode(ways.arrived(self._store, known.targets, blob, moment))
        return moved
