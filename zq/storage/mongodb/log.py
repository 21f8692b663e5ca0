# SPDX-License-Identifier: Apache-2.0
"""How the log of a project's topics lies among the messages: a counter, and a document for each published batch.

======= ================================================ ===============================================================
field   of a batch                                       of the counter, which lives for ever
======= ================================================ ===============================================================
``_id`` "l" P last sequence                              "l" P
``s``   "l" P: the shard key; equal for all of the log
``q``   "l" P                                            -
``k``   last sequence in this document                   -
``d``   topic; so the indexes of queues find batches     -
        by topic and sequence, and tell the topics of
        a log without the documents
``e``   largest expiry; the TTL index removes it         -
``a``   created                                          -
``b``   entries, as msgpack                              -
``t``   ``[ttl, how many entries have it]``, of each     -
``f``   first sequence of the whole batch                -
``z``   bytes published before the whole batch           -
``w``   which transaction stored it                      -
``k1``  -                                                last sequence given; none is left out, so it is the number of
                                                         messages ever published too
``z1``  -                                                bytes of bodies ever published
``x``   -                                                last sequence that has fallen off
``k0``  -                                                messages and bytes up to which what was published was let fall
``z0``                                                   off when it was looked at last
``g``   -                                                documents up to this sequence are to be removed
======= ================================================ ===============================================================

A batch that is too large for one document lies in several, which are read as batches of their own and fall off as one.
A purge is noted as ``{_id: "g" P topic, s: "l" P, d: topic, g: the log's last sequence at that moment}`` until it is
carried out and told (``removal``). Keys by which publishing is known again are those of a queue, named "l" P.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS

from zq.model import QueueRef
from zq.storage.mongodb.layout import Document, QueueKey, original, project_prefix, queue_of, text
from zq.topics import Batch, Entry

LOG: Final = "l"
PURGE: Final = "g"
LARGEST: Final = 8 << 20
"""Bytes of entries in one document."""
OVERHEAD: Final = 64
"""Bytes of an entry beside its body and checksum, and more."""


class Place(NamedTuple):
    """Where a batch enters the log, and the transaction in which it does."""

    sequence: int
    before: int
    writer: str


@lru_cache(maxsize=4096)
def key(project: str) -> QueueKey:
    """The log's names, which no queue's can be."""
    prefix = project_prefix(project)
    name = LOG + prefix
    return QueueKey(QueueRef(project, ""), name, name, name, prefix)


def project_of(shard: str) -> str:
    """The project of the log that is called so."""
    return queue_of(shard.removeprefix(LOG)).project


def purge_note(key: QueueKey, topic: str) -> Document:
    """The filter that finds the note of a purge, or makes it."""
    return {"_id": PURGE + key.project + text(topic), "s": key.shard}


def documents(key: QueueKey, topic: str, entries: Sequence[Entry], now: int, place: Place) -> Iterator[Document]:
    """A batch as it is stored."""
    last = place.sequence - 1
    for part in _parts(entries):
        last += len(part)
        yield {
            "_id": f"{key.counter}{last}",
            "s": key.shard,
            "q": key.messages,
            "k": last,
            "d": text(topic),
            "e": DatetimeMS(now + 1000 * max(entry.ttl for entry in part)),
            "a": now,
            "b": Binary(msgspec.msgpack.encode([_storable(entry) for entry in part])),
            "t": [list(pair) for pair in Counter(entry.ttl for entry in part).items()],
            "f": place.sequence,
            "z": place.before,
            "w": place.writer,
        }


def before(found: Document) -> int:
    """The sequence before the first in this document."""
    return int(found["k"] - sum(count for _, count in found["t"]))


def batch(found: Document) -> Batch:
    """The model's batch."""
    entries = ENTRIES.decode(found["b"])
    if not all(entry.checksum.isascii() for entry in entries):
        entries = [Entry(entry.body, entry.ttl, original(entry.checksum)) for entry in entries]
    return Batch(original(found["d"]), found["k"] - len(entries) + 1, found["a"] / 1000, entries)


def _parts(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    start = weight = 0
    for at, entry in enumerate(entries):
        more = len(entry.body) + len(entry.checksum) + OVERHEAD
        if weight + more > LARGEST and at > start:
            yield entries[start:at]
            start, weight = at, 0
        weight += more
    yield entries[start:]


def _storable(entry: Entry) -> Entry:
    return entry if entry.checksum.isascii() else Entry(entry.body, entry.ttl, text(entry.checksum))


ENTRIES: Final = msgspec.msgpack.Decoder(list[Entry])
