# SPDX-License-Identifier: Apache-2.0
"""What is kept of published batches. ``topics.lua`` has the other half of this.

A batch's front: length of the topic's name, the name, its last sequence in 16 digits; number of messages, when it was
published, the first and the last expiry of a message, messages and bytes of bodies published in the log before it. The
front is the member of ``topics`` and ``fading``, and beside the messages (MessagePack) in the stream. In replies and on
the channel the length of the messages goes before the front, and the messages follow it; on the channel the log's last
sequence before the batch, in 16 digits, comes first.
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

# Of the messages, and of the topic's name.
LENGTHS: Final = Packing(">IH")
DIGITS: Final = 16
# Above all sequences of a log: Lua counts exactly up to there.
MAX_SEQUENCE: Final = 2**53 - 1
# Sequences that a log goes on by in a millisecond, whether or not any are used; ``topics.lua`` says so too.
PACE: Final = 512
FRONT: Final = Packing(">IQQQQQ")
ENTRIES: Final = msgspec.msgpack.Decoder(list[Entry])
pack = msgspec.msgpack.Encoder().encode


class Packed(NamedTuple):
    """A batch whose messages have not been read yet."""

    topic: str
    last: int
    number: int
    created: Seconds
    messages: bytes

    @property
    def first(self) -> int:
        return self.last - self.number + 1

    def opened(self) -> Batch:
        """May raise ``msgspec.DecodeError`` if it comes from a stranger."""
        return Batch(self.topic, self.first, self.created, ENTRIES.decode(self.messages))


@lru_cache(maxsize=8192)
def keys(project: str) -> Block:
    """The keys of a project's log; the first one is that of the stream."""
    return layout.own(project, *layout.LOG_KINDS)


@lru_cache(maxsize=8192)
def feed(project: str, database: int) -> bytes:
    """The channel on which its batches are published."""
    return layout.own(project, f"feed:{database}")[0]


@lru_cache(maxsize=8192)
def documents(project: str) -> Block:
    """The keys of a project's documents; the first one is that of the hash."""
    return layout.own(project, *layout.DOCUMENT_KINDS)


def whole(project: str) -> list[Block]:
    """All these keys."""
    return [keys(project), documents(project)]


def batches(blob: bytes, at: int) -> Iterator[Packed]:
    """All batches of a reply, from ``at`` on."""
    while at < len(blob):
        size, name = LENGTHS.unpack_from(blob, at)
        at += LENGTHS.size
        topic = layout.string(blob[at : at + name])
        last, created, count, at = _front(blob, at + name)
        yield Packed(topic, last, count, created, blob[at : at + size])
        at += size


def edges(front: bytes) -> tuple[int, int, Seconds]:
    """First and last sequence of a batch, and when it was published."""
    last, created, count, _ = _front(front, 2 + int.from_bytes(front[:2]))
    return last - count + 1, last, created


def _front(blob: bytes, at: int) -> tuple[int, Seconds, int, int]:
    """Last sequence, moment and number of messages, of a front whose name ends at ``at``; where it ends."""
    count, created, *_ = FRONT.unpack_from(blob, at + DIGITS)
    return int(blob[at : at + DIGITS]), created / 1000, count, at + DIGITS + FRONT.size
