# SPDX-License-Identifier: Apache-2.0
"""Quotas and states (such as suspended) of projects (tenancy contract, sections 5 and 6).

The deployment has default quotas. An administrator can set other limits and the state of a project. These settings are
stored in the document with the kind "quota" and the project's id as name. Servers cache them for ten seconds.

Which class decides that a quota is exceeded:

- stored messages and bytes: ``StorageQuotas`` in ``usage_quotas``
- metadata bytes: ``MetadataQuotas`` in ``usage_quotas``
- queues, topics and transactions: ``Quotas``
- subscriptions and tokens: the code that creates them
- rates: ``zq.core.rates``
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import chain, islice
from typing import Final

import msgspec
from cachetools import FIFOCache
from msgspec import structs

from zq.cache import ReadThroughCache
from zq.clock import Clock
from zq.core.rates import Account, Rates
from zq.core.usage_quotas import (
    CACHE_TTL,
    MAX_PROJECTS,
    RETRY_INTERVAL,
    LargestUse,
    MetadataQuotas,
    StorageQuotas,
    beyond_free,
    exceeded,
)
from zq.errors import MetadataConflict, NotBuilt, ProjectInactive, QuotaExceeded, Unavailable
from zq.model import Draft, Page, QueueRef
from zq.model.documents import Document, DocumentRef
from zq.model.limits import check_range, project_id
from zq.model.quotas import OVERHEAD, PROJECT, QUOTA, Project, Quota, State, Usage, Work
from zq.model.topics import TOPIC, TopicRef
from zq.storage.api import Storage
from zq.storage.concurrency import StripedLocks

LOG = logging.getLogger(__name__)
# Seconds, in addition to ``CACHE_TTL``, after which a project is added to the list of projects again, because another
# server may have deleted its entry.
REGISTERED_TTL: Final = 60.0
# Maximum seconds for which a request waits for concurrent creations of the same kind in its project.
CREATION_WAIT: Final = 10.0
# Number of documents read at a time when documents are counted.
DOCUMENT_PAGE: Final = 200
# Default number of projects per page.
PAGE: Final = 20
# Maximum number of projects per page.
MAX_PAGE: Final = 100
# Kind of the documents of a project's tokens.
TOKEN: Final = "token"  # noqa: S105  (no password)
# Context manager of a step that reserves nothing.
NO_RESERVATION: Final = nullcontext()

_decoder: Final = msgspec.json.Decoder(Project)


class Allotment(msgspec.Struct, frozen=True):
    """The cached quota, state and rate limiter of one project. The cache keeps them for ``ttl`` seconds."""

    ttl: float
    quota: Quota
    state: State
    account: Account


class NoQuotas:
    """A replacement for ``Quotas`` without limits, for a server without authentication."""

    are_enforced = False

    def admit_queue(self, _queue: QueueRef, _dead_letters: object = None) -> AbstractContextManager[None]:
        return NO_RESERVATION

    def admit_topic(self, _topic: TopicRef) -> AbstractContextManager[None]:
        return NO_RESERVATION

    def admit_targets(self, _queues: Collection[QueueRef]) -> AbstractContextManager[None]:
        return NO_RESERVATION

    def check_targets(self, _queues: Collection[QueueRef]) -> None:
        return

    def check_dead_letters(self, _queue: QueueRef, _name: object) -> None:
        return

    def admit_metadata(self, _project: str, _size: int, _former: int) -> None:
        return

    def admit_work(self, _project: str, _work: Work, _name: str) -> AbstractContextManager[QuotaExceeded | None]:
        return NO_RESERVATION

    def forget_work(self, _project: str, _work: Work, _name: str) -> None:
        return

    def max_subscriptions(self, _project: str) -> int:
        return 0

    def share_of(self, _project: str) -> int | None:
        return None

    def reserve_storage(self, _project: str, _drafts: Sequence[Draft]) -> QuotaExceeded | None:
        return None


class Quotas:
    """The quotas and states of all projects. ``defaults`` apply unless an administrator has set other limits."""

    are_enforced = True

    def __init__(self, storage: Storage, clock: Clock, defaults: Quota, rates: Rates) -> None:
        self._storage = storage
        self._documents = storage.documents
        self._clock = clock
        self.defaults = defaults
        self._rates = rates
        self._lock = threading.Lock()
        self._creation_locks = StripedLocks(CREATION_WAIT)
        self._allotments = ReadThroughCache(
            self._load_allotment, MAX_PROJECTS, lambda allotment: allotment.ttl, rates.now
        )
        self.allotment = self._allotments.get
        """Returns the project's allotment, cached for ten seconds."""
        self._exists = ReadThroughCache(
            self._read_exists, MAX_PROJECTS, lambda exists: CACHE_TTL if exists else 0.0, rates.now
        ).get
        # A lookup of a project adds it to the list of projects.
        self._registered = ReadThroughCache(self._register, MAX_PROJECTS, CACHE_TTL + REGISTERED_TTL, rates.now)
        # Times until which a stage, fence or producer of a project is known to exist.
        self._existing_work: FIFOCache[tuple[str, Work, str], float] = FIFOCache(MAX_PROJECTS)
        self.now = rates.now
        self.recent_projects = rates.recent_projects
        self._storage_quotas = StorageQuotas(storage, clock, rates.now)
        self._metadata_quotas = MetadataQuotas(self._measure_metadata, rates.now)

    def configure(self, defaults: Quota) -> None:
        """Apply new defaults and drop cached allotments."""
        self.defaults = defaults
        self._allotments.clear()

    def _load_allotment(self, project: str) -> Allotment:
        """Read the project's allotment. If the store is unavailable, return the cached allotment, even an expired one.

        If there is no cached allotment, raise ``Unavailable``, because the project may be suspended.
        """
        began = self.now()
        try:
            settings = self.read(project)
        except Unavailable as absence:
            known = self._allotments.peek(project, None, expired=True)
            if known is None:
                raise
            LOG.debug("The cached quotas stay in use, because the store is unavailable: %s", absence)
            return structs.replace(known, ttl=self.now() - began + RETRY_INTERVAL)
        quota = self.defaults.with_own(settings.limits)
        return Allotment(CACHE_TTL, quota, settings.state, self._rates.account(project, quota))

    # Settings of projects, which administrators write.

    def read(self, project: str) -> Project:
        """Return the project's stored settings, or empty settings."""
        document = self._documents.get(DocumentRef("", QUOTA, project), self._clock.now())
        return _decoder.decode(document.value) if document else Project()

    def write(self, project: str, change: Callable[[Project], Project]) -> Project:
        """Change the project's settings atomically and return the new settings."""
        ref = DocumentRef("", QUOTA, project_id(project))
        for _ in range(10):
            now = self._clock.now()
            document = self._documents.get(ref, now)
            settings = change(_decoder.decode(document.value) if document else Project())
            version = document.version if document else ""
            if self._documents.put(ref, msgspec.json.encode(settings), now, expected=version):
                self.forget(project)
                return settings
        raise MetadataConflict("The project was changed concurrently. Try again.")

    def remove(self, project: str) -> None:
        """Delete the project's settings and its entry in the list of projects."""
        for kind in (QUOTA, PROJECT):
            self._documents.delete(DocumentRef("", kind, project), self._clock.now())
        self._registered.forget(project)
        self.forget(project)

    def forget(self, project: str) -> None:
        self._allotments.forget(project)
        self._storage_quotas.forget(project)

    def list(self, marker: str, limit: int | None) -> Page[tuple[str, Project]]:
        """Return a page of the projects that have settings or have created an object, such as a queue.

        The projects are ordered by id.
        """
        size = PAGE if limit is None else check_range("limit", limit, 1, MAX_PAGE)
        now = self._clock.now()
        registered, written = (self._documents.list("", kind, "", marker, size, now).items for kind in (PROJECT, QUOTA))
        settings = {each.ref.name: _decoder.decode(each.value) for each in written}
        names = sorted({each.ref.name for each in registered} | settings.keys())[:size]
        return Page([(name, settings.get(name, Project())) for name in names], names[-1] if names else None)

    # Quotas that are checked on creation. Within a process, creations of one kind in one project are serialized, so
    # that each check includes the other creations.

    def admit_queue(self, queue: QueueRef, dead_letters: object = None) -> AbstractContextManager[None]:
        """Return a context manager that reserves quota for a new queue and its dead-letter queue.

        On entry, the context manager raises ``QuotaExceeded`` if the project would exceed its limit.
        """
        return self._reserve_queues([queue, *_dead_letter_ref(queue, dead_letters)])

    def admit_targets(self, queues: Collection[QueueRef]) -> AbstractContextManager[None]:
        """Return a context manager that reserves quota for the missing target queues of a move.

        On entry, the context manager raises ``QuotaExceeded`` if the project would exceed its limit.
        """
        missing = self._missing(queues)
        return self._reserve_queues(missing) if missing else NO_RESERVATION

    def check_targets(self, queues: Collection[QueueRef]) -> None:
        """Raise ``QuotaExceeded`` if the project's queue limit forbids creating the queues that are missing."""
        if missing := self._missing(queues):
            self._registered.get(missing[0].project)
            self._check_queues(missing)

    def check_dead_letters(self, queue: QueueRef, name: object) -> None:
        """Raise ``QuotaExceeded`` if the project's queue limit forbids creating the dead-letter queue ``name``.

        The check happens when ``name`` is set in the metadata of ``queue``. A claim that later creates the dead-letter
        queue does not check the limit.
        """
        self.check_targets(_dead_letter_ref(queue, name))

    @contextmanager
    def _reserve_queues(self, queues: Sequence[QueueRef]) -> Iterator[None]:
        project = queues[0].project
        self._registered.get(project)
        if not self.allotment(project).quota.queues:
            yield
            return
        with self._creation_locks.locked((project, "queues")):
            self._check_queues([queue for queue in set(queues) if self._storage.queues.get(queue) is None])
            yield

    def _missing(self, queues: Collection[QueueRef]) -> Sequence[QueueRef]:
        return [queue for queue in set(queues) if not self._exists(queue)]

    def _check_queues(self, missing: Sequence[QueueRef]) -> None:
        if missing:
            project = missing[0].project
            limit = self.allotment(project).quota.queues
            if limit and self._storage.queues.count(project) + len(missing) > limit:
                raise exceeded("queues", limit)

    def _read_exists(self, queue: QueueRef) -> bool:
        """Return whether the queue exists. If the project has no queue limit, return ``True`` without a read.

        Without a limit, queues are created without a quota check, so their existence does not matter.
        """
        return not self.allotment(queue.project).quota.queues or self._storage.queues.get(queue) is not None

    def _register(self, project: str) -> None:
        self._documents.put(DocumentRef("", PROJECT, project), b"{}", self._clock.now(), expected="")

    @contextmanager
    def admit_topic(self, topic: TopicRef) -> Iterator[None]:
        """Return a context manager that reserves quota for a new topic.

        On entry, the context manager raises ``QuotaExceeded`` if the project would exceed its limit.
        """
        self._registered.get(topic.project)
        with self._creation_locks.locked((topic.project, TOPIC)):
            limit = self.allotment(topic.project).quota.topics
            if limit and self._count(topic.project, TOPIC, limit) >= limit and not self._has_topic(topic):
                raise exceeded("topics", limit)
            yield

    def admit_metadata(self, project: str, size: int, former: int) -> None:
        """Reserve quota for metadata that grows from ``former`` to ``size`` bytes. Raises ``QuotaExceeded``."""
        self._metadata_quotas.take(project, size, former, self.allotment(project).quota.metadata_bytes)

    def _measure_metadata(self, project: str) -> int:
        total, after = 0, ""
        while True:
            page = self._storage.queues.list(project, after, DOCUMENT_PAGE)
            total += sum(beyond_free(len(queue.metadata)) for queue in page.items)
            if page.next is None or len(page.items) < DOCUMENT_PAGE:
                break
            after = page.next
        return total + sum(beyond_free(len(topic.value)) for topic in self._documents_of(project, TOPIC))

    def _has_topic(self, topic: TopicRef) -> bool:
        return self._documents.get(DocumentRef(topic.project, TOPIC, topic.name), self._clock.now()) is not None

    def max_subscriptions(self, project: str) -> int:
        """Return the project's subscription limit; 0 = no limit.

        Called before a subscription is created, so this method also adds the project to the list of projects.
        """
        self._registered.get(project)
        return self.allotment(project).quota.subscriptions

    @contextmanager
    def admit_work(self, project: str, work: Work, name: str) -> Iterator[QuotaExceeded | None]:
        """Return a context manager that reserves quota for a transaction object: a stage, fence or producer.

        If the project has reached its limit, the context manager yields a ``QuotaExceeded`` error, otherwise ``None``.
        """
        limit = getattr(self.allotment(project).quota, work)
        known = (project, work, name)
        self._registered.get(project)
        if not limit or self._existing_work.get(known, 0.0) > self.now():
            yield None
            return
        with self._creation_locks.locked((project, work)):
            found = self._storage.transactions.count(project, work, name, self._clock.now())
            if not found.known:
                yield exceeded(work, limit) if found.total >= limit else None
                return
        with self._lock:
            self._existing_work[known] = self.now() + CACHE_TTL
        yield None

    def forget_work(self, project: str, work: Work, name: str) -> None:
        """Remove a transaction object (a stage, fence or producer) from this server's cache of existing objects."""
        with self._lock:
            self._existing_work.pop((project, work, name), None)

    def share_of(self, project: str) -> int:
        return self.allotment(project).quota.share

    def reserve_storage(self, project: str, drafts: Sequence[Draft]) -> QuotaExceeded | None:
        """Reserve storage quota for the drafts. Return the error if the quota is exceeded, otherwise ``None``."""
        quota = self.allotment(project).quota
        if not quota.stored_messages and not quota.stored_bytes:
            return None
        sizes = [draft.size for draft in drafts]  # a list is faster than a generator
        size = sum(sizes) + OVERHEAD * len(drafts)
        return self._storage_quotas.take(project, len(drafts), size, quota)

    def stored(self, project: str) -> Usage | None:
        return self._storage.usage(project, self._clock.now())

    def used(self, project: str) -> Mapping[str, int]:
        """Return the numbers of the project's queues, topics, tokens, stages, fences and producers, by quota name."""
        used = {
            "queues": self._storage.queues.count(project),
            "topics": self._count(project, TOPIC, 1 << 53),
            "tokens": self._count(project, TOKEN, 1 << 53),
        }
        with suppress(NotBuilt):  # the driver may lack transactions
            now, count = self._clock.now(), self._storage.transactions.count
            used |= {work.value: count(project, work, "", now).total for work in Work}
        return used

    def uses(self, project: str) -> Mapping[str, tuple[int, int]]:
        """Return the usage and the limit of each limited quota of the project, by quota name.

        Rate limits are not included.
        """
        limits, used = structs.asdict(self.allotment(project).quota), dict(self.used(project))
        if (stored := self.stored(project)) is not None:
            used |= {"stored_messages": stored.messages, "stored_bytes": stored.bytes}
        return {name: (count, limits[name]) for name, count in used.items() if limits.get(name)}

    def largest_uses(self) -> Mapping[str, LargestUse]:
        """Return, by quota name, the project that has used the largest fraction of its storage or metadata quota.

        The method does not read the store. It knows only projects whose writes this process has checked recently.
        """
        found: dict[str, LargestUse] = {}
        for project, name, used in chain(self._storage_quotas.recent(), self._metadata_quotas.recent()):
            allotment = self._allotments.peek(project, None, expired=True)
            if allotment is not None and (limit := getattr(allotment.quota, name)):
                found[name] = max(found.get(name, LargestUse(0.0, "")), LargestUse(used / limit, project))
        return found

    def _count(self, project: str, kind: str, limit: int) -> int:
        return sum(1 for _ in islice(self._documents_of(project, kind), limit))

    def _documents_of(self, project: str, kind: str) -> Iterator[Document]:
        now, marker = self._clock.now(), ""
        while True:
            page = self._documents.list(project, kind, "", marker, DOCUMENT_PAGE, now)
            yield from page.items
            if page.next is None or len(page.items) < DOCUMENT_PAGE:
                return
            marker = page.next


AnyQuotas = Quotas | NoQuotas
NO_QUOTAS: Final = NoQuotas()


def _dead_letter_ref(queue: QueueRef, name: object) -> list[QueueRef]:
    return [QueueRef(queue.project, name)] if isinstance(name, str) and name else []


def check_state(state: State, changes: bool) -> None:
    """Raise ``ProjectInactive`` if the project's state forbids the request. ``changes``: whether the request writes."""
    if state is State.SUSPENDED:
        raise ProjectInactive("The project is suspended.")
    if state is State.READ_ONLY and changes:
        raise ProjectInactive("The project is read-only.")
