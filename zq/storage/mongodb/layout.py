# SPDX-License-Identifier: Apache-2.0
"""Layout of a MongoDB database: the collections ``messages``, ``clock`` and ``feed``.

The collection ``messages`` contains messages, queues, and the other types of documents described below. Times are
milliseconds since the epoch, except ``e``, which is a BSON date for the TTL index. ``encode_text`` encodes texts. P is
a project's prefix, for example ``4:acme/``.

========= ====================================== ======================================================================
field     of a message                           of a queue, which includes its counters
========= ====================================== ======================================================================
``_id``   "m" P id                               "q" P name
``s``     P name: the shard key, equal for a queue and all its messages
``q``     "m" P name                             -
``k``     sequence in its queue                  -
``d``     available-at                           -
``e``     expiry, for the TTL index              expiry of the counters; set only after the queue is deleted
``a``     created                                -
``t``     ttl in seconds                         -
``u``     client                                 -
``b``     raw JSON body                          raw JSON metadata; absent = the queue does not exist
``m``     checksum, if any                       -
``v``     attributes, if any                     -
``h``     group, if any                          grouping, if any: see ``groups``
``h1``    stored name of the group, if grouped   -
``c``     last claim, if any: ``i`` id,          -
          ``s`` start, ``t`` ttl, ``e`` end,
          ``n`` claim count,
          ``d`` former available-at,
          ``h`` holder's client and agent,
          ``f`` start of the first claim
``o``     dead letters: ``q`` origin queue,      -
          ``n`` claim count there,
          ``f`` first claim there, if any
``r``     dead letters: reason                   -
``y``     commit that reserves the message:      -
          see ``reservations``
``n``     -                                      P name, the sort key of listings; absent after deletion
``k1``    -                                      last assigned sequence
``d1``    -                                      last available-at of a message without delay
``n1``    -                                      number of messages ever posted or committed to the queue
``w1``    -                                      total bytes of these messages, including removed ones: see ``usage``
``m0``    -                                      messages up to this sequence are removed: see ``floors``
``h0``    -                                      history entries up to this sequence, and idempotency keys below it,
                                                 are removed by a deletion: see ``floors``
``x``     -                                      last range of sequences that each lane has drawn: see ``lanes``
``g``     -                                      messages up to this sequence are still to be deleted
``g1``    -                                      history entries up to this sequence, and idempotency keys below it,
                                                 are still to be deleted
========= ====================================== ======================================================================

The prefix of ``_id`` identifies the type of a document. Other modules describe these types:

- ``changes``: fences (``f``)
- ``stages``: stages (``s``) and their drafts (``d``)
- ``producers``: transactional producers (``p``)
- ``topic_log``: topic logs and their purges
- ``documents``: keyed documents
- ``lanes``: lanes of posts (``j``)

A released message keeps only ``n`` and ``f`` of ``c``.

**History entries.** The document of a finished message becomes a history entry: ``q`` "h" P name, ``p`` position,
``f`` time of finishing, ``x`` outcome, ``z`` former ``e``, ``e`` expiry of the entry. Operations on messages do not
match it, because its ``q`` differs. The entry of a moved message is a copy: ``_id`` "h" P name/``p``, and ``i`` is the
message's own ``_id``.

**History counters.** ``_id`` "c" P name; ``p1`` and ``f1`` are the last ``p`` and ``f``, and ``v`` is incremented by
moves and removals; see the module ``floors``. This document is separate from the queue's document, so that posts and
operations that finish messages do not wait for each other.

**Idempotency keys.** ``{_id: "o" length of P name:P name/key, s, q: "o" P name, k, e, h: digest, b: response}``.
``k`` is the queue's last sequence, by which a deletion of the queue recognizes its keys. The response is JSON.

**Claim names.** ``{_id: "n" length of P name:P name/claim, s, e}``. Every request for a claim with a chosen name writes
this document, which serializes the requests.

**Group entries.** Each message group of a grouped queue has an entry: ``_id`` "t" length of P name:P name/h1, ``s``,
``q`` "t" P name, ``j`` the ``h1`` of the group's messages, ``d`` time from which claims consider the group, ``k``
sequence of the message that becomes available at this time, ``e`` an upper bound on the expiry of the group's messages,
``v`` incremented by each write: see the module ``groups``.

The collection ``clock`` contains the clock ``{_id: "clock", t: latest known time}``, the lease of ``LeaderLease``, and
``{_id: "layout", n: layout version}``, which version 0.1.0 neither reads nor writes.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from msgspec import Struct

from zq.model import Claim, ClaimRequest, Draft, Grouping, Holder, Lease, Message, QueueRef, Seconds

BsonDocument = dict[str, Any]
# Layout version, stored in the field ``n`` of the document ``LAYOUT`` in the collection ``CLOCK``. The field ``level``
# of the document has the record of the store's level; see ``zq.model.levels``.
VERSION: Final = 1
LAYOUT: Final = "layout"
MESSAGES: Final = "messages"
CLOCK: Final = "clock"
SWEEPER: Final = "sweeper"
FEED: Final = "feed"
CODEC: Final[CodecOptions[BsonDocument]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)

CLAIMS: Final = "claims"
OBSERVERS: Final = "observers"
EXPIRY: Final = "expiry"
HELD: Final = "held"
NAMES: Final = "names"
PENDING_DELETES: Final = "doomed"
FINISHED: Final = "finished"
COPIES: Final = "copies"
DUE: Final = "due"
ORDERED: Final = "ordered"
FAIR: Final = "fair"
IN_ORDER: Final = {"h1": {"$gte": "o"}}
IN_TURN: Final = {"h1": {"$lt": "o"}}
INDEXES: Final[tuple[BsonDocument, ...]] = (
    {"name": CLAIMS, "key": {"q": 1, "d": 1, "k": 1, "e": 1}},
    {"name": OBSERVERS, "key": {"q": 1, "k": 1, "d": 1, "e": 1}},
    {"name": EXPIRY, "key": {"e": 1}, "expireAfterSeconds": 0},
    {"name": HELD, "key": {"c.i": 1}, "partialFilterExpression": {"c.i": {"$exists": True}}},
    {"name": NAMES, "key": {"n": 1}, "partialFilterExpression": {"n": {"$exists": True}}},
    {"name": PENDING_DELETES, "key": {"g": 1}, "partialFilterExpression": {"g": {"$exists": True}}},
    {"name": FINISHED, "key": {"q": 1, "p": 1, "f": 1, "e": 1}, "partialFilterExpression": {"p": {"$exists": True}}},
    {"name": COPIES, "key": {"i": 1}, "partialFilterExpression": {"i": {"$exists": True}}},
    {"name": DUE, "key": {"due": 1}, "partialFilterExpression": {"due": {"$exists": True}}},
    {"name": ORDERED, "key": {"q": 1, "h1": 1, "k": 1, "d": 1, "e": 1}, "partialFilterExpression": IN_ORDER},
    {"name": FAIR, "key": {"q": 1, "h1": 1, "d": 1, "k": 1, "e": 1}, "partialFilterExpression": IN_TURN},
)
LARGEST_MARKER: Final = 2**63 - 1
CLAIM_ORDER: Final = {"d": 1, "k": 1}
SHARD_KEY: Final[BsonDocument] = {"s": "hashed"}


class QueueKey(Struct, frozen=True):
    """The document ids and field values that identify the documents of one queue."""

    ref: QueueRef
    shard: str
    messages: str
    """The value of the field ``q`` in the queue's messages."""
    counter: str
    """The ``_id`` of the queue's document."""
    project: str
    """The prefix of ``_id`` in the project's messages."""

    @property
    def history_entries(self) -> str:
        """The value of the field ``q`` in the queue's history entries."""
        return "h" + self.shard

    @property
    def history_counter(self) -> str:
        """The ``_id`` of the queue's history counter."""
        return "c" + self.shard

    @property
    def entries(self) -> str:
        """The value of the field ``q`` in the queue's group entries (one document per message group)."""
        return "t" + self.shard

    @property
    def idempotency_keys(self) -> str:
        """The value of the field ``q`` in the queue's idempotency keys."""
        return "o" + self.shard

    def named(self, kind: str, name: str) -> str:
        """Return the ``_id`` of a document that belongs to the queue and has a type (``kind``) and a name."""
        return f"{kind}{len(self.shard)}:{self.shard}/{encode_text(name)}"


def encode_text(value: str) -> str:
    """Encode a text for BSON. ASCII text is unchanged; in other text, each byte of UTF-8 becomes one character.

    The encoding preserves the order of texts. It also preserves lone surrogates, which JSON permits and BSON does not.
    """
    return value if value.isascii() else value.encode("utf-8", "surrogatepass").decode("latin-1")


def decode_text(stored: str) -> str:
    return stored if stored.isascii() else stored.encode("latin-1").decode("utf-8", "surrogatepass")


def project_prefix(project: str) -> str:
    """Return the prefix of a project's names and ids. No other project's prefix begins with it."""
    stored = encode_text(project)
    return f"{len(stored)}:{stored}/"


@lru_cache(maxsize=4096)
def key(queue: QueueRef) -> QueueKey:
    prefix = project_prefix(queue.project)
    name = prefix + encode_text(queue.name)
    return QueueKey(queue, name, "m" + name, "q" + name, "m" + prefix)


def queue_of(shard: str) -> QueueRef:
    """Return the queue whose documents have this shard key."""
    length, _, rest = shard.partition(":")
    return QueueRef(decode_text(rest[: int(length)]), decode_text(rest[int(length) + 1 :]))


def after(prefix: str) -> str:
    """Return the smallest text above all texts that begin with ``prefix``, which must end with a slash."""
    return prefix[:-1] + "0"


def ms(moment: Seconds) -> int:
    """Convert a time in seconds to milliseconds, the unit of stored times."""
    return round(moment * 1000)


def group_fields(grouping: Grouping, group: str) -> BsonDocument:
    """Return the field ``h1`` with the group's stored name, or an empty document for a queue without groups.

    The stored name is the first letter of ``grouping`` and a hash of ``group``. The letter selects the MongoDB index
    that contains the message.
    """
    if not grouping:
        return {}
    name = group.encode("utf-8", "surrogatepass")
    return {"h1": grouping[0] + blake2b(name, digest_size=8).hexdigest()}


# The condition that a message is ungrouped. Commands that change messages without a transaction include it.
UNGROUPED_FILTER: Final[BsonDocument] = {"h1": None}


def new_document(
    key: QueueKey, draft: Draft, sequence: int, available: int, now: int, grouping: Grouping = Grouping.NONE
) -> BsonDocument:
    made: BsonDocument = {
        "_id": key.project + encode_text(draft.id),
        "s": key.shard,
        "q": key.messages,
        "k": sequence,
        "d": available,
        "e": DatetimeMS(now + draft.ttl * 1000),
        "a": now,
        "t": draft.ttl,
        "u": encode_text(draft.client),
        "b": draft.body,
    }
    if draft.checksum:
        made["m"] = encode_text(draft.checksum)
    if draft.attributes:
        made["v"] = draft.attributes
    if draft.group:
        made["h"] = encode_text(draft.group)
    if grouping:
        made |= group_fields(grouping, draft.group)
    return made


def size_of(found: Mapping[str, Any]) -> int:
    """Return the size in bytes of a message's body and attributes, or 0 for other documents."""
    return len(found.get("b", b"")) + len(found.get("v", b""))


def doc_ids(key: QueueKey, ids: Sequence[str]) -> list[str]:
    """Return the ``_id`` of each message, without duplicates."""
    return [key.project + encode_text(message) for message in dict.fromkeys(ids)]


def doc_id(key: QueueKey, message: str) -> str:
    return key.project + encode_text(message)


def message_id(key: QueueKey, found: Mapping[str, Any]) -> str:
    return decode_text(found["_id"][len(key.project) :])


def to_message(key: QueueKey, found: Mapping[str, Any], now: int) -> Message:
    """Convert the document of a message to the ``Message`` at ``now``, in milliseconds."""
    pin: Mapping[str, Any] | None = found.get("y")
    if pin:  # a commit has reserved the message: show its former values
        found = {**found, **pin}
    claim = found.get("c", NO_CLAIM)
    origin = found.get("o", NO_ORIGIN)
    return Message(  # keyword arguments would take three times as long
        message_id(key, found),
        found["b"],
        int(found["t"]),
        found["a"] / 1000,
        int(found["e"]) / 1000,
        found["d"] / 1000,
        int(found["k"]),
        decode_text(found["u"]),
        decode_text(claim["i"]) if pin or claim.get("e", 0) > now else "",
        claim["n"],
        decode_text(found.get("m", "")),
        decode_text(origin["q"][len(key.project) - 1 :]),
        origin["n"],
        decode_text(found.get("r", "")),
        found.get("v", b""),
        first_claim_time(found) / 1000,
        decode_text(found.get("h", "")),
    )


def to_claim(key: QueueKey, held: Sequence[BsonDocument], now: int) -> Claim:
    """Convert the documents (at least one) of a claim's messages to a ``Claim``."""
    held = sorted(held, key=lambda found: int(found["k"]))
    terms = held[0].get("y", held[0])["c"]
    messages = [to_message(key, found, now) for found in held]
    return Claim(decode_text(terms["i"]), int(terms["t"]), terms["s"] / 1000, messages, holder=holder(terms))


def holder(terms: Mapping[str, Any]) -> Holder:
    """Return the holder of a claim from the field ``c`` of a message."""
    return Holder(*map(decode_text, terms.get("h") or ()))


NO_CLAIM: Final[BsonDocument] = {"n": 0}
NO_ORIGIN: Final[BsonDocument] = {"q": "", "n": 0}
# The fields that a release removes. It keeps the claim count and the time of the first claim.
CLAIM_FIELDS: Final = ["c.i", "c.s", "c.t", "c.e", "c.d", "c.h"]


def has_claim(found: Mapping[str, Any]) -> bool:
    """Return whether a message has a claim, which may have lapsed."""
    return "i" in found.get("c", NO_CLAIM)


def claim_count(found: Mapping[str, Any]) -> int:
    count: int = found.get("c", NO_CLAIM)["n"]
    return count


def first_claim_time(found: Mapping[str, Any]) -> int:
    """Return the time of a message's first claim in milliseconds, or 0 for a message that was never claimed."""
    moment: int = found.get("c", NO_CLAIM).get("f") or found.get("o", NO_ORIGIN).get("f") or 0
    return moment


def claimed_document(found: BsonDocument, request: ClaimRequest, now: int) -> BsonDocument:
    """Return the document of a message after a claim by ``request``, with the fields that ``to_message`` reads."""
    lease = request.lease
    ends, count = now + lease.ttl * 1000, claim_count(found) + 1
    ttl, expires = lease.extend(found["t"], int(found["e"]), ends, 1000)
    claim = {"i": encode_text(lease.claim), "e": ends, "n": count, "f": first_claim_time(found) or now}
    return {**found, "c": claim, "t": ttl, "d": ends + request.redelivery_delay(count) * 1000, "e": DatetimeMS(expires)}


def claim_update(request: ClaimRequest, now: int) -> list[BsonDocument]:
    """Return the update that claims messages at ``now``, in milliseconds."""
    ends, count = now + request.lease.ttl * 1000, {"$ifNull": ["$c.n", 0]}
    available: int | BsonDocument = ends + request.redelivery_delay(1) * 1000
    if len(request.redelivery_delays) > 1:
        moments = [ends + wait * 1000 for wait in request.redelivery_delays]
        available = {"$arrayElemAt": [moments, {"$min": [count, len(moments) - 1]}]}
    by = request.holder
    holder = {"$literal": [encode_text(by.client), encode_text(by.agent)]} if by.is_known else "$$REMOVE"
    first = {"$ifNull": ["$c.f", {"$ifNull": ["$o.f", now]}]}
    more = {"n": {"$add": [count, 1]}, "d": "$d", "h": holder, "f": first}
    return _lease_update(request.lease, now, more, available)


def renewal_update(lease: Lease, now: int) -> list[BsonDocument]:
    """Return the update that renews a claim at ``now``, in milliseconds."""
    return _lease_update(lease, now, {}, {"$add": [now + lease.ttl * 1000, WAIT]})


def _lease_update(lease: Lease, now: int, more: BsonDocument, available: object) -> list[BsonDocument]:
    ends = now + lease.ttl * 1000
    # A renewal keeps the fields of ``c`` that are not in ``change``; a claim sets all. Each "$..." is a former value.
    change: BsonDocument = {
        "c": {"i": {"$literal": encode_text(lease.claim)}, "s": now, "t": lease.ttl, "e": ends, **more},
        "d": available,
    }
    if not lease.prolong:
        return [{"$set": change}]
    short = {"$lt": ["$e", DatetimeMS(ends)]}
    ttl, expires = lease.extend(0, ends - 1, ends, 1000)
    change["t"] = {"$cond": [short, ttl, "$t"]}
    change["e"] = {"$cond": [short, DatetimeMS(expires), "$e"]}
    return [{"$set": change}]


# The back-off of a claimed message: milliseconds for which it stays unavailable after its claim.
WAIT: Final[BsonDocument] = {"$subtract": ["$d", "$c.e"]}


def release_update(now: int, delay: int | None = None) -> list[BsonDocument]:
    """Return the update that releases messages at ``now``, in milliseconds.

    The messages become available ``delay`` seconds later. If ``delay`` is None, the messages become available after
    their back-off.
    """
    after_wait = {"$cond": [{"$gt": [WAIT, 0]}, {"$add": [now, WAIT]}, "$c.d"]}
    return [{"$set": {"d": after_wait if delay is None else now + delay * 1000}}, {"$unset": CLAIM_FIELDS}]
