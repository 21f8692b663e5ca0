# SPDX-License-Identifier: Apache-2.0
"""What lies in a MongoDB database of zq: the collections ``messages``, ``clock`` and ``feed``.

A document of ``messages`` is a message or a queue, or one of the kinds below. Moments are milliseconds since the epoch,
but ``e`` is a BSON date, as the TTL index wants it. Texts are stored as ``text`` says;
P = a project's prefix: ``4:acme/``.

========= ====================================== ======================================================================
field     of a message                           of a queue, which is its counter too
========= ====================================== ======================================================================
``_id``   "m" P id                               "q" P name
``s``     P name: the shard key; equal for a queue and all its messages
``q``     "m" P name                             -
``k``     sequence in its queue                  -
``d``     available-at: the one that decides     -
``e``     expiry; the TTL index removes it       only of a deleted queue: when its counter may be forgotten
``a``     created                                -
``t``     ttl in seconds                         -
``u``     client                                 -
``b``     raw JSON body                          raw JSON metadata; absent = there is no such queue
``m``     checksum, if there is one              -
``v``     extra, if there is any                 -
``h``     group, if it has one                   grouping, if it has one: see ``lines``
``h1``    line, in a grouped queue               -
``c``     claim, if there ever was one:          -
          ``i`` id, ``s`` start, ``t`` ttl,
          ``e`` end, ``n`` how often claimed,
          ``d`` available-at before it,
          ``h`` client and agent of its holder,
          if it is known; ``f`` start of the first
``o``     dead letters: ``q`` queue it came      -
          from, ``n`` how often claimed there,
          ``f`` when first, if it was
``r``     dead letters: reason                   -
``y``     reserved by a commit: see ``reservations``       -
``n``     -                                      P name, while the queue exists: the order of listings
``k1``    -                                      last sequence given
``d1``    -                                      last available-at of a message without delay
``n1``    -                                      messages that entered the project here: posted, committed
``w1``    -                                      bytes that they brought, see ``usage``; what was removed since, too
``m0``    -                                      messages up to this sequence are removed, see ``floors``
``h0``    -                                      and so are history entries, and idempotency keys below it (delete)
``g``     -                                      messages up to this sequence are still to be deleted
``g1``    -                                      and so are history entries and idempotency keys
========= ====================================== ======================================================================

Fences (``f``), stages (``s``) with their drafts (``d``) and producers (``p``) are drawn in ``fences``, ``stages`` and
``producers``. A released message keeps of ``c`` only ``n`` and ``f``.
The clock is one document: ``{_id: "clock", t: the largest moment seen}``; beside it are the lease of ``LeaderLease``
and ``{_id: "layout", n: the number of the layout}``, which version 0.1.0 neither reads nor writes.

A history entry is the finished message's document turned into another kind, which no verb of living messages meets:
``q`` "h" P name, ``p`` position, ``f`` finished, ``x`` outcome, ``z`` its former ``e``; ``e`` is the entry's own.
A message that moved lives on under its ``_id``; its entry is a copy, ``_id`` "h" P name/``p``, with that id as ``i``.
The counter of finishing, ``_id`` "c" P name, has the last ``p`` as ``p1``, the last ``f`` as ``f1``, and ``v``, counted
up by moves and removals: see ``floors``. It is not in the queue's document, so that posts do not wait for verbs that
finish messages, nor these for posts.

An idempotency key is ``{_id: "o" length of P name:P name/key, s, q: "o" P name, k, e, h: digest, b: answer as JSON}``;
``k`` is a sequence, so that a deletion of the queue removes it. A claim's chosen name is
``{_id: "n" length of P name:P name/claim, s, e}``: the document that all who make that claim write to.

In a grouped queue each line has an entry, ``_id`` "t" length of P name:P name/line, ``s``, ``q`` "t" P name, ``j`` the
line, ``d`` when claims are to look at it, ``k`` the sequence of the message that this is about, ``e`` an expiry that no
message of the line outlives, ``v`` counted up by each write: see ``lines``.

The logs of topics, and notes of topics' purges, are drawn in ``log``, documents (of any kind, not of messages) in
``documents``.
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
# The number of the layout, which the document ``LAYOUT`` of the collection ``CLOCK`` has as ``n``.
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
    """A queue's name in all its spellings."""

    ref: QueueRef
    shard: str
    messages: str
    """``q`` of its messages."""
    counter: str
    """``_id`` of its own document."""
    project: str
    """What the ``_id`` of every message of its project begins with."""

    @property
    def records(self) -> str:
        """``q`` of its history entries."""
        return "h" + self.shard

    @property
    def finishing(self) -> str:
        """``_id`` of its counter of finishing."""
        return "c" + self.shard

    @property
    def entries(self) -> str:
        """``q`` of the entries of its lines."""
        return "t" + self.shard

    @property
    def known(self) -> str:
        """``q`` of its idempotency keys."""
        return "o" + self.shard

    def named(self, kind: str, name: str) -> str:
        """An ``_id`` for what has a name of its own in the queue; whatever the names contain, no two are the same."""
        return f"{kind}{len(self.shard)}:{self.shard}/{text(name)}"


def text(value: str) -> str:
    """A text as BSON can hold it, in the order of its UTF-8 bytes: ASCII as it is, else one character per byte.

    So that a lone surrogate, which JSON can bring in and BSON cannot store, comes back as it was.
    """
    return value if value.isascii() else value.encode("utf-8", "surrogatepass").decode("latin-1")


def original(stored: str) -> str:
    """The text that ``text`` stored."""
    return stored if stored.isascii() else stored.encode("latin-1").decode("utf-8", "surrogatepass")


def project_prefix(project: str) -> str:
    """What a project's names and ids begin with; the length in front keeps projects apart whatever they contain."""
    stored = text(project)
    return f"{len(stored)}:{stored}/"


@lru_cache(maxsize=4096)
def key(queue: QueueRef) -> QueueKey:
    prefix = project_prefix(queue.project)
    name = prefix + text(queue.name)
    return QueueKey(queue, name, "m" + name, "q" + name, "m" + prefix)


def queue_of(shard: str) -> QueueRef:
    """The queue of a name with its project in front."""
    length, _, rest = shard.partition(":")
    return QueueRef(original(rest[: int(length)]), original(rest[int(length) + 1 :]))


def after(prefix: str) -> str:
    """The smallest text above all that begin with ``prefix``, which ends in a slash."""
    return prefix[:-1] + "0"


def ms(moment: Seconds) -> int:
    """Seconds to stored milliseconds."""
    return round(moment * 1000)


def line_of(grouping: Grouping, group: str) -> BsonDocument:
    """The fields that say in which line a message of the group stands in a queue of this grouping; none in one without.

    A line's name begins with that of its order, which is also that of the index that has it.
    """
    if not grouping:
        return {}
    name = group.encode("utf-8", "surrogatepass")
    return {"h1": grouping[0] + blake2b(name, digest_size=8).hexdigest()}


# The condition that a message stands in no line: all that changes or removes messages alone is bound to it.
IN_NO_LINE: Final[BsonDocument] = {"h1": None}


def document(
    key: QueueKey, draft: Draft, sequence: int, available: int, now: int, grouping: Grouping = Grouping.NONE
) -> BsonDocument:
    """A new message."""
    made: BsonDocument = {
        "_id": key.project + text(draft.id),
        "s": key.shard,
        "q": key.messages,
        "k": sequence,
        "d": available,
        "e": DatetimeMS(now + draft.ttl * 1000),
        "a": now,
        "t": draft.ttl,
        "u": text(draft.client),
        "b": draft.body,
    }
    if draft.checksum:
        made["m"] = text(draft.checksum)
    if draft.extra:
        made["v"] = draft.extra
    if draft.group:
        made["h"] = text(draft.group)
    if grouping:
        made |= line_of(grouping, draft.group)
    return made


def body_of(found: Mapping[str, Any]) -> bytes:
    """The body of a message, or of a history entry."""
    body: bytes = found["b"]
    return body


def doc_ids(key: QueueKey, ids: Sequence[str]) -> list[str]:
    """The ``_id`` of each message, once."""
    return [key.project + text(message) for message in dict.fromkeys(ids)]


def doc_id(key: QueueKey, message: str) -> str:
    """The ``_id`` of a message."""
    return key.project + text(message)


def message_id(key: QueueKey, found: Mapping[str, Any]) -> str:
    return original(found["_id"][len(key.project) :])


def message(key: QueueKey, found: Mapping[str, Any], now: int) -> Message:
    """The model's message, as it stands at ``now``.

    Where a number may need more than 32 bits, PyMongo gives an ``Int64``, a type that is unknown above the driver.
    """
    pin: Mapping[str, Any] | None = found.get("y")
    if pin:  # a commit keeps it: shown as it was before
        found = {**found, **pin}
    claim = found.get("c", NO_CLAIM)
    origin = found.get("o", NO_ORIGIN)
    return Message(  # by position: so many names would cost three times as much
        message_id(key, found),
        found["b"],
        int(found["t"]),
        found["a"] / 1000,
        int(found["e"]) / 1000,
        found["d"] / 1000,
        int(found["k"]),
        original(found["u"]),
        original(claim["i"]) if pin or claim.get("e", 0) > now else "",
        claim["n"],
        original(found.get("m", "")),
        original(origin["q"][len(key.project) - 1 :]),
        origin["n"],
        original(found.get("r", "")),
        found.get("v", b""),
        first_claimed(found) / 1000,
        original(found.get("h", "")),
    )


def claim(key: QueueKey, held: Sequence[BsonDocument], now: int) -> Claim:
    """The model's claim, from what it holds."""
    held = sorted(held, key=lambda found: int(found["k"]))
    terms = held[0].get("y", held[0])["c"]
    messages = [message(key, found, now) for found in held]
    return Claim(original(terms["i"]), int(terms["t"]), terms["s"] / 1000, messages, holder=holder(terms))


def holder(terms: Mapping[str, Any]) -> Holder:
    """Who holds a claim of these terms."""
    return Holder(*map(original, terms.get("h") or ()))


NO_CLAIM: Final[BsonDocument] = {"n": 0}
NO_ORIGIN: Final[BsonDocument] = {"q": "", "n": 0}
# What goes with a claim; how often a message was claimed stays.
CLAIM_FIELDS: Final = ["c.i", "c.s", "c.t", "c.e", "c.d", "c.h"]


def names_claim(found: Mapping[str, Any]) -> bool:
    """Whether a message says of whom it was claimed last; of a ready one, that claim has lapsed."""
    return "i" in found.get("c", NO_CLAIM)


def claim_count(found: Mapping[str, Any]) -> int:
    """How often a message was claimed."""
    count: int = found.get("c", NO_CLAIM)["n"]
    return count


def first_claimed(found: Mapping[str, Any]) -> int:
    """When a message was claimed first, in its origin too; 0 = never."""
    moment: int = found.get("c", NO_CLAIM).get("f") or found.get("o", NO_ORIGIN).get("f") or 0
    return moment


def put_under(found: BsonDocument, request: ClaimRequest, now: int) -> None:
    """Do to a found message what ``claiming`` does to the stored one."""
    lease = request.lease
    ends, count = now + lease.ttl * 1000, claim_count(found) + 1
    found["c"] = {"i": text(lease.claim), "e": ends, "n": count, "f": first_claimed(found) or now}
    found["t"], expires = lease.extend(found["t"], int(found["e"]), ends, 1000)
    found["d"] = ends + request.wait(count) * 1000
    found["e"] = DatetimeMS(expires)


def claiming(request: ClaimRequest, now: int) -> list[BsonDocument]:
    """The update that puts messages under a claim that starts now; they are available at its end + their wait."""
    ends, count = now + request.lease.ttl * 1000, {"$ifNull": ["$c.n", 0]}
    available: int | BsonDocument = ends + request.wait(1) * 1000
    if len(request.waits) > 1:
        moments = [ends + wait * 1000 for wait in request.waits]
        available = {"$arrayElemAt": [moments, {"$min": [count, len(moments) - 1]}]}
    who = request.holder
    holder = {"$literal": [text(who.client), text(who.agent)]} if who.is_known else "$$REMOVE"
    first = {"$ifNull": ["$c.f", {"$ifNull": ["$o.f", now]}]}
    more = {"n": {"$add": [count, 1]}, "d": "$d", "h": holder, "f": first}
    return _under_claim(request.lease, now, more, available)


def renewing(lease: Lease, now: int) -> list[BsonDocument]:
    """The update that starts anew the claim that messages are under; their wait stays theirs."""
    return _under_claim(lease, now, {}, {"$add": [now + lease.ttl * 1000, WAIT]})


def _under_claim(lease: Lease, now: int, more: BsonDocument, available: object) -> list[BsonDocument]:
    """``more``: of the claim what changes besides."""
    ends = now + lease.ttl * 1000
    # What is not named of $c stays, as a renewal wants it: a claim names all. All "$..." are the values before.
    change: BsonDocument = {
        "c": {"i": {"$literal": text(lease.claim)}, "s": now, "t": lease.ttl, "e": ends, **more},
        "d": available,
    }
    if not lease.prolong:
        return [{"$set": change}]
    short = {"$lt": ["$e", DatetimeMS(ends)]}
    ttl, expires = lease.extend(0, ends - 1, ends, 1000)
    change["t"] = {"$cond": [short, ttl, "$t"]}
    change["e"] = {"$cond": [short, DatetimeMS(expires), "$e"]}
    return [{"$set": change}]


# Milliseconds that a held message stays away after its claim.
WAIT: Final[BsonDocument] = {"$subtract": ["$d", "$c.e"]}


def releasing(now: int, delay: int | None = None) -> list[BsonDocument]:
    """The update that gives held messages back: after ``delay``, else after their wait, else at their former moment."""
    after_wait = {"$cond": [{"$gt": [WAIT, 0]}, {"$add": [now, WAIT]}, "$c.d"]}
    return [{"$set": {"d": after_wait if delay is None else now + delay * 1000}}, {"$unset": CLAIM_FIELDS}]
