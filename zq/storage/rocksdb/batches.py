# SPDX-License-Identifier: Apache-2.0
"""Batches of published messages, and logs, as they lie in the store."""

from msgspec import Raw, Struct, msgpack

from zq.storage.rocksdb import due, layout
from zq.storage.rocksdb.port import Write
from zq.topics import Batch, Entry


class LogRecord(Struct, array_like=True, frozen=True):
    """A log's entry in ``logs``. ``size`` and ``messages``: of all that was ever published in it.

    ``gone_size`` and ``gone_messages``: what these were before the first batch that has not fallen off. ``start``: see
    ``starts``; the one by which this was written.
    """

    number: int
    last: int = 0
    size: int = 0
    messages: int = 0
    dropped: int = 0
    gone_size: int = 0
    gone_messages: int = 0
    start: int = 0


class Header(Struct, array_like=True):
    """The first fields of Stored. ``size`` and ``messages``: the log's before this batch. ``topic`` may be any text,
    which msgpack has no way to write."""

    topic: bytes
    sequence: int
    created: int
    size: int
    messages: int


class Stored(Header, array_like=True):
    """A batch; its entries are read only where they are wanted."""

    entries: Raw

    @property
    def batch(self) -> Batch:
        """As its readers get it."""
        topic = self.topic.decode("utf-8", "surrogatepass")
        return Batch(topic, self.sequence, self.created / 1000, decode_entries(self.entries))


decode_log = msgpack.Decoder(LogRecord).decode
decode_header = msgpack.Decoder(Header).decode
decode_stored = msgpack.Decoder(Stored).decode
decode_entries = msgpack.Decoder(list[Entry]).decode


def key_of(number: int, topic: str) -> bytes:
    """Where the batches of a topic begin in ``topics``, and its key in ``floors``."""
    return layout.number.pack(number) + layout.project_prefix(topic)


def topic_of(key: bytes) -> str:
    """The topic that such a key is of."""
    return layout.project_of(key[layout.number.size :])


def writes(batch: Batch, before: LogRecord) -> list[Write]:
    """A batch, and all that leads to it."""
    topic = batch.topic.encode("utf-8", "surrogatepass")
    entries = Raw(layout.encode(batch.entries))
    created = layout.ms(batch.created)
    stored = Stored(topic, batch.sequence, created, before.size, before.messages, entries)
    lives = [entry.ttl * 1000 for entry in batch.entries]
    expires, key = created + max(lives), layout.pair.pack(before.number, batch.last)
    index = key_of(before.number, batch.topic)
    return [
        *due.writes("batches", key, layout.encode(stored), expires, index[8:]),
        ("topics", index + key[8:], layout.triple.pack(expires, batch.sequence, created + min(lives))),
    ]


def traces(key: bytes, value: bytes) -> list[Write]:
    """The removal of a batch, by its entry in ``topics``."""
    batch = key[:8] + key[-8:]
    return [("topics", key, None), *due.traces("batches", batch, layout.number.unpack_from(value)[0])]


def trace(batch: bytes, note: bytes) -> Write:
    """The removal of its entry in ``topics``, by its own key and what ``due`` says."""
    return ("topics", batch[:8] + note + batch[8:], None)
