# SPDX-License-Identifier: Apache-2.0
"""Digests of stored items, with which the contents of two stores are compared."""

from collections import defaultdict
from hashlib import sha256

import msgspec

from zq.model import Seconds
from zq.model.parcels import LOG, LogParcel, Parcel, QueueParcel, facts


class Digest:
    """The number of items in a set, and a SHA-256 digest of the set that does not depend on the order of the items."""

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
    """A summary of the data in a store, for a comparison with another store.

    Attributes:
        digests: Digests of the stored items by project, kind and lifetime. All items of a digest live for at least
            ``2 ** lifetime`` more seconds.
        counters: The ``Counters`` by project and queue. The value for the queue name ``LOG`` contains the last sequence
            number of the project's topic log.
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
        """Return the keys of the digests that can be compared although ``elapsed`` seconds may have passed.

        Digests with items that may expire within this time are omitted.
        """
        return {key for key in {*self.digests, *other.digests} if 2 ** key[2] > elapsed}

    def lower_counters(self, copy: "Contents") -> list[tuple[str, str]]:
        """Return the (project, queue) pairs that have a lower counter in ``copy`` than in this store."""
        return sorted(
            owner
            for owner, counters in self.counters.items()
            if any(
                other < one
                for one, other in zip(counters, copy.counters.get(owner, (0.0,) * len(counters)), strict=True)
            )
        )


def _encode(content: object) -> bytes:
    try:
        return msgspec.msgpack.encode(content)
    except UnicodeEncodeError:  # MessagePack rejects text with lone surrogates
        return repr(content).encode("utf-8", "surrogatepass")
