# SPDX-License-Identifier: Apache-2.0
"""What lies in the embedded store. All numbers big-endian; moments in milliseconds; q = a queue's 8-byte number.

========= ==================================== ======================================================================
family    key                                  value
========= ==================================== ======================================================================
default   "version" "clock" "numbers" "starts" schema version; largest moment seen; last number given; last start
default   "doomed" q                           the key in ``queues``: a former number, its space to be given back
default   "dropped" n                          nothing: the same for the number of a history or of a stage
default   "commit" len(project) project name 00 a commit that is decided and not done: see ``unfinished``
default   "fallen" n                           the key in ``logs``: batches fell off, their index entries are to go
queues    len(project) project name            QueueRecord: its number, its metadata, the number h of its history
hidden    len(project) project name            QueueRecord: h of a queue that does not exist, for its keys
numbers   q                                    the key in ``queues``
tallies   q                                    Tally: the queue's counters
messages  q sequence                           Record: all of a message but its body; the observers' order
bodies    q sequence                           the raw JSON body, and 4 bytes: its stamp, see ``sealed``
available q available-at sequence              expires: *the* order of claims
expiry    expires q sequence                   nothing: the sweeper's order
ids       len(project) project id              q sequence
claims    q claim id 00 sequence               claim end: what a claim holds, lapsed ones until someone takes over
history   h position                           Past: a finished message, its body included
sequences h sequence                           position: records in the order of sequence
endings   h id 00 position                     nothing: records of a message id
keys      h key 00 expires                     Known: an idempotency key of the queue
fences    len(project) project name            the last epoch given out
stages    len(project) project name 00 expires Stage: its number n and size
staged    n index                              Staged: a message to be published
producers len(project) project name 00 expires Batch: its last commit
logs      len(project) project                 LogRecord: number n of its log, last sequence, totals, what fell off
batches   n last                               Stored: messages published together; the last one's sequence is the key
topics    n len(topic) topic last              expires, first sequence, first expiry: the batches of a topic
floors    n len(topic) topic                   sequence, key in ``logs``: up to there the topic was purged
records   len(project) project len(kind) ...   StoredRecord: a document; the key ends in kind and name
due       expires kind key                     what else expires: the entry ``key`` of ``FAMILY_OF[kind]``
========= ==================================== ======================================================================

A message has exactly one entry in messages, bodies, available, expiry and ids, and one in claims while its record
names a claim. The compaction filter takes its body some time after it has expired, so a record without body is one of
a message that has expired. Purging or deleting a queue only dooms its number; the sweeper gives the space back.
A queue's history and its keys go by a number of their own, which a purge keeps: h = the first one that the queue had.
A record of history has exactly one entry in history, sequences, endings and due; what has its end in its key (keys,
stages, producers) one there and one in due, so that the sweeper can remove it by that alone, without a lock.
A batch has one entry in batches, topics and due. When it falls off, its entry in batches goes with a whole range, and
the others later; the keys of a log go by its number.
"""

from struct import Struct as Packing
from typing import Final, NamedTuple

from msgspec import Struct, msgpack

from zq.model import Draft, Message, QueueRef, Seconds

FAMILIES: Final = (
    "default",
    "queues",
    "hidden",
    "numbers",
    "tallies",
    "messages",
    "bodies",
    "available",
    "expiry",
    "ids",
    "claims",
    "history",
    "sequences",
    "endings",
    "keys",
    "fences",
    "stages",
    "staged",
    "producers",
    "logs",
    "batches",
    "topics",
    "floors",
    "records",
    "due",
)
VERSION: Final = b"4"
FORMER_VERSION: Final = b"3"
"""Without families that are empty in a new store."""
LENGTH: Final = 4
"""Bytes of the length in front of a project."""
END: Final = b"\xff" * LENGTH
"""Above every key that begins with the length of a project."""
DOOMED: Final = b"doomed"
DROPPED: Final = b"dropped"
FALLEN: Final = b"fallen"
COMMIT: Final = b"commit"
FAMILY_OF: Final = {
    kind.encode()[:1]: kind for kind in ("batches", "history", "keys", "producers", "records", "stages")
}
KIND_OF: Final = {family: kind for kind, family in FAMILY_OF.items()}

LATEST_STAMP: Final = (1 << 32) - 1

stamp = Packing("<I")
number = Packing(">Q")
pair = Packing(">QQ")
triple = Packing(">QQQ")


class QueueRecord(Struct, array_like=True):
    """A queue's entry in ``queues``."""

    number: int
    metadata: bytes
    history: int


class Tally(Struct, array_like=True):
    """The counters of a queue: last sequence, last available-at of a fresh post, messages; last record of history; the
    start (see ``starts``) by which they were written."""

    sequence: int = 0
    fresh: int = 0
    count: int = 0
    position: int = 0
    finished: int = 0
    start: int = 0


class Place(NamedTuple):
    """Where the index entries of a message are, besides its sequence."""

    available: int
    expires: int
    claim: str
    ends: int


class Trace(Struct, array_like=True):
    """The first fields of a Record: all that must be known to remove the message."""

    id: str
    created: int
    expires: int
    available: int
    ttl: int
    client: str
    checksum: str = ""
    claim: str = ""


class Record(Trace, array_like=True):
    """A message without its body. ``claim`` lives while ``ends`` is to come; ``former`` = available before it."""

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


class Past(Struct, array_like=True):
    """A record of history."""

    record: Record
    body: bytes
    sequence: int
    outcome: str
    finished: int
    expires: int


class Known(Struct, array_like=True):
    """An idempotency key: what a repeat must have in common, and the encoded answer."""

    digest: bytes
    answer: bytes


class Stage(Struct, array_like=True):
    """A stage: where its messages lie, how many they are, the bytes of their bodies."""

    number: int
    count: int = 0
    size: int = 0


class Staged(Struct, array_like=True):
    """A message to be published; ``draft`` is one of the queue's."""

    queue: str
    draft: Draft


class Batch(Struct, array_like=True):
    """A producer's last commit."""

    batch: int
    published: int
    deleted: int


encode = msgpack.Encoder().encode
decode_queue = msgpack.Decoder(QueueRecord).decode
decode_tally = msgpack.Decoder(Tally).decode
decode_record = msgpack.Decoder(Record).decode
decode_trace = msgpack.Decoder(Trace).decode
decode_past = msgpack.Decoder(Past).decode
decode_known = msgpack.Decoder(Known).decode
decode_stage = msgpack.Decoder(Stage).decode
decode_staged = msgpack.Decoder(Staged).decode
decode_batch = msgpack.Decoder(Batch).decode


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


def project_of(key: bytes) -> str:
    """The project that such a prefix stands for."""
    return key[LENGTH:].decode("utf-8", "surrogatepass")


def prefix_of(key: bytes) -> bytes:
    """The project's part of a queue's key."""
    return key[: LENGTH + int.from_bytes(key[:LENGTH])]


def ended(prefix: bytes, name: str) -> bytes:
    """Where the entries of a name begin. No name so used holds a zero byte: no other one's entries are met."""
    return prefix + name.encode("utf-8", "surrogatepass") + b"\0"


def claim_prefix(queue: int, claim: str) -> bytes:
    """Where a claim's entries begin."""
    return ended(number.pack(queue), claim)


def after(prefix: bytes) -> bytes:
    """The smallest key above all that begin with ``prefix``."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


def sealed(body: bytes, expires: int, grace: int) -> bytes:
    """A body as it is stored, so that the compaction filter (``compaction``) takes it ``grace`` s after its expiry."""
    seconds = -(-expires // 1000) + grace - 1
    return body + stamp.pack(min(max(seconds, 0), LATEST_STAMP))


def unsealed(value: bytes) -> bytes:
    """The body."""
    return value[: -stamp.size]


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
        origin=record.origin,
        origin_claim_count=record.origin_count,
        reason=record.reason,
    )
