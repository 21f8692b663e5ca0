# SPDX-License-Identifier: Apache-2.0
"""What a check of a whole store goes through, counts and finds."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from msgspec import MsgspecError

from zq.errors import StoreDamaged
from zq.measures import Report
from zq.storage.rocksdb import layout
from zq.storage.rocksdb.port import Write
from zq.storage.rocksdb.readable import Readable

T = TypeVar("T")
EXAMPLES: Final = 20
TOP: Final = b"\xff" * 256
"""Above every key."""


class _Lenient:
    """A store in which what cannot be read is absent, and ``missed`` is set."""

    def __init__(self, store: Readable) -> None:
        self._store = store
        self.scan = store.scan
        self.missed = False

    def get(self, family: str, key: bytes) -> bytes | None:
        try:
            return self._store.get(family, key)
        except StoreDamaged:
            self.missed = True
            return None


class Findings:
    """Of one check of an open store that nobody writes to."""

    def __init__(self, store: Readable) -> None:
        self.store = _Lenient(store)
        self.counted: Counter[str] = Counter()
        self._contradictions = 0
        self._examples: list[str] = []

    def found(self, sentence: str) -> None:
        """A contradiction, unless damage hides what it is about."""
        if self.store.missed:
            self.store.missed = False
            self.counted["comparisons that damage prevents"] += 1
            return
        self._contradictions += 1
        if len(self._examples) < EXAMPLES:
            self._examples.append(f"{sentence}.")

    def entries(self, family: str) -> Iterator[tuple[bytes, bytes]]:
        """All of a family, counted."""
        for item in self.store.scan(family, b"", TOP):
            self.counted[family] += 1
            yield item

    def decoded(self, decode: Callable[[bytes], T], family: str, key: bytes, value: bytes) -> T | None:
        """The value; None if it cannot be read, which is a contradiction."""
        try:
            return decode(value)
        except (MsgspecError, ValueError):
            self.found(f"{family}: {key.hex()} cannot be read")
            return None

    def check_wanted(self, family: str, key: bytes, wanted: Sequence[Write]) -> None:
        """All of this is in the store, because of an entry of the family."""
        for other, place, value in wanted:
            stored = self.store.get(other, place)
            if stored is None:
                self.found(f"{other}: nothing that leads to {key.hex()} of {family}")
            elif stored != value:
                self.found(f"{other}: {place.hex()} does not say what {key.hex()} of {family} does")

    def noted(self, kind: bytes) -> set[bytes]:
        """The numbers that ``default`` has notes of this kind of."""
        return {key[len(kind) :] for key, _ in self.store.scan("default", kind, layout.after(kind))}

    def report(self) -> Report:
        """All of it, but for damage."""
        return Report(dict(sorted(self.counted.items())), self._contradictions, self._examples, [])
