# SPDX-License-Identifier: Apache-2.0
"""What lies in the embedded store. All numbers big-endian; moments in milliseconds; q = a queue's 8-byte number.

=========== ============================== ====================================================================
family      key                            value
=========== ============================== ====================================================================
default     "version" "clock" "numbers"    schema version; largest moment seen; last queue number given
default     "doomed" q                     the key in ``queues``: a queue's former number, its space to be given back
queues      len(project) project name      QueueRecord: its number and metadata
numbers     q                              the key in ``queues``
tallies     q                              Tally: last sequence, last available-at of a fresh post, message count
messages    q sequence                     Record: all of a message but its body; the observers' order
bodies      q sequence                     the raw JSON body
available   q available-at sequence        expires: *the* order of claims
expiry      expires q sequence             nothing: the sweeper's order
ids         len(project) project id        q sequence
claims      q claim id 00 sequence         claim end: what a claim holds, lapsed ones until someone takes over
=========== ============================== ====================================================================

A message has exactly one entry in messages, bodies, available, expiry and ids, and one in claims while its record
names a claim. Purging or deleting a queue only dooms its number; the sweeper gives the space back.
"""

from struct import Struct as Packing
from typing import Final, NamedTuple

from msgspec import Struct, msgpack

from zq.model import Message, QueueRef, Seconds

FAMILIES: Final = (
    "default",
    "queues",
    "numbers",
    "tallies",
    "messages",
    "bodies",
    "available",
    "expiry",
    "ids",
    "claims",
)
VERSION: Final = b"1"
LENGTH: Final = 4
"""Bytes of the length in front of a project."""
DOOMED: Final = b"doomed"

number = Packing(">Q")
pair = Packing(">QQ")
triple = Packing(">QQQ")


class QueueRecord(Struct, array_like=True):
    """A queue's entry in ``queues``."""

    number: int
    metadata: bytes


class Tally(Struct, array_like=True):
    """The counters of a queue."""

    sequence: int = 0
    fresh: int = 0
    count: int = 0


class Place(NamedTuple):
    """Where the index entries of a message are, besides its sequence."""

    available: int
    expires: int
    claim: str
    ends: int


class Record(Struct, array_like=True):
    """A message without its body. ``claim`` lives while ``ends`` is to come; ``former`` = available before it."""

    id: str
    created: int
    expires: int
    available: int
    ttl: int
    client: str
    checksum: str = ""
    claim: str = ""
    claimed: int = 0
    lease: int = 0
    ends: int = 0
    former: int = 0
    count: int = 0
    origin: str = ""
    origin_count: int = 0
    reason: str = ""

    def held(self, now: int) -> bool:
        """Whether a live claim holds it."""
        return self.ends > now and self.claim != ""

    def place(self) -> Place:
        """Its place now, to be told from the one after a change."""
        return Place(self.available, self.expires, self.claim, self.ends)


encode = msgpack.Encoder().encode
decode_queue = msgpack.Decoder(QueueRecord).decode
decode_tally = msgpack.Decoder(Tally).decode
decode_record = msgpack.Decoder(Record).decode


def ms(moment: Seconds) -> int:
    """Seconds to stored milliseconds."""
    return round(moment * 1000)


def project_prefix(project: str) -> bytes:
    """Where a project's queues begin; the length in front keeps projects apart whatever they contain."""
    text = project.encode("utf-8", "surrogatepass")
    return len(text).to_bytes(LENGTH, "big") + text


def queue_key(ref: QueueRef) -> bytes:
    return project_prefix(ref.project) + ref.name.encode("utf-8", "surrogatepass")


def queue_ref(key: bytes) -> QueueRef:
    """The queue whose key this is."""
    prefix = prefix_of(key)
    return QueueRef(*(part.decode("utf-8", "surrogatepass") for part in (prefix[LENGTH:], key[len(prefix) :])))


def id_key(project: bytes, message: str) -> bytes:
    """Where an id leads from; ``project`` = its ``project_prefix``."""
    return project + message.encode("utf-8", "surrogatepass")


def prefix_of(key: bytes) -> bytes:
    """The project's part of a queue's key."""
    return key[: LENGTH + int.from_bytes(key[:LENGTH])]


def claim_prefix(queue: int, claim: str) -> bytes:
    """Where a claim's entries begin. A claim id holds no zero byte, so that no other id's entries are met."""
    return number.pack(queue) + claim.encode("utf-8", "surrogatepass") + b"\0"


def after(prefix: bytes) -> bytes:
    """The smallest key above all that begin with ``prefix``."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


def message(sequence: int, record: Record, body: bytes, now: int) -> Message:
    """The model's message, as it stands at ``now``."""
    return Message(
        id=record.id,
        body=body,
        ttl=record.ttl,
        created=record.created / 1000,
        expires=record.expires / 1000,
        available=record.available / 1000,
        sequence=sequence,
        client=record.client,
        claim=record.claim if record.ends > now else "",
        claim_count=record.count,
        checksum=record.checksum,
    )
