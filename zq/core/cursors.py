# SPDX-License-Identifier: Apache-2.0
"""Up to where the logs of topics were followed for their subscribers: a document of each project, decimal digits."""

from typing import Final

from zq.clock import Clock
from zq.errors import MetadataConflict
from zq.model.documents import Document, DocumentRef
from zq.model.topics import EVERYTHING, Pattern
from zq.storage.api import Storage

# The kind of the documents.
CURSOR: Final = "following"
# A sequence above all that are given.
BEYOND: Final = 2**62
TRIES: Final = 20


class Cursors:
    """Those of all projects. A version that somebody has read is good for one change."""

    def __init__(self, storage: Storage, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock

    def last(self, project: str) -> int:
        """The last sequence of the log."""
        return self._storage.topics.read(project, BEYOND, 1, Pattern(EVERYTHING)).last

    def get(self, project: str) -> Document | None:
        """The cursor; None where nobody follows."""
        return self._storage.documents.get(_document(project), self._clock.now())

    def move(self, project: str, position: int, version: str) -> bool:
        """Whether it was of that version; "" = there was none."""
        return self._storage.documents.put(_document(project), b"%d" % position, self._clock.now(), expected=version)

    def remove(self, project: str, version: str) -> bool:
        """Whether it was of that version."""
        return self._storage.documents.delete(_document(project), self._clock.now(), expected=version)

    def renew(self, project: str, first: int) -> None:
        """Begin at ``first`` where there is none, else give it another version, so that whoever is about to move it
        fails."""
        for _ in range(TRIES):
            cursor = self.get(project)
            if self.move(project, int(cursor.value) if cursor else first, cursor.version if cursor else ""):
                return
        raise MetadataConflict("Others change the subscriptions at the same time. Try again.")


def _document(project: str) -> DocumentRef:
    return DocumentRef(project, CURSOR, "log")
