# SPDX-License-Identifier: Apache-2.0
"""Messages of the MongoDB store."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from bson.datetime_ms import DatetimeMS

from zq.errors import ClaimNotHeld
from zq.model import UNBOUNDED, Draft, Message, Messages, Move, Once, Outcome, Page, QueueRef, Seconds, View, portion
from zq.storage.mongodb import layout
from zq.storage.mongodb.deletions import Deletion, Deletions, refusal_of
from zq.storage.mongodb.finishing import Ending, finish
from zq.storage.mongodb.holders import under
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.moving import counters, move
from zq.storage.mongodb.port import Port, Session
from zq.storage.mongodb.posting import Post, Poster
from zq.storage.mongodb.takers import Takers
from zq.storage.mongodb.taking import Announce, Wish, body_of

MOVED_TOGETHER: Final = 64
"""Messages in one transaction, bodies included."""


class MessageController:
    """``zq.storage.api.MessageController`` on MongoDB."""

    def __init__(self, port: Port, takers: Takers, announce: Announce) -> None:
        self._port = port
        self._deletions = Deletions(port)
        self._takers = takers
        self._poster = Poster(port)
        self._announce = announce

    def post(
        self,
        queue: QueueRef,
        drafts: Sequence[Draft],
        now: Seconds,
        expected: bytes | None = None,
        once: Once | None = None,
    ) -> bytes | None:
        with self._port.verb():
            unexpected = self._poster.post(Post(layout.key(queue), drafts, layout.ms(now), expected, once))
        if unexpected is None:
            self._announce(queue)
        return unexpected

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Messages:
        moment, key = layout.ms(now), layout.key(queue)
        places = _places(key, ids)
        living = self._port.where(key, _id={"$in": places}, e={"$gt": DatetimeMS(moment)})
        with self._port.verb():
            found = {document["_id"]: document for document in self._port.find(living, hint="_id_")}
        return [layout.message(key, found[place], moment) for place in places if place in found]

    def list(
        self, queue: QueueRef, marker: int, limit: int, view: View, now: Seconds, most_bytes: int = UNBOUNDED
    ) -> Page[Message]:
        moment, key = layout.ms(now), layout.key(queue)
        if marker >= layout.LARGEST_MARKER:
            return Page([], None)
        shown = self._port.where(key, k={"$gt": marker}, e={"$gt": DatetimeMS(moment)}, **_shown(view, moment))
        with self._port.verb():
            found = self._port.find(
                shown, limit=limit, sort={"k": 1}, hint=layout.OBSERVERS, committed=True, most_bytes=most_bytes
            )
        messages = [layout.message(key, document, moment) for document in portion(found, most_bytes, body_of)]
        return Page(messages, str(messages[-1].sequence) if messages else None)

    def delete(self, queue: QueueRef, message: str, now: Seconds, claim: str = "", history: int = 0) -> None:
        moment, key = layout.ms(now), layout.key(queue)
        place = key.project + layout.text(message)
        living = self._port.where(key, _id=place, e={"$gt": DatetimeMS(moment)})
        with self._port.verb():
            if history:
                self._deletions.finish(Deletion(key, place, moment, claim, history))
                return
            while not self._deletions.delete({**living, **_holder(claim, moment)}):
                found = self._port.find(living, fields={"c": 1})
                if not found:
                    return
                refusal = refusal_of(found[0].get("c", {}), claim, moment)
                if refusal:
                    raise refusal

    def delete_many(
        self,
        queue: QueueRef,
        ids: Sequence[str],
        now: Seconds,
        claims: Sequence[str] | None = None,
        history: int = 0,
    ) -> None:
        moment, key = layout.ms(now), layout.key(queue)
        places = _places(key, ids)
        living = self._port.where(key, _id={"$in": places}, e={"$gt": DatetimeMS(moment)})
        named = None if claims is None else {layout.text(claim) for claim in claims}

        def work(session: Session) -> None:
            there = {found["_id"]: found for found in self._port.find(living, fields={"c": 1}, session=session)}
            holders = {_holder_of(found, moment) for found in there.values()}
            if named is not None and not holders <= named:
                raise ClaimNotHeld("Every message must be held by one of the given claims; nothing was deleted.")
            ending = Ending(Outcome.DELETED, moment, history)
            finish(self._port, session, key, [place for place in places if place in there], ending)

        with self._port.verb():
            if named is None and not history:
                self._port.delete_all(living)
                return
            with self._port.turns.at([key.finishing] if history else []):
                self._port.transaction(work)

    def pop(self, queue: QueueRef, limit: int, now: Seconds, history: int = 0, most_bytes: int = UNBOUNDED) -> Messages:
        moment, key = layout.ms(now), layout.key(queue)
        with self._port.verb():
            taken = self._takers.of(key).take(Wish(limit, moment, history=history, most_bytes=most_bytes))
        return [layout.message(key, document, moment) for document in taken]

    def move(self, queue: QueueRef, moves: Sequence[Move], now: Seconds, history: int = 0) -> Sequence[str]:
        moment, key = layout.ms(now), layout.key(queue)
        ways = list({key.project + layout.text(way.id): way for way in moves}.items())

        def work(some: Sequence[tuple[str, Move]], session: Session) -> Sequence[Move]:
            named = {"_id": {"$in": [place for place, _ in some]}}
            ready = self._port.where(key, **named, d={"$lte": moment}, e={"$gt": DatetimeMS(moment)})
            there = {found["_id"]: found for found in self._port.find(ready, hint="_id_", session=session)}
            going = [(there[place], way) for place, way in some if place in there]
            move(self._port, session, key, going, moment, history)
            return [way for _, way in going]

        gone: list[Move] = []
        for start in range(0, len(ways), MOVED_TOGETHER):
            next_ones = ways[start : start + MOVED_TOGETHER]
            with self._port.verb(), self._port.turns.at(counters(key, (way for _, way in next_ones), history)):
                some = self._port.transaction(partial(work, next_ones))
            for name in {way.to for way in some}:
                self._announce(queue._replace(name=name))
            gone += some
        return [way.id for way in gone]


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
    return under(claim, now) if claim else {"c.e": {"$not": {"$gt": now}}}


def _holder_of(found: Document, now: int) -> str | None:
    """The claim that holds it."""
    claim = found.get("c", layout.NO_CLAIM)
    return claim["i"] if claim.get("e", 0) > now else None
