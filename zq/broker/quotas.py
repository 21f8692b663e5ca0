# SPDX-License-Identifier: Apache-2.0
"""What each project may use, and whether it may do anything at all: the defaults of the deployment, and what an
administrator has said of one project (tenancy 5, 6).

That is a document of the deployment, ``("", "quota", project)``, which every server remembers for ten seconds.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from cachetools import FIFOCache
from msgspec import structs

from zq.broker.rates import Account, Rates
from zq.broker.topics import KIND as TOPIC
from zq.clock import Clock
from zq.errors import MetadataConflict, NotAuthorized, NotBuilt, QuotaExceeded, Unavailable
from zq.limits import project_id, within
from zq.model import Draft, Page, QueueRef
from zq.model.documents import DocumentRef
from zq.model.quotas import OVERHEAD, PROJECT, QUOTA, Project, Quota, State, Usage, Work
from zq.model.topics import TopicRef
from zq.storage.api import Storage

LOG = logging.getLogger(__name__)
# Seconds for which a project's own values are remembered.
FRESH: Final = 10.0
# Seconds for which a project that makes things is not noted again, besides: another server may have deleted it.
NOTED: Final = 60.0
# Seconds after which the store is asked again if it did not answer.
RETRY: Final = 1.0
# Projects that one process remembers.
MOST_KNOWN: Final = 10_000
# Documents read at a time, where they are counted.
STEP: Final = 200
# Projects in one page of a listing, by default and at most.
PAGE: Final = 20
MOST_PAGE: Final = 100
# The kind of the documents that list a project's tokens.
TOKEN: Final = "token"  # noqa: S105  (no password)

_decoder: Final = msgspec.json.Decoder(Project)


class Allotment(msgspec.Struct, frozen=True):
    """What one project may use and do. ``until``: of the monotonic clock, when it is to be looked up again."""

    until: float
    quota: Quota
    state: State
    account: Account


class Quotas:
    """The allotments of all projects. ``defaults``: for those that have no values of their own."""

    def __init__(self, storage: Storage, clock: Clock, defaults: Quota, rates: Rates) -> None:
        self._storage = storage
        self._documents = storage.documents
        self._clock = clock
        self.defaults = defaults
        self._rates = rates
        self._lock = threading.Lock()
        self._known: dict[str, Allotment] = {}
        # Queues, names of stages, fences and producers, and projects that are in the list of all, each with the moment
        # until which it is taken to be there.
        self._there: FIFOCache[tuple[str, ...], float] = FIFOCache(MOST_KNOWN)
        self.now = rates.now
        self._stored = Stored(storage, clock, rates.now)

    def configure(self, defaults: Quota) -> None:
        """These hold from now on."""
        with self._lock:
            self.defaults = defaults
            self._known.clear()

    def of(self, project: str, moment: float | None = None) -> Allotment:
        """The project's allotment, at most ten seconds old; where the store does not answer, the last one known.

        ``moment``: now, for those who know it. Raises ``Unavailable`` if none is known: who knows whether the project
        may do anything.
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

    # What an administrator says.

    def read(self, project: str) -> Project:
        """What was said of the project, as the store has it; nothing by default."""
        document = self._documents.get(DocumentRef("", QUOTA, project), self._clock.now())
        return _decoder.decode(document.value) if document else Project()

    def write(self, project: str, change: Callable[[Project], Project]) -> Project:
        """Say something else of the project, in one step; what is said now. Raises ``MetadataConflict``."""
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
        """Forget the project, and what was said of it."""
        for kind in (QUOTA, PROJECT):
            self._documents.delete(DocumentRef("", kind, project), self._clock.now())
        with self._lock:
            self._there.pop(("", PROJECT, project), None)
        self.forget(project)

    def forget(self, project: str) -> None:
        """Look the project up again."""
        with self._lock:
            self._known.pop(project, None)
        self._stored.forget(project)

    def list(self, marker: str, limit: int | None) -> Page[tuple[str, Project]]:
        """A page of the projects that have made something, or of which something was said, by their ids."""
        size = PAGE if limit is None else within("limit", limit, 1, MOST_PAGE)
        now = self._clock.now()
        made, said = (self._documents.list("", kind, "", marker, size, now).items for kind in (PROJECT, QUOTA))
        told = {each.ref.name: _decoder.decode(each.value) for each in said}
        names = sorted({each.ref.name for each in made} | told.keys())[:size]
        return Page([(name, told.get(name, Project())) for name in names], names[-1] if names else None)

    # What is counted where it is made.

    def admit_queue(self, queue: QueueRef) -> None:
        """Let a queue be made that is not there. Raises ``QuotaExceeded``."""
        self._admit_queues(queue.project, 1)

    def admit_targets(self, queues: Collection[QueueRef], beside: int = 0) -> None:
        """Let messages be moved to queues, which are made if they are not there, ``beside`` so many others. Raises
        ``QuotaExceeded``.

        Queues that were there are remembered for a while, so that not every move costs a question.
        """
        missing = [queue for queue in queues if not self._is_there(queue)]
        if missing:
            self._admit_queues(missing[0].project, len(missing) + beside)

    def admit_dead_letters(self, queue: QueueRef, name: object, beside: int) -> None:
        """Let a queue name another one for its dead letters: the claim that will make it is never refused."""
        if isinstance(name, str) and name:
            self.admit_targets([QueueRef(queue.project, name)], beside)

    def _admit_queues(self, project: str, more: int) -> None:
        self._note(project)
        most = self.of(project).quota.queues
        if most and self._storage.queues.count(project) + more > most:
            raise exceeded("queues", most)

    def _is_there(self, queue: QueueRef) -> bool:
        """Whether the queue exists, or did a moment ago. Where nothing bounds queues, all are taken to exist."""
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
        """Have the project listed: it makes something."""
        known, now = ("", PROJECT, project), self.now()
        if self._there.get(known, 0.0) <= now:
            self._documents.put(DocumentRef("", PROJECT, project), b"{}", self._clock.now(), expected="")
            self._remember_there(known, now + NOTED)

    def admit_topic(self, topic: TopicRef) -> None:
        """Let a topic be made that is not there. Raises ``QuotaExceeded``."""
        self._note(topic.project)
        most = self.of(topic.project).quota.topics
        if most and self._count(topic.project, TOPIC, most) >= most:
            raise exceeded("topics", most)

    def most_subscriptions(self, project: str) -> int:
        """How many the project may have; 0 = any number. It is listed from now on."""
        self._note(project)
        return self.of(project).quota.subscriptions

    def work_refusal(self, project: str, work: Work, name: str) -> QuotaExceeded | None:
        """Why the project may not use this stage, fence or producer: it is not there, and would be one too many."""
        most = getattr(self.of(project).quota, work)
        known, now = (project, work, name), self.now()
        self._note(project)
        if not most or self._there.get(known, 0.0) > now:
            return None
        found = self._storage.transactions.count(project, work, name, self._clock.now())
        if found.known:
            self._remember_there(known, now)
            return None
        return exceeded(work, most) if found.total >= most else None

    def work_ended(self, project: str, work: Work, name: str) -> None:
        """It is not there any more."""
        with self._lock:
            self._there.pop((project, work, name), None)

    def share_of(self, project: str) -> int:
        """Percent of waiters and streams that the project may take of a process."""
        return self.of(project).quota.share

    def refusal(self, project: str, drafts: Sequence[Draft]) -> QuotaExceeded | None:
        """Why the project may not store so much more; None if it may, and is taken to do so."""
        quota = self.of(project).quota
        if not quota.stored_messages and not quota.stored_bytes:
            return None
        size = sum([len(draft.body) for draft in drafts]) + OVERHEAD * len(drafts)  # a list is quicker
        return self._stored.take(project, len(drafts), size, quota)

    def stored(self, project: str) -> Usage | None:
        """What the project has stored; None = not known."""
        return self._storage.usage(project, self._clock.now())

    def used(self, project: str) -> Mapping[str, int]:
        """How much the project has of what can be counted exactly."""
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
        """How many documents of a kind the project has, up to ``most``."""
        now, marker, count = self._clock.now(), "", 0
        while count < most:
            page = self._documents.list(project, kind, "", marker, STEP, now)
            count += len(page.items)
            if page.next is None or len(page.items) < STEP:
                break
            marker = page.next
        return count


class StoredUsage:
    """What a project had stored at a moment of the monotonic clock, and what it was allowed since."""

    __slots__ = ("bytes", "messages", "moment", "until")

    def __init__(self, usage: Usage, moment: float, quota: Quota) -> None:
        self.messages, self.bytes, self.moment = usage.messages, usage.bytes, moment
        near = 0 < quota.stored_messages <= 2 * usage.messages or 0 < quota.stored_bytes <= 2 * usage.bytes
        self.until = moment + (RETRY if near else FRESH)
        """When it is to be looked up again: soon, once half of a quota is used."""

    def add(self, messages: int, size: int, quota: Quota) -> QuotaExceeded | None:
        """Count so much more, or tell why not."""
        messages += self.messages
        size += self.bytes
        if messages > quota.stored_messages > 0:
            return exceeded("stored messages", quota.stored_messages)
        if size > quota.stored_bytes > 0:
            return exceeded("stored bytes", quota.stored_bytes)
        self.messages, self.bytes = messages, size
        return None


class Stored:
    """Bounds what projects store, by what the store says now and then and what this process has let in since.

    What other processes let in meanwhile is not seen: so much a project may have too much.
    """

    def __init__(self, storage: Storage, clock: Clock, monotonic: Callable[[], float]) -> None:
        self._storage = storage
        self._clock = clock
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._held: FIFOCache[str, StoredUsage] = FIFOCache(MOST_KNOWN)

    def take(self, project: str, messages: int, size: int, quota: Quota) -> QuotaExceeded | None:
        """Count so much more, or tell why not. Where the store does not know, nothing is bounded."""
        now = self._monotonic()
        held = self._held.get(project)
        if held is None or now >= held.until:
            held = self._look(project, now, quota)
        if held is None:
            return None
        with self._lock:
            refusal = held.add(messages, size, quota)
        if refusal is not None and now - held.moment >= RETRY:
            held = self._look(project, now, quota)
            with self._lock:
                return None if held is None else held.add(messages, size, quota)
        return refusal

    def _look(self, project: str, now: float, quota: Quota) -> StoredUsage | None:
        usage = self._storage.usage(project, self._clock.now())
        if usage is None:
            return None
        held = StoredUsage(usage, now, quota)
        with self._lock:
            self._held[project] = held
        return held

    def forget(self, project: str) -> None:
        """Read again."""
        with self._lock:
            self._held.pop(project, None)


def exceeded(name: str, most: int) -> QuotaExceeded:
    """The refusal of one more."""
    return QuotaExceeded(f"The project may have {most} {name}.")


def refuse_no_work(_project: str, _work: Work, _name: str) -> QuotaExceeded | None:
    """Nobody is bounded."""
    return None


def refuse_nothing(_project: str, _drafts: Sequence[Draft]) -> QuotaExceeded | None:
    """Nobody is bounded."""
    return None


def check_state(state: State, changes: bool) -> None:
    """Raise ``NotAuthorized`` where the project may not do that. ``changes``: it is more than held."""
    if state is State.SUSPENDED:
        raise NotAuthorized("The project is suspended.")
    if state is State.READ_ONLY and changes:
        raise NotAuthorized("The project is read-only.")
