# SPDX-License-Identifier: Apache-2.0
"""What is kept of stages and producers. ``staging.lua`` has the other half of this.

A stage: when it expires (ms), bytes of all bodies, number of queues; then for each queue the least ttl of a message for
it (ms), the length of its name, the name. A staged message: number of its queue there, its record with moments counted
from 0. A producer: when it expires (ms), messages published and deleted by its last batch; then the batch in digits.
"""

from struct import Struct as Packing
from typing import Final

from zq.model import Committed
from zq.storage.redis import layout

STAGE: Final = Packing(">QQI")
STAGED_QUEUE: Final = Packing(">QI")
PRODUCER: Final = Packing(">QQQ")


def least_lives(stage: bytes) -> dict[str, int]:
    """The queues that a stage holds messages for, and the least ttl of these, in ms."""
    at, found = STAGE.size, {}
    while at < len(stage):
        least, length = STAGED_QUEUE.unpack_from(stage, at)
        at += STAGED_QUEUE.size + length
        found[layout.string(stage[at - length : at])] = least
    return found


def expiry(producer: bytes) -> int:
    return int(PRODUCER.unpack_from(producer)[0])


def committed(producer: bytes, *, replayed: bool = False, is_open: bool = False) -> Committed:
    _, published, deleted = PRODUCER.unpack_from(producer)
    return Committed(int(producer[PRODUCER.size :]), published, deleted, replayed, is_open)
