# SPDX-License-Identifier: Apache-2.0
"""The layout of a store. Numbers are big-endian, times are in milliseconds, and q is a queue's 8-byte number.

========= ==================================== ======================================================================
family    key                                  value
========= ==================================== ======================================================================
default   "version" "clock" "numbers" "starts" schema version; largest time seen; last number issued; last start
default   "doomed" q                           key in ``queues``: the former queue q awaits its removal
default   "dropped" n                          empty: the history or stage n awaits its removal
default   "removed" h                          bytes of history entries and answers of h that active expiry removed
default   "commit" len(project) project name 00 OpenCommit: a commit that is decided but not completed
default   "fallen" n                           key in ``logs``: index entries of trimmed batches await their removal
default   "advanced" len(project) project name when the last epoch of the fence was issued
queues    len(project) project name            QueueRecord: queue number, metadata, number h of the history
hidden    len(project) project name            QueueRecord: h of a queue that does not exist, for idempotency keys
numbers   q                                    key in ``queues``
tallies   q                                    Tally: the queue's counters
messages  q sequence                           StoredMessage, with a short body; the order of listings
bodies    q sequence                           longer raw JSON body, followed by a 4-byte stamp, see ``sealed``
available q available-at sequence              expires: the order of claims, of all messages except fresh ones;
                                               in a grouped queue a line's hash: one entry per line
lines     q hash                               time, order, sequence: the head of a group's line, see ``lines``
lines     q hash order sequence                empty: a message of the group, in a grouped queue
expiry    expires q sequence                   empty: the order of active expiry
ids       len(project) project id              q sequence
claims    q claim id 00 group                  end, sequences, holder: messages of a claim, until another claim
                                               takes them over
history   h position                           StoredEntry: a finished message with its body
sequences h sequence                           position: history entries in the order of sequences
endings   h id 00 position                     empty: history entries of a message id
keys      h key 00 expires                     Known: an idempotency key of the queue
fences    len(project) project name            last issued epoch
stages    len(project) project name 00 expires Stage: number n and size of the stage
staged    n index                              Staged: a message to be published
producers len(project) project name 00 expires Batch: the producer's last commit
logs      len(project) project                 LogRecord: number n of the log, last sequence, totals, trimmed totals
batches   n last                               Stored: messages published together; the key has the last sequence
topics    n len(topic) topic last              expires, first sequence, first expiry: the batches of a topic
floors    n len(topic) topic                   sequence, key in ``logs``: the topic was purged up to this sequence
documents len(project) project len(kind) ...   StoredDocument: a document; the key ends in kind and name
due       expires kind key                     empty, or a size or place: the entry ``key`` of ``FAMILY_OF[kind]``
                                               expires
========= ==================================== ======================================================================

Each message has one entry in each of messages, expiry and ids. It has an entry in bodies unless its record contains the
body. While its record names a claim, it is listed in an entry in claims. In a queue without groups, it has an entry in
available unless it is fresh. A message is fresh if it was posted without a delay and has not been claimed yet. Fresh
messages are claimed in order of their sequences; the tally has the position before the first one.

The compaction filter drops a body some time after the message has expired. A message without any body has therefore
expired. Purging or deleting a queue only records its number; active expiry removes its data later.

The history and the idempotency keys of a queue have a number of their own, h, which is the queue's first number. A
purge gives the queue a new number q but keeps h. A history entry has one entry in each of history, sequences, endings
and due. Idempotency keys, stages and producers have one entry in their family and one in due. Their keys contain the
expiry, so active expiry can remove them without further reads.

A batch has one entry in each of batches, topics and due. A trim removes a whole range of batches at once; the other
entries are removed later. The idempotency keys of a log have the log's number instead of h.
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
    "records",  # documents, under the name that stores have for them
    "due",
)
# The family whose values end with the time from which the compaction filter may drop them; see ``sealed``.
STAMPED: Final = "bodies"
# The family from which large ranges are removed.
TRIMMED: Final = "batches"
VERSION: Final = b"5"
# Maximum size in bytes of a body that is stored in the message's record. Each claim rewrites the record.
SHORT: Final = 512
# Maximum number of messages in one entry of ``claims``. The entry is rewritten when a message leaves the claim.
GROUP: Final = 64
# Size in bytes of the length field before a project.
LENGTH: Final = 4
# An upper bound of all keys that begin with the length of a project.
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
    """A queue's entry in ``queues``."""

    number: int
    metadata: bytes
    history: int
    grouping: Grouping = Grouping.NONE


class Tally(Struct, array_like=True):
    """The counters of a queue, or of the hidden state of a missing queue.

    Attributes:
        sequence: The last sequence.
        fresh: The available-at of the last message that was appended without a delay.
        count: The number of messages.
        position: The position of the last history entry.
        finished: The time of the last history entry.
        start: The number of the start that wrote the counters; see ``startup.count_start``.
        bytes: The total size of the messages.
        kept: The total size of all history entries and answers ever added. The current size is this minus the size of
            the removed ones, which is stored under ``REMOVED``.
        fresh_head: The sequence up to which claims have passed all fresh messages.
        fresh_tail: The sequence of the last fresh message.
        fresh_gap: The number of other messages after the last fresh one.
        group: The number of the last claim group.
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


class IndexPlace(NamedTuple):
    """The fields that determine a message's index entries, apart from its sequence."""

    indexed: bool
    available: int
    expires: int
    claim: str
    until: int
    group: int


class NewMessage(Struct, array_like=True):
    """The stored form of a new message without attributes or a group.

    Attributes:
        claim: The claim, which is live until ``ends``.
        former: The available-at before the claim.
        size: The size that was added to the tally.
        indexed: Whether the message has an entry in ``available``; fresh messages have none.
        body: The body, or None if it is stored in ``bodies``.
        group: The claim group in ``claims``.
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
        """The end of the claim, or the message's expiry if that is earlier."""
        return self.ends if self.ends < self.expires else self.expires

    def held(self, now: int) -> bool:
        """Return whether the message has a live claim."""
        return self.ends > now and self.expires > now and self.claim != ""

    def index_place(self) -> IndexPlace:
        """Return the fields that determine the message's index entries, to compare them before and after a change."""
        ends, expires = self.ends, self.expires  # not ``until``: a property call is slow, and claims call this often
        until = ends if ends < expires else expires
        return IndexPlace(self.indexed, self.available, expires, self.claim, until, self.group)


class StoredMessage(NewMessage):
    """The stored form of any message.

    ``first`` is the time of the first claim, or 0 if there was none. ``line`` is the message's group.
    """

    first: int = 0
    attributes: bytes = b""
    line: str = ""


# (sequence, record)
Found = tuple[int, StoredMessage]


class StoredEntry(Struct, array_like=True):
    """A history entry. ``size`` is the size that was added to the tally."""

    record: StoredMessage
    body: bytes
    sequence: int
    outcome: str
    finished: int
    expires: int
    size: int = 0


class Known(Struct, array_like=True):
    """An idempotency key with the answer to its request.

    Attributes:
        digest: The digest of the request, which a repeated request must match.
        answer: The encoded answer.
        size: The size that was added to the tally; 0 in a topic log, which has its own limit.
        last: The sequence of the last message of a post; 0 if it is unknown.
    """

    digest: bytes
    answer: bytes
    size: int = 0
    last: int = 0


class Stage(Struct, array_like=True):
    """A stage: its number in ``staged``, the number of its messages, and the total size of their bodies."""

    number: int
    count: int = 0
    size: int = 0


class Staged(Struct, array_like=True):
    """A message to be published, with its target queue."""

    queue: str
    draft: Draft


class Batch(Struct, array_like=True):
    """A producer's last commit. ``decided`` is its time, or 0 if an earlier version wrote the record without it."""

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
decode_known = msgpack.Decoder(Known).decode
decode_stage = msgpack.Decoder(Stage).decode
decode_staged = msgpack.Decoder(Staged).decode
decode_batch = msgpack.Decoder(Batch).decode


def ms(moment: Seconds) -> int:
    """Convert seconds to stored milliseconds."""
    return round(moment * 1000)


def project_prefix(project: str) -> bytes:
    """Return the key prefix of a project's queues.

    The prefix begins with the length of the project's name, so that no project's prefix is a prefix of another's.
    """
    text = project.encode("utf-8", "surrogatepass")
    return len(text).to_bytes(LENGTH, "big") + text


def queue_key(ref: QueueRef) -> bytes:
    return project_prefix(ref.project) + ref.name.encode("utf-8", "surrogatepass")


def queue_ref(key: bytes) -> QueueRef:
    """Return the queue to which a key in ``queues`` belongs."""
    prefix = prefix_of(key)
    return QueueRef(*(part.decode("utf-8", "surrogatepass") for part in (prefix[LENGTH:], key[len(prefix) :])))


def id_key(project: bytes, message: str) -> bytes:
    """Return the key of a message id in ``ids``; ``project`` is a ``project_prefix``."""
    return project + message.encode("utf-8", "surrogatepass")


def project_of(key: bytes) -> str:
    """Return the project from its ``project_prefix``."""
    return key[LENGTH:].decode("utf-8", "surrogatepass")


def prefix_of(key: bytes) -> bytes:
    """Return the ``project_prefix`` of a queue's key."""
    return key[: LENGTH + int.from_bytes(key[:LENGTH])]


def ended(prefix: bytes, name: str) -> bytes:
    """Return the key prefix of a name's entries.

    The prefix ends with a zero byte, which no such name contains, so it matches only entries of this name.
    """
    return prefix + name.encode("utf-8", "surrogatepass") + b"\0"


def claim_prefix(queue: int, claim: str) -> bytes:
    """Return the key prefix of a claim's entries in ``claims``."""
    return ended(number.pack(queue), claim)


def claim_key(queue: int, claim: str, group: int) -> bytes:
    """Return the key of a claim group, which lists messages of one claim that have the same end."""
    return claim_prefix(queue, claim) + number.pack(group)


# The high bit of the last number of a group's value. If it is set, the number is not a sequence, which is never so
# large: its low bits are the length of the holder, which precedes the number.
HELD: Final = 1 << 63


def group_value(ends: int, sequences: Iterable[int], holder: bytes = b"") -> bytes:
    """Return the value of a claim group; ``holder`` is b"" if the holder is unknown."""
    listed = b"".join(map(number.pack, (ends, *sorted(sequences))))
    return listed + holder + bytes(-len(holder) % number.size) + number.pack(HELD | len(holder)) if holder else listed


def group_of(value: bytes) -> tuple[int, list[int]]:
    """Return the end and the sequences of a claim group."""
    ends, *sequences = Packing(f">{len(value) // number.size}Q").unpack(value)
    if sequences and sequences[-1] >= HELD:
        del sequences[-1 - -(-(sequences[-1] - HELD) // number.size) :]
    return ends, sequences


def holder_of(value: bytes) -> bytes:
    """Return the holder of a claim group, or b"" if the holder is unknown."""
    last = number.unpack(value[-number.size :])[0]
    if last < HELD:
        return b""
    length = last - HELD
    end = len(value) - number.size
    start = end - length - (-length % number.size)
    return value[start : start + length]


def after(prefix: bytes) -> bytes:
    """Return the smallest key that is greater than every key with this prefix."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


def sealed(body: bytes, expires: int, grace: int) -> bytes:
    """Return the stored form of a body, which the compaction filter may drop ``grace`` seconds after the expiry."""
    seconds = -(-expires // 1000) + grace - 1
    return body + stamp.pack(min(max(seconds, 0), LATEST_STAMP))


def unsealed(value: bytes) -> bytes:
    """Return the body from its stored form."""
    return value[: -stamp.size]


def message(sequence: int, record: StoredMessage, body: bytes, now: int) -> Message:
    """Build the message from its record and body, as of the time ``now``."""
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
        record.line,
    )
