# SPDX-License-Identifier: Apache-2.0
"""What lies in a store. All numbers big-endian; moments in milliseconds; q = a queue's 8-byte number.

========= ==================================== ======================================================================
family    key                                  value
========= ==================================== ======================================================================
default   "version" "clock" "numbers" "starts" schema version; largest moment seen; last number given; last start
default   "doomed" q                           the key in ``queues``: pending deletes of a former queue, by its number
default   "dropped" n                          nothing: the same of a history or a stage, by its number
default   "removed" h                          bytes of history entries and answers of h that active expiry removed
default   "commit" len(project) project name 00 OpenCommit: a commit that is decided and not done
default   "fallen" n                           the key in ``logs``: index entries of trimmed batches are pending
default   "advanced" len(project) project name when the last epoch of the fence was given out
queues    len(project) project name            QueueRecord: its number, its metadata, the number h of its history
hidden    len(project) project name            QueueRecord: h of a queue that does not exist, for its keys
numbers   q                                    the key in ``queues``
tallies   q                                    Tally: the queue's counters
messages  q sequence                           StoredMessage, a short body included; the observers' order
bodies    q sequence                           a longer raw JSON body, and 4 bytes: its stamp, see ``sealed``
available q available-at sequence              expires: the order of claims, of all messages but fresh ones; in a
                                               grouped queue the hash of a line: one entry for each
lines     q hash                               moment, order, sequence: the head of a group's line, see ``lines``
lines     q hash order sequence                nothing: a message of the group, in a grouped queue
expiry    expires q sequence                   nothing: active expiry's order
ids       len(project) project id              q sequence
claims    q claim id 00 group                  end, sequences, holder: what a claim holds, until someone takes over
history   h position                           StoredEntry: a finished message, its body included
sequences h sequence                           position: history entries in the order of sequence
endings   h id 00 position                     nothing: history entries of a message id
keys      h key 00 expires                     Known: an idempotency key of the queue
fences    len(project) project name            the last epoch given out
stages    len(project) project name 00 expires Stage: its number n and size
staged    n index                              Staged: a message to be published
producers len(project) project name 00 expires Batch: its last commit
logs      len(project) project                 LogRecord: number n of its log, last sequence, totals, what was trimmed
batches   n last                               Stored: messages published together; the last one's sequence is the key
topics    n len(topic) topic last              expires, first sequence, first expiry: the batches of a topic
floors    n len(topic) topic                   sequence, key in ``logs``: up to there the topic was purged
documents len(project) project len(kind) ...   StoredDocument: a document; the key ends in kind and name
due       expires kind key                     what else expires: the entry ``key`` of ``FAMILY_OF[kind]``
========= ==================================== ======================================================================

A message has exactly one entry in messages, expiry and ids, one in bodies unless its record has the body, one in claims
while its record names a claim, and one in available unless it is fresh: posted without delay and not claimed yet. Fresh
messages are in the order of claims by their sequences alone; the tally says where they begin. The compaction filter
takes a body some time after it has expired, so a record whose body is nowhere is one of a message that has expired.
Purging or deleting a queue only notes its number; active expiry deletes what it had.
A queue's history and its keys go by a number of their own, which a purge keeps: h = the first one that the queue had.
A history entry has exactly one entry in history, sequences, endings and due; what has its end in its key (keys,
stages, producers) one there and one in due, so that active expiry can remove it by that alone, without a lock.
A batch has one entry in batches, topics and due. When it is trimmed, its entry in batches goes with a whole range, and
the others later; the keys of a log go by its number.
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
# The family whose values end in the moment from which on they may be destroyed: see ``sealed``.
STAMPED: Final = "bodies"
# The family of which large ranges are removed.
TRIMMED: Final = "batches"
VERSION: Final = b"5"
# Bytes of a body that lies in its message's record, at the most: it is written again with each claim.
SHORT: Final = 512
# Messages of a claim that one entry lists, at the most: it is written again when one of them leaves.
GROUP: Final = 64
# Bytes of the length in front of a project.
LENGTH: Final = 4
# Above every key that begins with the length of a project.
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
    """The counters of a queue: last sequence, last available-at of a fresh post, messages; last history entry; the
    start (see ``startup.count_start``) by which they were written; the sizes of its messages together; those of all
    history entries and answers that it ever had, of which ``REMOVED`` is to be subtracted. What is hidden in the place
    of a queue has one for its answers.

    Fresh messages that live have sequences above ``fresh_head``, up to ``fresh_tail``; ``fresh_gap``: how many messages
    that are not came behind the last one. ``group``: the last number given to messages that were claimed together."""

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
    """Where the index entries of a message are, besides its sequence."""

    indexed: bool
    available: int
    expires: int
    claim: str
    until: int
    group: int


class NewMessage(Struct, array_like=True):
    """A message as it is written that has no attributes and no group and was never claimed.

    ``claim`` lives while ``ends`` is to come; ``former`` = available before it.

    ``size``: what the tally was told of it. ``indexed``: whether it has an entry in ``available``; no fresh one has.
    ``body``: None for one that lies in ``bodies``. ``group``: where ``claims`` has it.
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
        """When its claim holds it no more: it may expire before the claim's end."""
        return self.ends if self.ends < self.expires else self.expires

    def held(self, now: int) -> bool:
        """Whether a live claim holds it."""
        return self.ends > now and self.expires > now and self.claim != ""

    def index_place(self) -> IndexPlace:
        """Its place now, to be compared with the one after a change."""
        ends, expires = self.ends, self.expires  # and no call of a property: this is asked for each message of a claim
        until = ends if ends < expires else expires
        return IndexPlace(self.indexed, self.available, expires, self.claim, until, self.group)


class StoredMessage(NewMessage):
    """A message as it is read, and written if it has more. ``first``: when it was claimed first, 0 = never; ``line``:
    its group."""

    first: int = 0
    attributes: bytes = b""
    line: str = ""


# (sequence, record)
Found = tuple[int, StoredMessage]


class StoredEntry(Struct, array_like=True):
    """A history entry. ``size``: what the tally was told of it."""

    record: StoredMessage
    body: bytes
    sequence: int
    outcome: str
    finished: int
    expires: int
    size: int = 0


class Known(Struct, array_like=True):
    """An idempotency key: what a repeat must have in common, and the encoded answer. ``size``: what the tally was told
    of it; a topic's log has a bound of its own, so that of its answers none is told. ``last``: of a post, the sequence
    of the last of its messages; 0 = not known."""

    digest: bytes
    answer: bytes
    size: int = 0
    last: int = 0


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
    """A producer's last commit. ``decided``: when; 0 = by a version that did not note it."""

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


def claim_key(queue: int, claim: str, group: int) -> bytes:
    """Where the messages of a group are listed, all of which the claim holds until the same moment."""
    return claim_prefix(queue, claim) + number.pack(group)


# What the last number of a group has above the length of the holder that stands before it; no sequence is so large.
HELD: Final = 1 << 63


def group_value(ends: int, sequences: Iterable[int], holder: bytes = b"") -> bytes:
    """What is listed there; b"" = it is not known who holds it."""
    listed = b"".join(map(number.pack, (ends, *sorted(sequences))))
    return listed + holder + bytes(-len(holder) % number.size) + number.pack(HELD | len(holder)) if holder else listed


def group_of(value: bytes) -> tuple[int, list[int]]:
    """(end, sequences) that are listed."""
    ends, *sequences = Packing(f">{len(value) // number.size}Q").unpack(value)
    if sequences and sequences[-1] >= HELD:
        del sequences[-1 - -(-(sequences[-1] - HELD) // number.size) :]
    return ends, sequences


def holder_of(value: bytes) -> bytes:
    """Who holds what is listed; b"" = it is not known."""
    last = number.unpack(value[-number.size :])[0]
    if last < HELD:
        return b""
    length = last - HELD
    end = len(value) - number.size
    start = end - length - (-length % number.size)
    return value[start : start + length]


def after(prefix: bytes) -> bytes:
    """The smallest key above all that begin with ``prefix``."""
    trimmed = prefix.rstrip(b"\xff")
    return trimmed[:-1] + bytes([trimmed[-1] + 1])


def sealed(body: bytes, expires: int, grace: int) -> bytes:
    """A body as it is stored, so that a store's compaction filter takes it ``grace`` seconds after its expiry."""
    seconds = -(-expires // 1000) + grace - 1
    return body + stamp.pack(min(max(seconds, 0), LATEST_STAMP))


def unsealed(value: bytes) -> bytes:
    """The body."""
    return value[: -stamp.size]


def message(sequence: int, record: StoredMessage, body: bytes, now: int) -> Message:
    """The model's message, as it stands at ``now``."""
    return Message(  # by position: so many names would cost three times as much
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
