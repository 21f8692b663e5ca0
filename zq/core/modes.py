# SPDX-License-Identifier: Apache-2.0
"""The service mode (normal, no posts, or read-only) and checks of requests against it (operations contract, section 9).

An administrator sets the mode for all servers of a store. The mode is stored in a document, which the servers read
every few seconds. A server with little free disk space refuses posts even in normal mode.
"""

from typing import Final

import msgspec

from zq.clock import Clock
from zq.errors import NoPosts, ReadOnly
from zq.model.documents import DocumentRef
from zq.model.modes import Mode
from zq.storage.api import DocumentController

# The document that stores the mode.
REF: Final = DocumentRef("", "mode", "")
NO_POSTS_MODE: Final = "The mode of this service is no_posts, so it accepts no messages; nothing has changed."
LOW_SPACE: Final = "The store has little free disk space, so it accepts no messages; nothing has changed."


class ModeRecord(msgspec.Struct, frozen=True):
    """The content of the document that stores the service mode."""

    mode: Mode


_decoder: Final = msgspec.json.Decoder(ModeRecord)


class Modes:
    """The service mode, as last read by this process."""

    def __init__(self, documents: DocumentController, clock: Clock) -> None:
        self._documents = documents
        self._clock = clock
        self.stored = Mode.NORMAL
        """The mode that an administrator has set."""
        self.has_low_space = False
        self.current = Mode.NORMAL
        """The mode that this process applies: ``stored``, or ``NO_POSTS`` if disk space is low in normal mode."""

    def refresh(self, has_low_space: bool) -> None:
        """Read the mode from the store and apply it. Raises ``Unavailable`` if the store is unavailable.

        ``has_low_space`` (too little free space for posts) takes effect even if the store is unavailable.
        """
        self.has_low_space = has_low_space
        self._apply()
        document = self._documents.get(REF, self._clock.now())
        self.stored = Mode.NORMAL if document is None else _decoder.decode(document.value).mode
        self._apply()

    def set(self, mode: Mode) -> None:
        """Store the mode for all servers."""
        self._documents.put(REF, msgspec.json.encode(ModeRecord(mode)), self._clock.now())
        self.stored = mode
        self._apply()

    def check_change(self) -> None:
        """Raise ``ReadOnly`` if the mode forbids changes."""
        if self.current is Mode.READ_ONLY:
            raise ReadOnly

    def check_post(self) -> None:
        """Raise ``ReadOnly`` or ``NoPosts`` if the mode forbids posts."""
        if self.current is not Mode.NORMAL:
            self.check_change()
            raise NoPosts(LOW_SPACE if self.stored is Mode.NORMAL else NO_POSTS_MODE)

    def _apply(self) -> None:
        is_full = self.has_low_space and self.stored is Mode.NORMAL
        self.current = Mode.NO_POSTS if is_full else self.stored
