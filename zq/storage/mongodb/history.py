# SPDX-License-Identifier: Apache-2.0
"""The history of queues in MongoDB: listings of history entries, with or without live messages."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from bson.datetime_ms import DatetimeMS
from msgspec.structs import replace

from zq.model import UNBOUNDED, HistoryEntry, Outcome, Page, QueueRef, Seconds, Span, take_portion
from zq.storage.mongodb import layout
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.floors import counters_of, find_visible, floor_of, history_floor_of, search
from zq.storage.mongodb.layout import BsonDocument, QueueKey
from zq.storage.mongodb.open_posts import Found, OpenPosts, PageLimits
from zq.storage.mongodb.unions import find_with

# A time in milliseconds that is later than every entry and that BSON can store.
FOREVER: Final = 1e15


class HistoryController:
    """The MongoDB implementation of ``zq.storage.capabilities.HistoryController``."""

    def __init__(self, client: StoreClient, open_posts: OpenPosts) -> None:
        self._client = client
        self._open_posts = open_posts

    def list(
        self,
        queue: QueueRef,
        marker: int,
        limit: int,
        span: Span | None,
        now: Seconds,
        max_bytes: int = UNBOUNDED,
        newest_first: bool = False,
    ) -> Page[HistoryEntry]:
        moment, key = layout.ms(now), layout.key(queue)
        if newest_first:
            marker = min(marker or layout.LARGEST_MARKER, layout.LARGEST_MARKER)
        elif marker >= layout.LARGEST_MARKER:
            return Page([], None)
        with self._client.verb():
            if span is None:
                find = partial(self._list_all, key, marker, limit, moment, max_bytes)
                found, _ = self._open_posts.read_page(key, find)
            else:
                between = {"$gte": _bounded(span.since), "$lt": _bounded(span.until)}
                records = self._entry_filter(key, moment, p={"$lt" if newest_first else "$gt": marker}, f=between)
                found, _ = search(
                    self._client,
                    key,
                    records,
                    limit=limit,
                    sort={"p": -1 if newest_first else 1},
                    hint=layout.FINISHED,
                    committed=True,
                    max_bytes=max_bytes,
                    floor_of=history_floor_of,
                )
        items = [_to_entry(key, one, moment) for one in take_portion(found, max_bytes, layout.size_of)]
        if not items:
            return Page([], None)
        return Page(items, str(items[-1].message.sequence if span is None else items[-1].position))

    def get(self, queue: QueueRef, ids: Sequence[str], now: Seconds) -> Sequence[HistoryEntry]:
        moment, key = layout.ms(now), layout.key(queue)
        doc_ids = layout.doc_ids(key, ids)
        own_or_copy = self._entry_filter(key, moment, **{"$or": [{"_id": {"$in": doc_ids}}, {"i": {"$in": doc_ids}}]})
        with self._client.verb():
            found = find_visible(self._client, [key], own_or_copy, floor_of=history_floor_of)
        latest = {_message_id(record): record for record in sorted(found, key=lambda record: int(record["p"]))}
        return [_to_entry(key, latest[doc_id], moment) for doc_id in doc_ids if doc_id in latest]

    def _list_all(self, key: QueueKey, marker: int, limit: int, now: int, max_bytes: int, limits: PageLimits) -> Found:
        """Return up to ``limit`` messages and history entries after the sequence ``marker``, and the queue's document.

        The search reads a snapshot, so a message that finishes during the search is included exactly once.
        """
        both = self._entry_filter(key, now, k={"$gt": marker, **limits.bound})
        both["q"] = {"$in": [key.messages, key.history_entries]}
        while True:
            found, counters = find_with(
                self._client,
                counters_of(self._client, [key]),
                both,
                limit=limit,
                sort={"k": 1},
                hint=layout.OBSERVERS,
                committed=limits.committed,
                snapshot=True,
                max_bytes=max_bytes,
            )
            counter: BsonDocument = counters[0] if counters else {}
            floors = {key.messages: floor_of(counter), key.history_entries: history_floor_of(counter)}
            if all(one["k"] > floors[one["q"]] for one in found):
                return found, counter
            both["$nor"] = [{"q": kind, "k": {"$lte": floor}} for kind, floor in floors.items()]

    def _entry_filter(self, key: QueueKey, now: int, **conditions: object) -> BsonDocument:
        return {**self._client.where(key, **conditions), "q": key.history_entries, "e": {"$gt": DatetimeMS(now)}}


def _to_entry(key: QueueKey, found: BsonDocument, now: int) -> HistoryEntry:
    if "x" not in found:
        return HistoryEntry(layout.to_message(key, found, now))
    message = layout.to_message(key, {**found, "_id": _message_id(found), "e": found["z"]}, now)
    finished, expires = found["f"] / 1000, int(found["e"]) / 1000
    return HistoryEntry(replace(message, claim=""), Outcome(found["x"]), finished, int(found["p"]), expires)


def _message_id(record: BsonDocument) -> str:
    return str(record.get("i", record["_id"]))


def _bounded(moment: Seconds) -> int:
    return round(max(-FOREVER, min(1000 * moment, FOREVER)))
