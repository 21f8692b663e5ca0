# SPDX-License-Identifier: Apache-2.0
"""Where claims look for the ready messages of a queue: a hint in memory, so that nothing is walked over twice."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from zq.storage.rocksdb.port import Store


class Front(NamedTuple):
    """Ready messages lie from ``head`` to ``low`` and from ``high`` on, in the order of ``available``.

    Before ``head`` there is nothing, or what has expired and waits to be removed; so from ``low`` to ``high``, over
    which claims had walked when a message was put back before it.
    """

    head: bytes
    low: bytes
    high: bytes

    def entries(self, store: Store, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries of ``available`` that may be ready, up to a key."""
        if self.head < self.low:
            yield from store.scan("available", self.head, min(self.low, upper), spare=True)
        yield from store.scan("available", self.high, upper, spare=True)

    def passed(self, head: bytes) -> "Front":
        """After a walk that goes on at ``head`` next time."""
        return Front(head, self.low, self.high) if head < self.low else Front(head, head, max(head, self.high))

    def joined(self, keys: Sequence[bytes]) -> "Front":
        """With new entries."""
        early = [key for key in keys if key < self.high]
        if not early:
            return self
        low = max(early) + b"\0"
        if self.head >= self.low:  # what lay before the stretch has been walked over too
            return Front(min(early), low, self.high)
        return Front(min(self.head, *early), max(self.low, low), self.high)
