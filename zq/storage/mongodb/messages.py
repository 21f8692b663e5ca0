# SPDX-License-Identifier: Apache-2.0
"""Messages of the MongoDB store."""

from collections.abc import Sequence

from bson.datetime_ms import DatetimeMS

from zq.errors import ClaimNotHeld, MessageClaimed
from zq.model import Draft, Message, Messages, Page, QueueRef, Seconds, View
from zq.storage.mongodb import layout
from zq.storage.mongodb.deletions import Deletions
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Port, Session
from zq.storage.mongodb.posting import Post, Poster
from zq.storage.mongodb.takers import Takers
from zq.storage.mongodb.taking import Wish

LARGEST_MARKER = 2**63 - 1


class MessageController:
    """``zq.storage.api.MessageController`` on MongoDB."""

    def __init__(self, port: Port, takers: Takers) -> None:
        self._port = port
        self._deletions = Deletions(port)
        self._takers = takers
        self._poster = Poster(port)

    def post(
        self, queue: QueueRef, drafts: Sequence[Draft], now: Seconds, expected: bytes | None = None
    ) -> bytes | None:
        with self._port.verb():
            return self._poster.post(Post(layout.key(queue), drafts, layout.ms(now), expected))

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Messages:
        moment, key = layout.ms(now), layout.key(queue)
        places = _places(key, ids)
        living = self._port.where(key, _id={"$in": places}, e={"$gt": DatetimeMS(moment)})
        with self._port.verb():
            found = {document["_id"]: document for document in self._port.find(living, hint="_id_")}
        return [layout.message(key, found[place], moment) for place in places if place in found]

    def list(self, queue: QueueRef, marker: int, limit: int, view: View, now: Seconds) -> Page[Message]:
        moment, key = layout.ms(now), layout.key(queue)
        if marker >= LARGEST_MARKER:
            return Page([], None)
        shown = self._port.where(key, k={"$gt": marker}, e={"$gt": DatetimeMS(moment)}, **_shown(view, moment))
        with self._port.verb():
            found = self._port.find(shown, limit=limit, sort={"k": 1}, hint=layout.OBSERVERS, committed=True)
        messages = [layout.message(key, document, moment) for document in found]
        return Page(messages, str(messages[-1].sequence) if messages else None)

    def delete(self, queue: QueueRef, message: str, now: Seconds, claim: str = "") -> None:
        moment, key = layout.ms(now), layout.key(queue)
        living = self._port.where(key, _id=key.project + layout.text(message), e={"$gt": DatetimeMS(moment)})
        with self._port.verb():
            while not self._deletions.delete({**living, **_holder(claim, moment)}):
                found = self._port.find(living, fields={"c": 1})
                if not found:
                    return
                _check_holder(found[0].get("c", {}), claim, moment)

    def delete_many(
        self, queue: QueueRef, ids: Sequence[str], now: Seconds, claims: Sequence[str] | None = None
    ) -> None:
        moment, key = layout.ms(now), layout.key(queue)
        living = self._port.where(key, _id={"$in": _places(key, ids)}, e={"$gt": DatetimeMS(moment)})
        with self._port.verb():
            if claims is None:
                self._port.delete_all(living)
                return
            held: Document = {"c.i": {"$in": [layout.text(claim) for claim in claims]}, "c.e": {"$gt": moment}}

            def work(session: Session) -> None:
                found = self._port.find(living, hint="_id_", fields={"_id": 1}, session=session)
                if found and self._port.delete_all({**living, **held}, session=session) != len(found):
                    raise ClaimNotHeld("Every message must be held by one of the given claims; nothing was deleted.")

            self._port.transaction(work)

    def pop(self, queue: QueueRef, limit: int, now: Seconds) -> Messages:
        moment, key = layout.ms(now), layout.key(queue)
        with self._port.verb():
            taken = self._takers.of(key).take(Wish(limit, moment))
        return [layout.message(key, document, moment) for document in taken]


def _places(key: QueueKey, ids: Sequence[str]) -> list[str]:
    """The ``_id`` of each, once."""
    return [key.project + layout.text(message) for message in dict.fromkeys(ids)]


def _shown(view: View, now: int) -> Document:
    """The conditions of a view. A held message is never available before its claim ends."""
    conditions: Document = {}
    if not view.delayed:
        due = {"d": {"$lte": now}}
        conditions = {"$or": [due, {"c.e": {"$gt": now}}]} if view.claimed else due
    elif not view.claimed:
        conditions["c.e"] = {"$not": {"$gt": now}}
    if view.without:
        conditions["u"] = {"$ne": layout.text(view.without)}
    return conditions


def _holder(claim: str, now: int) -> Document:
    """The condition under which this caller may delete (contract 7.6)."""
    return {"c.i": layout.text(claim), "c.e": {"$gt": now}} if claim else {"c.e": {"$not": {"$gt": now}}}


def _check_holder(found: Document, claim: str, now: int) -> None:
    """Refuse a caller who may not delete."""
    held = found.get("e", 0) > now
    if held and found["i"] != layout.text(claim):
        raise MessageClaimed("The message is held by a claim that was not given as claim_id.")
    if claim and not held:
        raise ClaimNotHeld("The claim given as claim_id does not hold the message.")
