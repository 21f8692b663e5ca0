# SPDX-License-Identifier: Apache-2.0
"""What each project may use, and whether it may do anything at all: the defaults of the deployment, and what an
administrator has said of one project (tenancy 5, 6).

That is a document of the deployment, ``("", "quota", project)``, which every server remembers for ten seconds.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import msgspec
from cachetools import FIFOCache
from msgspec import structs

from zq.broker.queues import Queues
from zq.broker.rates import Account, Rates
from zq.broker.topics import KIND as TOPIC
from zq.broker.topics import Topics
from zq.clock import Clock
from zq.errors import MetadataConflict, NotAuthorized, QuotaExceeded, Unavailable
from zq.limits import project_id, within
from zq.model import Draft, Page, QueueRef
from zq.model.documents import DocumentRef
from zq.model.quotas import OVERHEAD, QUOTA, Project, Quota, State, Usage
from zq.model.topics import TopicRef
from zq.storage.api import Storage

LOG = logging.getLogger(__name__)
# Seconds for which a project's own values are remembered.
FRESH: Final = 10.0
# Seconds after which the store is asked again if it did not answer.
RETRY: Final = 1.0
# Projects that one process remembers.
MOST_KNOWN: Final = 10_000
# Documents read at a time, where they are counted.
STEP: Final = 200
# Projects in one page of a listing, by default and at most.
PAGE: Final = 20
MOST_PAGE: Final = 100
# The kind of the notes by which servers find which projects one of them has begun to delete.
DELETION: Final = "deletion"
# Queues and topics that go in one step of that.
AT_ONCE: Final = 20
# Seconds between two looks for such notes.
LOOK: Final = 5.0
# The kind of the documents that list a project's tokens.
TOKEN: Final = "token"  # noqa: S105  (no password)
# Documents of the deployment that belong to a token, besides the one in its project.
OF_TOKENS: Final = (TOKEN, "token-used")

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
        # Queues, each with the moment until which it is taken to be there.
        self._there: FIFOCache[QueueRef, float] = FIFOCache(MOST_KNOWN)
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
        """Forget what was said of the project."""
        self._documents.delete(DocumentRef("", QUOTA, project), self._clock.now())
        self.forget(project)

    def forget(self, project: str) -> None:
        """Look the project up again."""
        with self._lock:
            self._known.pop(project, None)
        self._stored.forget(project)

    def list(self, marker: str, limit: int | None) -> Page[tuple[str, Project]]:
        """A page of the projects of which something was said, by their ids."""
        size = PAGE if limit is None else within("limit", limit, 1, MOST_PAGE)
        page = self._documents.list("", QUOTA, "", marker, size, self._clock.now())
        return Page([(each.ref.name, _decoder.decode(each.value)) for each in page.items], page.next)

    # What is counted where it is made.

    def admit_queue(self, queue: QueueRef) -> None:
        """Let a queue be made that is not there. Raises ``QuotaExceeded``."""
        most = self.of(queue.project).quota.queues
        if most and self._storage.queues.count(queue.project) >= most:
            raise exceeded("queues", most)

    def admit_target(self, queue: QueueRef) -> None:
        """Let messages be moved to a queue, which is made if it is not there. Raises ``QuotaExceeded``.

        Queues that were there are remembered for a while, so that not every move costs a question.
        """
        now = self.now()
        if self._there.get(queue, 0.0) > now or not self.of(queue.project).quota.queues:
            return
        if self._storage.queues.get(queue) is None:
            self.admit_queue(queue)
        else:
            with self._lock:
                self._there[queue] = now + FRESH

    def admit_topic(self, topic: TopicRef) -> None:
        """Let a topic be made that is not there. Raises ``QuotaExceeded``."""
        most = self.of(topic.project).quota.topics
        if most and self._count(topic.project, TOPIC, most) >= most:
            raise exceeded("topics", most)

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
        return {
            "queues": self._storage.queues.count(project),
            "topics": self._count(project, TOPIC, 1 << 53),
            "tokens": self._count(project, TOKEN, 1 << 53),
        }

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


class Removal:
    """Deletes projects: all that is their own, in steps, by whichever server finds it.

    The project is suspended first, so that nobody makes anything new; what says so goes last, and only when nothing is
    left. Stages, fences and producers go by their own time.
    """

    def __init__(self, storage: Storage, clock: Clock, queues: Queues, topics: Topics) -> None:
        self._storage = storage
        self._documents = storage.documents
        self._clock = clock
        self._queues = queues
        self._topics = topics
        self._looked = 0.0

    def begin(self, quotas: Quotas, project: str) -> None:
        """Suspend the project and delete a first part of it. May be called again."""
        note = DocumentRef("", DELETION, project_id(project))
        self._documents.put(note, b"", self._clock.now())
        quotas.write(project, lambda said: structs.replace(said, state=State.SUSPENDED, deleting=True))
        self.step(quotas, project)

    def step(self, quotas: Quotas, project: str) -> bool:
        """Delete one part more; whether anything may be left."""
        left = [self._step_queues(project), self._step_topics(project), self._step_tokens(project)]
        if any(left):
            return True
        quotas.remove(project)
        self._documents.delete(DocumentRef("", DELETION, project), self._clock.now())
        return False

    def resume(self, quotas: Quotas | None) -> None:
        """Go on with what was begun, by any server: to be called every second."""
        if quotas is None or time.monotonic() - self._looked < LOOK:
            return
        self._looked = time.monotonic()
        with suppress(Unavailable):
            for project in self._begun():
                while self.step(quotas, project):
                    pass

    def _begun(self) -> Iterator[str]:
        page = self._documents.list("", DELETION, "", "", STEP, self._clock.now())
        return (document.ref.name for document in page.items)

    def _step_queues(self, project: str) -> bool:
        found = self._storage.queues.list(project, "", AT_ONCE).items
        for queue in found:
            self._queues.delete(QueueRef(project, queue.ref.name))
        return bool(found)

    def _step_topics(self, project: str) -> bool:
        found = self._topics.list(project, "", AT_ONCE).items
        for name, _ in found:
            self._topics.delete(TopicRef(project, name))
        return bool(found)

    def _step_tokens(self, project: str) -> bool:
        now = self._clock.now()
        found = self._documents.list(project, TOKEN, "", "", STEP, now).items
        for document in found:
            for kind in OF_TOKENS:
                self._documents.delete(DocumentRef("", kind, document.ref.name), now)
            self._documents.delete(document.ref, now)
        return bool(found)


def exceeded(name: str, most: int) -> QuotaExceeded:
    """The refusal of one more."""
    return QuotaExceeded(f"The project may have {most} {name}.")


def refuse_nothing(_project: str, _drafts: Sequence[Draft]) -> QuotaExceeded | None:
    """Nobody is bounded."""
    return None


def check_state(state: State, changes: bool) -> None:
    """Raise ``NotAuthorized`` where the project may not do that. ``changes``: it is more than held."""
    if state is State.SUSPENDED:
        raise NotAuthorized("The project is suspended.")
    if state is State.READ_ONLY and changes:
        raise NotAuthorized("The project is read-only.")
