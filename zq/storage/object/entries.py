# SPDX-License-Identifier: Apache-2.0
"""A record of the log: what one group of commits wrote, as one object. Pure: no object store is known here.

Layout: ``HEADER``, then the batches as MessagePack, compressed. Each record holds the checksum of the one before, so
that a log whose records were exchanged or lost is not taken for whole. What a record says is absolute (puts, deletions
of keys and of ranges): to apply it again changes nothing, nor does it over a state that is newer, if all that follow
are applied too.
"""

import struct
import zlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from zq.errors import StoreDamaged
from zq.storage.ordered.store import Range, Write

MAGIC: Final = b"ZQL1"
# magic, flags, epoch, position, the last position acknowledged so far, milliseconds, checksum of the record before,
# checksum of this one without itself
HEADER: Final = struct.Struct(">4sBQQQQII")
CHECKSUM: Final = struct.Struct(">I")
# Little is gained by more, and a group of commits is on its way meanwhile.
LEVEL: Final = 1


class Batch(NamedTuple):
    """What one step wrote: see ``ordered.store.Store.write``."""

    writes: Sequence[Write]
    gone: Sequence[Range]


class Entry(NamedTuple):
    """``position``: its place in the log, over all epochs. ``acknowledged``: the last position that was when this was
    made. ``moment``: milliseconds of the owner's clock. ``before``: the checksum of the record before, 0 for the first
    of an epoch; ``checksum``: its own. ``value``: the object itself."""

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
    """The object, and its checksum."""
    body = zlib.compress(msgspec.msgpack.encode(batches), LEVEL)
    head = HEADER.pack(MAGIC, 0, epoch, position, acknowledged, moment, before, 0)[: -CHECKSUM.size]
    checksum = zlib.crc32(body, zlib.crc32(head))
    return b"".join((head, CHECKSUM.pack(checksum), body)), checksum


def decode(value: bytes, name: str) -> Entry:
    """The record. Raises ``StoreDamaged`` with the object's name."""
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
