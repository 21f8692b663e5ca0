# SPDX-License-Identifier: Apache-2.0
"""The layout of data in Redis.

``{t}`` is a project's hash tag, so that a project's keys share a cluster slot. Times are in milliseconds.

======================= ============ ==========================================================================
key                     type         content
======================= ============ ==========================================================================
zq:version              string       version of this layout
zq:level                string       StoreLevel; absent: level 1
zq:clock                string       latest time seen, in microseconds
zq:{0}:due … {63}:due   sorted set   expiry schedule in buckets: time, project and queue, by time; also, with the score
                                     ``LATEST_SCORE``, one entry per project
zq:{0}:sweeper …        string       lease of the maintenance round that works on this bucket; has a TTL
zq:{t}:names            sorted set   names of the project's queues, in byte order
zq:{t}:queues           hash         queue name -> metadata; zero byte and queue name -> grouping, if it is grouped
zq:{t}:floor            string       largest sequence of any deleted queue
zq:{t}:usage            hash         ``messages``, ``bytes``: usage of the project; ``staged``, ``staged_bytes``: usage
                                     of its stages; ``answers:queue``: bytes of the idempotency results of a queue
zq:{t}:fences           hash         name -> last epoch
zq:{t}:producers        hash         name -> last batch, its counts, and the expiry
zq:{t}:producing        sorted set   producers by expiry, for active expiry
zq:{t}:stages           hash         name -> expiry, bytes, queues
zq:{t}:staging          sorted set   stages by expiry, for active expiry
zq:open                 sorted set   project, producer and batch of commits that may be open, by start time
zq:{t}:work             sorted set   fences, producers and stages: first letter of the kind, name; in byte order
zq:{t}:moments          hash         fence or producer in ``work`` -> its epoch or batch, and the time when it was set
zq:{t}:open             hash         producer -> its open commit: decided but not completed
zq:{t}:phase            hash         producer -> number of completed lists of the open commit
zq:{t}:open:n:producer  list         rest of the n-th list of an open commit: first the lists of sequences to delete,
                                     one per queue, then one list per stage
zq:{t}:stage:name       list         the stage's messages as drafts, in the order of staging
zq:{t}:log              stream       last sequence -> published batch
zq:{t}:counts           hash         numbers of messages and bytes ever published, and ever trimmed
zq:{t}:topics           sorted set   topic, last sequence and summary of each batch, in this order
zq:{t}:fading           sorted set   members of ``topics`` by the last expiry of a message, for active expiry
zq:{t}:purged           hash         topic -> last sequence before its purge
zq:{t}:feed:0           channel      batches, or "" for a purge; 0 is the number of the database
zq:{t}:documents        hash         kind and name -> version and value of a document
zq:{t}:titles           sorted set   kinds and names of documents, in byte order
zq:{t}:ends             sorted set   kinds and names of documents by expiry, for active expiry
zq:{t}:state:queue      hash         state of the queue, see below
zq:{t}:stream:queue     stream       sequence -> entry: a message as it was posted, in the order of listings
zq:{t}:avail:queue      sorted set   sequence by available-at, of messages that are neither in the lane nor claimed;
                                     if grouped: sequence and hash of each group's first message, by the entry's time
zq:{t}:expiry:queue     sorted set   sequence by expiry: the order of active expiry
zq:{t}:claimed:queue    sorted set   sequences of claimed messages, by claim end or expiry, whichever is earlier;
                                     removed when a script finds that the claim has expired
zq:{t}:states:queue     hash         sequence -> state of a message that was ever claimed
zq:{t}:bodies:queue     hash         sequence -> raw JSON body and attributes, if they have 1,024 bytes or more
zq:{t}:ids:queue        hash         packed message id -> sequence
zq:{t}:claims:queue     hash         claim id -> concatenated sequences of all messages whose state has the claim;
                                     zero byte and claim id -> client and agent of the holder, one per line, if known;
                                     two zero bytes and claim id -> empty, if the claim may end at different times
                                     for different messages
zq:{t}:line:queue       sorted set   if grouped: hash of the group, available-at (only if fair), sequence; in byte order
zq:{t}:answers:queue    hash         idempotency key -> expiry, digest, first answer; queue "" means the log
zq:{t}:windows:queue    sorted set   idempotency keys by expiry, for active expiry; for a key that counts as usage, the
                                     score is 0.25 ms less than the expiry
zq:{t}:history:queue    sorted set   positions, scored by position: the order of finishing
zq:{t}:past:queue       sorted set   position by the message's sequence
zq:{t}:forget:queue     sorted set   position by the expiry of the history entry, for active expiry
zq:{t}:finished:queue   hash         position -> outcome, times, the message's state without a claim, its entry
zq:{t}:remains:queue    hash         position -> body
zq:{t}:latest:queue     hash         packed message id -> position of its latest history entry
======================= ============ ==========================================================================

The fields of a queue's state are:

============ =============================================================================================
field        meaning
============ =============================================================================================
``sequence`` last sequence
``fresh``    available-at of the last post without a delay
``start``    ``16 * time of the first post - last sequence before this post``; a new sequence is at least
             ``16 * current time - start``
``finished`` latest finish time of a message
``entered``  number of messages that ever entered the queue
``stored``   number of messages that count as usage
``bytes``    bytes of these messages
``kept``     bytes in the history
``from``     messages up to this sequence do not count as usage
``head``     messages up to this sequence have left the lane
``laned``    last sequence in the lane
``gap``      number of messages after ``laned`` that are not in the lane
``ceiling``  messages with an earlier available-at do not join the lane
``grouping`` message group mode, if the queue is grouped
============ =============================================================================================

The *lane* of a queue has the messages that were posted without a delay and never claimed. In the lane, available-at
increases with the sequence, so the stream from ``head`` on is in claim order. Merged with ``avail``, the lane yields
the claim order of the whole queue. Each message is in the lane, in ``avail`` or in ``claimed``. A claimed message moves
to ``avail`` when a script finds that its claim has expired. A *grouped* queue has no lane; ``lines.lua`` describes the
order of its messages (decision 0129).

Sequences and positions come from one counter. Sequences have 6 bytes and positions 14 digits, so that members with
equal scores sort by sequence or position. The redelivery delay of a claimed message is the time from the claim's end to
available-at.

Most scripts receive four keys of the project, ten keys of the queue, and the additional keys that they declare. Scripts
of the log and of documents receive other keys. ``shared.lua`` describes the scripts' side of this layout, and
``store``, ``transactions``, ``batches`` and ``documents`` describe further details.
"""

from functools import lru_cache
from hashlib import blake2b
from struct import Struct as Packing
from typing import Final, NamedTuple
from zlib import crc32

from zq.model import Draft, Outcome, QueueRef, Seconds

VERSION: Final = 4
VERSION_KEY: Final = b"zq:version"
LEVEL_KEY: Final = b"zq:level"
CLOCK_KEY: Final = b"zq:clock"
OPEN_KEY: Final = b"zq:open"
# Channel on which scripts publish the full names of queues with new messages.
READY_CHANNEL: Final = b"zq:ready"
# A channel without messages. A user with permission for it also has permission for the channels of batches.
FEED_CHANNEL: Final = b"zq:feed"
BUCKETS: Final = 64
# A score above all times in milliseconds. The expiry schedule uses it for projects.
LATEST_SCORE: Final = 10**15
PROJECT_KINDS: Final = ("names", "queues", "floor", "usage")
QUEUE_KINDS: Final = ("state", "avail", "stream", "expiry", "claimed", "states", "bodies", "ids", "claims", "line")
ANSWER_KINDS: Final = ("answers", "windows")
TRANSACTION_KINDS: Final = (
    *("fences", "producers", "producing", "stages", "staging", "open", "phase", "work", "moments"),
)
LOG_KINDS: Final = ("log", "counts", "topics", "fading", "purged")
DOCUMENT_KINDS: Final = ("documents", "titles", "ends")
HISTORY_KINDS: Final = ("history", "past", "forget", "finished", "remains", "latest")
# Upper bound of all sequences.
MAX_SEQUENCE: Final = 10**14
# Upper bound of all times, in seconds.
MAX_MOMENT: Final = 1e12

# Header of a draft: available-at (0 = immediately), expiry, TTL, size of the body, and lengths of the id, the client
# and the optional fields (``OPTIONAL_HEADER``). After the header come the id, the client, the optional fields and the
# body. In an entry, 7 bytes precede the draft: a flag byte and the sequence. The flag is 1 if the message was posted
# outside the lane; in a grouped queue, it is the kind of the message. A large body is stored separately.
DRAFT: Final = Packing(">QQQIHHH")
ENTRY: Final = Packing(">BHIQQQIHHH")
# Header of a message's optional fields: the creation time (0: one TTL before the expiry), the claim count in the
# origin, and the lengths of checksum, origin and reason, which follow. Then there may be a tail: the time of the first
# claim in the origin, the size of the attributes at the end of the body, and the group.
OPTIONAL_HEADER: Final = Packing(">QIHHH")
OPTIONAL_TAIL: Final = Packing(">QI")
# A state: available, expires, ttl, ends, former, claimed, lease, count, first claimed. The claim's id follows.
STATE: Final = Packing(">QQQQQQQIQ")
# Header of a message in a reply: length of the state, followed by state, entry and body.
MESSAGE_HEADER: Final = Packing(">H")
# Summary of a claim: start, end, and number of messages.
SUMMARY: Final = Packing(">QQI")
LENGTH: Final = Packing(">I")
MOMENT: Final = Packing(">Q")
# Header of a history entry: outcome, time of finishing, position, end of retention; the message follows.
HISTORY_HEADER: Final = Packing(">BQQQ")
OUTCOMES: Final = (None, Outcome.DELETED, Outcome.POPPED, Outcome.MOVED, Outcome.DEAD_LETTERED)


Block = tuple[bytes, ...]
"""Keys in the order in which a script expects them."""


class Keys(NamedTuple):
    """The keys of one queue and its project."""

    name: bytes
    metadata: bytes
    """Key of the hash ``queues``."""
    names: bytes
    usage: bytes
    state: bytes
    stream: bytes
    claims: bytes
    first: Block
    """The keys that every queue script receives first: the project's keys, then the queue's keys."""
    queue: Block
    """The queue's keys in ``first``."""
    expiry: bytes
    by_expiry: list[bytes]
    """Keys of the queue's sorted sets by expiry."""
    full_name: bytes
    """The full name of the queue, for scripts and the channel."""
    stages: bytes
    staging: bytes
    producers: bytes
    producing: bytes
    open: bytes
    phase: bytes
    fences: Block
    transactions: Block
    answers: Block
    history: Block


def ms(moment: Seconds) -> int:
    """Convert a time in seconds to milliseconds, the unit of stored times."""
    return round(moment * 1000)


def encode_text(value: str) -> bytes:
    """Encode text for storage: UTF-8, including lone surrogates."""
    return value.encode("utf-8", "surrogatepass")


def decode_text(value: bytes) -> str:
    return value.decode("utf-8", "surrogatepass")


@lru_cache(maxsize=8192)
def keys(ref: QueueRef) -> Keys:
    """Return the Redis keys of a queue and its project. For the queue name "", only the project's keys are valid."""
    names, metadata, floor, usage = project_keys(ref.project, *PROJECT_KINDS)
    transactions = project_keys(ref.project, *TRANSACTION_KINDS)
    fences, producers, producing, stages, staging, open_key, phase, *_ = transactions
    queue, answers, history = (
        project_keys(ref.project, *(f"{kind}:{ref.name}" for kind in kinds))
        for kinds in (QUEUE_KINDS, ANSWER_KINDS, HISTORY_KINDS)
    )
    return Keys(
        name=encode_text(ref.name),
        metadata=metadata,
        names=names,
        usage=usage,
        state=queue[0],
        stream=queue[2],
        claims=queue[8],
        first=(names, metadata, floor, usage, *queue),
        queue=queue,
        expiry=queue[3],
        by_expiry=[queue[3], answers[1], history[2]],
        full_name=encode_full_name(ref),
        stages=stages,
        staging=staging,
        producers=producers,
        producing=producing,
        open=open_key,
        phase=phase,
        fences=(fences,),
        transactions=transactions,
        answers=answers,
        history=history,
    )


def project_ref(project: str) -> QueueRef:
    """Return the ``QueueRef`` that represents a whole project in the expiry schedule and in scripts."""
    return QueueRef(project, "")


def stage_key(project: str, stage: str) -> Block:
    """Return the Redis key of the list with a stage's messages."""
    return project_keys(project, "stage:" + stage)


def open_list_key(project: str, producer: str, number: int) -> Block:
    """Return the Redis key of a list that an open (incomplete) commit of a producer still has to process.

    ``number`` is the position of the list in the commit.
    """
    return project_keys(project, f"open:{number}:{producer}")


def project_keys(project: str, *kinds: str) -> Block:
    """Return the project's Redis key for each kind of data, such as "log". All keys are in one cluster slot."""
    tag = blake2b(encode_text(project), digest_size=16).hexdigest().encode()
    return tuple(b"zq:{%b}:%b" % (tag, encode_text(kind)) for kind in kinds)


def bucket_key(number: int) -> bytes:
    return b"zq:{%d}:due" % number


def bucket_lease_key(number: int) -> bytes:
    return b"zq:{%d}:sweeper" % number


def queue_bucket_key(ref: QueueRef) -> bytes:
    """Return the Redis key of the queue's bucket in the expiry schedule."""
    return bucket_key(crc32(encode_text(ref.name), crc32(encode_text(ref.project))) % BUCKETS)


def schedule_entry(ref: QueueRef, moment: int) -> bytes:
    return MOMENT.pack(moment) + encode_full_name(ref)


def encode_full_name(ref: QueueRef) -> bytes:
    """Encode the full name of a queue: length of the project, project, queue name."""
    project = encode_text(ref.project)
    return LENGTH.pack(len(project)) + project + encode_text(ref.name)


def decode_full_name(full_name: bytes) -> QueueRef:
    """Decode the full name of a queue."""
    end = LENGTH.size + LENGTH.unpack_from(full_name)[0]
    return QueueRef(decode_text(full_name[LENGTH.size : end]), decode_text(full_name[end:]))


# First byte of a packed id: text, 32 hex digits, or a UUID. Hex digits and UUIDs are stored as 16 bytes.
TEXT: Final = b"t"
HEX: Final = b"h"
UUID: Final = b"u"


def pack_id(id: str) -> bytes:
    """Encode an id for storage. An id of 32 hexadecimal digits or a UUID is stored in 16 bytes."""
    if len(id) == HEX_DIGITS or len(id) == HEX_DIGITS + 4:
        kind = HEX if len(id) == HEX_DIGITS else UUID
        try:
            short = kind + bytes.fromhex(id.replace("-", ""))
        except ValueError:
            return TEXT + encode_text(id)
        if unpack_id(short) == id:
            return short
    return TEXT + encode_text(id)


HEX_DIGITS: Final = 32


def unpack_id(value: bytes) -> str:
    kind = value[:1]
    if kind == TEXT:
        return decode_text(value[1:])
    digits = value[1:].hex()
    if kind == HEX:
        return digits
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


pack_client_id: Final = lru_cache(maxsize=1024)(pack_id)
unpack_client_id: Final = lru_cache(maxsize=1024)(unpack_id)


def decode_ids(blob: bytes) -> list[str]:
    """Decode the ids in a script reply."""
    found, at = [], 0
    while at < len(blob):
        end = at + 2 + int.from_bytes(blob[at : at + 2])
        found.append(unpack_id(blob[at + 2 : end]))
        at = end
    return found


def encode_draft(new: Draft, now: int) -> bytes:
    """Encode a new message that is posted at ``now``, in milliseconds.

    For a message in a stage, pass 0: the encoded times are then relative to the publication.
    """
    id, client, checksum, more = pack_id(new.id), pack_client_id(new.client), encode_text(new.checksum), b""
    attributes, group = new.attributes, new.group
    if checksum or attributes or group:
        tail = OPTIONAL_TAIL.pack(0, len(attributes)) + encode_text(group) if attributes or group else b""
        more = OPTIONAL_HEADER.pack(0, 0, len(checksum), 0, 0) + checksum + tail
    available = now + new.delay * 1000 if new.delay else 0
    sizes = len(new.body) + len(attributes), len(id), len(client), len(more)
    return DRAFT.pack(available, now + new.ttl * 1000, new.ttl, *sizes) + id + client + more + new.body + attributes
