# SPDX-License-Identifier: Apache-2.0
"""Messages in Redis."""

from collections.abc import Sequence

from zq.errors import ClaimNotHeld, MessageClaimed
from zq.model import Draft, Message, Messages, Page, QueueRef, Seconds, View
from zq.storage.redis import layout, scripts
from zq.storage.redis.store import Store

MAX_LOOKS = 64
"""How often a pop looks again because all that it met had expired."""


class MessageController:
    """``zq.storage.api.MessageController`` on Redis."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def post(
        self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, expected: bytes | None = None
    ) -> bytes | None:
        moment = layout.ms(now)
        self._store.expect(queue, moment + min(draft.ttl for draft in drafts) * 1000, moment)
        pairs = [part for draft in drafts for part in (layout.record(draft, moment), draft.body)]
        terms = b"%d" % moment, layout.text(queue.name), expected or b""
        metadata: bytes = self._store.run(scripts.POST, queue, *terms, *pairs)
        return metadata or None

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Messages:
        moment = layout.ms(now)
        wanted = [layout.text(id) for id in dict.fromkeys(ids)]
        if not wanted:
            return []
        return layout.messages(self._store.run(scripts.GET, queue, b"%d" % moment, *wanted), 0, moment)

    def list(self, queue: QueueRef, marker: int, limit: int, view: View, now: Seconds) -> Page[Message]:
        moment, position = layout.ms(now), min(marker, layout.MAX_SEQUENCE)
        terms = layout.text(view.without), b"%d" % view.claimed, b"%d" % view.delayed
        found: list[Message] = []
        while True:
            bounds = b"%d" % moment, b"%d" % position, b"%d" % (limit - len(found))
            blob = self._store.run(scripts.LIST, queue, *bounds, *terms)
            found += layout.messages(blob, 8, moment)
            position = int.from_bytes(blob[:8])
            if not position:
                return Page(found, str(found[-1].sequence) if found else None)

    def delete(self, queue: QueueRef, message: str, now: Seconds, claim: str = "") -> None:
        told = self._store.run(scripts.DELETE, queue, b"%d" % layout.ms(now), layout.text(message), layout.text(claim))
        if told == b"claimed":
            raise MessageClaimed("The message is held by a claim that was not given as claim_id.")
        if told == b"unheld":
            raise ClaimNotHeld("The claim given as claim_id does not hold the message.")

    def delete_many(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None
    ) -> None:
        holders = [layout.text(claim) for claim in claims or ()]
        count = -1 if claims is None else len(holders)
        gone = [layout.text(id) for id in dict.fromkeys(ids)]
        told = self._store.run(scripts.DELETE_MANY, queue, b"%d" % layout.ms(now), b"%d" % count, *holders, *gone)
        if told == b"unheld":
            raise ClaimNotHeld("Every message must be held by one of the given claims; nothing was deleted.")

    def pop(self, queue: QueueRef, limit: int, now: Seconds) -> Messages:
        moment = layout.ms(now)
        for _ in range(MAX_LOOKS):
            blob = self._store.run(scripts.POP, queue, b"%d" % moment, b"%d" % limit)
            if len(blob) > 1 or blob == b"\0":
                break
        return layout.messages(blob, 1, moment)
