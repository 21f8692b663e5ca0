# SPDX-License-Identifier: Apache-2.0
"""What lies in a MongoDB database of zq: two collections, ``messages`` and ``clock``.

A document of ``messages`` is a message or a queue. Moments are milliseconds since the epoch, but ``e`` is a BSON date,
as the TTL index wants it. Texts are stored as ``text`` says; P = a project's prefix: ``4:acme/``.

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
``c``     claim, if there ever was one:          -
          ``i`` id, ``s`` start, ``t`` ttl,
          ``e`` end, ``n`` how often claimed,
          ``d`` available-at before it
``o``     dead letters: ``q`` queue it came      -
          from, ``n`` how often claimed there
``r``     dead letters: reason                   -
``n``     -                                      P name, while the queue exists: the order of listings
``k1``    -                                      last sequence given
``d1``    -                                      last available-at of a message without delay
``g``     -                                      messages up to this sequence are being removed (purge, delete)
========= ====================================== ======================================================================

A released message keeps of ``c`` only ``n``. The clock is one document: ``{_id: "clock", t: the largest moment seen}``.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from msgspec import Struct

from zq.model import Draft, Lease, Message, QueueRef, Seconds

Document = dict[str, Any]
MESSAGES: Final = "messages"
CLOCK: Final = "clock"
CODEC: Final[CodecOptions[Document]] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)

CLAIMS: Final = "claims"
OBSERVERS: Final = "observers"
EXPIRY: Final = "expiry"
HELD: Final = "held"
NAMES: Final = "names"
DOOMED: Final = "doomed"
INDEXES: Final[tuple[Document, ...]] = (
    {"name": CLAIMS, "key": {"q": 1, "d": 1, "k": 1, "e": 1}},
    {"name": OBSERVERS, "key": {"q": 1, "k": 1, "d": 1, "e": 1}},
    {"name": EXPIRY, "key": {"e": 1}, "expireAfterSeconds": 0},
    {"name": HELD, "key": {"c.i": 1}, "partialFilterExpression": {"c.i": {"$exists": True}}},
    {"name": NAMES, "key": {"n": 1}, "partialFilterExpression": {"n": {"$exists": True}}},
    {"name": DOOMED, "key": {"g": 1}, "partialFilterExpression": {"g": {"$exists": True}}},
)
SHARD_KEY: Final[Document] = {"s": "hashed"}


class QueueKey(Struct, frozen=True):
    """A queue's name in all its spellings."""

    shard: str
    messages: str
    """``q`` of its messages."""
    counter: str
    """``_id`` of its own document."""
    project: str
    """What the ``_id`` of every message of its project begins with."""


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
    return QueueKey(name, "m" + name, "q" + name, "m" + prefix)


def after(prefix: str) -> str:
    """The smallest text above all that begin with ``prefix``, which ends in a slash."""
    return prefix[:-1] + "0"


def ms(moment: Seconds) -> int:
    """Seconds to stored milliseconds."""
    return round(moment * 1000)


def document(key: QueueKey, draft: Draft, sequence: int, available: int, now: int) -> Document:
    """A new message."""
    made: Document = {
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
    return made


def message(key: QueueKey, found: Mapping[str, Any], now: int) -> Message:
    """The model's message, as it stands at ``now``."""
    claim = found.get("c", NO_CLAIM)
    return Message(
        id=original(found["_id"][len(key.project) :]),
        body=found["b"],
        ttl=found["t"],
        created=found["a"] / 1000,
        expires=int(found["e"]) / 1000,
        available=found["d"] / 1000,
        sequence=found["k"],
        client=original(found["u"]),
        claim=original(claim["i"]) if claim.get("e", 0) > now else "",
        claim_count=claim["n"],
        checksum=original(found.get("m", "")),
    )


NO_CLAIM: Final[Document] = {"n": 0}


def put_under(found: Document, lease: Lease, now: int) -> None:
    """Do to a found message what ``holding`` does to the stored one."""
    ends = now + lease.ttl * 1000
    former = found.get("c", NO_CLAIM)
    found["c"] = {"i": text(lease.claim), "e": ends, "n": former["n"] + 1}
    found["t"], expires = lease.life(found["t"], int(found["e"]), ends, 1000)
    found["d"], found["e"] = ends, DatetimeMS(expires)


def holding(lease: Lease, now: int, *, anew: bool = False) -> list[Document]:
    """The update that puts messages under a claim that starts now; ``anew`` = they are under it already."""
    ends = now + lease.ttl * 1000
    claim: Document = {
        "i": {"$literal": text(lease.claim)},
        "s": now,
        "t": lease.ttl,
        "e": ends,
        "n": "$c.n" if anew else {"$add": [{"$ifNull": ["$c.n", 0]}, 1]},
        "d": "$c.d" if anew else "$d",
    }
    short = {"$lt": ["$e", DatetimeMS(ends)]}
    ttl, expires = lease.life(0, ends - 1, ends, 1000)
    # $c is replaced as a whole: what a former claim left in it must not stay. All "$..." are the values before.
    return [
        {
            "$set": {
                "c": claim,
                "d": ends,
                "t": {"$cond": [short, ttl, "$t"]},
                "e": {"$cond": [short, DatetimeMS(expires), "$e"]},
            }
        }
    ]


RELEASING: Final[list[Document]] = [
    {"$set": {"d": "$c.d"}},
    {"$unset": ["c.i", "c.s", "c.t", "c.e", "c.d"]},
]
"""The update that gives messages back, each to its former place."""
