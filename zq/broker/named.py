# SPDX-License-Identifier: Apache-2.0
"""Use cases on named things with metadata: what queues and topics have in common (contract 6, 13)."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from zq import wire
from zq.broker.vocabulary import Metadata, Vocabulary
from zq.clock import Clock
from zq.errors import InvalidBody, NotFound
from zq.limits import DEFAULT_PAGE, Limits, within
from zq.model import Page, Seconds, Stats

READ_AHEAD: Final = 200
"""Things read at a time when a filter may drop most of them,"""
FIRST_READ: Final = 25
"""but fewer at first: metadata may be large."""
WALKED_BYTES: Final = 1 << 20
"""Bytes of metadata that one request decodes to compare them with filters,"""
WALKED_SECONDS: Final = 0.05
"""and how much of a core it takes: then its page ends, and its marker goes on. Waiting for the store does not count."""

Listed = tuple[str, Metadata]
"""(name, stored metadata)"""


class Listing(Struct, frozen=True):
    """A page of a listing. ``next`` continues after it; ``cut``: it was ended early, and may even be empty."""

    items: list[Listed]
    next: str | None
    cut: bool = False


class Walk:
    """How much one request has looked at, of ``most`` things."""

    def __init__(self, most: int) -> None:
        self._left = most
        self._bytes = WALKED_BYTES
        self._ends = time.thread_time() + WALKED_SECONDS

    def read(self, size: int) -> None:
        """Metadata of so many bytes were decoded."""
        self._bytes -= size

    def ends_with_next(self) -> bool:
        """Count one thing more; whether that was enough."""
        self._left -= 1
        return self._left <= 0 or self._bytes <= 0 or time.thread_time() > self._ends


class Name(Protocol):
    """A full name: a ``QueueRef``, a ``TopicRef``."""

    @property
    def name(self) -> str: ...


class Thing(Protocol):
    """What is stored under a name."""

    @property
    def ref(self) -> Name: ...

    @property
    def metadata(self) -> bytes: ...


R = TypeVar("R", bound=Name)
Given = TypeVar("Given", bound=Name, contravariant=True)
T = TypeVar("T", bound=Thing)


class Catalogue(Protocol[Given, T]):
    """Where things of one kind are: what ``storage.api.QueueController`` promises of each of these verbs."""

    def create(self, ref: Given, metadata: bytes, /) -> bool: ...

    def get(self, ref: Given, /) -> T | None: ...

    def update(self, ref: Given, expected: bytes, metadata: bytes, /) -> bool: ...

    def list(self, project: str, after: str, limit: int, /) -> Page[T]: ...

    def delete(self, ref: Given, /) -> None: ...

    def purge(self, ref: Given, /) -> None: ...

    def stats(self, ref: Given, now: Seconds, /) -> Stats: ...


class Named(Generic[R, T]):
    """What a caller can do with things of one kind. ``changed`` is told of those that may have other metadata now."""

    def __init__(
        self,
        catalogue: Catalogue[R, T],
        vocabulary: Vocabulary,
        clock: Clock,
        limits: Limits,
        changed: Callable[[R], None],
        missing: type[NotFound],
    ) -> None:
        self._catalogue = catalogue
        self._vocabulary = vocabulary
        self._clock = clock
        self._limits = limits
        self._changed = changed
        self._missing = missing

    def list(
        self, project: str, marker: str, limit: int | None, name: str = "", filters: Mapping[str, object] | None = None
    ) -> Listing:
        """A page of the things whose name contains ``name`` and whose stored metadata equal every filter.

        What is looked at for one page is bounded: a page of filtered things may be short, or empty, and go on.
        """
        size = DEFAULT_PAGE if limit is None else within("limit", limit, 1, self._limits.max_queues_per_page)
        walk = Walk(self._limits.max_metadata_walk)
        found: list[Listed] = []
        chunk = FIRST_READ if name or filters else size
        while True:
            page = self._catalogue.list(project, marker, chunk)
            for thing in page.items:
                if name in thing.ref.name:
                    metadata = wire.json_object(thing.metadata)
                    walk.read(len(thing.metadata))
                    if _matches(metadata, filters or {}):
                        found.append((thing.ref.name, metadata))
                if len(found) == size:
                    return Listing(found, thing.ref.name)
                if walk.ends_with_next() and (name or filters):
                    return Listing(found, thing.ref.name, cut=True)
            if page.next is None or len(page.items) < chunk:
                return Listing(found, found[-1][0] if found else None)
            marker, chunk = page.next, min(2 * chunk, READ_AHEAD) if name or filters else chunk

    def shown(self, name: str, metadata: Metadata) -> Metadata:
        """Metadata with the reserved defaults filled in."""
        return self._vocabulary.shown(name, metadata)

    def metadata(self, ref: R) -> Metadata:
        """The shown metadata; the defaults alone for what does not exist."""
        stored = self._catalogue.get(ref)
        return self.shown(ref.name, wire.json_object(stored.metadata) if stored else {})

    def create(self, ref: R, raw: bytes) -> bool:
        """Create it with a metadata document ("" = none); False if it exists, which changes nothing."""
        metadata = wire.json_object(raw) if raw else {}
        self._vocabulary.check(metadata, ref.name)
        created = self._catalogue.create(ref, wire.encode(metadata))
        self._changed(ref)
        return created

    def patch(self, ref: R, operations: Sequence[wire.Operation]) -> Metadata:
        """Apply the operations as one step and return the shown metadata.

        Raises ``NotFound``, ``MetadataConflict``, ``InvalidBody``; then nothing has changed.
        """
        while True:
            stored = self._catalogue.get(ref)
            if stored is None:
                raise self._missing(f"There is no {self._vocabulary.thing} {ref.name}.")
            metadata = self._vocabulary.patched(wire.json_object(stored.metadata), operations)
            self._vocabulary.check(metadata, ref.name)
            raw = wire.encode(metadata)
            if len(raw) > self._limits.max_queue_metadata:
                bound = self._limits.max_queue_metadata
                raise InvalidBody(f"metadata must be at most {bound} bytes; they become {len(raw)}.")
            if self._catalogue.update(ref, stored.metadata, raw):
                self._changed(ref)
                return self.shown(ref.name, metadata)

    def delete(self, ref: R) -> None:
        """Remove it and all in it, if it is there."""
        self._catalogue.delete(ref)
        self._changed(ref)

    def purge(self, ref: R, types: Sequence[str] | None) -> None:
        """Remove what ``types`` name of ``messages`` and ``subscriptions``; None = both."""
        for kind in types or ():
            if kind not in ("messages", "subscriptions"):
                raise InvalidBody(f"resource_types may hold messages and subscriptions; it holds {kind[:32]!r}.")
        if types is None or "messages" in types:
            self._catalogue.purge(ref)

    def stats(self, ref: R) -> tuple[Stats, Seconds]:
        """Counts and landmarks, and the moment they are of."""
        now = self._clock.now()
        return self._catalogue.stats(ref, now), now


def _matches(metadata: Metadata, filters: Mapping[str, Any]) -> bool:
    """Whether stored metadata equal all filters; numbers only numbers, and ``true`` is none."""
    return all(type(metadata.get(key)) is type(value) and metadata[key] == value for key, value in filters.items())
