# SPDX-License-Identifier: Apache-2.0
"""Fan-out cursors: how far the messages of a project's topic log have been copied to subscriptions.

A project's cursor is a document whose value is a sequence as a decimal number. Only projects with topic subscribers
have a cursor.
"""

from typing import Final

from zq.clock import Clock
from zq.errors import MetadataConflict
from zq.model.documents import Document, DocumentRef
from zq.model.topics import EVERYTHING, Pattern
from zq.storage.api import Storage

# Document kind.
CURSOR: Final = "following"
# A sequence beyond the end of every log.
MAX_SEQUENCE: Final = 2**62
MAX_ATTEMPTS: Final = 20


class Cursors:
    """The fan-out cursors of all projects. Each change is a compare-and-set on the cursor's version."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock

    def get_last_sequence(self, project: str) -> int:
        """Return the last sequence in the project's log."""
        return self._storage.topics.read(project, MAX_SEQUENCE, 1, Pattern(EVERYTHING)).last

    def get(self, project: str) -> Document | None:
        """Return the project's cursor, or None if the project has no topic subscribers."""
        return self._storage.documents.get(_document(project), self._clock.now())

    def move(self, project: str, position: int, version: str) -> bool:
        """Set the cursor to ``position`` if its version equals ``version``. If ``version`` is "", create the cursor.

        Return whether the cursor was set.
        """
        return self._storage.documents.put(_document(project), b"%d" % position, self._clock.now(), expected=version)

    def remove(self, project: str, version: str) -> bool:
        """Remove the cursor if its version equals ``version``. Return whether the cursor was removed."""
        return self._storage.documents.delete(_document(project), self._clock.now(), expected=version)

    def renew(self, project: str, first: int) -> None:
        """Give the cursor a new version, so that concurrent moves fail. If there is no cursor, create it at ``first``.

        Raises ``MetadataConflict`` after too many concurrent changes.
        """
        for _ in range(MAX_ATTEMPTS):
            cursor = self.get(project)
            if self.move(project, int(cursor.value) if cursor else first, cursor.version if cursor else ""):
                return
        raise MetadataConflict("The subscriptions were changed concurrently. Try again.")


def _document(project: str) -> DocumentRef:
    return DocumentRef(project, CURSOR, "log")
