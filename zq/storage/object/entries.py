# SPDX-License-Identifier: Apache-2.0
"""The format of log records. A record is one object with the batches of one group commit.

A record consists of ``HEADER`` and the compressed batches in MessagePack. Each record contains the checksum of its
predecessor, so that lost or swapped records are detected.

Records are idempotent, because they contain only puts and deletions. A store that already contains the changes of some
records may therefore replay these records, if it also replays all later ones.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from zq.errors import StoreDamaged
from zq.storage.ordered.store import Range, Write

MAGIC: Final = b"ZQL1"
# Magic, flags, epoch, position, last acknowledged position, time in milliseconds, checksum of the preceding record, and
# checksum of this record. The last checksum does not cover its own field.
HEADER: Final = struct.Struct(">4sBQQQQII")
CHECKSUM: Final = struct.Struct(">I")
# Compression level. A higher level saves little space and delays commits.
LEVEL: Final = 1


class Batch(NamedTuple):
    """A batch of writes and deleted key ranges (``gone``), which the local store applies atomically."""

    writes: Sequence[Write]
    gone: Sequence[Range]


class Entry(NamedTuple):
    """A decoded log record.

    ``acknowledged`` is the last acknowledged position when the record was created. ``moment`` is the time of creation
    by the owner's clock, in milliseconds since the Unix epoch. ``before`` is the checksum of the preceding record, or
    0 for the first record of an epoch. ``value`` is the encoded record.
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
    """Encode a record from the given fields of ``Entry``, and return the encoded record and its checksum."""
    body = zlib.compress(msgspec.msgpack.encode(batches), LEVEL)
    head = HEADER.pack(MAGIC, 0, epoch, position, acknowledged, moment, before, 0)[: -CHECKSUM.size]
    checksum = zlib.crc32(body, zlib.crc32(head))
    return b"".join((head, CHECKSUM.pack(checksum), body)), checksum


def decode(value: bytes, name: str) -> Entry:
    """Decode the content of the log record ``name``. Raises ``StoreDamaged`` if the content is invalid."""
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
