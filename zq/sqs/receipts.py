# SPDX-License-Identifier: Apache-2.0
"""Encoding of receipt handles. A receipt handle identifies one receive of one message.

A receipt handle is the unpadded base64url encoding of the following fields, with their lengths in bytes:

    0x01, 1 | hash of project and queue, 8 | message id, 16 | claim id, 16 | claim count, 4 | CRC-32 of the others, 4

Receipt handles are neither secret nor signed, because the request's signature authenticates the caller. The claim count
distinguishes two receives of a message under the same claim id, which happens with receive attempt ids.
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

# Length of a receipt handle in characters.
LENGTH: Final = 66
# Separator of handles that are encoded or decoded together. It aligns each handle to a base64 block.
PADDING: Final = "AA"
# Replacement for an invalid handle: it has the length of a padded handle and fails the checksum.
NONE: Final = "A" * LENGTH + PADDING
# Version of the format.
VERSION: Final = b"\x01"
# A handle's fields without the checksum, and the complete handle with checksum and padding.
_FIELDS: Final = Struct(">9s16s16sI")
_HANDLE: Final = Struct(">45sIH")
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_+/", b"+/!!")


def handles(queue: QueueRef, claim: str, messages: Iterable[Message]) -> list[str]:
    """Return the receipt handles of the messages that a claim has returned. The claim need not exist any more."""
    head, held, raw = _head(queue), bytes.fromhex(claim), []
    for message in messages:
        fields = _FIELDS.pack(head, bytes.fromhex(message.id), held, message.claim_count)
        raw.append(_HANDLE.pack(fields, crc32(fields), 0))
    text = b2a_base64(b"".join(raw), newline=False).translate(_TO_URL).decode()
    return [text[at : at + LENGTH] for at in range(0, len(text), len(NONE))]


def grips(queue: QueueRef, texts: Sequence[str], hold: int | None = None, max_hold: int = 0) -> list[Grip | None]:
    """Decode receipt handles of the queue. Return None in place of each invalid handle.

    ``hold`` and ``max_hold`` are passed to ``Grip``.
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
    """Base64-decode the handles. A malformed handle is replaced by ``NONE``, which fails the checksum later."""
    padded = "".join([text + PADDING if len(text) == LENGTH else NONE for text in texts])
    try:
        return a2b_base64(padded.encode("ascii", "replace").translate(_FROM_URL), strict_mode=True)
    except NotBase64:
        return b"".join([_read([text]) for text in texts]) if len(texts) > 1 else _read([NONE])


def grip(queue: QueueRef, text: str, hold: int | None = None, max_hold: int = 0) -> Grip:
    """Decode one receipt handle. Raises ``SqsError`` if the handle is invalid or belongs to another queue."""
    [found] = grips(queue, [text], hold, max_hold)
    if found is None:
        raise errors.receipt_handle_is_invalid(text)
    return found


@lru_cache(maxsize=4096)
def _head(queue: QueueRef) -> bytes:
    """Return the version and queue hash, the prefix of all receipt handles of the queue.

    Names cannot contain the NUL separator, so the hashed text is unambiguous.
    """
    return VERSION + blake2b(f"{queue.project}\x00{queue.name}".encode(), digest_size=8).digest()
