# SPDX-License-Identifier: Apache-2.0
"""History of the MongoDB store: records of finished messages, and what lives, as one sequence."""

from collections.abc import Sequence
from typing import Final

from bson.datetime_ms import DatetimeMS
from msgspec.structs import replace

from zq.model import UNBOUNDED, Finished, Outcome, Page, QueueRef, Seconds, portion
from zq.storage.mongodb import layout
from zq.storage.mongodb.layout import Document, QueueKey
from zq.storage.mongodb.port import Port
from zq.storage.mongodb.taking import body_of

FOREVER: Final = 1e15
"""Milliseconds: more than any record will see, and BSON can hold it."""


class HistoryController:
    """``zq.storage.api.HistoryController`` on MongoDB."""

    def __init__(self, port: Port) -> None:
        self._port = port

    def list(
        self,
        queue: QueueRef,
        marker: int,
        limit: int,
        since: Seconds,
        until: Seconds,
        now: Seconds,
        most_bytes: int = UNBOUNDED,
    ) -> Page[Finished]:
        moment, key = layout.ms(now), layout.key(queue)
        if marker >= layout.LARGEST_MARKER:
            return Page([], None)
        between = {"$gte": _bounded(since), "$lt": _bounded(until)}
        records = self._records(key, moment, p={"$gt": marker}, f=between)
        with self._port.verb():
            found = self._port.find(
                records, limit=limit, sort={"p": 1}, hint=layout.FINISHED, committed=True, most_bytes=most_bytes
            )
        items = [_finished(key, record, moment) for record in portion(found, most_bytes, body_of)]
        return Page(items, str(items[-1].position) if items else None)

    def list_all(
        self, queue: QueueRef, marker: int, limit: int, now: Seconds, most_bytes: int = UNBOUNDED
    ) -> Page[Finished]:
        moment, key = layout.ms(now), layout.key(queue)
        if marker >= layout.LARGEST_MARKER:
            return Page([], None)
        # One snapshot of both kinds: a message that finishes meanwhile is in it once.
        both = self._records(key, moment, k={"$gt": marker})
        both["q"] = {"$in": [key.messages, key.records]}
        with self._port.verb():
            found = self._port.find(
                both, limit=limit, sort={"k": 1}, hint=layout.OBSERVERS, snapshot=True, most_bytes=most_bytes
            )
        items = [_finished(key, one, moment) for one in portion(found, most_bytes, body_of)]
        return Page(items, str(items[-1].message.sequence) if items else None)

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Sequence[Finished]:
        moment, key = layout.ms(now), layout.key(queue)
        places = [key.project + layout.text(message) for message in dict.fromkeys(ids)]
        own_or_copy = [{"_id": {"$in": places}}, {"i": {"$in": places}}]
        with self._port.verb():
            found = self._port.find(self._records(key, moment, **{"$or": own_or_copy}))
        latest = {_place(record): record for record in sorted(found, key=lambda record: int(record["p"]))}
        return [_finished(key, latest[place], moment) for place in places if place in latest]

    def _records(self, key: QueueKey, now: int, **conditions: object) -> Document:
        """A filter on records that have not expired."""
        return {**self._port.where(key, **conditions), "q": key.records, "e": {"$gt": DatetimeMS(now)}}


def _finished(key: QueueKey, found: Document, now: int) -> Finished:
    """A record, or a living message."""
    if "x" not in found:
        return Finished(layout.message(key, found, now))
    message = layout.message(key, {**found, "_id": _place(found), "e": found["z"]}, now)
    return Finished(replace(message, claim=""), Outcome(found["x"]), found["f"] / 1000, int(found["p"]))


def _place(record: Document) -> str:
    """``_id`` of the message when it lived here."""
    return str(record.get("i", record["_id"]))


def _bounded(moment: Seconds) -> int:
    """Milliseconds, even of a moment that is infinitely far."""
    return round(max(-FOREVER, min(1000 * moment, FOREVER)))
