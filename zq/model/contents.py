# SPDX-License-Identifier: Apache-2.0
"""Digests of stored items, with which the contents of two stores are compared."""

from collections import defaultdict
from hashlib import sha256

import msgspec

from zq.model import Seconds
from zq.model.parcels import LOG, LogParcel, Parcel, QueueParcel, facts


class Digest:
    """The number of items in a set of stored items (facts), and the SHA-256 digest of the set.

    The digest does not depend on the order of the items.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0

    def add(self, content: bytes) -> None:
        self.count += 1
        self.total = (self.total + int.from_bytes(sha256(content).digest())) % (1 << 256)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Digest) and (self.count, self.total) == (other.count, other.total)

    __hash__ = None  # type: ignore[assignment]


class Contents:
    """The contents of the projects in one store.

    Attributes:
        digests: Digests by project, kind, and lifetime. The facts of a digest expire in ``2 ** lifetime`` seconds or
            later.
        counters: Counters by project and queue. The queue ``LOG`` is the topic log.
    """

    def __init__(self) -> None:
        self.digests = defaultdict[tuple[str, str, int], Digest](Digest)
        self.counters: dict[tuple[str, str], tuple[float, ...]] = {}

    def add(self, project: str, parcel: Parcel, now: Seconds) -> None:
        if isinstance(parcel, LogParcel):
            self.counters[project, LOG] = (parcel.last,)
        elif isinstance(parcel, QueueParcel) and parcel.metadata is not None:
            self.counters[project, parcel.queue] = parcel.counters
        for fact in facts(parcel, now):
            lifetime = int(fact.expires - now).bit_length() - 1
            self.digests[project, fact.kind, lifetime].add(_encode(fact.content))

    def comparable(self, other: "Contents", elapsed: Seconds) -> set[tuple[str, str, int]]:
        """Return the keys of the digests of both contents without items that may expire within ``elapsed`` seconds."""
        return {key for key in {*self.digests, *other.digests} if 2 ** key[2] > elapsed}

    def lower_counters(self, copy: "Contents") -> list[tuple[str, str]]:
        """Return the projects and queues of which the copy has lower counters."""
        return sorted(
            owner
            for owner, counters in self.counters.items()
            if any(
                other < one
                for one, other in zip(counters, copy.counters.get(owner, (0.0,) * len(counters)), strict=True)
            )
        )


def _encode(content: object) -> bytes:
    """Encode a fact with MessagePack or, if it has lone surrogates, with the slower ``repr``."""
    try:
        return msgspec.msgpack.encode(content)
    except UnicodeEncodeError:
        return repr(content).encode("utf-8", "surrogatepass")
