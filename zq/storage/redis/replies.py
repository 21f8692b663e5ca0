# SPDX-License-Identifier: Apache-2.0
"""Decoding of messages and history entries in script replies. ``layout`` describes their format."""

from zq.model import HistoryEntry, Message, Messages
from zq.storage.redis.layout import (
    ENTRY,
    HISTORY_HEADER,
    MESSAGE_HEADER,
    OPTIONAL_HEADER,
    OPTIONAL_TAIL,
    OUTCOMES,
    STATE,
    decode_text,
    unpack_client_id,
    unpack_id,
)


def message(blob: bytes, at: int, now: int) -> tuple[Message, int, int, int]:
    """Decode the message at byte offset ``at``. ``now``, in milliseconds, decides whether a claim has expired.

    Return the message, the claim's ttl in seconds, the claim's start in milliseconds, and the end offset of the
    message. The ttl and the start are 0 if the message was never claimed.
    """
    length = MESSAGE_HEADER.unpack_from(blob, at)[0]
    first = at + MESSAGE_HEADER.size
    entry = first + length
    _, high, low, available, expires, ttl, size, id, client, more = ENTRY.unpack_from(blob, entry)
    created, origin_count, checksum, origin, reason, group = expires - ttl * 1000, 0, "", "", "", ""
    ends = claimed = lease = count = since = attributes = former = 0
    if length:
        available, expires, ttl, ends, _, claimed, lease, count, since = STATE.unpack_from(blob, first)
    second = entry + ENTRY.size + id
    third = second + client
    body = third + more
    end = body + size
    if more:
        created, origin_count, checksum, origin, reason, former, attributes, group = _more(blob[third:body], created)
    found = Message(  # positional, because keywords would cost three times as much
        unpack_id(blob[second - id : second]),
        blob[body : end - attributes],
        ttl,
        created / 1000,
        expires / 1000,
        available / 1000,
        high << 32 | low,
        unpack_client_id(blob[second:third]),
        decode_text(blob[first + STATE.size : first + length]) if ends > now else "",
        count,
        checksum,
        origin,
        origin_count,
        reason,
        blob[end - attributes : end],
        (since or former) / 1000,
        group,
    )
    return found, lease, claimed, end


def _more(more: bytes, created: int) -> tuple[int, int, str, str, str, int, int, str]:
    """Decode the optional fields of an entry.

    Return these values:

    - the creation time, or ``created`` if the entry has no creation time;
    - the claim count in the origin queue, the checksum, the origin queue, and the dead-letter reason;
    - the time of the first claim, or 0 if the message was never claimed;
    - the size of the attributes in bytes, and the message group.

    Times are in milliseconds.
    """
    told, count, checksum, origin, reason = OPTIONAL_HEADER.unpack_from(more)
    second = OPTIONAL_HEADER.size + checksum
    third = second + origin
    tail = third + reason
    texts = more[OPTIONAL_HEADER.size : second], more[second:third], more[third:tail]
    former, attributes = OPTIONAL_TAIL.unpack_from(more, tail) if tail < len(more) else (0, 0)
    group = decode_text(more[tail + OPTIONAL_TAIL.size :])
    return (
        told or created,
        count,
        decode_text(texts[0]),
        decode_text(texts[1]),
        decode_text(texts[2]),
        former,
        attributes,
        group,
    )


def messages(blob: bytes, at: int, now: int) -> Messages:
    """Decode all messages from byte offset ``at`` to the end. ``now`` is in milliseconds."""
    found = []
    while at < len(blob):
        item, _, _, at = message(blob, at, now)
        found.append(item)
    return found


def finished(blob: bytes, at: int, now: int) -> list[HistoryEntry]:
    """Decode all history entries and live messages from byte offset ``at`` to the end. ``now`` is in milliseconds."""
    found = []
    while at < len(blob):
        outcome, moment, position, expires = HISTORY_HEADER.unpack_from(blob, at)
        item, _, _, at = message(blob, at + HISTORY_HEADER.size, now)
        found.append(HistoryEntry(item, OUTCOMES[outcome], moment / 1000, position, expires / 1000))
    return found
