# SPDX-License-Identifier: Apache-2.0
"""Receipt handles, each of which identifies one receive of one message.

A handle is the base64url encoding, without padding, of these fields with their lengths in bytes:

    0x01, 1 | hash of project and queue, 8 | message id, 16 | claim id, 16 | claim count, 4 | CRC-32 of the others, 4

A handle is neither secret nor signed, because the request's signature authenticates the caller. A message can be
claimed twice with the same claim id. Its claim count increases with each claim, so the handle contains the count, too.
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

# The length of a handle in characters.
LENGTH: Final = 66
# The text between handles that are encoded or decoded together. It completes two zero bytes.
PADDING: Final = "AA"
# A text with the length of a padded handle that is no valid handle.
NONE: Final = "A" * LENGTH + PADDING
# The version of the format.
VERSION: Final = b"\x01"
# The fields of a handle without the checksum, and all of it with the checksum and padding.
_FIELDS: Final = Struct(">9s16s16sI")
_HANDLE: Final = Struct(">45sIH")
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_+/", b"+/!!")


def handles(queue: QueueRef, claim: str, messages: Iterable[Message]) -> list[str]:
    """Return the receipt handles of messages that a claim has just returned. The claim may have ended already."""
    head, held, raw = _head(queue), bytes.fromhex(claim), []
    for message in messages:
        fields = _FIELDS.pack(head, bytes.fromhex(message.id), held, message.claim_count)
        raw.append(_HANDLE.pack(fields, crc32(fields), 0))
    text = b2a_base64(b"".join(raw), newline=False).translate(_TO_URL).decode()
    return [text[at : at + LENGTH] for at in range(0, len(text), len(NONE))]


def grips(queue: QueueRef, texts: Sequence[str], hold: int | None = None, max_hold: int = 0) -> list[Grip | None]:
    """Decode receipt handles of the queue, with None for each invalid handle.

    ``hold`` and ``max_hold`` are set in each ``Grip``, which explains them.
    """
    own, found = _head(queue), list[Grip | None]()
    for fields, total, padding in _HANDLE.iter_unpack(_read(texts)):
        head, message, claim, count = _FIELDS.unpack(fields)
        if head == own and total == crc32(fields) and not padding:
            found.append(Grip(message.hex(), claim.hex(), count, hold, max_hold))
        else:
            found.append(None)
    return found


def _read(texts: Sequence[str]) -> bytes:
    """Decode padded handles to bytes. An invalid text yields the bytes of an invalid handle."""
    padded = "".join([text + PADDING if len(text) == LENGTH else NONE for text in texts])
    try:
        return a2b_base64(padded.encode("ascii", "replace").translate(_FROM_URL), strict_mode=True)
    except NotBase64:
        return b"".join([_read([text]) for text in texts]) if len(texts) > 1 else _read([NONE])


def grip(queue: QueueRef, text: str, hold: int | None = None, max_hold: int = 0) -> Grip:
    """Decode one receipt handle. Raises ``SqsError`` if it is no handle of the queue."""
    [found] = grips(queue, [text], hold, max_hold)
    if found is None:
        raise errors.receipt_handle_is_invalid(text)
    return found


@lru_cache(maxsize=4096)
def _head(queue: QueueRef) -> bytes:
    """Return the version and the queue's hash, with which all handles of the queue begin.

    Names do not contain the separator of project and queue, so the hashed text is unambiguous.
    """
    return VERSION + blake2b(f"{queue.project}\x00{queue.name}".encode(), digest_size=8).digest()
