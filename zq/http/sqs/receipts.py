# SPDX-License-Identifier: Apache-2.0
"""Receipt handles: what names one delivery of one message to one consumer.

A handle is base64url, without padding, of

    0x01 | hash of project and queue, 8 | message id, 16 | claim id, 16 | claim count, 4 | CRC-32 of all that, 4

It is neither secret nor signed: the request's signature says who asks. A claim id can come again, so the claim count
stands beside it, which cannot.
"""

import re
from binascii import a2b_base64, b2a_base64
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Final
from zlib import crc32

from zq.http.sqs import errors
from zq.model import Grip, Message, QueueRef

# 49 bytes, without the two characters that would pad them; the last one stands for two bits.
HANDLE: Final = re.compile(r"[A-Za-z0-9_-]{65}[AQgw]")
LENGTH: Final = 66
# Hex digits of an id.
ID: Final = 32
# The version of the form.
VERSION: Final = b"\x01"
_SAID: Final = Struct(">9s32sI")
_ALL: Final = Struct(">9s32sII")
_SUM: Final = Struct(">I")
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_", b"+/")


def handle(queue: QueueRef, message: Message, claim: str) -> str:
    """The handle of a message that this claim, which may be over, has just handed out."""
    said = _SAID.pack(_head(queue), bytes.fromhex(message.id + claim), message.claim_count)
    return b2a_base64(said + _SUM.pack(crc32(said)), newline=False).translate(_TO_URL)[:LENGTH].decode()


def grip(queue: QueueRef, text: str, hold: int | None = None) -> Grip:
    """What a handle of this queue names; ``hold`` as ``Grip`` has it. Raises ``SqsError`` for one that is none."""
    if HANDLE.fullmatch(text):
        raw = a2b_base64(text.encode().translate(_FROM_URL) + b"==")
        head, both, count, total = _ALL.unpack(raw)
        if head == _head(queue) and total == crc32(raw[: _SAID.size]):
            ids = both.hex()
            return Grip(ids[:ID], ids[ID:], count, hold)
    raise errors.receipt_handle_is_invalid(text)


@lru_cache(maxsize=4096)
def _head(queue: QueueRef) -> bytes:
    """With what all handles of the queue begin. No name holds the byte between project and queue."""
    return VERSION + blake2b(f"{queue.project}\x00{queue.name}".encode(), digest_size=8).digest()
