# SPDX-License-Identifier: Apache-2.0
"""Operations that queues and topics share (contract sections 6, 13)."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Generic, Protocol, TypeVar

from msgspec import Struct

from zq import turns, wire
from zq.clock import Clock
from zq.core.followers import Followers
from zq.core.markers import Markers
from zq.core.metadata import ENCRYPTS, INTERNAL_KEYS, SEALED_SINCE_KEY, Metadata, MetadataSchema, find_assigned_values
from zq.core.quotas import AnyQuotas
from zq.core.values import ReadResult
from zq.errors import InvalidBody, NotFound, ZqError
from zq.model import Page, Seconds, Stats
from zq.model.allowance import EVERYTHING, Allowance
from zq.model.hidden import HIDDEN
from zq.model.limits import DEFAULT_PAGE, Limits, check_range
from zq.model.scopes import Kind, Verb

LOG = logging.getLogger(__name__)
# Maximum number of resources that a filtered listing reads at a time.
READ_AHEAD: Final = 200
# Number of resources in the first read of a filtered listing. It is small because metadata may be large.
FIRST_READ: Final = 5
# Target size in bytes of one read of a filtered listing, estimated from the previous read.
READ_BYTES: Final = 1 << 18
# Maximum bytes of metadata that one request decodes before its page ends early.
MAX_DECODED: Final = 1 << 20
# Bytes of metadata after which a request yields to other threads.
DECODED_SLICE: Final = 1 << 16
# Maximum processor time in seconds of one request before its page ends early.
MAX_WALK_SECONDS: Final = 0.05

# Metadata key that names a queue's dead-letter queue.
DEAD_LETTERS: Final = "_dead_letter_queue"

# A resource's name and stored metadata.
NamedMetadata = tuple[str, Metadata]


class Listing(Struct, frozen=True):
    """A page of resources. If ``cut`` is true, the page ended early to limit the server's work, and may be empty."""

    items: list[NamedMetadata]
    next: str | None
    cut: bool = False


class ListingBudget:
    """The work that the server may still spend on one filtered listing of up to ``max_resources`` resources."""

    def __init__(self, max_resources: int) -> None:
        self._left = max_resources
        self._bytes = MAX_DECODED
        self._ends = time.thread_time() + MAX_WALK_SECONDS
        self._slice = 0

    def charge_bytes(self, size: int) -> None:
        """Charge ``size`` bytes of decoded metadata. Let other threads run after every ``DECODED_SLICE`` bytes."""
        self._bytes -= size
        self._slice += size
        if self._slice >= DECODED_SLICE:
            self._slice = 0
            turns.give_way()

    def charge_resource(self) -> bool:
        """Charge one inspected resource. Return whether the budget is used up.

        Let other threads run after every ``turns.SLICE`` resources.
        """
        self._left -= 1
        if not self._left % turns.SLICE:
            turns.give_way()
        return self._left <= 0 or self._bytes <= 0 or time.thread_time() > self._ends


class Name(Protocol):
    """The full name of a resource: a ``QueueRef`` or ``TopicRef``."""

    @property
    def project(self) -> str: ...

    @property
    def name(self) -> str: ...


class StoredResource(Protocol):
    @property
    def ref(self) -> Name: ...

    @property
    def metadata(self) -> bytes: ...


R = TypeVar("R", bound=Name)
Given = TypeVar("Given", bound=Name, contravariant=True)
T = TypeVar("T", bound=StoredResource)


class ResourceStore(Protocol[Given, T]):
    """The store of queues or topics. ``storage.api.QueueController`` documents the methods."""

    def create(self, ref: Given, metadata: bytes, /) -> bool: ...

    def get(self, ref: Given, /) -> T | None: ...

    def update(self, ref: Given, expected: bytes, metadata: bytes, /) -> bool: ...

    def list(self, project: str, after: str, limit: int, /) -> Page[T]: ...

    def delete(self, ref: Given, /) -> None: ...

    def purge(self, ref: Given, /) -> None: ...

    def stats(self, ref: Given, now: Seconds, /) -> Stats: ...


class MetadataResource(Generic[R, T]):
    """Operations that queues and topics share."""

    def __init__(
        self,
        store: ResourceStore[R, T],
        schema: MetadataSchema,
        markers: Markers,
        clock: Clock,
        limits: Limits,
        quotas: AnyQuotas,
        followers: Followers,
        changed: Callable[[R], None],
        missing: type[NotFound],
    ) -> None:
        self._store = store
        self._schema = schema
        self._markers = markers
        self._clock = clock
        self._limits = limits
        self._quotas = quotas
        self._followers = followers
        self._changed = changed
        self._missing = missing

    def list(
        self,
        project: str,
        marker: str,
        limit: int | None,
        name: str = "",
        filters: Mapping[str, object] | None = None,
        visible: Callable[[str], bool] | None = None,
    ) -> Listing:
        """Return a page of the resources whose names contain ``name`` and whose metadata matches ``filters``.

        The resources are ordered by name. A filtered page may be short or empty although more resources follow. The
        marker of the next page reveals no name for which ``visible`` is false. Raises ``InvalidParameter`` if the
        marker is not valid.
        """
        about = f"{self._schema.kind} {project}"
        marker = self._markers.open(about, marker)
        size = DEFAULT_PAGE if limit is None else check_range("limit", limit, 1, self._limits.max_queues_per_page)
        budget = ListingBudget(self._limits.max_metadata_walk)
        found: list[NamedMetadata] = []
        filtered = bool(name or filters or visible)
        chunk = FIRST_READ if filtered else size
        while True:
            page = self._store.list(project, marker, chunk)
            for stored in page.items:
                if stored.ref.name.startswith(HIDDEN):
                    return Listing(found, found[-1][0] if found else None)
                if name in stored.ref.name and (visible is None or visible(stored.ref.name)):
                    metadata = _parse(stored.metadata)
                    budget.charge_bytes(len(stored.metadata))
                    if _matches(metadata, filters or {}):
                        found.append((stored.ref.name, metadata))
                if len(found) == size:
                    return Listing(found, stored.ref.name)
                if budget.charge_resource() and filtered:
                    hidden = visible is not None and not visible(stored.ref.name)
                    end = self._markers.seal(about, stored.ref.name) if hidden else stored.ref.name
                    return Listing(found, end, cut=True)
            if page.next is None or len(page.items) < chunk:
                return Listing(found, found[-1][0] if found else None)
            marker, chunk = page.next, _next_read(chunk, page.items) if filtered else chunk

    def shown(self, name: str, metadata: Metadata) -> Metadata:
        return self._schema.shown(name, metadata)

    def metadata(self, ref: R) -> Metadata:
        """Return the resource's metadata as clients see it. If the resource does not exist, return the defaults."""
        stored = self._store.get(ref)
        return self.shown(ref.name, _parse(stored.metadata) if stored else {})

    def create(self, ref: R, raw: bytes, allowance: Allowance = EVERYTHING) -> bool:
        """Create the resource. If it exists, leave it unchanged and return ``False``.

        ``raw`` is a JSON object; b"" = no metadata. Raises ``InvalidBody`` or ``QuotaExceeded``. Raises
        ``NotAuthorized`` if the caller may not post to the dead-letter queue in the metadata.
        """
        metadata = wire.json_object(raw) if raw else {}
        self._check(ref, metadata)
        self._authorize_dead_letters(allowance, [metadata.get(DEAD_LETTERS)])
        counts = self._quotas.are_enforced and self._store.get(ref) is None
        with self._admitted(ref, metadata) if counts else nullcontext():
            sealed = {SEALED_SINCE_KEY: self._clock.now()} if metadata.get(ENCRYPTS) else {}
            whole = wire.encode(metadata | self._own_metadata(ref) | sealed)
            if counts:
                self._quotas.admit_metadata(ref.project, len(whole), 0)
            created = self._make(ref, metadata, whole)
        self._changed(ref)
        return created

    def patch(self, ref: R, operations: Sequence[wire.Operation], allowance: Allowance = EVERYTHING) -> Metadata:
        """Apply the operations atomically and return the new metadata as clients see it.

        Raises:
            InvalidBody: An operation or the new metadata is not valid.
            NotAuthorized: The caller may not post to a dead-letter queue that an operation names.
            NotFound: The resource does not exist.
            MetadataConflict: An operation names a missing key, or concurrent changes make every attempt fail.
        """
        named = find_assigned_values(operations, DEAD_LETTERS)
        return self.change(ref, lambda metadata: self._schema.patched(metadata, operations), named, allowance)

    def change(
        self,
        ref: R,
        edit: Callable[[Metadata], Metadata],
        named: Sequence[object] = (),
        allowance: Allowance = EVERYTHING,
    ) -> Metadata:
        """Replace the metadata atomically with the result of ``edit``. Return the new metadata as clients see it.

        If other clients change the metadata concurrently, ``edit`` is called again. ``named`` are the dead-letter
        queues that ``edit`` may set. The caller's permission to post to them and the queue quota are checked. Raises
        the errors of ``patch`` and of ``edit``.
        """
        self._authorize_dead_letters(allowance, named)
        while True:
            stored = self._store.get(ref)
            if stored is None:
                raise self._missing(f"There is no {self._schema.kind} {ref.name}.")
            former = wire.json_object(stored.metadata)
            metadata = edit(_parse(stored.metadata))
            self._check(ref, metadata)
            self._check_fixed(former, metadata)
            for target in named:
                self._check_dead_letters(ref, target)
            own = INTERNAL_KEYS if metadata.get(ENCRYPTS) else INTERNAL_KEYS - {SEALED_SINCE_KEY}
            raw = wire.encode(metadata | {key: former[key] for key in own.intersection(former)})
            if len(raw) > self._limits.max_queue_metadata:
                bound = self._limits.max_queue_metadata
                raise InvalidBody(f"metadata must be at most {bound} bytes, not {len(raw)}.")
            self._quotas.admit_metadata(ref.project, len(raw), len(stored.metadata))
            if self._store.update(ref, stored.metadata, raw):
                self._changed(ref)
                return self.shown(ref.name, metadata)

    def _make(self, ref: R, _metadata: Metadata, raw: bytes) -> bool:
        return self._store.create(ref, raw)

    def _admitted(self, ref: R, metadata: Metadata) -> AbstractContextManager[None]:
        """Return a context manager that reserves quota for the resource and its dead-letter queue.

        On entry, the context manager raises ``QuotaExceeded`` if the project would exceed its limit.
        """
        raise NotImplementedError

    def _own_metadata(self, _ref: R) -> Metadata:
        """Return the internal metadata that the server adds to a new resource. Clients cannot see it."""
        return {}

    def _check_dead_letters(self, ref: R, target: object) -> None:
        """Raise ``QuotaExceeded`` if creating the dead-letter queue would exceed the project's queue limit."""

    def _check(self, ref: R, metadata: Metadata) -> None:
        self._schema.check(metadata, ref.name)

    def _check_fixed(self, former: Metadata, metadata: Metadata) -> None:
        """Raise ``MetadataConflict`` if a key that can only be set on creation has changed."""

    def _authorize_dead_letters(self, allowance: Allowance, named: Iterable[object]) -> None:
        if self._schema.kind == Kind.QUEUE:
            for target in named:
                if isinstance(target, str):
                    allowance.authorize("messages:create", Verb.PRODUCE, Kind.QUEUE, target)

    def delete(self, ref: R) -> int | None:
        """Delete the resource and its messages. Return the number of deleted messages; ``None`` = not counted."""
        held = self._count_messages(ref)
        self._store.delete(ref)
        self._changed(ref)
        return held

    def purge(self, ref: R, types: Sequence[str] | None) -> int | None:
        """Delete the resource's messages, its subscriptions, or both (``types`` = ``None``).

        Return the number of deleted messages, or ``None`` if they could not be counted. Raises ``InvalidBody`` for a
        type other than "messages" and "subscriptions".
        """
        for kind in types or ():
            if kind not in ("messages", "subscriptions"):
                raise InvalidBody(f"resource_types may contain messages and subscriptions, not {kind[:32]!r}.")
        held: int | None = 0
        if types is None or "messages" in types:
            held = self._count_messages(ref)
            self._store.purge(ref)
        if types is None or "subscriptions" in types:
            self._followers.end(self._schema.kind, ref.project, ref.name)
            self._changed(ref)
        return held

    def _count_messages(self, ref: R) -> int | None:
        try:
            stats = self.stats(ref).value
            return stats.claimed + stats.free
        except ZqError as error:  # a failed count must not prevent the deletion
            LOG.warning("The messages of %s cannot be counted before their deletion: %s", ref.name, error)
            return None

    def stats(self, ref: R) -> ReadResult[Stats]:
        """Return the message counts, and the oldest and newest message."""
        now = self._clock.now()
        return ReadResult(self._store.stats(ref, now), now)


def _next_read(count: int, read: Sequence[StoredResource]) -> int:
    mean = 1 + sum(len(stored.metadata) for stored in read) // len(read)
    return max(1, min(2 * count, READ_AHEAD, READ_BYTES // mean))


def _parse(stored: bytes) -> Metadata:
    metadata = wire.json_object(stored)
    return {key: value for key, value in metadata.items() if key not in INTERNAL_KEYS}


def _matches(metadata: Metadata, filters: Mapping[str, Any]) -> bool:
    """Return whether the metadata matches all filters. Types must match too: ``true`` is not 1."""
    return all(type(metadata.get(key)) is type(value) and metadata[key] == value for key, value in filters.items())
