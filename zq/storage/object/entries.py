# SPDX-License-Identifier: Apache-2.0
"""The format of log records. A record is one object with the writes of one group commit. This module performs no I/O.

A record consists of ``HEADER`` and the compressed batches (MessagePack). Each record has the checksum of its
predecessor, so that exchanged or lost records are detected. A record has only puts, and deletions of keys and ranges.
It may therefore be applied repeatedly, and even to a newer state if all later records are applied too.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from zq.errors import StoreDamaged
from zq.storage.ordered.store import Range, Write

MAGIC: Final = b"ZQL1"
# Magic, flags, epoch, position, last acknowledged position, time in milliseconds, checksum of the preceding record,
# and checksum of this record without this field.
HEADER: Final = struct.Struct(">4sBQQQQII")
CHECKSUM: Final = struct.Struct(">I")
# Compression level. A higher level saves little space and delays the commits of the group.
LEVEL: Final = 1


class Batch(NamedTuple):
    """The writes of one step; see ``ordered.store.Store.write``."""

    writes: Sequence[Write]
    gone: Sequence[Range]


class Entry(NamedTuple):
    """A decoded log record.

    Attributes:
        position: Position in the log, over all epochs.
        acknowledged: Last acknowledged position when the record was created.
        moment: Milliseconds of the owner's clock.
        before: Checksum of the preceding record; 0 for the first record of an epoch.
        checksum: Checksum of this record.
        value: The encoded record.
    """

    epoch: int
    position: int
    acknowledged: int
    moment: int
    before: int
    checksum: int
    batches: Sequence[Batch]
    value: bytes


_decode: Final = msgspec.msgpack.Decoder(list[Batch]).decode


def encode(
    epoch: int, position: int, acknowledged: int, moment: int, before: int, batches: Sequence[Batch]
) -> tuple[bytes, int]:
    """Encode a record; return the object and its checksum."""
    body = zlib.compress(msgspec.msgpack.encode(batches), LEVEL)
    head = HEADER.pack(MAGIC, 0, epoch, position, acknowledged, moment, before, 0)[: -CHECKSUM.size]
    checksum = zlib.crc32(body, zlib.crc32(head))
    return b"".join((head, CHECKSUM.pack(checksum), body)), checksum


def decode(value: bytes, name: str) -> Entry:
    """Decode a record. Raises ``StoreDamaged`` with the object's name."""
    try:
        fields: tuple[Any, ...] = HEADER.unpack_from(value)
        magic, flags, epoch, position, acknowledged, moment, before, checksum = fields
        head, body = value[: HEADER.size - CHECKSUM.size], value[HEADER.size :]
        if magic == MAGIC and flags == 0 and zlib.crc32(body, zlib.crc32(head)) == checksum:
            batches = _decode(zlib.decompress(body))
            return Entry(epoch, position, acknowledged, moment, before, checksum, batches, value)
    except (struct.error, zlib.error, msgspec.MsgspecError) as error:
        raise StoreDamaged(_damaged(name)) from error
    raise StoreDamaged(_damaged(name))


def _damaged(name: str) -> str:
    return f"The object {name} is damaged: its checksum is wrong."
