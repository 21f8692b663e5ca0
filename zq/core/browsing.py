# SPDX-License-Identifier: Apache-2.0
"""Read-only operations: list messages by state, and find a message by id."""

import re
from collections.abc import Callable
from operator import attrgetter
from typing import Final

from msgspec import structs

from zq.clock import Clock
from zq.core.encryption import Sealing
from zq.core.paging import read_page
from zq.core.values import ReadResult
from zq.errors import InvalidParameter, MessageNotFound
from zq.model import BrowsePage, LocatedMessage, Message, Page, Position, QueueRef, State
from zq.model.limits import DEFAULT_PAGE, Limits, check_range
from zq.storage.api import Storage
from zq.wire.numbers import MAX_BODY_NUMBER

# Marker of a page of messages in one state.
POSITION: Final = re.compile(r"[0-9]{1,19}\.[0-9]{1,19}\.[0-9]{1,19}", re.ASCII)
# Read size of a listing that shows only the start of each body, as a multiple of the response size limit.
READ_FOR_STARTS: Final = 4


class Browsing:
    def __init__(self, storage: Storage, clock: Clock, limits: Limits, sealing: Sealing) -> None:
        self._storage = storage
        self._clock = clock
        self._limits = limits
        self._sealing = sealing

    def browse(
        self, queue: QueueRef, state: str, marker: str, limit: int | None, starts: bool
    ) -> ReadResult[Page[Message]]:
        """Return a page of the queue's messages in one state, such as delayed. Omit messages that cannot be decrypted.

        ``starts``: whether the client receives only the start of each body. A page may then have more messages.
        """
        if state not in set(State):
            raise InvalidParameter(f"state must be one of {', '.join(State)}.")
        size = DEFAULT_PAGE if limit is None else check_range("limit", limit, 1, self._limits.max_messages_per_page)
        after, now = _position(marker), self._clock.now()
        max_bytes = self._limits.max_answer_bytes * (READ_FOR_STARTS if starts else 1)

        def read(marker: Position, limit: int, max_bytes: int) -> BrowsePage:
            return self._storage.messages.browse(queue, State(state), marker, limit, now, max_bytes)

        items, position = read_page(read, after, size, max_bytes, attrgetter("size"))
        shown = self._sealing.decrypt_all(queue, list(items))
        return ReadResult(Page(shown, None if position is None else ".".join(map(str, position))), now)

    def locate(self, project: str, message: str, may_see: Callable[[str], bool]) -> ReadResult[LocatedMessage]:
        """Return the message with this id, or its latest history entry, from a queue that ``may_see`` permits."""
        now = self._clock.now()
        found = self._storage.locate(project, message, now)
        if found is None or not may_see(found.queue.name):
            raise MessageNotFound("There is no such message in the project.")
        opened = self._sealing.decrypt(found.queue, found.entry.message)
        return ReadResult(found._replace(entry=structs.replace(found.entry, message=opened)), now)


def _position(marker: str) -> Position:
    if not marker:
        return Position()
    if not POSITION.fullmatch(marker):
        raise InvalidParameter("marker is not valid for this listing; use the marker in the link to the next page.")
    return Position(*(min(int(number), MAX_BODY_NUMBER) for number in marker.split(".")))
