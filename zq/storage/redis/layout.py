# SPDX-License-Identifier: Apache-2.0
"""What lies in Redis. {t} = a project's hash tag, so that a project's keys share a cluster slot; moments in ms.

======================= ============ ==========================================================================
key                     type         what it holds
======================= ============ ==========================================================================
zq:version              string       number of this layout
zq:clock                string       largest moment seen, in microseconds
zq:{0}:due … {63}:due   sorted set   moment, project and queue, by moment: when the sweeper has to look where
zq:{t}:names            sorted set   names of the project's queues, in byte order
zq:{t}:queues           hash         queue name -> metadata
zq:{t}:floor            string       largest sequence of any deleted queue
zq:{t}:state:queue      hash         ``sequence`` = the last one, ``fresh`` = available-at of the last undelayed post,
                                     ``start`` = 16 x moment of the first post - sequence before it
zq:{t}:avail:queue      sorted set   sequence by available-at: *the* order of claims
zq:{t}:order:queue      sorted set   sequence by sequence: the observers' order
zq:{t}:expiry:queue     sorted set   sequence by expiry: the sweeper's order
zq:{t}:claimed:queue    sorted set   sequence by claim end, of what names a claim, lapsed ones included
zq:{t}:records:queue    hash         sequence -> record: all of a message but its body
zq:{t}:bodies:queue     hash         sequence -> the raw JSON body
zq:{t}:ids:queue        hash         message id -> sequence
zq:{t}:claims:queue     hash         claim id -> the sequences of all whose record names it, one behind the other
======================= ============ ==========================================================================

A sequence is written with 14 digits, so that equal scores sort by it. Scripts get the keys in this order: three of the
project, nine of the queue, and for a dead letter nine of the other queue. ``shared.lua`` has the other half of this.
"""

from functools import lru_cache
from hashlib import blake2b
from struct import Struct as Packing
from typing import Final, NamedTuple
from zlib import crc32

from zq.model import Draft, Message, Messages, QueueRef, Seconds

VERSION: Final = 1
VERSION_KEY: Final = b"zq:version"
CLOCK_KEY: Final = b"zq:clock"
CALENDARS: Final = 64
PROJECT_KINDS: Final = ("names", "queues", "floor")
QUEUE_KINDS: Final = ("state", "avail", "order", "expiry", "claimed", "records", "bodies", "ids", "claims")
MAX_SEQUENCE: Final = 10**14
"""Above all sequences."""

HEAD: Final = Packing(">QQQQQQQQIH")
"""sequence, available, expires, ttl, ends, former, claimed, lease, count, length of the claim, which stands last."""
TAIL: Final = Packing(">QIHHHHH")
"""created, claim count in the origin, lengths of id, client, checksum, origin, reason; these follow."""
LENGTH: Final = Packing(">I")
DAY: Final = Packing(">QI")
"""Front of a calendar's member: the moment, the length of the project, which follows, and then the queue."""


class Keys(NamedTuple):
    """The keys of one queue, ready to be sent."""

    anchor: bytes
    """Any key of the project: it tells the slot."""
    name: bytes
    metadata: bytes
    """Key of the hash ``queues``."""
    names: bytes
    project: bytes
    """The project's keys as arguments on the wire."""
    queue: bytes
    """The queue's own keys as arguments on the wire."""


def ms(moment: Seconds) -> int:
    """Seconds to stored milliseconds."""
    return round(moment * 1000)


def text(value: str) -> bytes:
    """Text as stored."""
    return value.encode("utf-8", "surrogatepass")


def string(value: bytes) -> str:
    """Stored text."""
    return value.decode("utf-8", "surrogatepass")


def wire(*arguments: bytes) -> bytes:
    """Arguments of a command as Redis reads them."""
    return b"".join([b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments])


@lru_cache(maxsize=8192)
def keys(ref: QueueRef) -> Keys:
    """The keys of a queue; with the name "" those of its project alone."""
    tag = blake2b(text(ref.project), digest_size=16).hexdigest()
    name = text(ref.name)
    names, metadata, floor = (b"zq:{%b}:%b" % (tag.encode(), kind.encode()) for kind in PROJECT_KINDS)
    own = [b"zq:{%b}:%b:%b" % (tag.encode(), kind.encode(), name) for kind in QUEUE_KINDS]
    return Keys(names, name, metadata, names, wire(names, metadata, floor), wire(*own))


def calendar(number: int) -> bytes:
    """Key of one of the sweeper's calendars."""
    return b"zq:{%d}:due" % number


def calendar_of(ref: QueueRef) -> bytes:
    """Key of the calendar that a queue's moments are in."""
    return calendar(crc32(text(ref.name), crc32(text(ref.project))) % CALENDARS)


def day(ref: QueueRef, moment: int) -> bytes:
    """A calendar's member."""
    project = text(ref.project)
    return DAY.pack(moment, len(project)) + project + text(ref.name)


def queue_of(member: bytes) -> QueueRef:
    """The queue that a calendar's member names."""
    end = DAY.size + DAY.unpack_from(member)[1]
    return QueueRef(string(member[DAY.size : end]), string(member[end:]))


def record(draft: Draft, now: int) -> bytes:
    """A new message's record; the script fills in the sequence, and the moment of one without delay."""
    id, client, checksum = text(draft.id), text(draft.client), text(draft.checksum)
    available = now + draft.delay * 1000 if draft.delay else 0
    head = HEAD.pack(0, available, now + draft.ttl * 1000, draft.ttl, 0, 0, 0, 0, 0, 0)
    return head + TAIL.pack(now, 0, len(id), len(client), len(checksum), 0, 0) + id + client + checksum


def message(blob: bytes, at: int, now: int) -> tuple[Message, int, int, int]:
    """The message whose record begins at ``at``, as it stands at ``now``; its claim's lease and start; the end."""
    sequence, available, expires, ttl, ends, _, claimed, lease, count, claim = HEAD.unpack_from(blob, at)
    at += HEAD.size
    created, _, id, client, checksum, origin, reason = TAIL.unpack_from(blob, at)
    first = at + TAIL.size
    second, third = first + id, first + id + client
    fourth = third + checksum
    body = fourth + origin + reason + claim + LENGTH.size
    end = body + LENGTH.unpack_from(blob, body - LENGTH.size)[0]
    found = Message(
        id=string(blob[first:second]),
        body=blob[body:end],
        ttl=ttl,
        created=created / 1000,
        expires=expires / 1000,
        available=available / 1000,
        sequence=sequence,
        client=string(blob[second:third]),
        claim=string(blob[body - LENGTH.size - claim : body - LENGTH.size]) if ends > now else "",
        claim_count=count,
        checksum=string(blob[third:fourth]),
    )
    return found, lease, claimed, end


def messages(blob: bytes, at: int, now: int) -> Messages:
    """All messages of a reply, from ``at`` on."""
    found = []
    while at < len(blob):
        item, _, _, at = message(blob, at, now)
        found.append(item)
    return found
