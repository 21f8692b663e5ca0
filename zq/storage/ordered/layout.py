# SPDX-License-Identifier: Apache-2.0
"""The keys and values of a store. Numbers are big-endian, times are Unix milliseconds, and q is the number of a queue.

========= ==================================== ======================================================================
family    key                                  value
========= ==================================== ======================================================================
default   "version" "clock" "numbers" "starts" schema version; latest time seen; last number issued; start count
default   "level"                              StoreLevel; absent: level 1
default   "boot"                               id of the machine's current boot, and its trusted time
default   "doomed" q                           key in ``queues``: the data of the former queue q is to be removed
default   "dropped" n                          empty: the data of the history or stage n is to be removed
default   "removed" h                          bytes of history entries and results of h that active expiry removed
default   "commit" len(project) project name 00 OpenCommit: a commit that is recorded but not completed
default   "fallen" n                           key in ``logs``: index entries of trimmed batches are to be removed
default   "advanced" len(project) project name when the last epoch of the fence was issued
queues    len(project) project name            QueueRecord: queue number, metadata, number h of the history
hidden    len(project) project name            QueueRecord: h of a queue that does not exist, for idempotency keys
numbers   q                                    key in ``queues``
tallies   q                                    Tally: the queue's counters
messages  q sequence                           StoredMessage, including a short body; the order of listings
bodies    q sequence                           longer raw JSON body, followed by a 4-byte stamp, see ``seal_body``
available q available-at sequence              expires: the claim order of all messages that are not fresh;
                                               in a grouped queue, the hash of a group: one entry per group
lines     q hash                               time, order, sequence: the head of a message group, see ``group_index``
lines     q hash order sequence                empty: a message of the group, in a grouped queue
expiry    expires q sequence                   empty: the order of active expiry
ids       len(project) project id              q sequence
claims    q claim id 00 group                  end, sequences, holder: messages of a claim, until they are claimed again
history   h position                           StoredEntry: a finished message with its body
sequences h sequence                           position: history entries in the order of sequences
endings   h id 00 position                     empty: history entries of a message id
keys      h key 00 expires                     StoredKey: an idempotency key of the queue
fences    len(project) project name            last issued epoch
stages    len(project) project name 00 expires Stage: number n and size of the stage
staged    n index                              StagedMessage: a message to be published
producers len(project) project name 00 expires Batch: the producer's last commit
logs      len(project) project                 LogRecord: number n of the log, last sequence, totals, trimmed totals
batches   n last                               StoredBatch: messages published together; the key has the last sequence
topics    n len(topic) topic last              expires, first sequence, first expiry: the batches of a topic
floors    n len(topic) topic                   sequence, key in ``logs``: the topic was purged up to this sequence
records   len(project) project len(kind) ...   StoredDocument: a document; the key ends in kind and name
due       expires kind key                     a note, see ``due``: the entry ``key`` of ``FAMILY_OF[kind]`` expires
========= ==================================== ======================================================================

Each message has one entry in each of messages, expiry and ids. A body that its record does not contain has an entry in
bodies. A claimed message is listed in an entry in claims.

A message is fresh if it was posted without a delay and has not been claimed yet. Fresh messages are claimed in order of
their sequences; the tally has the sequence before the first one. In a queue without groups, all other messages have an
entry in available.

The compaction filter drops a body some time after the message has expired. A message without any body has therefore
expired. Purging or deleting a queue only records its number; active expiry removes its data later.

The history and the idempotency keys of a queue have a number of their own, h, which is the queue's first number. A
purge gives the queue a new number q but keeps h. A history entry has one entry in each of history, sequences, endings
and due. Idempotency keys, stages and producers have one entry in their family and one in due. Their keys contain the
expiry, so active expiry can remove them without further reads.

A batch has one entry in each of batches, topics and due. A trim removes a range of batches in one write; active expiry
removes their entries in topics and due later. The idempotency keys of a log have the log's number instead of h.
"""

from collections.abc import Iterable
from struct import Struct as Packing
from typing import Final, NamedTuple

from msgspec import Struct, msgpack

from zq.model import Draft, Grouping, Message, QueueRef, Seconds

FAMILIES: Final = (
    "default",
    "queues",
    "hidden",
    "numbers",
    "tallies",
    "messages",
    "bodies",
    "available",
    "lines",
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
    "records",  # documents
    "due",
)
# The family with the compaction filter. Its values end with the time from which the filter may drop them.
STAMPED_FAMILY: Final = "bodies"
# The family from which large ranges are removed.
TRIMMED_FAMILY: Final = "batches"
VERSION: Final = b"5"
# Maximum size in bytes of a body that is stored in the message's record. A longer one would make claims slow, because
# each claim rewrites the record.
SHORT: Final = 512
# Maximum number of messages in one entry of ``claims``. The entry is rewritten whenever a message leaves the claim.
GROUP: Final = 64
# Size in bytes of the length field before a project.
LENGTH: Final = 4
# A key above all keys that begin with the length of a project.
END: Final = b"\xff" * LENGTH
PENDING_QUEUE: Final = b"doomed"
PENDING_NUMBER: Final = b"dropped"
REMOVED: Final = b"removed"
TRIMMED_LOG: Final = b"fallen"
COMMIT: Final = b"commit"
ADVANCED: Final = b"advanced"
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
    """A queue's entry in ``queues``: its number, metadata, history number, and message group mode."""

    number: int
    metadata: bytes
    history: int
    grouping: Grouping = Grouping.NONE


class Tally(Struct, array_like=True):
    """The counters of a queue, or of the hidden state that keeps the idempotency keys of a missing queue.

    A fresh message was posted without a delay and has no entry in the index ``available``.

    Attributes:
        fresh: The available-at of the last message that was appended without a delay, in Unix milliseconds.
        position: The position of the last history entry.
        finished: The time of the last history entry, in Unix milliseconds.
        start: The boot epoch (number of starts) in which the counters were written; see ``startup.count_start``.
        bytes: The total size of the messages.
        kept: The total size in bytes of all history entries and idempotency results ever added. The current size is
            this total minus the size stored under ``REMOVED``.
        fresh_head: The sequence after which claims search for fresh messages.
        fresh_tail: The sequence of the last fresh message.
        fresh_gap: The number of messages that were appended after the last fresh message.
        group: The number of the last claim group (messages of one claim that are claimed until the same time).
    """

    sequence: int = 0
    fresh: int = 0
    count: int = 0
    position: int = 0
    finished: int = 0
    start: int = 0
    bytes: int = 0
    kept: int = 0
    fresh_head: int = 0
    fresh_tail: int = 0
    fresh_gap: int = 0
    group: int = 0


class IndexFields(NamedTuple):
    """The fields of a record that determine the message's index entries; see ``NewMessage``."""

    indexed: bool
    available: int
    expires: int
    claim: str
    until: int
    group: int


class NewMessage(Struct, array_like=True):
    """The stored form of a new message without attributes or a message group.

    Times are Unix times in milliseconds; ``ttl`` and ``lease`` are in seconds.

    Attributes:
        claim: The id of the last claim, which is live until ``ends``.
        claimed: The time at which the last claim was created or renewed.
        former: The available-at before the last claim.
        count: The number of claims.
        size: The number of bytes that the message adds to the queue's counters.
        indexed: Whether the message has its own entry in the index ``available``.
        body: The body, or None if it is stored in ``bodies``.
        group: The number of the message's claim group: messages of one claim that are claimed until the same time.
    """

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
    size: int = 0
    indexed: bool = False
    body: bytes | None = None
    group: int = 0

    @property
    def until(self) -> int:
        """The end of the claim or the message's expiry, whichever is earlier, as Unix time in milliseconds."""
        return self.ends if self.ends < self.expires else self.expires

    def is_held(self, now: int) -> bool:
        return self.ends > now and self.expires > now and self.claim != ""

    def index_fields(self) -> IndexFields:
        ends, expires = self.ends, self.expires  # not ``until``: a property call is slow, and claims call this often
        until = ends if ends < expires else expires
        return IndexFields(self.indexed, self.available, expires, self.claim, until, self.group)


class StoredMessage(NewMessage):
    """The stored form of any message.

    ``first`` is the time of the first claim in Unix milliseconds, or 0 if the message was never claimed.
    """

    first: int = 0
    attributes: bytes = b""
    message_group: str = ""


# (sequence, record)
Found = tuple[int, StoredMessage]


class StoredEntry(Struct, array_like=True):
    """The stored form of a history entry. ``finished`` and ``expires`` are in Unix milliseconds."""

    record: StoredMessage
    body: bytes
    sequence: int
    outcome: str
    finished: int
    expires: int
    size: int = 0


class StoredKey(Struct, array_like=True):
    """The stored form of an idempotency key and the result of its first request.

    ``size`` is the number of bytes that the key adds to the queue's counters, or 0 in a topic log. ``last`` is the
    sequence of the last message of a post, or 0 if the sequence is unknown.
    """

    digest: bytes
    answer: bytes
    size: int = 0
    last: int = 0


class Stage(Struct, array_like=True):
    """The record of a stage: messages that a producer has stored, and that a commit publishes.

    Attributes:
        number: The number of the stage. The keys of its messages in ``staged`` begin with this number.
        count: The number of messages.
        size: The size of the stage in bytes.
    """

    number: int
    count: int = 0
    size: int = 0


class StagedMessage(Struct, array_like=True):
    """A staged message with its target queue."""

    queue: str
    draft: Draft


class Batch(Struct, array_like=True):
    """A producer's last commit.

    ``decided`` is the time of the commit in Unix milliseconds, or 0 if an older version of zq stored the record.
    """

    batch: int
    published: int
    deleted: int
    decided: int = 0


encode = msgpack.Encoder().encode
decode_queue = msgpack.Decoder(QueueRecord).decode
decode_tally = msgpack.Decoder(Tally).decode
decode_holder = msgpack.Decoder(tuple[str, str]).decode
decode_record = msgpack.Decoder(StoredMessage).decode
decode_entry = msgpack.Decoder(StoredEntry).decode
decode_known = msgpack.Decoder(StoredKey).decode
decode_stage = msgpack.Decoder(Stage).decode
decode_staged = msgpack.Decoder(StagedMessage).decode
decode_batch = msgpack.Decoder(Batch).decode


def ms(moment: Seconds) -> int:
    return round(moment * 1000)


def project_prefix(project: str) -> bytes:
    """Return the key prefix of a project: the length of the name, and the name.

    Because of the length, the prefix of project ``a`` does not match the keys of project ``ab``.
    """
    text = project.encode("utf-8", "surrogatepass")
    return len(text).to_bytes(LENGTH, "big") + text


def queue_key(ref: QueueRef) -> bytes:
    return project_prefix(ref.project) + ref.name.encode("utf-8", "surrogatepass")


def decode_queue_key(key: bytes) -> QueueRef:
    """Return the queue to which a key of ``queues`` belongs."""
    prefix = extract_project_prefix(key)
    return QueueRef(*(part.decode("utf-8", "surrogatepass") for part in (prefix[LENGTH:], key[len(prefix) :])))


def id_key(project: bytes, message: str) -> bytes:
    return project + message.encode("utf-8", "surrogatepass")


def decode_project(key: bytes) -> str:
    return key[LENGTH:].decode("utf-8", "surrogatepass")


def extract_project_prefix(key: bytes) -> bytes:
    """Return the project's key prefix, with which the given key begins; see ``project_prefix``."""
    return key[: LENGTH + int.from_bytes(key[:LENGTH])]


def name_prefix(prefix: bytes, name: str) -> bytes:
    """Return the key prefix for a name, which must not contain zero bytes.

    The prefix ends with a zero byte, so that it does not match the keys of longer names.
    """
    return prefix + name.encode("utf-8", "surrogatepass") + b"\0"


def claim_prefix(queue: int, claim: str) -> bytes:
    return name_prefix(number.pack(queue), claim)


def claim_key(queue: int, claim: str, group: int) -> bytes:
    """Return the key of a claim group: messages of one claim that are claimed until the same time."""
    return claim_prefix(queue, claim) + number.pack(group)


# A flag in the last number of a group's value. If it is set, the low bits are the length of the holder, which precedes
# the number. Otherwise the number is a sequence; sequences are never this large.
HELD: Final = 1 << 63


def encode_group(ends: int, sequences: Iterable[int], holder: bytes = b"") -> bytes:
    """Encode a claim group: its end in Unix milliseconds, the sequences of its messages, and the holder."""
    listed = b"".join(map(number.pack, (ends, *sorted(sequences))))
    return listed + holder + bytes(-len(holder) % number.size) + number.pack(HELD | len(holder)) if holder else listed


def decode_group(value: bytes) -> tuple[int, list[int]]:
    """Return the end of a claim group in Unix milliseconds, and the sequences of its messages."""
    ends, *sequences = Packing(f">{len(value) // number.size}Q").unpack(value)
    if sequences and sequences[-1] >= HELD:
        del sequences[-1 - -(-(sequences[-1] - HELD) // number.size) :]
    return ends, sequences


def decode_group_holder(value: bytes) -> bytes:
    """Return the encoded holder of a claim group's claim, or b"" if the holder is unknown."""
    last = number.unpack(value[-number.size :])[0]
    if last < HELD:
        return b""
    length = last - HELD
    end = len(value) - number.size
    start = end - length - (-length % number.size)
    return value[start : start + length]


def prefix_end(prefix: bytes) -> bytes:
    """Return the smallest key above all keys with this prefix."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


def seal_body(body: bytes, expires: int, grace: int) -> bytes:
    """Encode a body that the compaction filter may drop ``grace`` seconds after ``expires`` (Unix milliseconds)."""
    seconds = -(-expires // 1000) + grace - 1
    return body + stamp.pack(min(max(seconds, 0), LATEST_STAMP))


def unseal_body(value: bytes) -> bytes:
    return value[: -stamp.size]


def build_message(sequence: int, record: StoredMessage, body: bytes, now: int) -> Message:
    """Build a message from its record and body. ``now`` (Unix milliseconds) determines whether its claim is live."""
    return Message(  # positional arguments, because keywords would take three times as long
        record.id,
        body,
        record.ttl,
        record.created / 1000,
        record.expires / 1000,
        record.available / 1000,
        sequence,
        record.client,
        record.claim if record.ends > now else "",
        record.count,
        record.checksum,
        record.origin,
        record.origin_count,
        record.reason,
        record.attributes,
        record.first / 1000,
        record.message_group,
    )
