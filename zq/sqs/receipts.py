# SPDX-License-Identifier: Apache-2.0
"""Receipt handles: names of one delivery of one message to one consumer.

A handle is base64url, without padding, of

    0x01 | hash of project and queue, 8 | message id, 16 | claim id, 16 | claim count, 4 | CRC-32 of all that, 4

A handle is neither secret nor signed, because the request's signature authenticates the caller. A claim id can repeat
for a message, so the handle contains the claim count, too, which cannot.
"""

from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Final
from zlib import crc32

from zq.model import Grip, Message, QueueRef
from zq.sqs import errors

# Characters of a handle.
LENGTH: Final = 66
# What stands behind each of several handles that are read or written as one: two bytes that are 0.
PADDING: Final = "AA"
# A text as long as a handle with its padding, which is none.
NONE: Final = "A" * LENGTH + PADDING
# The version of the form.
VERSION: Final = b"\x01"
# What a handle says, and all of it with its sum and padding.
_SAID: Final = Struct(">9s16s16sI")
_ALL: Final = Struct(">45sIH")
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_+/", b"+/!!")


def handles(queue: QueueRef, claim: str, messages: Iterable[Message]) -> list[str]:
    """Return the handles of messages that a claim has just returned; the claim may have ended."""
    head, held, raw = _head(queue), bytes.fromhex(claim), []
    for message in messages:
        said = _SAID.pack(head, bytes.fromhex(message.id), held, message.claim_count)
        raw.append(_ALL.pack(said, crc32(said), 0))
    text = b2a_base64(b"".join(raw), newline=False).translate(_TO_URL).decode()
    return [text[at : at + LENGTH] for at in range(0, len(text), len(NONE))]


def grips(queue: QueueRef, texts: Sequence[str], hold: int | None = None, max_hold: int = 0) -> list[Grip | None]:
    """Return what handles of this queue name; None for each text that is none. ``Grip`` explains the numbers."""
    own, found = _head(queue), list[Grip | None]()
    for said, total, padding in _ALL.iter_unpack(_read(texts)):
        head, message, claim, count = _SAID.unpack(said)
        if head == own and total == crc32(said) and not padding:
            found.append(Grip(message.hex(), claim.hex(), count, hold, max_hold))
        else:
            found.append(None)
    return found


def _read(texts: Sequence[str]) -> bytes:
    """Return the bytes of handles with their padding. An invalid text yields bytes that name nothing."""
    padded = "".join([text + PADDING if len(text) == LENGTH else NONE for text in texts])
    try:
        return a2b_base64(padded.encode("ascii", "replace").translate(_FROM_URL), strict_mode=True)
    except NotBase64:
        return b"".join([_read([text]) for text in texts]) if len(texts) > 1 else _read([NONE])


def grip(queue: QueueRef, text: str, hold: int | None = None, max_hold: int = 0) -> Grip:
    """Return what one handle names. Raises ``SqsError`` if it is none of this queue."""
    [found] = grips(queue, [text], hold, max_hold)
    if found is None:
        raise errors.receipt_handle_is_invalid(text)
    return found


@lru_cache(maxsize=4096)
def _head(queue: QueueRef) -> bytes:
    """Return the first bytes of all handles of the queue. No name contains the byte between project and queue."""
    return VERSION + blake2b(f"{queue.project}\x00{queue.name}".encode(), digest_size=8).digest()
