# SPDX-License-Identifier: Apache-2.0
"""The cursors of the fan-out in topic logs.

Each project with subscribers of topics has one document, which holds the cursor as decimal digits.
"""

from typing import Final

from zq.clock import Clock
from zq.errors import MetadataConflict
from zq.model.documents import Document, DocumentRef
from zq.model.topics import EVERYTHING, Pattern
from zq.storage.api import Storage

# The kind of the documents.
CURSOR: Final = "following"
# A sequence above every sequence that the store assigns.
BEYOND: Final = 2**62
MAX_ATTEMPTS: Final = 20


class Cursors:
    """The cursors of all projects. Each change assigns a new version, so a version that was read permits one change."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock

    def last(self, project: str) -> int:
        """Return the last sequence of the project's log."""
        return self._storage.topics.read(project, BEYOND, 1, Pattern(EVERYTHING)).last

    def get(self, project: str) -> Document | None:
        """Return the cursor; None if the log has no subscribers."""
        return self._storage.documents.get(_document(project), self._clock.now())

    def move(self, project: str, position: int, version: str) -> bool:
        """Set the cursor if its version is ``version`` ("" if there is no cursor). Return whether it was set."""
        return self._storage.documents.put(_document(project), b"%d" % position, self._clock.now(), expected=version)

    def remove(self, project: str, version: str) -> bool:
        """Remove the cursor if its version is ``version``. Return whether it was removed."""
        return self._storage.documents.delete(_document(project), self._clock.now(), expected=version)

    def renew(self, project: str, first: int) -> None:
        """Assign the cursor a new version, so that a concurrent move fails. Create a missing cursor at ``first``.

        Raises ``MetadataConflict`` if too many concurrent changes interfere.
        """
        for _ in range(MAX_ATTEMPTS):
            cursor = self.get(project)
            if self.move(project, int(cursor.value) if cursor else first, cursor.version if cursor else ""):
                return
        raise MetadataConflict("Others change the subscriptions at the same time. Try again.")


def _document(project: str) -> DocumentRef:
    return DocumentRef(project, CURSOR, "log")
