# SPDX-License-Identifier: Apache-2.0
"""The quota and the state of each project: the deployment's defaults, and an administrator's settings for one project
(tenancy 5, 6).

These settings are a document of the deployment, ``("", "quota", project)``, which every server caches for ten seconds.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import islice
from typing import Final

import msgspec
from cachetools import FIFOCache
from msgspec import structs

from zq.clock import Clock
from zq.core.rates import Account, Rates
from zq.core.stored import FRESH, MOST_KNOWN, RETRY, LargeMetadata, Stored, beyond_free, exceeded
from zq.errors import MetadataConflict, NotAuthorized, NotBuilt, QuotaExceeded, Unavailable
from zq.limits import project_id, within
from zq.model import Draft, Page, QueueRef
from zq.model.documents import Document, DocumentRef
from zq.model.quotas import OVERHEAD, PROJECT, QUOTA, Project, Quota, State, Usage, Work
from zq.model.topics import TOPIC, TopicRef
from zq.storage.api import Storage
from zq.storage.concurrency import StripedLocks

LOG = logging.getLogger(__name__)
# Seconds after which a project that creates something is listed again: another server may have removed it.
NOTED: Final = 60.0
# Seconds for which a request waits at most for others of its project that create something of the same kind.
MAKERS_WAIT: Final = 10.0
# Documents read at a time, where they are counted.
STEP: Final = 200
# Projects in one page of a listing, by default and at most.
PAGE: Final = 20
MOST_PAGE: Final = 100
# The kind of the documents that list a project's tokens.
TOKEN: Final = "token"  # noqa: S105  (no password)
# The context of a step that needs no reservation.
NOTHING: Final = nullcontext()

_decoder: Final = msgspec.json.Decoder(Project)


class Allotment(msgspec.Struct, frozen=True):
    """The quota, state and account of one project. ``until``: moment of the monotonic clock when it is read again."""

    until: float
    quota: Quota
    state: State
    account: Account


class NoQuotas:
    """The quotas of a server without authentication: they bound nothing. See ``Quotas`` for each method."""

    are_enforced = False

    def admit_queue(self, _queue: QueueRef, _dead_letters: object = None) -> AbstractContextManager[None]:
        return NOTHING

    def admit_topic(self, _topic: TopicRef) -> AbstractContextManager[None]:
        return NOTHING

    def admit_targets(self, _queues: Collection[QueueRef]) -> AbstractContextManager[None]:
        return NOTHING

    def check_targets(self, _queues: Collection[QueueRef]) -> None:
        return

    def check_dead_letters(self, _queue: QueueRef, _name: object) -> None:
        return

    def admit_metadata(self, _project: str, _size: int, _former: int) -> None:
        return

    def admit_work(self, _project: str, _work: Work, _name: str) -> AbstractContextManager[QuotaExceeded | None]:
        return NOTHING

    def forget_work(self, _project: str, _work: Work, _name: str) -> None:
        return

    def max_subscriptions(self, _project: str) -> int:
        return 0

    def share_of(self, _project: str) -> int | None:
        return None

    def refusal(self, _project: str, _drafts: Sequence[Draft]) -> QuotaExceeded | None:
        return None


class Quotas:
    """The allotments of all projects. ``defaults``: for those that have no values of their own."""

    are_enforced = True

    def __init__(self, storage: Storage, clock: Clock, defaults: Quota, rates: Rates) -> None:
        self._storage = storage
        self._documents = storage.documents
        self._clock = clock
        self.defaults = defaults
        self._rates = rates
        self._lock = threading.Lock()
        self._makers = StripedLocks(MAKERS_WAIT)
        self._known: dict[str, Allotment] = {}
        # Queues, names of stages, fences and producers, and projects that are in the list of all, each with the moment
        # until which it is taken to be there.
        self._there: FIFOCache[tuple[str, ...], float] = FIFOCache(MOST_KNOWN)
        self.now = rates.now
        self.visits = rates.visits
        self._stored = Stored(storage, clock, rates.now)
        self._metadata = LargeMetadata(self._metadata_of, rates.now)

    def configure(self, defaults: Quota) -> None:
        """Apply other defaults from now on."""
        with self._lock:
            self.defaults = defaults
            self._known.clear()

    def of(self, project: str, moment: float | None = None) -> Allotment:
        """Return the project's allotment, at most ten seconds old; while the store is down, the last one known.

        ``moment``: the present, if the caller has read the clock. Raises ``Unavailable`` if none is known: the project
        may be suspended.
        """
        known = self._known.get(project)
        if known is not None and (moment or self.now()) < known.until:
            return known
        try:
            said = self.read(project)
        except Unavailable as absence:
            if known is None:
                raise
            LOG.debug("Quotas stay as they were known: %s", absence)
            return self._remember(project, structs.replace(known, until=self.now() + RETRY))
        quota = self.defaults.with_own(said.limits)
        account = self._rates.account(project, quota)
        return self._remember(project, Allotment(self.now() + FRESH, quota, said.state, account))

    def _remember(self, project: str, allotment: Allotment) -> Allotment:
        with self._lock:
            self._known.pop(project, None)
            if len(self._known) >= MOST_KNOWN:
                del self._known[next(iter(self._known))]  # the oldest
            self._known[project] = allotment
        return allotment

    # An administrator's settings.

    def read(self, project: str) -> Project:
        """Return the project's settings from the store; empty ones by default."""
        document = self._documents.get(DocumentRef("", QUOTA, project), self._clock.now())
        return _decoder.decode(document.value) if document else Project()

    def write(self, project: str, change: Callable[[Project], Project]) -> Project:
        """Change the project's settings in one step, and return the new ones. Raises ``MetadataConflict``."""
        ref = DocumentRef("", QUOTA, project_id(project))
        for _ in range(10):
            now = self._clock.now()
            document = self._documents.get(ref, now)
            said = change(_decoder.decode(document.value) if document else Project())
            version = document.version if document else ""
            if self._documents.put(ref, msgspec.json.encode(said), now, expected=version):
                self.forget(project)
                return said
        raise MetadataConflict("Others change the project at the same time. Try again.")

    def remove(self, project: str) -> None:
        """Remove the project's settings, and the project from the list."""
        for kind in (QUOTA, PROJECT):
            self._documents.delete(DocumentRef("", kind, project), self._clock.now())
        with self._lock:
            self._there.pop(("", PROJECT, project), None)
        self.forget(project)

    def forget(self, project: str) -> None:
        """Read the project's settings and usage anew."""
        with self._lock:
            self._known.pop(project, None)
        self._stored.forget(project)

    def list(self, marker: str, limit: int | None) -> Page[tuple[str, Project]]:
        """Return a page of the projects that have created something or have settings, in the order of ids."""
        size = PAGE if limit is None else within("limit", limit, 1, MOST_PAGE)
        now = self._clock.now()
        listed, stored = (self._documents.list("", kind, "", marker, size, now).items for kind in (PROJECT, QUOTA))
        settings = {each.ref.name: _decoder.decode(each.value) for each in stored}
        names = sorted({each.ref.name for each in listed} | settings.keys())[:size]
        return Page([(name, settings.get(name, Project())) for name in names], names[-1] if names else None)

    # Counted quotas: requests of one process that create things of one kind in one project take turns, so that each
    # counts the others' things.

    def admit_queue(self, queue: QueueRef, dead_letters: object = None) -> AbstractContextManager[None]:
        """Reserve room for a queue and for its dead-letter queue while the caller creates the queue.

        Queues that exist need no room. Raises ``QuotaExceeded``.
        """
        return self._making_queues([queue, *_named(queue, dead_letters)])

    def admit_targets(self, queues: Collection[QueueRef]) -> AbstractContextManager[None]:
        """Reserve room for the target queues that do not exist, while the caller moves messages to them.

        A cache of existing queues saves most moves the round trip and the lock. Raises ``QuotaExceeded``.
        """
        missing = self._missing(queues)
        return self._making_queues(missing) if missing else NOTHING

    def check_targets(self, queues: Collection[QueueRef]) -> None:
        """Raise ``QuotaExceeded`` if there is no room for those of the queues that do not exist yet."""
        if missing := self._missing(queues):
            self._note(missing[0].project)
            self._check_queues(missing)

    def check_dead_letters(self, queue: QueueRef, name: object) -> None:
        """Raise ``QuotaExceeded`` if there is no room for the queue's dead-letter queue, which a later claim creates
        unconditionally."""
        self.check_targets(_named(queue, name))

    @contextmanager
    def _making_queues(self, queues: Sequence[QueueRef]) -> Iterator[None]:
        project = queues[0].project
        self._note(project)
        if not self.of(project).quota.queues:
            yield
            return
        with self._makers.locked((project, "queues")):
            self._check_queues([queue for queue in set(queues) if self._storage.queues.get(queue) is None])
            yield

    def _missing(self, queues: Collection[QueueRef]) -> Sequence[QueueRef]:
        return [queue for queue in set(queues) if not self._is_there(queue)]

    def _check_queues(self, missing: Sequence[QueueRef]) -> None:
        if missing:
            project = missing[0].project
            most = self.of(project).quota.queues
            if most and self._storage.queues.count(project) + len(missing) > most:
                raise exceeded("queues", most)

    def _is_there(self, queue: QueueRef) -> bool:
        """Return whether the queue exists or did a moment ago; True without a quota of queues."""
        known, now = (queue.project, "queues", queue.name), self.now()
        if self._there.get(known, 0.0) > now:
            return True
        if self.of(queue.project).quota.queues and self._storage.queues.get(queue) is None:
            return False
        self._remember_there(known, now)
        return True

    def _remember_there(self, known: tuple[str, ...], now: float) -> None:
        with self._lock:
            self._there[known] = now + FRESH

    def _note(self, project: str) -> None:
        """List the project, since it creates something."""
        known, now = ("", PROJECT, project), self.now()
        if self._there.get(known, 0.0) <= now:
            self._documents.put(DocumentRef("", PROJECT, project), b"{}", self._clock.now(), expected="")
            self._remember_there(known, now + NOTED)

    @contextmanager
    def admit_topic(self, topic: TopicRef) -> Iterator[None]:
        """Reserve room for a topic while the caller creates it. Raises ``QuotaExceeded``."""
        self._note(topic.project)
        with self._makers.locked((topic.project, TOPIC)):
            most = self.of(topic.project).quota.topics
            if most and self._count(topic.project, TOPIC, most) >= most and not self._has_topic(topic):
                raise exceeded("topics", most)
            yield

    def admit_metadata(self, project: str, size: int, former: int) -> None:
        """Raise ``QuotaExceeded`` if a queue's or topic's metadata must not grow from ``former`` to ``size`` bytes."""
        self._metadata.take(project, size, former, self.of(project).quota.metadata_bytes)

    def _metadata_of(self, project: str) -> int:
        """Return the bytes of the project's metadata that count, as the store has them."""
        total, after = 0, ""
        while True:
            page = self._storage.queues.list(project, after, STEP)
            total += sum(beyond_free(len(queue.metadata)) for queue in page.items)
            if page.next is None or len(page.items) < STEP:
                break
            after = page.next
        return total + sum(beyond_free(len(topic.value)) for topic in self._documents_of(project, TOPIC))

    def _has_topic(self, topic: TopicRef) -> bool:
        return self._documents.get(DocumentRef(topic.project, TOPIC, topic.name), self._clock.now()) is not None

    def max_subscriptions(self, project: str) -> int:
        """Return the project's bound of subscriptions, 0 for none, and list the project."""
        self._note(project)
        return self.of(project).quota.subscriptions

    @contextmanager
    def admit_work(self, project: str, work: Work, name: str) -> Iterator[QuotaExceeded | None]:
        """Reserve room for a stage, fence or producer while the caller uses it.

        The context yields ``QuotaExceeded`` if the work is new and the project has too much of its kind, else None.
        """
        most = getattr(self.of(project).quota, work)
        known = (project, work, name)
        self._note(project)
        if not most or self._there.get(known, 0.0) > self.now():
            yield None
            return
        with self._makers.locked((project, work)):
            found = self._storage.transactions.count(project, work, name, self._clock.now())
            if not found.known:
                yield exceeded(work, most) if found.total >= most else None
                return
        self._remember_there(known, self.now())
        yield None

    def forget_work(self, project: str, work: Work, name: str) -> None:
        """Forget that this stage, fence or producer exists."""
        with self._lock:
            self._there.pop((project, work, name), None)

    def share_of(self, project: str) -> int:
        """Return the percentage of a process's waiters and streams that the project may hold."""
        return self.of(project).quota.share

    def refusal(self, project: str, drafts: Sequence[Draft]) -> QuotaExceeded | None:
        """Reserve the project's storage for the drafts. Return the refusal if they exceed its quota, else None."""
        quota = self.of(project).quota
        if not quota.stored_messages and not quota.stored_bytes:
            return None
        sizes = [draft.size for draft in drafts]  # a list is quicker
        size = sum(sizes) + OVERHEAD * len(drafts)
        return self._stored.take(project, len(drafts), size, quota)

    def stored(self, project: str) -> Usage | None:
        """Return the project's usage of the store; None if it is not known."""
        return self._storage.usage(project, self._clock.now())

    def used(self, project: str) -> Mapping[str, int]:
        """Return the exact counts of the project's queues, topics, tokens, stages, fences and producers."""
        used = {
            "queues": self._storage.queues.count(project),
            "topics": self._count(project, TOPIC, 1 << 53),
            "tokens": self._count(project, TOKEN, 1 << 53),
        }
        with suppress(NotBuilt):  # by a driver without transactions
            now, count = self._clock.now(), self._storage.transactions.count
            used |= {work.value: count(project, work, "", now).total for work in Work}
        return used

    def _count(self, project: str, kind: str, most: int) -> int:
        """Return how many documents of a kind the project has, about ``most`` at the most."""
        return sum(1 for _ in islice(self._documents_of(project, kind), most))

    def _documents_of(self, project: str, kind: str) -> Iterator[Document]:
        now, marker = self._clock.now(), ""
        while True:
            page = self._documents.list(project, kind, "", marker, STEP, now)
            yield from page.items
            if page.next is None or len(page.items) < STEP:
                return
            marker = page.next


AnyQuotas = Quotas | NoQuotas
NO_QUOTAS: Final = NoQuotas()


def _named(queue: QueueRef, name: object) -> list[QueueRef]:
    """Return the queue that another queue's metadata name, if they name one."""
    return [QueueRef(queue.project, name)] if isinstance(name, str) and name else []


def check_state(state: State, changes: bool) -> None:
    """Raise ``NotAuthorized`` if the project's state forbids a request. ``changes``: whether it does more than read."""
    if state is State.SUSPENDED:
        raise NotAuthorized("The project is suspended.")
    if state is State.READ_ONLY and changes:
        raise NotAuthorized("The project is read-only.")
