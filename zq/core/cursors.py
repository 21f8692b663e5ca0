# SPDX-License-Identifier: Apache-2.0
"""The fan-out cursor of each project: the log position up to which notices for topic subscribers were created.

It is stored as a document with decimal digits.
"""

from typing import Final

from zq.clock import Clock
from zq.errors import MetadataConflict
from zq.model.documents import Document, DocumentRef
from zq.model.topics import EVERYTHING, Pattern
from zq.storage.api import Storage

# Kind of the documents.
CURSOR: Final = "following"
# A sequence that is greater than every assigned one.
BEYOND: Final = 2**62
# Attempts of a compare-and-set.
MAX_ATTEMPTS: Final = 20


class Cursors:
    """The fan-out cursors of all projects, changed by compare-and-set on the document's version."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock

    def last(self, project: str) -> int:
        """Return the last sequence of the project's log."""
        return self._storage.topics.read(project, BEYOND, 1, Pattern(EVERYTHING)).last

    def get(self, project: str) -> Document | None:
        """Return the cursor, or ``None`` if the project has no topic subscriptions."""
        return self._storage.documents.get(_document(project), self._clock.now())

    def move(self, project: str, position: int, version: str) -> bool:
        """Set the cursor if it still has ``version`` ("" = it does not exist). Return whether it was set."""
        return self._storage.documents.put(_document(project), b"%d" % position, self._clock.now(), expected=version)

    def remove(self, project: str, version: str) -> bool:
        """Delete the cursor if it still has ``version``. Return whether it was deleted."""
        return self._storage.documents.delete(_document(project), self._clock.now(), expected=version)

    def renew(self, project: str, first: int) -> None:
        """Create the cursor at ``first``, or give an existing one a new version so that concurrent moves fail."""
        for _ in range(MAX_ATTEMPTS):
            cursor = self.get(project)
            if self.move(project, int(cursor.value) if cursor else first, cursor.version if cursor else ""):
                return
        raise MetadataConflict("Others change the subscriptions at the same time. Try again.")


def _document(project: str) -> DocumentRef:
    return DocumentRef(project, CURSOR, "log")
