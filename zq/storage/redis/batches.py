# SPDX-License-Identifier: Apache-2.0
"""The stored form of published batches, which ``topics.lua`` also implements.

A batch has a header and its messages (MessagePack). The header consists of:

- length of the topic's name, and the name;
- last sequence, in 16 digits;
- number of messages, publication time, earliest and latest expiry of the messages;
- number of messages, and total bytes, published in the topic log before the batch.

The sorted sets ``topics`` and ``fading`` contain only the header, and the stream contains the header and the messages
(see ``layout``). In replies and on the channel, a batch consists of the length of the messages, the header, and the
messages. On the channel, the log's last sequence before the batch comes first, in 16 digits.
"""

from collections.abc import Iterator
from functools import lru_cache
from struct import Struct as Packing
from typing import Final, NamedTuple

import msgspec

from zq.model import Seconds
from zq.model.topics import Batch, Entry
from zq.storage.redis import layout
from zq.storage.redis.layout import Block

# Length of the messages and length of the topic's name.
LENGTHS: Final = Packing(">IH")
DIGITS: Final = 16
# Upper bound of a log's sequences. Lua represents integers exactly up to this number.
MAX_SEQUENCE: Final = 2**53 - 1
# Number of sequences by which a log advances per millisecond, used or not. ``topics.lua`` has the same number.
PACE: Final = 512
BATCH_HEADER: Final = Packing(">IQQQQQ")
ENTRIES: Final = msgspec.msgpack.Decoder(list[Entry])
pack = msgspec.msgpack.Encoder().encode


class EncodedBatch(NamedTuple):
    """A batch whose messages are still encoded."""

    topic: str
    last: int
    number: int
    created: Seconds
    messages: bytes

    @property
    def first(self) -> int:
        return self.last - self.number + 1

    def decode(self) -> Batch:
        """Decode the batch. Raises ``msgspec.DecodeError`` if another client has published invalid content."""
        return Batch(self.topic, self.first, self.created, ENTRIES.decode(self.messages))


@lru_cache(maxsize=8192)
def keys(project: str) -> Block:
    """Return the Redis keys of a project's topic log. The first key is the stream."""
    return layout.project_keys(project, *layout.LOG_KINDS)


@lru_cache(maxsize=8192)
def feed(project: str, database: int) -> bytes:
    """Return the name of the pub/sub channel on which the project's batches are published."""
    return layout.project_keys(project, f"feed:{database}")[0]


@lru_cache(maxsize=8192)
def documents(project: str) -> Block:
    """Return the Redis keys of a project's documents. The first key is the hash."""
    return layout.project_keys(project, *layout.DOCUMENT_KINDS)


def whole(project: str) -> list[Block]:
    """Return the Redis keys of a project's topic log and of its documents."""
    return [keys(project), documents(project)]


def batches(blob: bytes, at: int) -> Iterator[EncodedBatch]:
    """Yield the published batches in a script reply, starting at byte offset ``at``."""
    while at < len(blob):
        size, name = LENGTHS.unpack_from(blob, at)
        at += LENGTHS.size
        topic = layout.decode_text(blob[at : at + name])
        last, created, count, at = _front(blob, at + name)
        yield EncodedBatch(topic, last, count, created, blob[at : at + size])
        at += size


def edges(front: bytes) -> tuple[int, int, Seconds]:
    """Return the first sequence, the last sequence and the publication time of a batch, given the batch's header."""
    last, created, count, _ = _front(front, 2 + int.from_bytes(front[:2]))
    return last - count + 1, last, created


def _front(blob: bytes, at: int) -> tuple[int, Seconds, int, int]:
    """Return the last sequence, the time in seconds, the message count and the end offset of a batch's header."""
    count, created, *_ = BATCH_HEADER.unpack_from(blob, at + DIGITS)
    return int(blob[at : at + DIGITS]), created / 1000, count, at + DIGITS + BATCH_HEADER.size
