# SPDX-License-Identifier: Apache-2.0
"""Topic log of a project: a counter document, and one document per published batch, in ``messages``.

======= ================================================ ===============================================================
field   of a batch                                       of the counter, which is never removed
======= ================================================ ===============================================================
``_id`` "l" P last sequence                              "l" P
``s``   "l" P: the shard key, equal in the whole log
``q``   "l" P                                            -
``k``   last sequence in this document                   -
``d``   topic; the queue indexes contain this field,     -
        so they select by topic and sequence, and
        list topics without reading documents
``e``   latest expiry, for the TTL index                 -
``a``   created                                          -
``b``   entries, as msgpack                              -
``t``   ``[ttl, number of entries]`` for each ttl        -
``f``   first sequence of the whole batch                -
``z``   bytes published before the whole batch           -
``w``   id of the transaction that stored it             -
``k1``  -                                                last assigned sequence; sequences have no gaps, so it is also
                                                         the number of messages ever published
``z1``  -                                                total bytes of bodies ever published
``x``   -                                                last trimmed sequence
``k0``  -                                                published messages (``k0``) and bytes (``z0``) up to which the
``z0``                                                   last retention check trimmed the log
``g``   -                                                documents up to this sequence are still to be deleted
======= ================================================ ===============================================================

P is the project's prefix. A batch that is too large for one document is split into several documents, which are read as
separate batches but trimmed together.

A purge is recorded as ``{_id: "g" P topic, s: "l" P, d: topic, g: last sequence of the log}`` until ``PendingDeletes``
has deleted the topic's documents. Readers skip the topic's batches up to ``g``.

Idempotency keys are stored as for a queue that is named "l" P.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.timestamp import Timestamp

from zq.model import QueueRef
from zq.model.topics import EVERYTHING, Batch, Entry, LogSlice, Pattern
from zq.storage.mongodb import layout
from zq.storage.mongodb.client import StoreClient
from zq.storage.mongodb.layout import BsonDocument, QueueKey, decode_text, encode_text, project_prefix, queue_of

LOG: Final = "l"
PURGE: Final = "g"
# Maximum size of the entries in one document, in bytes.
MAX_DOCUMENT_BYTES: Final = 8 << 20
# Size of an entry in bytes without its body and checksum, rounded up.
OVERHEAD: Final = 64


class LogPosition(NamedTuple):
    """The position of a batch in the log.

    ``sequence`` is the first sequence of the batch. ``before`` is the number of bytes that were published before the
    batch. ``writer`` is the id of the transaction that stores the batch.
    """

    sequence: int
    before: int
    writer: str


@lru_cache(maxsize=4096)
def key(project: str) -> QueueKey:
    """Return the ``QueueKey`` under which the project's log is stored. No queue has this key."""
    prefix = project_prefix(project)
    name = LOG + prefix
    return QueueKey(QueueRef(project, ""), name, name, name, prefix)


def project_of(shard: str) -> str:
    return queue_of(shard.removeprefix(LOG)).project


def purge_note(key: QueueKey, topic: str) -> BsonDocument:
    """Return a filter that matches a topic's purge record. An upsert with this filter can create the record."""
    return {"_id": PURGE + key.project + encode_text(topic), "s": key.shard}


def documents(
    key: QueueKey, topic: str, entries: Sequence[Entry], now: int, position: LogPosition
) -> Iterator[BsonDocument]:
    """Yield the documents of a batch. A batch of more than ``MAX_DOCUMENT_BYTES`` bytes is split."""
    last = position.sequence - 1
    for part in _parts(entries):
        last += len(part)
        yield {
            "_id": f"{key.counter}{last}",
            "s": key.shard,
            "q": key.messages,
            "k": last,
            "d": encode_text(topic),
            "e": DatetimeMS(now + 1000 * max(entry.ttl for entry in part)),
            "a": now,
            "b": Binary(msgspec.msgpack.encode([_storable(entry) for entry in part])),
            "t": [list(pair) for pair in Counter(entry.ttl for entry in part).items()],
            "f": position.sequence,
            "z": position.before,
            "w": position.writer,
        }


def previous_sequence(found: BsonDocument) -> int:
    """Return the sequence that precedes the first sequence in a batch document."""
    return int(found["k"] - sum(count for _, count in found["t"]))


def to_batch(found: BsonDocument) -> Batch:
    entries = ENTRIES.decode(found["b"])
    if not all(entry.checksum.isascii() for entry in entries):
        entries = [msgspec.structs.replace(entry, checksum=decode_text(entry.checksum)) for entry in entries]
    return Batch(decode_text(found["d"]), found["k"] - len(entries) + 1, found["a"] / 1000, entries)


def _parts(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    start = weight = 0
    for at, entry in enumerate(entries):
        more = entry.size + len(entry.checksum) + OVERHEAD
        if weight + more > MAX_DOCUMENT_BYTES and at > start:
            yield entries[start:at]
            start, weight = at, 0
        weight += more
    yield entries[start:]


def _storable(entry: Entry) -> Entry:
    return entry if entry.checksum.isascii() else msgspec.structs.replace(entry, checksum=encode_text(entry.checksum))


ENTRIES: Final = msgspec.msgpack.Decoder(list[Entry])


# The timestamp of a snapshot; False = there is none.
SnapshotTime = Timestamp | bool
# Maximum number of batches that one read returns.
MAX_BATCHES: Final = 1000
# Maximum size of the batches that one read returns, in bytes. A single larger batch is returned alone.
MAX_BYTES: Final = 1 << 20


class Span(NamedTuple):
    """The range of one read: a filter, an index name (``hint``), and the last sequence that the filter covers."""

    conditions: BsonDocument
    hint: str
    end: int


class Reader:
    """Queries on topic logs: batches, last sequences and removed sequences."""

    def __init__(self, client: StoreClient) -> None:
        self._client = client

    def last(self, key: QueueKey) -> int:
        """Return the last majority-committed sequence of the log, or 0 if nothing was published."""
        found = self._client.find({"_id": key.counter, "s": key.shard}, fields={"k1": 1}, committed=True)
        return int(found[0]["k1"]) if found else 0

    def floor(self, key: QueueKey, topic: str) -> int:
        """Return the last sequence that a trim of the log or a purge of the topic has removed, or 0."""
        floors = self._floors(key)
        return max(floors.trimmed, floors.purged.get(encode_text(topic), 0))

    def _floors(self, key: QueueKey) -> "Floors":
        return floors_of(self._client.find(_state(key)))

    def read(self, key: QueueKey, after: int, limit: int, pattern: Pattern) -> LogSlice:
        """Return the next batches after the sequence ``after``; see ``TopicController.read``."""
        state, moment = self._client.snapshot(_state(key))
        floors = floors_of(state)
        last, dropped = floors.last, floors.trimmed
        start = max(after, dropped)
        if start >= last:
            return LogSlice([], max(after, last), False, last, dropped)
        span = self._span(key, start, limit, pattern, last, moment)
        max_batches = min(limit, MAX_BATCHES)
        found = self._client.find(
            span.conditions, limit=max_batches, sort={"k": 1}, hint=span.hint, snapshot=moment, max_bytes=MAX_BYTES
        )
        if not moment:
            # Without a snapshot, batches may have been removed since the floors were read, and a purge record that was
            # read then may have been deleted. Both states are therefore merged.
            floors = floors.merge(self._floors(key))
            dropped = floors.trimmed
        kept = [one for one in found if one["k"] > max(dropped, floors.purged.get(one["d"], 0))]
        batches = _portion(kept, start, limit)
        whole = (
            len(batches) == len(kept) and len(found) < max_batches and sum(len(one["b"]) for one in found) < MAX_BYTES
        )
        end = batches[-1].last if batches else int(found[-1]["k"]) if found else 0
        position = max(dropped, span.end if whole else end)
        last = max(last, dropped)
        return LogSlice(batches, position, position < last, last, dropped)

    def _span(self, key: QueueKey, start: int, limit: int, pattern: Pattern, last: int, moment: SnapshotTime) -> Span:
        behind: BsonDocument = {"$gt": start, "$lte": last}
        if pattern.topic:
            return Span(self._client.where(key, d=layout.encode_text(pattern.topic), k=behind), layout.CLAIMS, last)
        everything = self._client.where(key, k=behind)
        if pattern.text == EVERYTHING:
            return Span(everything, layout.OBSERVERS, last)
        named = self._client.find(
            everything,
            limit=MAX_BATCHES,
            sort={"k": 1},
            hint=layout.OBSERVERS,
            fields={"_id": 0, "k": 1, "d": 1},  # the index has these fields
            snapshot=moment,
        )
        end = int(named[-1]["k"]) if len(named) == MAX_BATCHES else last
        meant = [one["k"] for one in named if pattern.matches(layout.decode_text(one["d"]))]
        return Span(self._client.where(key, k={"$in": meant[: limit + 1]}), layout.OBSERVERS, end)


class Floors(NamedTuple):
    """The limits of a log's readable part.

    ``last`` is the last sequence of the log, and ``trimmed`` is the last trimmed sequence. ``purged`` maps each purged
    topic to the last purged sequence.
    """

    last: int
    trimmed: int
    purged: Mapping[str, int]

    def merge(self, later: "Floors") -> "Floors":
        """Combine two states of one log.

        The result has the last sequence of ``later``. Its trimmed sequence, and the purged sequence of each topic, are
        the maximum of the values in both states.
        """
        topics = {*self.purged, *later.purged}
        purged = {topic: max(self.purged.get(topic, 0), later.purged.get(topic, 0)) for topic in topics}
        return Floors(later.last, max(self.trimmed, later.trimmed), purged)


def floors_of(state: Sequence[BsonDocument]) -> Floors:
    """Return the ``Floors`` of a log, from its counter and the purge records of its topics."""
    counter: BsonDocument = next((one for one in state if one["_id"] == one["s"]), {})
    purged = {one["d"]: int(one["g"]) for one in state if "d" in one}
    return Floors(int(counter.get("k1", 0)), int(counter.get("x", 0)), purged)


def _state(key: QueueKey) -> BsonDocument:
    notes = PURGE + key.project
    return {"$or": [{"_id": key.counter}, {"_id": {"$gt": notes, "$lt": layout.after(notes)}}], "s": key.shard}


def _portion(found: Sequence[BsonDocument], start: int, limit: int) -> list[Batch]:
    """Return batches from the start of ``found`` until they have ``limit`` messages above the sequence ``start``.

    Stop earlier if the batches would exceed ``MAX_BYTES``, but return at least the first batch.
    """
    batches: list[Batch] = []
    count = weight = 0
    for one in found:
        weight += len(one["b"])
        if batches and (count >= limit or weight > MAX_BYTES):
            break
        batches.append(to_batch(one))
        count += batches[-1].last - max(start, batches[-1].sequence - 1)
    return batches
