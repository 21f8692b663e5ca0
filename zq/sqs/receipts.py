# SPDX-License-Identifier: Apache-2.0
"""Encoding of receipt handles. A receipt handle identifies one receive of one message.

A receipt handle is the unpadded base64url encoding of these fields (lengths in bytes):

    0x01, 1 | hash of project and queue, 8 | message id, 16 | claim id, 16 | claim count, 4 | CRC-32 of the rest, 4

Receipt handles are neither secret nor signed: the request's signature authenticates the caller. Receives with one
receive attempt id share a claim id, so the claim count distinguishes them.
"""

from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterable, Sequence
from functools import lru_cache
from hashlib import blake2b
from struct import Struct
from typing import Final
from zlib import crc32

from zq.model import Message, MessageHandle, QueueRef
from zq.sqs import errors

# Length of a receipt handle in characters.
LENGTH: Final = 66
# Padding between handles that are encoded or decoded together, so that each handle fills whole base64 blocks.
PADDING: Final = "AA"
# Replacement for a malformed handle. It has the length of a padded handle, and its checksum is wrong.
INVALID_HANDLE: Final = "A" * LENGTH + PADDING
# Version of the format.
VERSION: Final = b"\x01"
# Layout of a handle without the checksum, and of a complete handle with checksum and padding.
_FIELDS: Final = Struct(">9s16s16sI")
_HANDLE: Final = Struct(">45sIH")
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_+/", b"+/!!")


def encode_handles(queue: QueueRef, claim: str, messages: Iterable[Message]) -> list[str]:
    """Encode the receipt handles of a claim's messages, in order."""
    head, held, raw = _prefix(queue), bytes.fromhex(claim), []
    for message in messages:
        fields = _FIELDS.pack(head, bytes.fromhex(message.id), held, message.claim_count)
        raw.append(_HANDLE.pack(fields, crc32(fields), 0))
    text = b2a_base64(b"".join(raw), newline=False).translate(_TO_URL).decode()
    return [text[at : at + LENGTH] for at in range(0, len(text), len(INVALID_HANDLE))]


def decode_handles(
    queue: QueueRef, texts: Sequence[str], hold: int | None = None, max_hold: int = 0
) -> list[MessageHandle | None]:
    """Decode receipt handles into operations that delete messages or change visibility timeouts.

    The result has one entry per handle, in the given order. The entry is None if the handle is invalid or belongs to
    another queue.

    Args:
        hold: The new visibility timeout in seconds; None = delete the messages.
        max_hold: The maximum duration of the claim in seconds; 0 = no limit.
    """
    own, found = _prefix(queue), list[MessageHandle | None]()
    for fields, total, padding in _HANDLE.iter_unpack(_decode_base64(texts)):
        head, message, claim, count = _FIELDS.unpack(fields)
        if head == own and total == crc32(fields) and not padding:
            found.append(MessageHandle(message.hex(), claim.hex(), count, hold, max_hold))
        else:
            found.append(None)
    return found


def _decode_base64(texts: Sequence[str]) -> bytes:
    padded = "".join([text + PADDING if len(text) == LENGTH else INVALID_HANDLE for text in texts])
    try:
        return a2b_base64(padded.encode("ascii", "replace").translate(_FROM_URL), strict_mode=True)
    except NotBase64:
        return (
            b"".join([_decode_base64([text]) for text in texts]) if len(texts) > 1 else _decode_base64([INVALID_HANDLE])
        )


def decode_handle(queue: QueueRef, text: str, hold: int | None = None, max_hold: int = 0) -> MessageHandle:
    """Decode one receipt handle, like ``decode_handles``. Raises ``SqsError`` for an invalid handle."""
    [found] = decode_handles(queue, [text], hold, max_hold)
    if found is None:
        raise errors.receipt_handle_is_invalid(text)
    return found


@lru_cache(maxsize=4096)
def _prefix(queue: QueueRef) -> bytes:
    """Return the first bytes of a queue's receipt handles: the version and the hash of project and queue name.

    A NUL character separates the project from the queue name. Neither contains NUL, so no two queues have equal hash
    input.
    """
    return VERSION + blake2b(f"{queue.project}\x00{queue.name}".encode(), digest_size=8).digest()
