# SPDX-License-Identifier: Apache-2.0
"""Deletion of projects with all their data (tenancy contract, section 5)."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from msgspec import structs

from zq.clock import Clock
from zq.core.data_keys import DATA_KEYS_KIND as DATA_KEYS
from zq.core.extensions import OwnedDocuments
from zq.core.followers import Followers
from zq.core.queues import Queues
from zq.core.quotas import DOCUMENT_PAGE, TOKEN, Quotas
from zq.core.topics import Topics
from zq.errors import Unavailable
from zq.model import QueueRef
from zq.model.documents import DocumentRef
from zq.model.limits import project_id
from zq.model.pools import FLAVOR
from zq.model.quotas import State
from zq.model.topics import TopicRef
from zq.storage.api import Storage

# Kind of the documents that record which projects are being deleted.
DELETION: Final = "deletion"
# Number of queues or topics that one step deletes.
STEP_SIZE: Final = 20
# Seconds between two polls for deletions in progress.
POLL_INTERVAL: Final = 5.0
# Kinds of the deployment-wide documents that exist for each token, with the same name as the token's own document.
TOKEN_KINDS: Final = (TOKEN, "token-used")


class Removal:
    """Deletion of projects in steps. Any server may continue a deletion.

    The project is suspended first, so that its clients cannot create anything. The settings that suspend the project
    are deleted after all data. Transaction objects are not deleted: stages and producers expire, and fences are kept.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        queues: Queues,
        topics: Topics,
        followers: Followers,
        owned_documents: Sequence[OwnedDocuments] = (),
    ) -> None:
        self._owned_documents = OwnedDocuments(TOKEN, TOKEN_KINDS), *owned_documents
        self._storage = storage
        self._followers = followers
        self._documents = storage.documents
        self._clock = clock
        self._queues = queues
        self._topics = topics
        self._polled = 0.0

    def begin(self, quotas: Quotas, project: str) -> None:
        """Suspend the project and run the first step of its deletion. Idempotent."""
        note = DocumentRef("", DELETION, project_id(project))
        self._documents.put(note, b"", self._clock.now())
        quotas.write(project, lambda settings: structs.replace(settings, state=State.SUSPENDED, deleting=True))
        self.step(quotas, project)

    def step(self, quotas: Quotas, project: str) -> bool:
        """Run one step of the deletion. Return whether more steps may be needed."""
        steps = self._followers.remove, self._step_queues, self._step_topics, self._step_flavors
        owned = self._owned_documents
        if any(step(project) for step in steps) or any(self._step_documents(project, each) for each in owned):
            return True
        # The data keys are deleted last, because messages cannot be decrypted without them.
        self._documents.delete(DocumentRef("", DATA_KEYS, project), self._clock.now())
        quotas.remove(project)
        self._documents.delete(DocumentRef("", DELETION, project), self._clock.now())
        return False

    def resume(self, quotas: Quotas | None) -> None:
        """Continue all deletions in progress. Must be called once a second."""
        if quotas is None or time.monotonic() - self._polled < POLL_INTERVAL:
            return
        self._polled = time.monotonic()
        with suppress(Unavailable):
            for project in self._begun():
                while self.step(quotas, project):
                    pass

    def _begun(self) -> Iterator[str]:
        page = self._documents.list("", DELETION, "", "", DOCUMENT_PAGE, self._clock.now())
        return (document.ref.name for document in page.items)

    def _step_flavors(self, project: str) -> bool:
        found = self._documents.list(project, FLAVOR, "", "", DOCUMENT_PAGE, self._clock.now()).items
        for document in found:
            self._documents.delete(document.ref, self._clock.now())
        return bool(found)

    def _step_queues(self, project: str) -> bool:
        found = self._storage.queues.list(project, "", STEP_SIZE).items
        for queue in found:
            self._queues.delete(QueueRef(project, queue.ref.name))
        return bool(found)

    def _step_topics(self, project: str) -> bool:
        found = self._topics.list(project, "", STEP_SIZE).items
        for name, _ in found:
            self._topics.delete(TopicRef(project, name))
        return bool(found)

    def _step_documents(self, project: str, owned: OwnedDocuments) -> bool:
        """Delete a page of the project's documents of one kind. Return whether the page had documents."""
        now = self._clock.now()
        found = self._documents.list(project, owned.kind, "", "", DOCUMENT_PAGE, now).items
        for document in found:
            for kind in owned.deployment_kinds:
                self._documents.delete(DocumentRef("", kind, document.ref.name), now)
            self._documents.delete(document.ref, now)
        return bool(found)
